"""What is wrong with a pipeline is said before it runs: all of it, by line, with what to write instead."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queenstream.core.aggregates import avg, collect_list, custom, first, max_, percentile, sum_
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Cassandra, Files, Kafka, Memory, Postgres, Queue, Record, Stream
from queenstream.pipeline.errors import PipelineError
from queenstream.pipeline.expr.expressions import coalesce, col, lit, to_timestamp, when
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import count, session, tumbling
from queenstream.pipeline.state import State
from tests.unit.pipeline import jobs

ORDERS = (
    "user_id string, amount double, qty int, at timestamp, tags map<string, string>, user struct<id: int>"
)


def orders() -> Pipeline[Record]:
    return Pipeline("orders").source(Queue("orders", schema=ORDERS))


def untimed() -> Pipeline[Record]:
    return Pipeline("untimed").source(Memory([{"user_id": "a"}]))


def keep(record: Record) -> Record:
    return record


async def keep_async(record: Record) -> Record:
    return record


async def generate(record: Record) -> AsyncIterator[Record]:
    yield record


def remember(key: Any, record: Record, state: State) -> Record | None:
    return None


async def remember_async(key: Any, record: Record, state: State) -> Record | None:
    return None


def on_timer(key: Any, timer: str, state: State) -> Record | None:
    return None


def problems(pipeline: Pipeline[Any]) -> list[str]:
    """Step, what is wrong, and what to write instead, of each problem."""
    with pytest.raises(PipelineError) as caught:
        pipeline.plan()
    return [f"{each.step} {each.wrong}; {each.instead}" for each in caught.value.problems]


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        (Pipeline("p"), "the pipeline 'p' has no source; begin it with .source(Queue('name'))"),
        (
            Pipeline("p").filter("a > 1").to(print),
            "filter has nothing to work on; begin the pipeline with .source(",
        ),
        (orders(), "queue:orders leads nowhere; end it with .to(Queue('name'))"),
        (orders().to(print).filter("qty > 1"), "filter leads nowhere; end it with .to("),
        (
            orders().source(Queue("more")).to(print),
            "source comes after other steps; bring a second source in with .union(",
        ),
        (orders().window("5m").to(print), "window has no aggregate; add .aggregate(n=count()) after it"),
        (orders().window("5m").window("1h").aggregate(n=count()).to(print), "window has no aggregate"),
        (
            orders().aggregate(n=count()).to(print),
            "aggregate has no window; add .window(tumbling('5m')) before it",
        ),
        (
            untimed().window("5m").aggregate(n=count()).to(print),
            "aggregate has windows without a time; write .window(…, time='field')",
        ),
        (
            orders().window("5m").aggregate().to(print),
            "aggregate computes nothing; write .aggregate(n=count()",
        ),
        (
            orders().window("5m").aggregate(window_end=count()).to(print),
            "aggregate has an aggregate named 'window_end', as the row has already",
        ),
        (
            orders().key_by("user_id").window("5m").aggregate(user_id=count()).to(print),
            "aggregate has an aggregate named 'user_id', as the row has already",
        ),
        (
            orders().window(count(10), grace="5s").aggregate(n=count()).to(print),
            "aggregate has a count window with a grace, which does nothing; leave grace out",
        ),
        (
            orders().join(orders(), on="user_id").to(print),
            "join has no bound in time, so it would keep every record for ever; add within='5m'",
        ),
        (
            orders().join(untimed(), on="user_id", within="5m").to(print),
            "join has no event time on its right side; say where the event time stands: .event_time('field')",
        ),
        (orders().join(orders(), on=[], within="5m").to(print), "join compares nothing; write on='user_id'"),
        (
            orders().join(Pipeline("empty"), on="user_id", within="5m").to(print),
            "the pipeline 'empty' has no source",
        ),
        (orders().stateful(remember).to(print), "stateful has no key; add .key_by('user_id') before it"),
        (
            orders().key_by("user_id").stateful(remember_async).to(print),
            "stateful has an async function; await in a transform before it",
        ),
        (
            untimed().key_by("user_id").stateful(remember, on_timer=on_timer).to(print),
            "stateful forgets or waits by event time, and there is none; say where",
        ),
        (
            orders().deduplicate("user_id").to(print),
            "deduplicate has no bound in time, so it would keep every value for ever; add within='10m'",
        ),
        (orders().deduplicate(within="5m").to(print), "deduplicate names no field; write .deduplicate('id'"),
        (untimed().deduplicate("user_id", within="5m").to(print), "deduplicate has no event time; say where"),
        (orders().union().to(print), "union has only one input; give it another pipeline"),
        (
            orders().union(untimed(), coordination="timestamp").to(print),
            "union goes by event time, and not all of its inputs have one; say where",
        ),
        (orders().key_by().to(print), "key_by names no key; write .key_by('user_id')"),
        (orders().key_by("user.id", id="qty").to(print), "key_by has two keys named 'id'; name them apart"),
        (
            orders().key_by(keep_async).to(print),
            "key_by has an async function; compute the key in a transform",
        ),
        (orders().select().to(print), "select has no columns; name them"),
        (
            orders().flat_map(generate).to(print),  # type: ignore[arg-type]
            "flat_map has an async generator; return a list",
        ),
        (orders().transform("a", keep, timeout=0).to(print), "a gives its function no time at all"),
        (
            orders().late(print).to(print),
            "late:queue:orders follows 'queue:orders', for which nothing is late",
        ),
        (
            orders().window(count(5)).aggregate(n=count()).late(print).to(print),
            "late:aggregate follows 'aggregate', for which nothing is late; put .late(…) right after",
        ),
        (
            orders().transform("a", keep).transform("a", keep).to(print),
            "a has the name of the step at tests/unit/pipeline/test_validate.py:",
        ),
        (
            orders().filter("qty > 1").to(Queue("orders")),
            "queue:orders-2 writes into the queue orders that it reads, so every record would come back",
        ),
        (
            orders().on_error(DeadLetters("orders")).to(print),
            "queue:orders has its dead letters in the queue orders that it reads",
        ),
        (
            orders().to(Queue("out", start="latest", group="g")),
            "queue:out says group, start of queue out, which is only for reading; leave it out here",
        ),
        (
            Pipeline("p").source(Queue("in", partition_by="user")).to(print),
            "queue:in says partition_by of queue in, which is only for writing; leave it out here",
        ),
        (
            untimed().to(Postgres("t", create_table=True)),
            "postgres:t cannot create its table: the fields are not known; give the sink a schema",
        ),
        (
            orders().to(Cassandra("t", create_table=True)),
            "cassandra:t cannot create its table without a key; add partition_key=('user_id',)",
        ),
    ],
)
def test_a_problem_and_what_to_write_instead(
    pipeline: Pipeline[Any], expected: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pytestconfig.rootpath)
    found = problems(pipeline)
    assert any(problem.startswith(expected) for problem in found), found


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        (
            orders().filter("amout > 100"),
            "filter reads 'amout', which is not there; there are user_id, amount, qty, at, tags, user; "
            "write 'amount'",
        ),
        (orders().filter("user.name = 'x'"), "filter reads 'user.name', which is not there"),
        (
            orders().select("user_id").filter("qty > 1"),
            "filter reads 'qty', which is not there; there are user_id;",
        ),
        (orders().select(x="nobody"), "select reads 'nobody'"),
        (orders().event_time("time"), "event_time reads 'time'"),
        (
            orders().key_by("usr_id"),
            "key_by reads 'usr_id', which is not there; there are user_id, amount, qty",
        ),
        (orders().deduplicate("id", within="1m"), "deduplicate reads 'id'"),
        (orders().window("5m").aggregate(n=sum_("amnt")), "aggregate reads 'amnt'"),
        (orders().join(orders(), on=("user_id", "id"), within="1m"), "join reads 'id'"),
        (
            orders().key_by("user_id").window("5m").aggregate(n=count()).filter("amount > 1"),
            "filter reads 'amount', which is not there; there are window_start, window_end, user_id, n;",
        ),
    ],
)
def test_columns_that_are_not_there(pipeline: Pipeline[Any], expected: str) -> None:
    [found] = problems(pipeline.to(print))
    assert found.startswith(expected)


def test_a_sink_needs_the_fields_that_its_options_name() -> None:
    pipeline = orders().to(Queue("a", partition_by="usr"), Kafka("b", key_by="x"), Postgres("c", key=("y",)))
    found = [problem.partition(",")[0] for problem in problems(pipeline)]
    assert found == ["queue:a reads 'usr'", "kafka:b reads 'x'", "postgres:c reads 'y'"]


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        (orders().filter(col("user_id") > 3), "filter compares text with a number in `user_id > 3`"),
        (
            orders().filter(col("qty").is_in(["a"])),
            "filter compares a number with text in `qty in ('a')`, which is never true; write cast(",
        ),
        (orders().filter(col("qty")), "filter is by `qty`, which is neither true nor false"),
        (orders().filter(col("qty") & col("qty").is_null()), "filter needs a boolean in"),
        (orders().filter(~col("qty")), "filter needs a boolean in `not qty`, and `qty` is int"),
        (orders().with_columns(x=col("user_id") + 1), "with_columns needs a number in `user_id + 1`"),
        (orders().with_columns(x=-col("at")), "with_columns needs a number in `-at`, and `at` is timestamp"),
        (
            orders().with_columns(x=col("qty").upper()),
            "with_columns needs text in `upper(qty)`, and `qty` is int",
        ),
        (orders().with_columns(x=col("user_id").abs()), "with_columns needs a number in `abs(user_id)`"),
        (orders().with_columns(x=col("qty").year()), "with_columns needs a time in `year(qty)`"),
        (orders().with_columns(x=when(col("qty"), 1)), "with_columns needs a boolean in `case when qty"),
        (orders().event_time("tags"), "event_time takes the time from 'tags', which is map"),
        (orders().window("5m").aggregate(x=sum_("user_id")), "aggregate takes x = sum(user_id) of a string"),
        (
            orders().join(orders(), on=("user_id", "qty"), within="1m"),
            "join compares 'user_id', string, with 'qty', int, which are never equal",
        ),
        (
            orders().union(Pipeline("o").source(Queue("o", schema="qty string"))),
            "union brings together 'qty' as int and as string; make them one type with .with_columns(",
        ),
    ],
)
def test_types_that_cannot_be(pipeline: Pipeline[Any], expected: str) -> None:
    [found] = problems(pipeline.to(print))
    assert found.startswith(expected)


@pytest.mark.parametrize(
    "pipeline",
    [
        orders().filter("amount > qty and at > '2026-01-31' and tags.vip = 'yes' and user.id in (1, 2)"),
        orders().filter(col("amount").cast("text").like("1%")),
        untimed().filter("anything > 1").window(count(10)).aggregate(n=count()),
        untimed().window("5m", time="at").aggregate(n=count()),
        untimed().key_by("user_id").stateful(remember),
        orders().window(session("5m")).aggregate(n=count()),
        Pipeline("s")
        .source(Stream("s"))
        .flat_map(lambda window: window["messages"])
        .window("5m")
        .aggregate(n=count()),
        orders().key_by("user_id").window("5m").aggregate(n=count()).window("1h").aggregate(most=max_("n")),
        orders().key_by(all=lit(1)).stateful(remember, ttl="1h"),
        orders().union(orders()).deduplicate("user_id", within="5m"),
        jobs.user_activity(),
        jobs.orders(),
        jobs.pages(),
    ],
)
def test_nothing_is_said_of_what_is_right(pipeline: Pipeline[Any]) -> None:
    assert pipeline.to(print).plan().nodes


def test_all_problems_come_at_once_with_the_users_lines() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    pipeline = (
        orders()
        .filter("amout > 1")
        .join(orders(), on="user_id")
        .window("5m")
    )  # fmt: skip
    first = frame.f_lineno
    with pytest.raises(PipelineError) as caught:
        pipeline.plan()
    found = {problem.step: int(problem.where.rpartition(":")[2]) for problem in caught.value.problems}
    assert set(found) == {"window", "join", "filter"}
    assert found["filter"] + 1 == found["join"]
    assert found["join"] + 1 == found["window"]
    assert first - 5 <= found["filter"] <= first
    text = str(caught.value)
    assert text.startswith("the pipeline 'orders' cannot run, 4 problems:\n  ")
    assert len(text.splitlines()) == 5
    assert all("test_validate.py:" in line for line in text.splitlines()[1:])
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


@pytest.mark.parametrize(
    ("pipeline", "ddl"),
    [
        (
            orders().filter(keep).key_by("qty").event_time("at"),
            ORDERS.replace(", s", ",s").replace(": ", ":"),
        ),
        (orders().transform("a", keep), None),
        (
            orders().select("user.id", up=col("user_id").upper(), n=col("qty") + 1),
            "id int, up string, n bigint",
        ),
        (
            orders().select(
                a=col("qty") / 2, b=col("qty") * col("amount"), c=col("at").is_null(), d=lit(None)
            ),
            "a double, b double, c boolean, d variant",
        ),
        (
            orders().select(a=coalesce(col("qty"), 1.5), b=when(col("qty") > 1, "x").otherwise("y")),
            "a double, b string",
        ),
        (orders().select(a=to_timestamp(col("qty")), b=col("qty").cast("text")), "a timestamp, b string"),
        (orders().select("qty").with_columns(qty=col("qty") > 1, x=lit(1)), "qty boolean, x bigint"),
        (
            orders()
            .key_by("user_id", day=keep)
            .window(tumbling("5m"))
            .aggregate(
                n=count(),
                q=sum_("qty"),
                s=sum_("amount"),
                a=avg("qty"),
                f=first("user_id"),
                c=collect_list("qty"),
                p=percentile("qty", 0.5),
                own=custom(init=int, add=lambda held, value: held, merge=max, finish=str),
            ),
            "window_start timestamp, window_end timestamp, user_id string, day variant, n bigint, q bigint, "
            "s double, a double, f string, c array<int>, p double, own variant",
        ),
        (
            orders()
            .select("user_id", "qty")
            .join(
                Pipeline("u").source(Queue("u", schema="id string not null, user_id string, qty int")),
                on="user_id",
                within="5m",
                how="left",
            ),
            "user_id string, qty int, id string, right_qty int",
        ),
        (
            orders().select("user_id", "qty").union(orders().select("qty", "amount")),
            "user_id string, qty int, amount double",
        ),
        (Pipeline("p").source(Queue("q")).with_columns(a=lit(1)), None),
        (orders().union(Pipeline("p").source(Queue("q"))), None),
    ],
)
def test_the_fields_of_what_comes_out(pipeline: Pipeline[Any], ddl: str | None) -> None:
    plan = pipeline.to(print).plan()
    schema = plan.schema(plan.nodes[-1])
    if ddl is None:
        assert schema is None
    else:
        assert schema is not None
        assert schema.to_ddl().replace(", ", ",") == ddl.replace(", ", ",")


def test_late_rows_have_fields_of_their_own() -> None:
    plan = orders().window("5m").aggregate(n=count()).late(Files("late.ndjson")).to(print).plan()
    schema = plan.schema(plan.node("files:late.ndjson"))
    assert schema is not None
    assert schema.names == ("record", "event_time", "lateness_ms", "step", "window_start", "window_end")
