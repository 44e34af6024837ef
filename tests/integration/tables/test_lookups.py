"""Look-ups that fail, and come back: which records they hit, and how often the table is asked."""

from __future__ import annotations

import threading
from typing import Any

from queenstream import DeadLetters, Function, Memory, Pipeline, Postgres, retry
from queenstream.pipeline.policies import ErrorPolicy
from queenstream.testing import PipelineDriver
from tests.integration.tables.conftest import Sql
from tests.processes import free_port

Row = dict[str, Any]


def enriched(table: Postgres, records: list[Row], policy: ErrorPolicy, to: list[Row]) -> Pipeline[Any]:
    step = Pipeline("p").source(Memory(records)).lookup(table, on=("user", "id"), name="who", on_error=policy)
    return step.to(to.append)


def test_a_server_that_is_away_hits_all_records_at_once_after_the_tries() -> None:
    table = Postgres("users", url=f"postgresql://ann:secret@127.0.0.1:{free_port()}/shop")
    letters: list[Row] = []
    policy = retry(2, delay="1ms", then=DeadLetters(Function(letters.append)))
    records = [{"user": number} for number in range(500)]
    found: list[Row] = []
    run = enriched(table, records, policy, found).run(engine="local")
    assert found == []
    assert {(row["step"], row["attempts"]) for row in letters} == {("who", 3)}
    assert sorted(row["record"]["user"] for row in letters) == list(range(500))
    assert "does not let us in" in letters[0]["error"]
    assert not [row for row in letters if "secret" in row["error"]]
    assert run.get_stats()["errors"] == 500


def test_a_table_that_comes_in_the_meantime_is_found(sql: Sql) -> None:
    """Tried again, a look-up begins anew: with a connection, and with what the table is by then."""
    found: list[Row] = []
    waiting = threading.Event()

    def made() -> None:
        assert waiting.wait(10)
        sql.script("create table users (id int primary key, name text); insert into users values (1, 'Ann')")

    maker = threading.Thread(target=made)
    maker.start()
    pipeline = enriched(Postgres("users", url=sql.url), [{"user": 1}], retry(100, delay="50ms"), found)
    run = pipeline.start(engine="local")
    while not run.get_stats()["retries"]:
        run.wait(0.01)
    waiting.set()
    run.wait(60)
    maker.join()
    assert found == [{"user": 1, "id": 1, "name": "Ann"}]


def test_a_driver_looks_into_a_real_table(sql: Sql) -> None:
    sql.script("create table users (id uuid primary key, name text)")
    sql.script("insert into users values (gen_random_uuid(), 'Ann')")
    [(ann,)] = sql.rows("select id from users")
    found: list[Row] = []
    table = Postgres("users", url=sql.url)
    pipeline = enriched(table, [], ErrorPolicy(then=DeadLetters(Function(found.append, name="dead"))), found)
    with PipelineDriver(pipeline) as driver:
        driver.send({"user": str(ann)}, {"user": "no uuid"}, {"user": ann}, {"user": None})
        assert [row.get("name") for row in driver.rows()] == ["Ann", "Ann", None]
        [letter] = driver.dead_letters()
    assert (letter["record"], letter["error_type"]) == ({"user": "no uuid"}, "PayloadInvalid")
