"""``queen pipeline``: run, follow edits, check, show, test, and look into checkpoints."""

from __future__ import annotations

import asyncio
import json
import signal
import textwrap
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenstream.engines.local.checkpoints.locations import pipelines_in
from tests.integration.cli.running import Done, Queen
from tests.processes import without_summaries

COUNTS = """
    from queenstream import Pipeline, Queue

    def count(user, order, state):
        state.set("n", state.get("n", 0) + 1)
        return {"user": user, "n": state.get("n")}

    counts = (
        Pipeline("counts")
        .source(Queue("orders"))
        .key_by("user")
        .stateful(count)
        .to(Queue("counts"))
    )
"""
CLOCKWORK = """
    import asyncio
    from queenstream import Generator, Pipeline, count, tumbling

    async def ticks():
        n = 0
        while True:
            yield {"user": "ab"[n % 2], "at": n * 1000}
            n += 1
            await asyncio.sleep(0.001)

    clicks = (
        Pipeline("clicks")
        .source(Generator(ticks, endless=True))
        .key_by("user")
        .window(tumbling("1m"), time="at")
        .aggregate(n=count())
        .to(lambda row: print("row for", row["user"]))
    )
"""
LOCAL = ("--engine", "local")
ALONE = Queen()  # for what needs no broker


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str, name: str = "jobs.py") -> None:
    Path(name).write_text(textwrap.dedent(text))


async def push(http: httpx.AsyncClient, queue: str, *payloads: Any) -> None:
    items = [{"queue": queue, "payload": payload} for payload in payloads]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201


async def take(http: httpx.AsyncClient, queue: str, number: int) -> list[Any]:
    """So many payloads from a queue, as soon as they are there."""
    found: list[Any] = []
    async with asyncio.timeout(30):
        while len(found) < number:
            asked = {"wait": "true", "timeout": "5000", "autoAck": "true", "batch": str(number)}
            answer = await http.get(f"/api/v1/pop/queue/{queue}", params=asked)
            if answer.status_code == 200:
                found += [message["data"] for message in answer.json()["messages"]]
    return found


def lines(folder: str) -> list[str]:
    """What a sink wrote into a folder, in order."""
    return "".join(path.read_text() for path in sorted(Path(folder).glob("part-*"))).split()


def last(done: Done) -> Any:
    assert (done.code, without_summaries(done.err)) == (0, "")
    return json.loads(done.out.splitlines()[-1])


async def event(process: asyncio.subprocess.Process, name: str) -> Any:
    """The next event of that name that a run prints."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while line := await process.stdout.readline():
            found = json.loads(line)
            if found["event"] == name:
                return found
    raise AssertionError(f"it ended without {name}")


async def stopped(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Its exit code, and what it wrote to standard error beside its summary."""
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert b" stopped after " in err
    return process.returncode, without_summaries(err.decode())


async def test_it_goes_on_from_its_checkpoint(queen: Queen, http: httpx.AsyncClient) -> None:
    """Twice over a real queue, then a look at what it remembers."""
    written(COUNTS)
    run = ("pipeline", "run", "jobs.py", *LOCAL, "--until", "caught_up", "--checkpoint", "state")
    await push(http, "orders", {"user": "ann"}, {"user": "bob"}, {"user": "ann"})
    ended = last(await queen(*run))
    assert (ended["event"], ended["pipeline"], ended["state"]) == ("ended", "counts", "ended")
    assert (ended["messages"], ended["errors"], ended["dead_letters"]) == (3, 0, 0)
    assert ended["steps"]["stateful"] == {"taken": 3, "given": 3, "failed": 0, "late": 0}
    await push(http, "orders", {"user": "ann"})
    assert last(await queen(*run))["messages"] == 1
    rows = [(row["user"], row["n"]) for row in await take(http, "counts", 4)]
    assert sorted(rows) == [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 1)]

    state = ("--checkpoint", "state")
    ann = (await queen("pipeline", "state", "get", "ann", *state)).row
    assert (ann["step"], ann["key"], ann["values"]) == ("stateful", "ann", {"n": 3})
    assert [row["key"] for row in await queen.rows("pipeline", "state", "ls", *state)] == ["ann", "bob"]
    (await queen("pipeline", "state", "get", "eve", *state)).failed(5, "no step remembers the key eve")

    newest, *older = await queen.rows("pipeline", "checkpoints", *state)
    assert (newest["pipeline"], newest["keys"], newest["clean"]) == ("counts", 2, True)
    first = next(row for row in reversed(older) if row["clean"])
    shown = (await queen("pipeline", "checkpoints", "show", first["id"], *state)).row
    assert [step["step"] for step in shown["steps"]] == ["queue:orders", "stateful"]
    before = (await queen("pipeline", "state", "get", "ann", *state, "--id", first["id"])).row
    assert before["values"] == {"n": 2}


async def test_checkpoints_in_postgresql(database_url: str) -> None:
    written(CLOCKWORK.replace('print("row for", row["user"])', "None"))
    assert await pipelines_in(database_url) == []
    run = ("pipeline", "run", "jobs.py", *LOCAL, "--checkpoint", database_url, "--interval", "1s")
    process = await ALONE.start(*run)
    seen = await event(process, "stats")
    assert seen["messages"] > 0
    assert seen["watermark"] >= "1970-01-01T00:00:"
    assert await stopped(process) == (0, "")
    assert await pipelines_in(database_url) == ["clicks"]
    listed = await ALONE.rows("pipeline", "checkpoints", "--checkpoint", database_url)
    assert listed[0]["clean"]


async def test_on_a_terminal_until_ctrl_c() -> None:
    written(CLOCKWORK)
    async with ALONE.terminal("pipeline", "run", "jobs.py", *LOCAL) as terminal:
        await terminal.until("records/s")
        await terminal.until("watermark 1970-01-01")
        await terminal.until("row for a\n")  # what steps print comes in between, whole
        terminal.type("\x03")
        assert await terminal.ended() == 0
    assert sum("clicks stopped after " in line for line in terminal.lines) == 1
    [windows] = [line.split() for line in terminal.lines if line.startswith("  aggregate ")]
    assert windows[1] == "jobs.py:17"
    assert "Traceback" not in terminal.text


async def test_a_pipeline_that_fails() -> None:
    written(
        """
        from queenstream import Memory, Pipeline

        def price(order):
            return order["price"]

        p = Pipeline("p").source(Memory([{}])).transform("price", price, on_error="fail").to(print)

        def records():
            raise OSError("the line is dead")
            yield

        q = Pipeline("q").source(records).to(print)
        """
    )
    failed = await ALONE("pipeline", "run", "jobs.py:p", *LOCAL)
    assert failed.code == 1
    assert json.loads(failed.out.splitlines()[-1])["state"] == "failed"
    assert "jobs.py:7: price failed on {}: KeyError: 'price'" in failed.err
    failed = await ALONE("pipeline", "run", "jobs.py:q", *LOCAL)
    assert failed.err.startswith("q failed after ")
    assert "error:" not in failed.err  # it is told once, below
    quiet = await ALONE("pipeline", "run", "jobs.py:q", *LOCAL, "--no-summary")
    quiet.failed(1, "the pipeline 'q' failed: jobs.py:10: OSError: the line is dead")
    assert failed.err.endswith(quiet.err)


async def test_a_definition_that_is_wrong() -> None:
    """All that is wrong, with the user's lines; and nothing runs."""
    written(
        """
        from queenstream import Memory, Pipeline, count

        p = (
            Pipeline("p")
            .source(Memory([{"n": 1}]))
            .window("1m")
            .aggregate(n=count())
            .deduplicate("id")
        )
        fine = Pipeline("fine").source(Memory([1])).to(print)
        """
    )
    refused = await ALONE("pipeline", "run", "jobs.py:p", *LOCAL)
    assert (refused.code, refused.out) == (2, "")
    lines = refused.err.splitlines()
    assert lines[0].startswith("queen: the pipeline 'p' cannot run, ")
    assert len(lines) > 2
    assert all(line.startswith("  jobs.py:") for line in lines[1:])

    checked = await ALONE("pipeline", "validate", "jobs.py:p")
    [found] = map(json.loads, checked.out.splitlines())
    assert (checked.code, found["valid"]) == (2, False)
    assert [f"  {problem['message']}" for problem in found["problems"]] == lines[1:]
    assert {problem["where"] for problem in found["problems"]} <= {f"jobs.py:{line}" for line in range(4, 10)}
    async with ALONE.terminal("pipeline", "validate", "jobs.py") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines == ["fine is fine: 2 steps, 1 source, 1 sink"]


async def test_describe() -> None:
    written(CLOCKWORK)
    plan = json.loads((await ALONE("pipeline", "describe", "jobs.py", "--format", "json")).out)
    assert plan["nodes"][3]["where"] == "jobs.py:17"
    assert (await ALONE("pipeline", "describe", "jobs.py", "--format", "svg")).out.startswith("<svg")


async def test_an_edit_takes_over_with_the_state(queen: Queen, http: httpx.AsyncClient) -> None:
    """Edits that work, are broken, are wrong, and cannot use the state; the pipeline never stops for long."""
    written(COUNTS)
    process = await queen.start("pipeline", "run", "jobs.py", *LOCAL, "--watch")
    await push(http, "orders", {"user": "ann"}, {"user": "ann"})
    assert [row["n"] for row in await take(http, "counts", 2)] == [1, 2]

    written(COUNTS.replace('"n": state.get("n")}', '"n": state.get("n"), "version": 2}'))
    reloaded = await event(process, "reloaded")
    assert {change["step"]: change["verdict"] for change in reloaded["changes"]} == {
        "queue:orders": "kept",
        "stateful": "kept",
    }
    await push(http, "orders", {"user": "ann"})
    assert await take(http, "counts", 1) == [{"user": "ann", "n": 3, "version": 2}]

    for edit, said in {
        "counts = (": ("jobs.py:1: SyntaxError",),
        COUNTS.replace('.to(Queue("counts"))', ""): (
            "the pipeline 'counts' cannot run, 1 problem",
            "jobs.py:",
        ),
        COUNTS.replace('key_by("user")', 'key_by("shop")'): (
            "(stateful: keys was user, is shop); undo that, or stop with Ctrl-C and start again",
        ),
        COUNTS.replace('Pipeline("counts")', 'Pipeline("numbers")'): ("its name was counts, is numbers",),
    }.items():
        written(edit)
        refused = await event(process, "refused")
        for part in said:
            assert part in refused["message"]
        assert refused["message"].endswith("the version before the edit goes on")
    await push(http, "orders", {"user": "ann"})
    assert await take(http, "counts", 1) == [{"user": "ann", "n": 4, "version": 2}]
    assert await stopped(process) == (0, "")


async def test_an_edit_of_what_has_ended_or_failed() -> None:
    """Without a checkpoint of the user's, an edit after the end starts over: also of a file beside it."""
    written("FACTOR = None\n", "factors.py")
    written(
        """
        import factors
        from queenstream import Files, Memory, Pipeline

        records = [{"n": 1}, {"n": 2}]
        p = (
            Pipeline("p")
            .source(Memory(records))
            .transform("m", lambda r: {"n": r["n"] * factors.FACTOR}, on_error="fail")
            .to(Files("out.ndjson"))
        )
        """
    )
    async with ALONE.terminal("pipeline", "run", "jobs.py", *LOCAL, "--watch") as terminal:
        await terminal.until("queen: waiting for an edit")
        assert "TypeError" in terminal.text
        written("FACTOR = 10\n", "factors.py")
        await terminal.until("p has come to its end; after an edit it starts over")
        assert lines("out.ndjson") == ['{"n":10}', '{"n":20}']
        written("FACTOR = 7\n", "factors.py")
        await terminal.until("p has come to its end; after an edit it starts over", times=2)
        terminal.type("\x03")
        assert await terminal.ended() == 0
    assert sorted(lines("out.ndjson")) == ['{"n":10}', '{"n":14}', '{"n":20}', '{"n":7}']
    assert "Traceback" not in terminal.text


async def test_its_own_tests() -> None:
    written(CLOCKWORK)
    # Plugins of this environment that take seconds to import.
    written("[pytest]\naddopts = -p no:schemathesis -p no:hypothesispytest -p no:asyncio\n", "pytest.ini")
    (await ALONE("pipeline", "test", "jobs.py")).failed(2, "no functions test_…", "--input")
    written(
        """
        from jobs import clicks
        from queenstream.testing import PipelineDriver

        def test_clicks():
            with PipelineDriver(clicks) as driver:
                driver.send({"user": "ann", "at": 0})
                driver.end()
                assert [row["n"] for row in driver.rows()] == [1]

        def test_wrong():
            assert 1 == 2

        def test_broker(queen_broker):
            pass
        """,
        "test_jobs.py",
    )
    done = await ALONE("pipeline", "test", "jobs.py", "--", "-k", "not broker")
    assert done.code == 1
    assert "1 failed, 1 passed, 1 deselected" in done.out
    planned = await ALONE("pipeline", "test", "jobs.py", "--", "-k", "broker", "--setup-plan")
    assert planned.code == 0, planned.out
    assert "fixtures used: queen_broker" in planned.out


async def test_trying_it_on_records() -> None:
    written(
        """
        from queenstream import DeadLetters, Pipeline, Queue

        def check(order):
            return {"id": order["id"], "user": order["user"].upper()}

        users = Pipeline("users").source(Queue("users"))
        orders = (
            Pipeline("orders")
            .source(Queue("orders"))
            .on_error(DeadLetters("bad"))
            .transform("check", check)
            .union(users)
            .to(Queue("out"))
        )
        """
    )
    written('{"id": 1, "user": "ann"}\n\n{"id": 2}\n', "orders.ndjson")
    run = ("pipeline", "test", "jobs.py", "--input")
    (await ALONE(*run, "orders.ndjson")).failed(
        2, "for which source? write it like queue:orders=orders.ndjson"
    )
    done = await ALONE(*run, "orders=orders.ndjson", "--input", "users=-", stdin='{"id": 3}\n')
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["row"] for row in rows if row["sink"] == "queue:out"] == [{"id": 1, "user": "ANN"}, {"id": 3}]
    [letter] = [row["row"] for row in rows if row["sink"] == "queue:bad"]
    assert (letter["step"], letter["record"], letter["error_type"]) == ("check", {"id": 2}, "KeyError")
    written(
        """
        from queenstream import Pipeline, Queue

        ids = Pipeline("ids").source(Queue("orders")).map(lambda order: order["id"]).to(Queue("out"))
        """,
        "strict.py",
    )
    stopped = await ALONE("pipeline", "test", "strict.py", "--input", "-", stdin='{"id": 1}\n{"no": 2}\n')
    stopped.failed(1, "strict.py:4: map failed on {'no': 2}: KeyError: 'id'")
    bad = await ALONE(*run, "orders=-", stdin='{"id": 1, "user": "a"}\nnot json\n')
    bad.failed(2, "-:2 is no JSON")
