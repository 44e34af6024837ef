"""What a chain has said, as a request."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from queenstream import AsyncQueen, Queen
from queenstream.client._base.buffer import Backpressure, Buffering
from queenstream.client._base.chain import (
    ConfigureBody,
    QueueOptions,
    Settings,
    at_least,
    seconds,
    start_of,
)
from queenstream.client._base.payloads import encode
from queenstream.errors import ConfigError


def path(*, batch: int = 1, wait: float = 0.0, auto_ack: bool = False, **said: Any) -> str:
    return Settings(**said).pop_path(batch=batch, wait_seconds=wait, auto_ack=auto_ack)


def test_the_path_of_a_pop() -> None:
    assert path(queue="q") == "/api/v1/pop/queue/q?batch=1&brief=true"
    assert path(queue="a/b", partition="c d") == "/api/v1/pop/queue/a%2Fb/partition/c%20d?batch=1&brief=true"
    assert path(namespace="shop", task="mail") == "/api/v1/pop?batch=1&brief=true&namespace=shop&task=mail"


def test_what_belongs_to_the_queue_is_not_asked_for_with_its_name() -> None:
    assert path(queue="q", namespace="shop", task="mail") == "/api/v1/pop/queue/q?batch=1&brief=true"


def test_the_query_of_a_pop() -> None:
    full = path(queue="q", batch=7, wait=1.5, auto_ack=True, group="g", mode="new", start="now", partitions=3)
    assert full == (
        "/api/v1/pop/queue/q?batch=7&brief=true&wait=true&timeout=1500&autoAck=true&consumerGroup=g"
        "&subscriptionMode=new&subscriptionFrom=now&partitions=3"
    )


def test_the_shortest_wait_is_a_wait() -> None:
    assert "wait=true&timeout=1" in path(queue="q", wait=0.0001)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigError, match="say what to pop from"):
        path()
    with pytest.raises(ConfigError, match="a partition belongs to a queue"):
        path(namespace="shop", partition="p")
    with pytest.raises(ConfigError, match="this needs a queue"):
        _ = Settings(namespace="shop").name


def test_options_left_out_are_not_sent() -> None:
    body = ConfigureBody("q", None, None, QueueOptions(lease_time=60, ttl=0, retention_enabled=False))
    sent = msgspec.json.decode(encode(body))
    assert sent == {"queue": "q", "options": {"leaseTime": 60, "ttl": 0, "retentionEnabled": False}}
    assert msgspec.json.decode(encode(ConfigureBody("q", "shop"))) == {"queue": "q", "namespace": "shop"}


def test_every_option_of_a_queue_has_its_place() -> None:
    """``config`` hands them on by position: each must land where its name says."""
    queue: Any = Queen("http://a:1").queue("q")
    for name in QueueOptions.__struct_fields__:
        options = queue.config(**{name: 1})._settings.options
        assert {field: getattr(options, field) for field in options.__struct_fields__} == {
            field: 1 if field == name else msgspec.UNSET for field in options.__struct_fields__
        }


def test_a_chain_can_be_kept_and_taken_up_again() -> None:
    base = AsyncQueen("http://a:1").queue("q").group("g")
    first, second = base.batch(10).partition("a"), base.batch(20)
    assert (base._settings.batch, first._settings.batch, second._settings.batch) == (1, 10, 20)
    assert (first._settings.partition, second._settings.partition) == ("a", None)
    assert first.each()._settings == first._settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        base._settings.batch = 3  # type: ignore[misc]  # that is the point


def test_a_chain_shows_what_it_has_said() -> None:
    shown = repr(Queen("http://a:1").queue("orders").batch(7))
    assert "Queue" in shown
    assert "orders" in shown
    assert "batch=7" in shown


def test_the_words_for_time() -> None:
    queue = Queen("http://a:1").queue("q")
    assert queue.wait("5s")._settings.wait_seconds == 5.0
    assert queue.wait(0.5)._settings.wait_seconds == 0.5
    assert queue.wait()._settings.wait_seconds == 30.0
    assert queue.wait(False)._settings.wait_seconds == 0.0
    assert queue.idle_timeout("2m")._settings.idle_seconds == 120.0


@pytest.mark.parametrize("word", ["batch", "partitions", "concurrency", "limit"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_numbers_are_checked_by_name(word: str, value: object) -> None:
    queue = Queen("http://a:1").queue("q")
    with pytest.raises(ConfigError, match=f"{word} is .*at least 1"):
        getattr(queue, word)(value)


@pytest.mark.parametrize("word", ["wait", "idle_timeout"])
@pytest.mark.parametrize("value", ["soon", -1.0, None])
def test_durations_are_checked_by_name(word: str, value: object) -> None:
    queue = Queen("http://a:1").queue("q")
    with pytest.raises(ConfigError, match=f"{word}: "):
        getattr(queue, word)(value)


def test_a_mode_is_one_of_two() -> None:
    queue: Any = Queen("http://a:1").queue("q")
    with pytest.raises(ConfigError, match="use 'all' or 'new'"):
        queue.subscription_mode("old")


def test_where_a_group_starts() -> None:
    assert start_of("now") == "now"
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert datetime.fromisoformat(start_of(when)) == when


def test_helpers() -> None:
    assert at_least("n", 0, 0) == 0
    assert seconds("t", "250ms") == 0.25


# Buffers


def test_a_buffer_is_checked() -> None:
    assert Buffering(1, 0.0, 1, "error").backpressure == Backpressure("error", 10_000)
    mine = Backpressure("drop_newest", threshold=5)
    assert Buffering(1, 0.0, 1, mine).backpressure is mine
    with pytest.raises(ConfigError, match="batch_size is 0"):
        Buffering(0, 0.0, 1)
    with pytest.raises(ConfigError, match="max_concurrency is 0"):
        Buffering(1, 0.0, 0)
    with pytest.raises(ConfigError, match="threshold is 0"):
        Backpressure("block", 0)
    wrong: Any = "explode"
    with pytest.raises(ConfigError, match="use one of block, drop_oldest, drop_newest, error"):
        Backpressure(wrong)


# Where it goes


def test_without_an_address_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEEN_URL", raising=False)
    assert Queen()._calls._brokers.all[0].address.url == "http://127.0.0.1:6632"
    monkeypatch.setenv("QUEEN_URL", "http://a:1,http://b:2")
    monkeypatch.setenv("QUEEN_TOKEN", "tok")
    queen = AsyncQueen()
    assert {broker.address.url for broker in queen._calls._brokers.all} == {"http://a:1", "http://b:2"}
    assert queen._calls._token == "tok"
    given = Queen("http://c:3", token="other", timeout="5s")
    assert given._calls._brokers.all[0].address.url == "http://c:3"
    assert (given._calls._token, given._calls.timeout) == ("other", 5.0)


def test_a_timeout_is_a_duration() -> None:
    with pytest.raises(ConfigError, match="timeout: "):
        Queen("http://a:1", timeout="long")
