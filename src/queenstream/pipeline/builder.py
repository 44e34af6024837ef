"""The builder: a pipeline is written as a chain of steps, and every step gives a new one.

>>> from queenstream.core.aggregates import sum_
>>> from queenstream.pipeline.endpoints import Queue
>>> from queenstream.pipeline.shorthand import count, tumbling
>>> totals = (
...     Pipeline("user-activity")
...     .source(Queue("events"))
...     .filter("action = 'buy'")
...     .key_by("user_id")
...     .window(tumbling("5m"), grace="30s", time="timestamp")
...     .aggregate(event_count=count(), total=sum_("value"))
...     .to(Queue("totals", partition_by="user_id"))
... )
>>> [node.kind for node in totals.plan().nodes]
['read', 'filter', 'key_by', 'event_time', 'aggregate', 'write']

Nothing is opened and nothing runs here. ``plan()`` checks the whole and gives what an engine runs;
``run()`` does that and hands it to one.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeVar, Unpack, get_args, overload

from queenstream.core import durations, windows
from queenstream.core.aggregates import Aggregate
from queenstream.core.schemas import Definition
from queenstream.errors import ConfigError
from queenstream.pipeline import arguments, lookups
from queenstream.pipeline.analytics.methods import AnalyticsVerbs
from queenstream.pipeline.arguments import On
from queenstream.pipeline.endpoints import Function, Record, Sink, Source
from queenstream.pipeline.engine_api import EngineName, Run, RunKeywords, RunOptions, find_engine
from queenstream.pipeline.errors import Problem
from queenstream.pipeline.expr.expressions import Expr, col
from queenstream.pipeline.lookups import Fields
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import (
    Coordination,
    Emit,
    How,
    LookupHow,
    Mode,
    Node,
    Place,
    caller,
)
from queenstream.pipeline.plan.planner import Draft, PendingWindow, Plan, make_plan
from queenstream.pipeline.policies import (
    Backoff,
    Backpressure,
    Callback,
    Duration,
    OnError,
    Outcome,
    Strategy,
    policy_of,
)
from queenstream.pipeline.printer import RowPrinter
from queenstream.pipeline.state import State

T = TypeVar("T")
R = TypeVar("R")
U = TypeVar("U")


class Pipeline(AnalyticsVerbs[T]):
    """A pipeline of records of type ``T``; immutable, so that one beginning can have several ends."""

    __slots__ = ("_draft",)
    _draft: Draft

    def __init__(self: Pipeline[Record], name: str) -> None:
        if not name.strip():
            raise ConfigError("a pipeline needs a name: its checkpoints and its group go by it")
        self._draft = Draft(name=name, where=caller())

    @property
    def name(self) -> str:
        """What its checkpoints and its consumer group are called."""
        return self._draft.name

    @property
    def where(self) -> Place:
        """The line where it begins: ``print(totals.where)`` shows ``jobs.py:12``."""
        return self._draft.where

    @property
    def has_sinks(self) -> bool:
        """Whether it writes somewhere; one that does not is a beginning that others go on from."""
        return bool(self._draft.writes)

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}>"

    # Sources and sinks

    def source(
        self,
        source: Source[R] | Callable[..., Iterable[R]] | Callable[..., AsyncIterable[R]],
        *,
        backpressure: Strategy = "block",
        threshold: int = 10_000,
        idle_timeout: Duration | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[R]:
        """Where the records come from: a queue, stream, topic, table, files, a list, or a function.

        A source that was quiet for ``idle_timeout`` does not hold back the windows of the others.
        """
        where = caller()
        draft = self._draft
        if draft.head is not None:
            wrong = Problem(
                str(where),
                "source",
                "comes after other steps",
                "bring a second source in with .union(Pipeline('other').source(…)) or .join(…)",
            )
            draft = replace(draft, misuse=(*draft.misuse, wrong))
        node = nodes.Read(
            where=where,
            source=arguments.source(source),
            backpressure=Backpressure(backpressure, threshold),
            idle_timeout=arguments.duration(idle_timeout),
            name=name or "",
            on_error=arguments.policy(on_error),
        )
        return _pipeline(replace(draft, head=node))

    def to(
        self,
        *sinks: Sink | Callable[[T], object],
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[T]:
        """Where the records go, as they are here. More steps and more sinks may follow."""
        where = caller()
        written = tuple(
            nodes.Write(
                where=where,
                inputs=self._inputs(),
                sink=arguments.sink(sink),
                name=name or "",
                on_error=arguments.policy(on_error),
            )
            for sink in sinks
        )
        return _pipeline(replace(self._draft, writes=(*self._draft.writes, *written)))

    def foreach(
        self,
        function: Callable[[T], object],
        *,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[T]:
        """Calls a function with each record, for what it does; the record goes on as it was.

        It is a sink like any function given to ``to``: called when the records before it are stored, in the
        process that runs the pipeline (on Spark the driver). More steps may follow, or none.

            Pipeline("alerts").source(Queue("alerts")).foreach(send_mail).run(engine="local")
        """
        return self.to(function, name=name, on_error=on_error)

    def print(self, label: str | None = None, *, name: str | None = None) -> Pipeline[T]:
        """Prints each record to standard output as a line of JSON, after the label; the record goes on.

        As in:

            Pipeline("look").source(Memory([{"n": 1}])).print().run(engine="local")    # {"n":1}
            .filter("amount > 100").print("large")                                     # large: {"amount":150}
        """
        return self.to(Function(RowPrinter(label), name="print"), name=name)

    def late(self, sink: Sink | Callable[[Record], object], *, name: str | None = None) -> Pipeline[T]:
        """Where what came too late goes; right after ``aggregate``, ``join`` or ``deduplicate``."""
        where = caller()
        late = nodes.Late(where=where, inputs=self._inputs())
        write = nodes.Write(where=where, inputs=(late,), sink=arguments.sink(sink), name=name or "")
        return _pipeline(replace(self._draft, writes=(*self._draft.writes, write)))

    # Steps on one record

    @overload
    def transform(
        self,
        name: str,
        step: Expr | str,
    ) -> Pipeline[Record]: ...
    @overload
    def transform(
        self,
        name: str,
        step: Callable[[T], Awaitable[R]],
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        schema: Definition | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[R]: ...
    @overload
    def transform(
        self,
        name: str,
        step: Callable[[T], R],
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        schema: Definition | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[R]: ...
    def transform(
        self,
        name: str,
        step: Callable[[T], Any] | Expr | str,
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        schema: Definition | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[Any]:
        """Each record becomes what the function returns; an expression sets the field ``name``.

        An async function may have ``concurrency`` calls under way, a plain one so many threads. ``schema``:
        of what it returns, if its annotation does not say.

            .transform("enrich", look_up_user, concurrency=32, timeout="2s")
            .transform("total", col("price") * col("quantity"))
        """
        if isinstance(step, Expr | str):
            arguments.refuse_for_expression(concurrency != 1, timeout, schema, on_error)
            return self._project({name: arguments.expression(step)}, keep=True, name=name)
        return self._apply("map", step, name, on_error, concurrency, timeout, schema)

    @overload
    def map(
        self,
        function: Callable[[T], Awaitable[R]],
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        schema: Definition | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[R]: ...
    @overload
    def map(
        self,
        function: Callable[[T], R],
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        schema: Definition | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[R]: ...
    def map(
        self,
        function: Callable[[T], Any],
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        schema: Definition | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[Any]:
        """Each record becomes what the function returns, as with ``transform``, which names the step.

        As in:

            .map(lambda order: {**order, "total": order["price"] * order["quantity"]})
        """
        return self._apply("map", function, name, on_error, concurrency, timeout, schema)

    @overload
    def filter(self, predicate: Expr | str, *, name: str | None = None) -> Pipeline[T]: ...
    @overload
    def filter(
        self,
        predicate: Callable[[T], object],
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[T]: ...
    def filter(
        self,
        predicate: Callable[[T], object] | Expr | str,
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[T]:
        """Keeps the records for which a function, an expression or its text is true.

        As in:

            .filter(col("amount") > 100)    .filter("amount > 100 and country in ('DE', 'FR')")
        """
        if isinstance(predicate, Expr | str):
            arguments.refuse_for_expression(concurrency != 1, timeout, on_error)
            node = nodes.Filter(
                where=caller(),
                inputs=self._inputs(),
                predicate=arguments.expression(predicate),
                name=name or "",
            )
            return self._then(node)
        return self._apply("filter", predicate, name, on_error, concurrency, timeout, None)

    def flat_map(
        self,
        function: Callable[[T], Iterable[R]] | Callable[[T], Awaitable[Iterable[R]]],
        *,
        concurrency: int = 1,
        timeout: Duration | None = None,
        schema: Definition | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[R]:
        """Each record becomes all that the function gives: none, one or many.

        As in:

            .flat_map(lambda order: order["items"])
        """
        return self._apply("flat_map", function, name, on_error, concurrency, timeout, schema)

    def select(self, *paths: str, step_name: str | None = None, **columns: Expr | str) -> Pipeline[Record]:
        """Only these fields: by their paths (under the last name of each), or computed.

        As in:

            .select("user.id", "at", total=col("price") * col("quantity"))
        """
        chosen: dict[str, Expr] = {arguments.last_name(path): col(path) for path in paths}
        chosen |= {field: arguments.expression(each) for field, each in columns.items()}
        if len(chosen) < len(paths) + len(columns):
            raise ConfigError(
                "two fields would have one name; write .select(user_id='user.id', shop_id='shop.id')"
            )
        return self._project(chosen, keep=False, name=step_name)

    def with_columns(self, *, step_name: str | None = None, **columns: Expr | str) -> Pipeline[Record]:
        """The record with these fields added or replaced, all computed from the record as it came in.

        As in:

            .with_columns(total="price * quantity", country=col("user.country").upper())
        """
        chosen = {field: arguments.expression(each) for field, each in columns.items()}
        return self._project(chosen, keep=True, name=step_name)

    def lookup(
        self,
        table: Source[Any],
        *,
        on: On,
        fields: Fields | None = None,
        into: str | None = None,
        how: LookupHow = "left",
        cache: int = 10_000,
        max_age: Duration = "1m",
        timeout: Duration = "2s",
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[Record]:
        """The record with what a table has under its key, as of now: ``Postgres``, ``Cassandra``, ``Queue``.

        ``on``: a field of both, a pair (ours, theirs), or a list of those; of a queue it is the latest
        message of the partition that our field names. ``fields``: those to add, or new names with theirs;
        ``into``: all of them as one field. ``how="inner"`` leaves records out for which there is nothing.
        Keys are asked for together, and remembered: ``cache`` of them for ``max_age``.

            .lookup(Postgres("users"), on=("user_id", "id"), fields={"user_segment": "segment"})
            .lookup(Queue("profiles"), on="user_id", into="profile", max_age="10s")
        """
        arguments.choice("how", how, get_args(LookupHow))
        return self._then(
            lookups.lookup(
                caller(),
                self._inputs(),
                name or "",
                arguments.policy(on_error),
                table=table,
                on=on,
                fields=fields,
                into=into,
                how=how,
                cache=cache,
                max_age=max_age,
                timeout=timeout,
            )
        )

    def event_time(self, path: str, *, on_error: OnError | None = None) -> Pipeline[T]:
        """The records' event time stands in this field: a time, ISO 8601 text, or milliseconds since 1970.

        Without it, it is what the source says (``created_at`` of a queue's message).
        """
        return self._then(
            nodes.EventTime(
                where=caller(), inputs=self._inputs(), path=path, on_error=arguments.policy(on_error)
            )
        )

    def key_by(
        self, *paths: str | Expr | Callable[[T], object], **named: str | Expr | Callable[[T], object]
    ) -> Pipeline[T]:
        """What the next steps group by; fields by their paths, expressions or functions.

        As in:

            .key_by("user_id")    .key_by("shop", country=col("user.country"))    .key_by(bucket_of)
        """
        parts = [arguments.key(path) for path in paths]
        parts += [arguments.key(of, name) for name, of in named.items()]
        return self._then(nodes.KeyBy(where=caller(), inputs=self._inputs(), parts=tuple(parts)))

    # Steps with state

    def window(
        self, window: windows.Definition | str | timedelta, *, grace: Duration = 0, time: str | None = None
    ) -> Pipeline[T]:
        """The windows of the next ``aggregate``; a duration alone is tumbling.

        ``time``: the field with the event time (see ``event_time``). ``grace``: how long after its end a
        window still takes records; what comes later goes to ``late``.
        """
        where = caller()
        timed = self if time is None else self.event_time(time)
        pending = PendingWindow(arguments.window(window), durations.parse(grace), where)
        draft = timed._draft
        unused = () if draft.window is None else (draft.window.unused(),)
        return _pipeline(replace(draft, window=pending, misuse=(*draft.misuse, *unused)))

    def aggregate(
        self,
        by_name: Mapping[str, Aggregate | Mapping[str, object]] | None = None,
        /,
        *,
        emit: Emit = "final",
        step_name: str | None = None,
        on_error: OnError | None = None,
        **named: Aggregate,
    ) -> Pipeline[Record]:
        """A row for each key and window: ``window_start``, ``window_end``, the keys, and the aggregates.

        ``emit``: one row when the window closes ("final"), or one whenever it changed ("update").

            .aggregate(clicks=count(), users=collect_set("user_id"))
            .aggregate({"clicks": {"$sum": 1}, "users": {"$addToSet": "user_id"}})
        """
        arguments.choice("emit", emit, get_args(Emit))
        pending = self._draft.window
        node = nodes.Aggregation(
            where=caller(),
            inputs=self._inputs(),
            window=pending.window if pending else None,
            grace=pending.grace if pending else timedelta(0),
            aggregates=arguments.named_aggregates(by_name or {}, named),
            emit=emit,
            name=step_name or "",
            on_error=arguments.policy(on_error),
        )
        return _pipeline(replace(self._draft, head=node, window=None))

    def join(
        self,
        other: Pipeline[Any],
        *,
        on: On,
        within: Duration | None = None,
        how: How = "inner",
        grace: Duration = 0,
        prefix: str = "right_",
        name: str | None = None,
    ) -> Pipeline[Record]:
        """Records of both that agree on fields and lie at most ``within`` apart in event time.

        ``on``: a field of both, a pair (ours, theirs), or a list of those. A field that both have, and that
        is not joined on, is theirs under ``prefix`` + its name.

            orders.join(users, on=("user_id", "id"), within="5m", how="left")
        """
        arguments.choice("how", how, get_args(How))
        node = nodes.Join(
            where=caller(),
            inputs=(*self._inputs(), *other._inputs()),
            on=arguments.pairs(on),
            within=arguments.duration(within),
            how=how,
            grace=durations.parse(grace),
            prefix=prefix,
            name=name or "",
        )
        return self._with(other, node)

    def stateful(
        self,
        function: Callable[[Any, T, State], R | None],
        *,
        on_timer: Callable[[Any, str, State], R | None] | None = None,
        ttl: Duration | None = None,
        schema: Definition | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[R]:
        """Calls ``function(key, record, state)`` for each record of a key, in order; see ``state``.

        What it returns goes on, unless it is None. State that nobody touched for ``ttl`` is forgotten.
        """
        node = nodes.Stateful(
            where=caller(),
            inputs=self._inputs(),
            function=function,
            on_timer=on_timer,
            ttl=arguments.duration(ttl),
            schema=arguments.returned(function, "map", schema),
            name=name or "",
            on_error=arguments.policy(on_error),
        )
        return self._then(node)

    def deduplicate(
        self, *fields: str, within: Duration | None = None, grace: Duration = 0, name: str | None = None
    ) -> Pipeline[T]:
        """Lets only the first of several records with the same values in these fields pass.

        As in:

            .deduplicate("id", within="10m")
        """
        node = nodes.Deduplicate(
            where=caller(),
            inputs=self._inputs(),
            fields=fields,
            within=arguments.duration(within),
            grace=durations.parse(grace),
            name=name or "",
        )
        return self._then(node)

    def union(
        self, *others: Pipeline[U], coordination: Coordination = "arrival", name: str | None = None
    ) -> Pipeline[T | U]:
        """The records of all: as they arrive, or by event time (``coordination="timestamp"``)."""
        arguments.choice("coordination", coordination, get_args(Coordination))
        inputs = (*self._inputs(), *(node for other in others for node in other._inputs()))
        node = nodes.Union(where=caller(), inputs=inputs, coordination=coordination, name=name or "")
        joined: Pipeline[Any] = self
        for other in others:
            joined = joined._with(other, node)
        return joined._then(node)

    # The whole

    def on_error(
        self,
        action: OnError,
        *,
        max_retries: int | None = None,
        backoff: Backoff | None = None,
        delay: Duration | None = None,
        then: Outcome | None = None,
        callback: Callback | None = None,
    ) -> Pipeline[T]:
        """What happens to a record that a step fails on, for all steps that do not say it themselves.

        Without it, the run stops ("fail"): the error names the step, your line and the record, and the
        checkpoint stays before the batch. ``"skip"`` leaves the record out and counts it.

            .on_error("retry", max_retries=3, backoff="exponential", then=DeadLetters("failed-events"))
            .on_error(DeadLetters("failed-events"))
            .on_error(retry(on=(TimeoutError,), then=DeadLetters("failed-events"), otherwise="skip"))
            .on_error("skip", callback=lambda error, record, step: print(step, error))
        """
        policy = policy_of(action)
        policy = replace(
            policy,
            max_retries=policy.max_retries if max_retries is None else max_retries,
            backoff=backoff or policy.backoff,
            delay=policy.delay if delay is None else durations.parse(delay),
            then=then or policy.then,
            callback=callback or policy.callback,
        )
        return _pipeline(replace(self._draft, policy=policy))

    def plan(self) -> Plan:
        """The checked plan, which an engine runs; ``PipelineError`` with all that is wrong."""
        return make_plan(self._draft)

    def describe(self, form: Literal["text", "json", "svg"] = "text") -> str:
        """The plan for people, for programs, or as a picture."""
        return self.plan().describe(form)

    def start(self, *, engine: EngineName = "spark", **options: Unpack[RunKeywords]) -> Run:
        """Check it and start it in the background; ``RunOptions`` has what one can say."""
        return find_engine(engine).start(self.plan(), RunOptions.of(options))

    def run(self, *, engine: EngineName = "spark", **options: Unpack[RunKeywords]) -> Run:
        """The same, and wait until it has ended: on Spark here, on a cluster, or in this process.

        As in:

            .run()    .run(master="spark://…", checkpoint="s3a://…")    .run(engine="local")
        """
        started = self.start(engine=engine, **options)
        started.wait()
        return started

    # How a step is added

    def _inputs(self) -> tuple[Node, ...]:
        return () if self._draft.head is None else (self._draft.head,)

    def _then(self, node: Node) -> Pipeline[Any]:
        return _pipeline(replace(self._draft, head=node))

    def _with(self, other: Pipeline[Any], node: Node) -> Pipeline[Any]:
        """This and another one, which meet at ``node``."""
        return _pipeline(replace(self._draft.merged(other._draft), head=node))

    def _apply(
        self,
        mode: Mode,
        function: Callable[[T], Any],
        name: str | None,
        on_error: OnError | None,
        concurrency: int,
        timeout: Duration | None,
        schema: Definition | None,
    ) -> Pipeline[Any]:
        arguments.check_calls(function, concurrency)
        return self._then(
            nodes.Apply(
                where=caller(),
                inputs=self._inputs(),
                function=function,
                mode=mode,
                is_async=arguments.is_async(function),
                concurrency=concurrency,
                timeout=arguments.duration(timeout),
                schema=arguments.returned(function, mode, schema) if mode != "filter" else None,
                name=name or "",
                on_error=arguments.policy(on_error),
            )
        )

    def _project(self, columns: Mapping[str, Expr], *, keep: bool, name: str | None) -> Pipeline[Record]:
        return self._then(
            nodes.Project(
                where=caller(),
                inputs=self._inputs(),
                columns=tuple(columns.items()),
                keep=keep,
                name=name or "",
            )
        )


def _pipeline(draft: Draft) -> Pipeline[Any]:
    made: Pipeline[Any] = Pipeline.__new__(Pipeline)
    made._draft = draft
    return made
