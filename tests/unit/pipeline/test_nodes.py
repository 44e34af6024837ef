"""What nodes, endpoints and policies are by themselves."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from queenstream.core.windows import Count, Session, Sliding, Tumbling
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import (
    Cassandra,
    Endpoint,
    Files,
    Function,
    Generator,
    Kafka,
    Memory,
    Postgres,
    Queue,
    Sink,
    Source,
    Stream,
)
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node, Place, caller
from queenstream.pipeline.policies import Backpressure, DeadLetters, ErrorPolicy, policy_of, retry
from queenstream.pipeline.shorthand import count, session, sliding, tumbling

NODES = [each for _, each in inspect.getmembers(nodes, inspect.isclass) if issubclass(each, Node)]


@pytest.mark.parametrize("cls", NODES)
def test_nodes_are_frozen_and_equal_only_to_themselves(cls: type[Node]) -> None:
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert cls.__eq__ is object.__eq__
    assert cls.__hash__ is object.__hash__


def test_a_node_shows_itself_in_one_line() -> None:
    source = nodes.Read(where=Place("/a.py", 1), source=Queue("q"), name="in")
    assert repr(source) == "<Read in at /a.py:1>"
    assert (
        repr(nodes.KeyBy(where=Place("/a.py", 2), inputs=(source,), parts=())) == "<KeyBy key_by at /a.py:2>"
    )


def test_a_place_is_the_users_line_shown_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    assert caller() == Place(__file__, frame.f_lineno)
    monkeypatch.chdir(tmp_path)
    assert str(Place(str(tmp_path / "jobs" / "a.py"), 7)) == "jobs/a.py:7"
    assert str(Place("/elsewhere/a.py", 7)) == "/elsewhere/a.py:7"


def numbers() -> Iterator[int]:
    yield from range(3)


def numbers_after(taken: int) -> Iterator[int]:
    yield from range(taken, 3)


@pytest.mark.parametrize(
    ("endpoint", "title", "slug", "options"),
    [
        (Queue("a", group="g", start="latest"), "queue a", "queue:a", {"group": "g", "start": "latest"}),
        (Queue("a", partition_by="u", url="http://x"), "queue a", "queue:a", {"partition_by": "u"}),
        (Stream("s", group="g"), "stream s", "stream:s", {"group": "g"}),
        (Files("out.csv"), "files out.csv", "files:out.csv", {"format": "csv"}),
        (Memory([1, 2]), "memory 2 records", "memory", {}),
        (Generator(numbers), "generator numbers", "generator:numbers", {}),
        (Function(print, batch=True), "function print", "function:print", {"batch": "true"}),
        (
            Kafka(["a", "b"], settings={"sasl.password": "secret"}, envelope=True),
            "kafka a,b",
            "kafka:a,b",
            {"envelope": "true"},
        ),
        (
            Cassandra("t", keyspace="k", ttl="1d", password="secret", partition_key=("a", "b")),
            "cassandra k.t",
            "cassandra:k.t",
            {"keyspace": "k", "partition_key": "a, b", "ttl": "1d"},
        ),
        (
            Postgres("t", key=("id",), url="postgresql://u:secret@h/d"),
            "postgres t",
            "postgres:t",
            {"key": "id"},
        ),
    ],
    ids=lambda value: value.title if isinstance(value, Endpoint) else "",
)
def test_endpoints_say_what_they_are_and_no_secrets(
    endpoint: Endpoint, title: str, slug: str, options: dict[str, str]
) -> None:
    assert (endpoint.title, endpoint.slug, endpoint.options()) == (title, slug, options)
    assert "secret" not in str(endpoint.options())


def test_no_password_in_what_python_shows() -> None:
    shown = repr([Cassandra("t", password="secret"), Kafka("t", settings={"sasl.password": "secret"})])
    shown += repr([Postgres("t", url="postgresql://u:secret@h/d"), Queue("q", url="http://u:secret@h")])
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Queue("q", start="yesterday"), "start is 'yesterday'"),
        (lambda: Queue("q", partition="a", partition_by="b"), "give partition or partition_by, not both"),
        (lambda: Files("orders"), "the format of 'orders' is not known"),
        (lambda: Files("a.csv", max_files=0), "max_files is 0; write a whole number from 1 on"),
        (lambda: Files(Path("s3a://in/a.csv")), "'s3a:/in/a.csv' has lost a slash as a Path"),
        (lambda: Files("a.csv", format="xml"), "the format of 'a.csv' is not known"),  # type: ignore[arg-type]
        (lambda: Queue("q", schema="a strng"), "'strng' is no type"),
        (lambda: Cassandra("t", ttl="soon"), "'soon' is not a duration"),
        (lambda: ErrorPolicy(max_retries=-1), "max_retries is -1"),
        (lambda: ErrorPolicy(backoff="slow"), "backoff is 'slow'"),  # type: ignore[arg-type]
        (lambda: ErrorPolicy(then="retry"), "then is 'retry'"),  # type: ignore[arg-type]
        (lambda: policy_of("ignore"), "on_error is 'ignore'"),  # type: ignore[arg-type]
        (lambda: retry(on=()), "on is (); write exceptions"),
        (lambda: retry(on=(KeyError, "no")), "write exceptions, such as on=(TimeoutError,)"),  # type: ignore[arg-type]
        (lambda: retry(on=5), "on is 5"),  # type: ignore[arg-type]
        (lambda: retry(otherwise="skip"), "otherwise is for the errors that on= leaves out"),
        (lambda: retry(on=KeyError, otherwise="tea"), "otherwise is 'tea'"),  # type: ignore[arg-type]
        (lambda: retry(callback="me"), "callback is 'me'"),  # type: ignore[arg-type]
        (
            lambda: retry(on=KeyError, then=DeadLetters("a"), otherwise=DeadLetters("b")),
            "two places for dead letters",
        ),
        (lambda: Backpressure("drop"), "backpressure is 'drop'"),  # type: ignore[arg-type]
        (lambda: Backpressure("block", 0), "the threshold is 0"),
        (lambda: count("x", slide=3), "slide is for a window"),  # type: ignore[call-overload]
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "start", ["earliest", "latest", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, tzinfo=UTC)]
)
def test_a_source_starts_at_an_end_or_a_time(start: str | datetime) -> None:
    assert Kafka("t", start=start).start == start


def test_which_sources_come_to_an_end_and_have_a_time() -> None:
    def facts(source: Source[Any]) -> tuple[bool, bool]:
        return source.bounded, source.has_time

    assert facts(Queue("q")) == facts(Stream("s")) == facts(Kafka("k")) == (False, True)
    assert facts(Memory([])) == facts(Files("a.csv")) == facts(Generator(numbers)) == (True, False)
    assert facts(Files("a.csv", follow=True)) == facts(Generator(numbers, endless=True)) == (False, False)
    assert facts(Postgres("t")) == (True, False)
    assert facts(Postgres("t", cursor="id")) == (False, False)


def test_what_sinks_hold_after_a_crash() -> None:
    delivered = {sink.kind: sink.delivery for sink in _sinks()}
    assert delivered == {
        "queue": "exactly once",
        "postgres": "exactly once",
        "files": "exactly once",
        "cassandra": "idempotent",
        "kafka": "at least once",
        "function": "at least once",
    }


def _sinks() -> list[Sink]:
    return [Queue("q"), Postgres("t"), Files("a.csv"), Cassandra("t"), Kafka("t"), Function(print)]


def test_a_generator_is_told_where_to_go_on_if_it_asks() -> None:
    assert not Generator(numbers).resumable
    assert Generator(numbers_after).resumable


@pytest.mark.parametrize(
    ("source", "path", "kind"),
    [
        (Queue("q", schema="a int"), "a", "int"),
        (Queue("q", schema="a int", envelope=True), "data.a", "int"),
        (Queue("q", envelope=True), "data.anything", "variant"),
        (Queue("q", envelope=True), "created_at", "timestamp"),
        (Kafka("t", format="string"), "value", "string"),
        (Kafka("t", format="bytes", envelope=True), "value", "binary"),
        (Kafka("t", schema={"a": "int"}, envelope=True), "value.a", "int"),
        (Stream("s"), "messages.0.data.user", "variant"),
        (Stream("s"), "window_end", "timestamp"),
    ],
)
def test_what_a_source_says_of_its_fields(source: Source[Any], path: str, kind: str) -> None:
    assert source.columns is not None
    assert str(source.columns.find(path)) == kind


def test_a_source_without_a_schema_says_nothing() -> None:
    assert Queue("q").columns is None


def test_shorthand_for_windows_and_the_two_counts() -> None:
    assert tumbling("5m") == Tumbling(timedelta(minutes=5))
    assert sliding("10m", 60) == Sliding(timedelta(minutes=10), timedelta(minutes=1))
    assert session(timedelta(seconds=30)) == Session(timedelta(seconds=30))
    assert count(100, slide=10) == Count(100, 10)
    assert (count().kind, count("a").field) == ("count", "a")


def test_pauses_grow_to_a_limit_or_stay() -> None:
    growing = retry(10, delay="1s", max_delay="5s")
    assert [growing.pause(attempt).total_seconds() for attempt in (1, 2, 3, 4, 1000)] == [1, 2, 4, 5, 5]
    assert retry(backoff="constant", delay="2s").pause(7) == timedelta(seconds=2)


def test_short_forms_of_policies() -> None:
    assert policy_of("fail") == ErrorPolicy()
    assert policy_of("skip").then == "skip"
    assert policy_of("retry") == retry(3)
    letters = DeadLetters(Files("dead.ndjson"))
    assert policy_of(letters) == ErrorPolicy(then=letters)
    assert letters.sink == Files("dead.ndjson")
    assert DeadLetters("dead").sink == Queue("dead")


def test_a_policy_by_exception_says_what_it_does() -> None:
    policy = retry(2, on=(TimeoutError, KeyError), then=DeadLetters("dead"), otherwise="skip")
    assert str(policy) == (
        "retry 2 times, exponential from 1s, then dead letters to queue dead, "
        "on TimeoutError or KeyError; else skip"
    )


def test_endpoints_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Queue("q").name = "p"  # type: ignore[misc]
