"""The builder: what each step becomes, and that nothing a user does to one pipeline shows in another."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.core import windows
from queenstream.core.aggregates import first, max_, sum_
from queenstream.core.windows import Tumbling
from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Generator, Kafka, Memory, Queue, Record
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.errors import PipelineError
from queenstream.pipeline.expr.expressions import col, lit
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.fingerprints import compare
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.plan.planner import Plan
from queenstream.pipeline.policies import FAIL, DeadLetters, ErrorPolicy, retry
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.pipeline.state import State
from tests.unit.pipeline import jobs

N = TypeVar("N", bound=Node)


def queue() -> Pipeline[Record]:
    return Pipeline("p").source(Queue("in"))


def only(pipeline: Pipeline[Any], kind: type[N]) -> N:
    """The one node of its kind in the plan."""
    [found] = [node for node in pipeline.to(print).plan().nodes if isinstance(node, kind)]
    return found


def named(plan: Plan) -> list[str]:
    return [node.name for node in plan.nodes]


def keep(record: Record) -> Record:
    return record


async def keep_async(record: Record) -> Record:
    return record


@dataclass
class Click:
    user: str
    page: str | None = None


def as_click(record: Record) -> Click:
    return Click(record["user"])


def as_clicks(record: Record) -> Iterator[Click]:
    yield Click(record["user"])


def maybe_click(key: Any, record: Record, state: State) -> Click | None:
    return Click(record["user"]) if state.get("seen") else None


# Steps and their nodes


def test_the_chain_of_the_semantics_becomes_core_nodes() -> None:
    plan = jobs.user_activity().plan()
    assert [type(node).__name__ for node in plan.nodes] == [
        "Read",
        "Apply",
        "Apply",
        "Filter",
        "KeyBy",
        "EventTime",
        "Aggregation",
        "Late",
        "Write",
        "Write",
        "Replay",
    ]
    aggregation = plan.node("aggregate")
    assert isinstance(aggregation, nodes.Aggregation)
    assert aggregation.window == Tumbling(timedelta(minutes=5))
    assert aggregation.grace == timedelta(seconds=30)
    assert aggregation.emit == "final"
    assert aggregation.keys == ("user_id",)
    assert [(name, str(each)) for name, each in aggregation.aggregates] == [
        ("event_count", "count()"),
        ("total", "sum(value)"),
        ("users", "collect_set(user_id)"),
    ]


def test_a_function_is_one_visible_node() -> None:
    node = only(queue().transform("keep", keep_async, concurrency=32, timeout="2s"), nodes.Apply)
    assert (node.name, node.function, node.mode, node.is_async) == ("keep", keep_async, "map", True)
    assert (node.concurrency, node.timeout) == (32, timedelta(seconds=2))
    assert not only(queue().transform("keep", keep), nodes.Apply).is_async
    assert only(queue().filter(lambda record: record["a"]), nodes.Apply).mode == "filter"
    assert only(queue().flat_map(lambda record: record["items"]), nodes.Apply).mode == "flat_map"


def test_async_functions_are_seen_through_what_wraps_them() -> None:
    class Caller:
        async def __call__(self, record: Record) -> Record:
            return record

    assert only(queue().transform("a", partial(keep_async)), nodes.Apply).is_async
    assert only(queue().transform("a", Caller()), nodes.Apply).is_async


def test_a_text_and_an_expression_are_the_same_filter() -> None:
    by_text = only(queue().filter("amount > 100 and not vip"), nodes.Filter)
    by_expression = only(queue().filter((col("amount") > 100) & ~col("vip")), nodes.Filter)
    assert by_text.predicate.same_as(by_expression.predicate)


def test_columns_are_computed_by_expressions() -> None:
    selected = only(queue().select("user.id", total="price * n", one=lit(1)), nodes.Project)
    assert [(name, str(expr)) for name, expr in selected.columns] == [
        ("id", "user.id"),
        ("total", "price * n"),
        ("one", "1"),
    ]
    assert not selected.keep
    added = only(queue().with_columns(total=col("price") * 2), nodes.Project)
    assert added.keep
    assert dict(only(queue().select(name="first"), nodes.Project).columns)["name"].same_as(col("first"))
    step = only(queue().transform("total", col("price") * 2), nodes.Project)
    assert (step.name, step.keep, step.columns[0][0]) == ("total", True, "total")


def test_keys_have_names() -> None:
    def bucket(record: Record) -> int:
        return len(record)

    node = only(queue().key_by("user.id", bucket, country=col("c").upper(), shop="shop.name"), nodes.KeyBy)
    assert [part.name for part in node.parts] == ["id", "key", "country", "shop"]
    assert node.parts[1].of is bucket


@pytest.mark.parametrize("window", ["5m", timedelta(minutes=5), tumbling("5m")])
def test_a_duration_alone_is_a_tumbling_window(window: str | timedelta | windows.Definition) -> None:
    node = only(queue().window(window).aggregate(n=count()), nodes.Aggregation)
    assert node.window == Tumbling(timedelta(minutes=5))
    assert node.grace == timedelta(0)


def test_steps_may_stand_between_window_and_aggregate() -> None:
    pipeline = queue().window("5m").filter("a > 1").key_by("user").aggregate(n=count())
    assert only(pipeline, nodes.Aggregation).keys == ("user",)


def test_aggregates_by_name_and_in_the_dictionary_form() -> None:
    pipeline = queue().window("5m").aggregate({"n": {"$sum": 1}, "emit": sum_("value")}, name=first("name"))
    found = dict(only(pipeline, nodes.Aggregation).aggregates)
    assert list(found) == ["n", "emit", "name"]
    assert found["n"].over([{}, {}]) == 2
    with pytest.raises(ConfigError, match=r"n is 1, no aggregate; write n=count\(\)"):
        queue().window("5m").aggregate(n=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("on", "pairs"),
    [
        ("id", (("id", "id"),)),
        (("user_id", "id"), (("user_id", "id"),)),
        (["shop", ("user_id", "id")], (("shop", "shop"), ("user_id", "id"))),
    ],
)
def test_a_join_has_both_sides(on: Any, pairs: tuple[tuple[str, str], ...]) -> None:
    users = Pipeline("users").source(Queue("users"))
    node = only(queue().join(users, on=on, within="5m", how="full", grace="1m"), nodes.Join)
    assert node.on == pairs
    assert (node.within, node.how, node.grace) == (timedelta(minutes=5), "full", timedelta(minutes=1))
    assert [each.name for each in node.inputs] == ["queue:in", "queue:users"]


def test_state_by_key() -> None:
    def on_timer(key: Any, timer: str, state: State) -> Click | None:
        return None

    pipeline = queue().key_by("user", "shop").stateful(maybe_click, on_timer=on_timer, ttl="1h")
    node = only(pipeline, nodes.Stateful)
    assert (node.keys, node.ttl, node.on_timer) == (("user", "shop"), timedelta(hours=1), on_timer)


def test_functions_are_sources_and_sinks() -> None:
    def give() -> Iterable[int]:
        return [1, 2]

    taken: list[int] = []
    plan = Pipeline("p").source(give).to(taken.append).plan()
    assert plan.sources[0].source == Generator(give)
    assert plan.sinks[0].sink == Function(taken.append)


def test_the_schema_of_a_function_is_its_annotation_or_what_is_said() -> None:
    click = "user string not null, page string"

    def ddl(pipeline: Pipeline[Any]) -> str | None:
        plan = pipeline.to(print).plan()
        schema = plan.schema(plan.nodes[-1])
        return None if schema is None else schema.to_ddl()

    assert ddl(queue().transform("a", as_click)) == click
    assert ddl(queue().flat_map(as_clicks)) == click
    assert ddl(queue().key_by("user").stateful(maybe_click)) == click
    assert ddl(queue().transform("a", keep, schema="user string")) == "user string"
    assert ddl(queue().transform("a", keep)) is None


# One beginning, several ends


def test_a_pipeline_does_not_change() -> None:
    base = queue().transform("keep", keep)
    one, two = base.filter("a > 1").to(Queue("one")), base.filter("a > 2").to(Queue("two"))
    assert named(one.plan()) == ["queue:in", "keep", "filter", "queue:one"]
    assert named(two.plan()) == ["queue:in", "keep", "filter", "queue:two"]


def test_several_sinks_at_several_places() -> None:
    plan = queue().to(Queue("raw"), print).filter("a > 1").to(Queue("big")).plan()
    assert named(plan) == ["queue:in", "queue:raw", "function:print", "filter", "queue:big"]
    assert [each.name for each in plan.consumers(plan.node("queue:in"))] == [
        "queue:raw",
        "function:print",
        "filter",
    ]


def test_a_shared_branch_is_one_branch() -> None:
    base = queue().transform("keep", keep)
    plan = base.filter("a > 1").union(base.filter("a < 0"), base).to(print).plan()
    assert named(plan) == ["queue:in", "keep", "filter", "filter-2", "union", "function:print"]
    assert len(plan.sources) == 1


def test_the_sinks_of_what_is_taken_in_come_along() -> None:
    users = Pipeline("users").source(Queue("users")).to(Queue("copy"))
    plan = queue().to(Queue("raw")).union(users).to(print).plan()
    assert [write.name for write in plan.sinks] == ["queue:raw", "queue:copy", "function:print"]


def test_names_given_by_users_are_never_taken() -> None:
    plan = (
        queue()
        .filter("a > 1")
        .filter("a > 2", name="filter")
        .filter("a > 3", name="filter-2")
        .to(print)
        .plan()
    )
    assert named(plan) == ["queue:in", "filter-3", "filter", "filter-2", "function:print"]


def test_each_node_has_the_users_line() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    pipeline = (
        Pipeline("p")
        .source(Queue("in"))
        .filter("a > 1")
        .window("5m", time="at")
        .aggregate(n=count())
        .late(print)
        .to(print)
    )
    first = frame.f_lineno
    assert {node.where.file for node in pipeline.plan().nodes} == {__file__}
    lines = [node.where.line for node in pipeline.plan().nodes]
    assert lines == sorted(lines)
    assert first - 10 < lines[0] < lines[-1] <= first


# Errors


def test_a_step_has_its_own_policy_or_the_pipelines() -> None:
    letters = DeadLetters("dead")
    pipeline = queue().transform("a", keep, on_error="fail").transform("b", keep).on_error(letters).to(print)
    plan = pipeline.plan()
    assert plan.node("a").policy == ErrorPolicy(then="fail")
    assert plan.node("b").policy == ErrorPolicy(then=letters)
    assert plan.policy == ErrorPolicy(then=letters)
    assert plan.dead_letters == (Queue("dead"),)
    assert queue().to(print).plan().node("queue:in").policy == FAIL


def test_retries_with_all_that_can_be_said() -> None:
    pipeline = queue().on_error(
        "retry", max_retries=5, backoff="constant", delay="2s", then=DeadLetters("dead")
    )
    expected = retry(5, backoff="constant", delay="2s", then=DeadLetters("dead"))
    assert pipeline.to(print).plan().policy == expected
    tried = queue().on_error(DeadLetters("dead"), max_retries=2).to(print).plan().policy
    assert tried == ErrorPolicy(max_retries=2, then=DeadLetters("dead"))


def test_what_is_taken_in_keeps_its_policy() -> None:
    theirs = Pipeline("t").source(Queue("other")).transform("theirs", keep).on_error("fail")
    silent = Pipeline("s").source(Queue("third")).transform("silent", keep)
    plan = queue().transform("ours", keep).union(theirs, silent).on_error("retry").to(print).plan()
    assert plan.node("theirs").policy.then == "fail"
    assert plan.node("ours").policy == plan.node("silent").policy == plan.node("union").policy == retry()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda _: Pipeline(" "), "a pipeline needs a name"),
        (lambda p: p.transform("a", 5), "5 is no function"),
        (lambda p: p.transform("a", keep, concurrency=0), "concurrency is 0"),
        (lambda p: p.filter("a >"), "a >"),
        (lambda p: p.filter("a > 1", timeout="2s"), "timeout, schema and on_error are for functions"),
        (lambda p: p.transform("b", col("a") + 1, on_error="fail"), "on_error are for functions"),
        (lambda p: p.select("user.id", "shop.id"), "two fields would have one name"),
        (lambda p: p.to(print).plan().node("nobody"), "no step 'nobody'; there are queue:in, function:print"),
        (lambda p: p.window("5 parsecs"), "is not a duration"),
        (lambda p: p.window("5m").aggregate(n=count(), emit="often"), "write 'final' or 'update'"),
        (lambda p: p.join(queue(), on="a", how="outer"), "write 'inner', 'left', 'right' or 'full'"),
        (lambda p: p.union(queue(), coordination="luck"), "write 'arrival' or 'timestamp'"),
        (lambda p: p.to("totals"), "'totals' is no sink; write Queue('name')"),
        (lambda p: type(p)("q").source("orders"), "'orders' is no source; write Queue('name')"),
        (lambda p: p.on_error("ignore"), "on_error is 'ignore'"),
        (lambda p: p.to(print).describe("png"), "no form 'png'"),
        (lambda p: p.to(print).run(engine="flink"), "no engine 'flink'"),
        (lambda p: p.to(print).run(engine="local", cores=3), "run() does not know cores"),
        (lambda p: p.to(print).run(engine="local", until="tea"), "until is 'tea'"),
        (lambda p: p.to(print).run(engine="local", max_batch_rows=0), "max_batch_rows is 0; write a whole"),
    ],
)
def test_what_cannot_be_is_refused_at_the_step(build: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(queue())
    assert message in str(caught.value)


# Dead letters that come back


def replays(pipeline: Pipeline[Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    nodes_ = pipeline.plan().nodes
    return [(node.name, node.source.title, node.steps) for node in nodes_ if isinstance(node, nodes.Replay)]


def test_one_source_of_letters_for_each_queue_of_them() -> None:
    pipeline = (
        queue()
        .transform("a", keep, on_error=DeadLetters("x"))
        .transform("b", keep, on_error=retry(2, then=DeadLetters("x")))
        .transform("c", keep, on_error=DeadLetters(Queue("y", partition_by="step", url="http://other:1")))
        .transform("d", keep, on_error=DeadLetters("z", replay=False))
        .transform("e", keep, on_error=DeadLetters(Function(print)))
        .to(print)
    )
    assert replays(pipeline) == [
        ("replay:x", "queue x.replay", ("a", "b")),
        ("replay:y", "queue y.replay", ("c",)),
    ]
    plan = pipeline.plan()
    assert [read.name for read in plan.inputs] == ["queue:in"]
    assert plan.node("replay:y").source.url == "http://other:1"  # type: ignore[attr-defined]
    assert plan.node("replay:x").policy == ErrorPolicy(then=DeadLetters("x"))


def test_letters_may_come_back_from_elsewhere() -> None:
    letters = DeadLetters(Function(print), replay=Queue("again"))
    pipeline = queue().transform("a", keep, on_error=letters).to(print)
    assert replays(pipeline) == [("replay:print", "queue again", ("a",))]


def test_what_never_fails_has_no_letters() -> None:
    pipeline = queue().union(Pipeline("o").source(Queue("other"))).on_error(DeadLetters("x")).to(print)
    assert replays(pipeline) == [
        ("replay:x", "queue x.replay", ("queue:in", "queue:other", "function:print"))
    ]


def test_a_pipeline_over_what_has_an_end_has_one_with_letters_too() -> None:
    assert Pipeline("p").source(Memory([])).on_error(DeadLetters("x")).to(print).plan().bounded


def test_another_place_for_letters_is_no_reason_to_start_afresh() -> None:
    def state(letters: DeadLetters) -> Any:
        return queue().on_error(letters).to(print).plan().state

    changes = compare(state(DeadLetters("x")), state(DeadLetters("y")))
    assert [(change.step, change.verdict) for change in changes] == [
        ("queue:in", "kept"),
        ("replay:x", "gone"),
        ("replay:y", "new"),
    ]
    assert all(change.harmless for change in changes)


# Running


def test_run_hands_the_checked_plan_to_the_engine_and_waits(tmp_path: Path) -> None:
    rows: list[Record] = []
    pipeline = Pipeline("p").source(Memory([{"n": 1}, {"n": 2}])).filter("n > 1").to(rows.append, name="out")
    ended = pipeline.run(engine="local", checkpoint=str(tmp_path), interval="5s", until="caught_up")
    assert rows == [{"n": 2}]
    assert ended.wait(0)
    assert ended.get_stats()["steps.out.taken"] == 1
    assert (tmp_path / "p.checkpoint").is_file()


def test_start_does_not_wait() -> None:
    go_on = threading.Event()

    def numbers() -> Iterator[Record]:
        assert go_on.wait(30)
        yield {"n": 1}

    rows: list[Record] = []
    started = Pipeline("p").source(numbers).to(rows.append).start(engine="local")
    assert not started.wait(0)
    assert rows == []
    go_on.set()
    assert started.wait(30)
    assert rows == [{"n": 1}]


def test_a_bad_pipeline_never_runs(tmp_path: Path) -> None:
    with pytest.raises(PipelineError):
        queue().run(engine="local", checkpoint=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_options_that_a_run_is_told() -> None:
    said = RunOptions.of({"interval": "5s", "until": "caught_up", "url": "http://a:1", "token": "secret"})
    assert said == RunOptions(
        interval=timedelta(seconds=5), until="caught_up", url="http://a:1", token="secret"
    )


def test_an_async_generator_is_a_source_too() -> None:
    async def numbers() -> AsyncIterator[Record]:
        yield {"n": 1}

    rows: list[Record] = []
    typed: Pipeline[Record] = Pipeline("p").source(numbers)
    typed.to(rows.append).run(engine="local")
    assert rows == [{"n": 1}]


def test_where_it_begins_and_whether_it_writes() -> None:
    begun = Pipeline("p").source(Queue("in"))
    assert str(begun.where).startswith("tests/unit/pipeline/test_builder.py:")
    assert not begun.has_sinks
    assert begun.to(print).has_sinks


def test_spark_is_the_default_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nowhere:
        """A Python without pyspark."""

        def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            if name.startswith(("queenstream.spark", "queenstream.engines.spark")):
                raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")
            return None

    for name in [
        name for name in sys.modules if name.startswith(("queenstream.spark", "queenstream.engines.spark"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Nowhere(), *sys.meta_path])
    with pytest.raises(
        ConfigError, match=r"needs pyspark; install it with pip install 'queenstream\[spark\]'"
    ):
        queue().to(print).run()


# Types, as mypy sees them: an ignore that is not needed is an error too


def test_records_have_types() -> None:
    def page_of(click: Click) -> str:
        return click.user

    clicks: Pipeline[Click] = queue().transform("click", as_click)
    pages: Pipeline[str] = clicks.transform("page", page_of)
    kept: Pipeline[Record] = queue().transform("keep", keep_async)
    numbers: Pipeline[int] = Pipeline("n").source(Memory([1, 2]))
    queue().transform("page", page_of)  # type: ignore[arg-type]
    pages.filter(page_of)  # type: ignore[arg-type]
    numbers.to(str.upper)  # type: ignore[arg-type]
    assert named(kept.to(print).plan()) == ["queue:in", "keep", "function:print"]


# What a checkpoint can be used for


def counted(*, size: str = "5m", key: str = "user", name: str | None = None, extra: bool = False) -> Plan:
    begun = queue().filter("a > 1") if extra else queue()
    pipeline = begun.key_by(key).window(size, time="at").aggregate(n=count(), step_name=name)
    return pipeline.to(Queue("out")).plan()


def test_sinks_come_and_go_and_a_source_is_known_by_its_place() -> None:
    more = queue().key_by("user").window("5m", time="at").aggregate(n=count()).to(Queue("out"), print).plan()
    assert more.fingerprint == counted().fingerprint
    here = Pipeline("p").source(Kafka("t", servers="a:9092"), name="in").to(print).plan()
    there = Pipeline("p").source(Kafka("t", servers="b:9092"), name="in").to(print).plan()
    [change] = compare(here.state, there.state)
    assert (change.verdict, change.why) == ("changed", "source was kafka a:9092 t, is kafka b:9092 t")


def test_steps_without_state_do_not_touch_a_checkpoint() -> None:
    assert counted().fingerprint == counted(extra=True).fingerprint
    assert {change.verdict for change in compare(counted().state, counted(extra=True).state)} == {"kept"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (counted(size="1h"), "window was tumbling 5m, is tumbling 1h"),
        (counted(key="shop"), "keys was user, is shop"),
    ],
)
def test_a_step_that_changed_cannot_use_its_state(changed: Plan, why: str) -> None:
    assert changed.fingerprint != counted().fingerprint
    [change] = [change for change in compare(counted().state, changed.state) if change.verdict != "kept"]
    assert (change.step, change.verdict, change.why, change.harmless) == ("aggregate", "changed", why, False)


def test_aggregates_are_added_at_the_end() -> None:
    before = queue().key_by("user").window("5m", time="at")
    some = before.aggregate(n=count(), step_name="sums").to(print).plan()
    more = before.aggregate(n=count(), last=max_("at"), step_name="sums").to(print).plan()
    other = before.aggregate(last=max_("at"), n=count(), step_name="sums").to(print).plan()

    def change(old: Plan, new: Plan) -> tuple[str, bool]:
        [found] = [each for each in compare(old.state, new.state) if each.verdict != "kept"]
        return found.verdict, found.harmless

    assert change(some, more) == ("extended", True)
    assert change(more, some) == ("changed", False)
    assert change(some, other) == ("changed", False)


def test_a_renamed_step_says_how_to_keep_its_state() -> None:
    changes = {change.step: change for change in compare(counted().state, counted(name="totals").state)}
    assert changes["aggregate"].verdict == "gone"
    assert "there is no step 'aggregate' any more" in changes["aggregate"].why
    assert changes["totals"].verdict == "new"
    assert changes["totals"].harmless
    assert not changes["aggregate"].harmless


# Anything that can be written plans, or says what is wrong


STEPS: list[Any] = [
    lambda p: p.transform("keep", keep),
    lambda p: p.filter("a > 1"),
    lambda p: p.select("a", b=col("a")),
    lambda p: p.with_columns(c="a"),
    lambda p: p.event_time("at"),
    lambda p: p.key_by("a"),
    lambda p: p.window("5m"),
    lambda p: p.aggregate(n=count()),
    lambda p: p.stateful(maybe_click, ttl="1h"),
    lambda p: p.deduplicate("a", within="1m"),
    lambda p: p.join(Pipeline("o").source(Queue("o", schema="a int")), on="a", within="1m"),
    lambda p: p.union(p),
    lambda p: p.union(Pipeline("m").source(Memory([], schema="a string"))),
    lambda p: p.late(print),
    lambda p: p.to(Queue("out")),
    lambda p: p.source(Queue("in", schema="a int, at timestamp")),
    lambda p: p.on_error(DeadLetters("dead")),
]


def planned(pipeline: Pipeline[Any]) -> Plan | PipelineError:
    try:
        return pipeline.plan()
    except PipelineError as error:
        return error


@given(st.lists(st.sampled_from(STEPS), max_size=12))
def test_any_chain_plans_or_says_what_is_wrong(steps: list[Any]) -> None:
    pipeline: Pipeline[Any] = Pipeline("any")
    for step in steps:
        pipeline = step(pipeline)
    plan = planned(pipeline)
    if isinstance(plan, PipelineError):
        assert plan.problems
        assert all(problem.where and problem.wrong and problem.instead for problem in plan.problems)
        return
    assert len(set(named(plan))) == len(plan.nodes)
    seen: set[Node] = set()
    for node in plan.nodes:
        assert seen.issuperset(node.inputs)
        seen.add(node)
    assert plan.describe() == pipeline.plan().describe()
    assert plan.fingerprint == pipeline.plan().fingerprint


def test_a_very_long_chain_is_no_problem() -> None:
    pipeline = queue()
    for _ in range(3000):
        pipeline = pipeline.filter("a > 1")
    assert len(pipeline.to(print).plan().nodes) == 3002
