"""A pipeline is changed between two runs with one checkpoint on Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queenstream.cli.pipeline import app
from queenstream.core.aggregates import max_ as largest
from queenstream.core.aggregates import min_ as least
from queenstream.errors import CheckpointError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Queue
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.pipeline.state import State
from queenstream.testing.brokers import TemporaryBroker

Row = dict[str, Any]
Build = Callable[[Pipeline[Any]], Pipeline[Any]]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

START_MS = 1_793_000_000_000
MINUTE_MS = 60_000


class Job:
    """A pipeline over files that come one by one; each run may have other steps."""

    def __init__(self, folder: Path, schema: str | None) -> None:
        self.pages, self.state, self.schema = folder / "in", folder / "state", schema
        self.pages.mkdir(parents=True)

    def page(self, name: str, *rows: tuple[str, int]) -> None:
        """One more file; times are minutes."""
        lines = [json.dumps({"user": user, "at": START_MS + at * MINUTE_MS}) for user, at in rows]
        (self.pages / name).write_text("".join(f"{line}\n" for line in lines))

    def source(self, name: str = "in") -> Pipeline[Any]:
        files = Files(self.pages, format="ndjson", follow=True, schema=self.schema)
        return Pipeline("job").source(files, name=name)

    def run(self, build: Build) -> None:
        build(self.source()).run(checkpoint=str(self.state), until="caught_up", summary=False)


def visits(key: str, record: Row, state: State) -> Row:
    del record
    state.set("n", state.get("n", 0) + 1)
    return {"user": key, "visit": state.get("n")}


def as_is(record: Row) -> Row:
    return record


def test_a_plan_without_state_may_change_freely(broker: TemporaryBroker, tmp_path: Path) -> None:
    first, second = list[Row](), list[Row]()

    def run(number: int, build: Build) -> None:
        with broker.client() as queen:
            queen.queue("people").push([{"user": user, "n": number} for user in ("ann", "bob")])
        source = Pipeline("job").source(Queue("people", schema="user string, n bigint"))
        options = {"checkpoint": str(tmp_path), "until": "caught_up", "url": broker.address, "summary": False}
        build(source).run(**options)  # type: ignore[arg-type]

    run(1, lambda rows: rows.filter("user = 'ann'", name="some").to(first.append, name="first"))
    run(  # another filter, another sink, and Python
        2,
        lambda rows: (
            rows.filter("user = 'bob'", name="others")
            .map(as_is)
            .to(first.append, name="first")
            .to(second.append, name="second")
        ),
    )
    run(3, lambda rows: rows.to(second.append, name="second"))  # without Python again, and one sink less
    assert [(row["user"], row["n"]) for row in first] == [("ann", 1), ("bob", 2)]
    assert [(row["user"], row["n"]) for row in second] == [("bob", 2), ("ann", 3), ("bob", 3)]


def test_steps_around_state_in_python(tmp_path: Path) -> None:
    job, found = Job(tmp_path, None), list[Row]()

    def seen(rows: Pipeline[Any]) -> Pipeline[Any]:
        return rows.key_by("user").stateful(visits, name="visits")

    job.page("1", ("ann", 0), ("bob", 0))
    job.run(lambda rows: seen(rows).to(found.append))
    job.page("2", ("ann", 1), ("bob", 1))
    job.run(lambda rows: seen(rows.map(as_is, name="new").filter("user = 'ann'")).to(found.append, print))
    assert sorted((row["user"], row["visit"]) for row in found) == [("ann", 1), ("ann", 2), ("bob", 1)]
    cannot_go_on(
        job, lambda rows: seen(rows.event_time("at")).to(print), r"visits \(.*\): the plan goes by event"
    )
    twice = r"more \(.*\): it is a new step with state, and the checkpoint has no stage for it; undo that"
    cannot_go_on(job, lambda rows: seen(rows).key_by("user").stateful(visits, name="more").to(print), twice)
    other = "visits: there is no step 'visits' any more; if it was renamed, give it that name again"
    cannot_go_on(job, lambda rows: rows.key_by("user").stateful(visits, name="seen").to(print), other)
    renamed = Pipeline("job").source(Files(tmp_path / "in", format="ndjson", follow=True), name="other")
    with pytest.raises(CheckpointError, match=r"other \(.*\): it is a new source"):
        seen(renamed).to(print).run(checkpoint=str(job.state), until="caught_up", summary=False)
    job.page("3", ("bob", 3))  # and nothing of this has changed the checkpoint
    job.run(lambda rows: seen(rows).to(found.append))
    assert found[-1] == {"user": "bob", "visit": 2}


def cannot_go_on(job: Job, build: Build, why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        job.run(build)


def test_an_aggregate_is_added_to_windows_in_python(tmp_path: Path) -> None:
    job, found = Job(tmp_path, None), list[Row]()

    def windows(rows: Pipeline[Any], **more: Any) -> Pipeline[Any]:
        keyed = rows.event_time("at").key_by("user").window(tumbling("10m"))
        return keyed.aggregate(n=count(), **more, step_name="windows").to(found.append)

    job.page("1", ("ann", 0), ("ann", 1))
    job.run(windows)
    job.page("2", ("ann", 2), ("bob", 3), ("bob", 30))
    job.run(lambda rows: windows(rows, again=count(), last=largest("at")))
    rows = sorted((row["user"], row["n"], row["again"], row["last"]) for row in found)
    assert rows == [("ann", 3, 1, START_MS + 2 * MINUTE_MS), ("bob", 1, 1, START_MS + 3 * MINUTE_MS)]
    cannot_go_on(job, windows, r"windows \(.*\): aggregates was .*; or undo that")


def test_a_plan_in_python_with_state_stays_in_python(tmp_path: Path) -> None:
    job, found = Job(tmp_path, "user string, at bigint"), list[Row]()

    def windows(rows: Pipeline[Any]) -> Pipeline[Any]:
        keyed = rows.event_time("at").key_by("user").window(tumbling("10m"))
        return keyed.aggregate(n=count(), step_name="windows").to(found.append)

    job.page("1", ("ann", 0), ("ann", 1))
    job.run(lambda rows: windows(rows.map(as_is)))
    job.page("2", ("ann", 2), ("ann", 30))
    job.run(windows)  # alone it would run without Python
    assert [row["n"] for row in found] == [3]
    assert json.loads((job.state / "job" / "run.json").read_text())["native"] is False


def test_state_of_sparks_own(tmp_path: Path) -> None:
    job, found = Job(tmp_path, "user string, at bigint"), list[Row]()

    def windows(rows: Pipeline[Any], **more: Any) -> Pipeline[Any]:
        keyed = rows.event_time("at").key_by("user").window(tumbling("10m"))
        return keyed.aggregate(n=count(), **more, step_name="windows")

    job.page("1", ("ann", 0), ("bob", 1))
    job.run(lambda rows: windows(rows).to(found.append))
    cannot_go_on(
        job,
        lambda rows: windows(rows.map(as_is, name="code")).to(found.append),
        r"windows \(.*\): code \(.*_changes.py:\d+\) needs Python, which cannot read state of Spark's own",
    )
    more = r"windows \(.*\): last = .* is new, and Spark has a fixed layout for its own windows; undo that"
    cannot_go_on(job, lambda rows: windows(rows, last=largest("at")).to(found.append), more)
    job.page("2", ("ann", 2), ("bob", 3), ("ann", 30))
    job.run(
        lambda rows: windows(rows.filter("user = 'ann'")).filter("n > 1", name="many").to(found.append, print)
    )
    assert [(row["user"], row["n"]) for row in found] == [("ann", 2)]


def test_aggregates_that_nobody_reads_behind_windows(tmp_path: Path) -> None:
    job, found = Job(tmp_path, "user string, at bigint"), list[Row]()
    job.page("1", ("ann", 0), ("ann", 1))

    def chosen(rows: Pipeline[Any], *fields: str) -> Pipeline[Any]:
        keyed = rows.event_time("at").key_by("user").window(tumbling("10m"))
        windows = keyed.aggregate(first=least("at"), last=largest("at"), step_name="windows")
        return windows.select(*fields).to(found.append)

    job.run(lambda rows: chosen(rows, "user", "last", "first"))
    other = r"windows \(.*\): Spark keeps .*, and would keep .*, since steps before or behind it"
    cannot_go_on(job, lambda rows: chosen(rows, "user", "last"), other)
    windows = ".event_time('at').key_by('user').window(tumbling('10m'))"
    windows += ".aggregate(first=min_('at'), last=max_('at'), step_name='windows')"
    code, changes = checked(job, f"{windows}.select('user', 'last').to(print)")
    assert (code, [each["step"] for each in changes if not each["compatible"]]) == (1, ["windows"])
    code, _ = checked(job, f".filter('at > 5'){windows}.select('user', 'last', 'first').to(print)")
    assert code == 0
    job.page("2", ("ann", 2), ("ann", 30))
    job.run(lambda rows: chosen(rows.filter("at > 5"), "user", "first", "last"))
    assert found == [{"user": "ann", "first": START_MS, "last": START_MS + 2 * MINUTE_MS}]


def test_fields_that_a_join_of_sparks_own_keeps(tmp_path: Path) -> None:
    pages, state = tmp_path / "in", str(tmp_path / "state")
    pages.mkdir()
    schema = "user string, one string, two string, at bigint"
    row = {"user": "ann", "one": "1", "two": "2", "at": START_MS}
    (pages / "1").write_text(json.dumps(row) + "\n")

    def joined(build: Build, *behind: str) -> None:
        sides = [
            Pipeline("job").source(
                Files(
                    pages,
                    format="ndjson",
                    follow=True,
                    schema=schema,
                ),
                name=name,
            )
            for name in ("left", "right")
        ]
        left, right = (side.event_time("at") for side in sides)
        pairs = build(left).join(right, on="user", within="1m", name="pairs").select("user", *behind)
        pairs.to(print).run(checkpoint=state, until="caught_up", summary=False)

    joined(lambda rows: rows.select("user", "one", "at"), "one")
    joined(lambda rows: rows.select("user", "one", "at").filter("one = '1'"), "one")
    # Fields of the same types: Spark would take one for the other.
    with pytest.raises(
        CheckpointError, match=r"pairs \(.*\): Spark keeps .*one:str.*, and would keep .*two:str"
    ):
        joined(lambda rows: rows.select("user", "two", "at"), "two")
    joined(lambda rows: rows.select("user", "one", "at"), "one")


def test_a_prepared_batch_goes_to_the_sinks_of_its_plan(tmp_path: Path) -> None:
    job, found = Job(tmp_path, "user string, at bigint"), list[Row]()

    def refuses(row: Row) -> None:
        raise ConnectionError(f"away: {row}")

    job.page("1", ("ann", 0))
    with pytest.raises(Exception, match="away"):
        job.run(lambda rows: rows.to(refuses, name="before"))
    lost = r"batch 0 has rows for before that are not written yet.*run the plan of before once"
    cannot_go_on(job, lambda rows: rows.to(found.append, name="after"), lost)
    job.run(lambda rows: rows.to(found.append, name="before"))
    assert [row["user"] for row in found] == ["ann"]
    assert found[:] == [{"user": "ann", "at": START_MS}]


def checked(job: Job, steps: str) -> tuple[int, list[Row]]:
    """What ``queen pipeline check`` says of a pipeline with these steps."""
    file = job.state.parent / "jobs.py"
    file.write_text(
        "from queenstream import Files, Pipeline, max_, min_, tumbling\n"
        "from tests.integration.spark.test_plan_changes import visits\n"
        f"files = Files({str(job.pages)!r}, format='ndjson', follow=True, schema={job.schema!r})\n"
        "rows = Pipeline('job').source(files, name='in')\n"
        f"job = rows{steps}\n"
    )
    done = CliRunner().invoke(app, ["check", f"{file}:job", "--against", str(job.state)])
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


def test_check_says_what_a_run_would_do(tmp_path: Path) -> None:
    job = Job(tmp_path, None)
    job.page("1", ("ann", 0))
    job.run(lambda rows: rows.key_by("user").stateful(visits, name="visits").to(print))
    code, changes = checked(job, ".key_by('user').stateful(visits, name='visits').to(print)")
    assert (code, {each["verdict"] for each in changes}) == (0, {"kept"})
    steps = ".filter('at > 0').key_by('user').stateful(visits, name='visits').to(print, repr)"
    code, changes = checked(job, steps)
    assert code == 0
    [new] = [each for each in changes if each["verdict"] != "kept"]
    assert (new["step"], new["verdict"], new["compatible"]) == ("function:repr", "new", True)
    code, changes = checked(job, ".key_by('user', 'at').stateful(visits, name='visits').to(print)")
    assert code == 1
    [broken] = [each for each in changes if not each["compatible"]]
    assert (broken["step"], broken["line"].rpartition("/")[2]) == ("visits", "jobs.py:5")
    assert broken["why"].startswith("keys was user, is user, at; or undo that")
