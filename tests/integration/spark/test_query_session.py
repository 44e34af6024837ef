"""The session of a run: a copy of the user's, which stays as the user has made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.engines.spark.run import SparkRun
from queenstream.engines.spark.session.active import activated
from queenstream.engines.spark.session.factory import query_session, running_session
from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.spark import session
from tests.integration.spark.conftest import Sql

Row = dict[str, Any]
pytestmark = pytest.mark.timeout(600)

RECORDS = [{"user": "ab"[n % 2], "at": n * 1_000} for n in range(6)]


@pytest.fixture
def mine(spark: SparkSession) -> Iterator[SparkSession]:
    """A session as a user has it, with settings that are not ours."""
    made = spark.newSession()
    made.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    made.conf.set("spark.sql.shuffle.partitions", "3")
    made.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    with activated(made):
        made.createDataFrame([], "n int")  # which makes it the active one
        yield made


def totals(to: Any, *, native: bool) -> Pipeline[Any]:
    source = Pipeline("totals").source(Memory(RECORDS, schema="user string, at bigint"))
    steps = source if native else source.transform("same", lambda record: record)
    return steps.key_by("user").window(tumbling("1m"), time="at").aggregate(n=count()).to(to)


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_a_run_leaves_the_session_of_the_user_as_it_is(mine: SparkSession, native: bool) -> None:
    before, during, found = mine.conf.getAll, [], []

    def take(row: Row) -> None:
        during.append(mine.conf.getAll)
        found.append((row["user"], row["n"]))

    run = totals(take, native=native).start()
    started = mine.conf.getAll
    run.wait()
    assert sorted(found) == [("a", 3), ("b", 3)]
    assert started == before
    assert during == [before, before]
    assert mine.conf.getAll == before
    assert SparkSession.getActiveSession() is mine


def test_a_query_has_the_settings_of_the_user_and_those_that_it_needs(mine: SparkSession) -> None:
    mine.conf.set("spark.sql.redaction.options.regex", "(?i)pin")
    conf = query_session("q").conf
    assert conf.get("spark.sql.shuffle.partitions") == "3"
    assert conf.get("spark.sql.python.filterPushdown.enabled") == "true"  # the format queen needs it
    assert mine.conf.get("spark.sql.python.filterPushdown.enabled") == "false"
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert "RocksDB" in str(conf.get("spark.sql.streaming.stateStore.providerClass"))
    assert str(conf.get("spark.sql.redaction.options.regex")).startswith("(?:(?i)pin)|(?:(?i)url|")
    mine.conf.unset("spark.sql.shuffle.partitions")
    assert query_session("q").conf.get("spark.sql.shuffle.partitions") == "2"  # the cores of the tests
    with pytest.raises(ConfigError, match=r"a session on local\[2,4\] runs in this process; stop it"):
        query_session("q", "local[7]")


def test_the_query_of_a_run_has_the_format_queen(mine: SparkSession, sql: Sql) -> None:
    sql.push("orders", [{"n": 1}])
    read = query_session("q").read.format("queen").options(queue="orders", pg=sql.url)
    assert read.load().count() == 1
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        mine.read.format("queen").options(queue="orders", pg=sql.url).load()
    assert session("mine") is mine  # the user asks for it
    assert mine.read.format("queen").options(queue="orders", pg=sql.url).load().count() == 1


def test_session_keeps_what_the_running_session_has_set(mine: SparkSession) -> None:
    mine.conf.unset("spark.sql.python.filterPushdown.enabled")
    before = mine.conf.getAll
    given = {"spark.sql.ansi.enabled": "false"}
    assert session("mine", conf=given) is mine
    after = mine.conf.getAll
    assert after.items() >= before.items() | given.items()
    assert "RocksDB" in after["spark.sql.streaming.stateStore.providerClass"]  # which it had not set


@pytest.mark.usefixtures("spark")
def test_the_query_of_a_run_can_be_asked_for() -> None:
    assert running_session() is not None
    run = totals(lambda row: None, native=True).start()
    assert isinstance(run, SparkRun)
    run.wait()
    assert run.query.name.startswith("totals")
