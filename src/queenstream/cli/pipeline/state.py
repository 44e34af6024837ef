"""``queen pipeline state`` and ``checkpoints``: what a pipeline remembers, and where it can go back to."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import (
    Column,
    Output,
    Printer,
    clock,
    compact,
    count,
    number,
    quiet_pipe,
    since,
    yes_no,
)
from queenstream.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from queenstream.engines.local.checkpoints.store import Contents

T = TypeVar("T")

_MOST = 1_000  # entries of one key

state_app = typer.Typer(
    help=help_text(
        "What a pipeline remembers, by key.",
        "queen pipeline state get ann --checkpoint state/",
        "queen pipeline state ls --checkpoint state/ --step totals",
    ),
    no_args_is_help=True,
)
checkpoints_app = typer.Typer(
    help=help_text(
        "List the checkpoints of a pipeline, and look into them.",
        "queen pipeline checkpoints --checkpoint state/",
        "queen pipeline checkpoints --checkpoint postgresql://… --pipeline totals",
        "queen pipeline checkpoints show 65f0a1b2c3d4e5-0000000007 --checkpoint s/",
        more="`queen pipeline run … --from-checkpoint ID` goes back to one of them.",
    ),
    invoke_without_command=True,
)

Where = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="WHERE", help="A folder or postgresql://…, as the pipeline was run with.",
        show_default=False,
    ),
]  # fmt: skip
PipelineName = Annotated[
    str | None, typer.Option("--pipeline", metavar="NAME", help="Its name, if there are several.")
]
StepName = Annotated[str | None, typer.Option("--step", metavar="NAME", help="Only of this step.")]
Id = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="As of this checkpoint. Default: the newest.")
]


def _rest(entry: Mapping[str, Any]) -> str:
    """What is in an entry beside what has columns of its own."""
    shown = ("step", "key", "window_start", "window_end")
    return compact({name: value for name, value in entry.items() if name not in shown})


def _clean(stopped: bool | None) -> str:
    """Whether the run was stopped there; of Spark's batches it is not known, and none is half done."""
    return "-" if stopped is None else yes_no(stopped)


def _told(facts: Mapping[str, str]) -> str:
    """What the state of a step depends on."""
    return ", ".join(f"{name}: {said}" for name, said in facts.items() if name != "kind")


_ENTRIES = (
    Column("STEP", "step"),
    Column("KEY", "key", compact, style="cyan"),
    Column("WINDOW", "window_start", clock),
    Column("STATE", "", _rest, cut=True),
)
_LIST = (
    Column("ID", "id"),
    Column("PIPELINE", "pipeline"),
    Column("COMMITTED", "committed_at", since),
    number("EPOCH", "epoch"),
    number("KEYS", "keys"),
    number("BYTES", "bytes"),
    Column("CLEAN STOP", "clean", _clean),
)
_FIELDS = (
    Column("id", "id"),
    Column("pipeline", "pipeline"),
    Column("committed", "committed_at", clock),
    Column("epoch", "epoch", count),
    Column("clean stop", "clean", _clean),
    Column("plan", "fingerprint"),
)
_STEPS = (
    Column("STEP", "step"),
    Column("KIND", "kind"),
    number("KEYS", "keys"),
    number("BYTES", "bytes"),
    Column("DEPENDS ON", "facts", _told, cut=True),
)
_POSITIONS = (
    Column("SOURCE", "source"),
    Column("OF", "of"),
    Column("POSITION", "position", compact, cut=True),
)
_WATERMARKS = (Column("STEP", "step"), Column("WATERMARK", "watermark", clock))


@state_app.command(
    "get",
    help=help_text(
        "Show what a pipeline remembers of a key.",
        "queen pipeline state get ann --checkpoint state/",
        "queen pipeline state get 7 --checkpoint state/ --step totals",
        "queen pipeline state get '[\"shop\", 7]' --checkpoint postgresql://…",
        more="A key of several parts is written as a list. It is as of the newest checkpoint, and may be "
        "asked for while the pipeline runs.",
    ),
)
def get(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, as text or as JSON.")],
    checkpoint: Where = None,
    pipeline: PipelineName = None,
    step: StepName = None,
    id: Id = None,
    output: Output = None,
) -> None:
    """Show a key's state."""
    from queenstream.runtime.state_view import prefixes

    found = run_async(_entries(_place(checkpoint), pipeline, step, id, prefixes(key), _MOST))
    if not found:
        raise NotFound(f"no step remembers the key {key}; `queen pipeline state ls` lists the keys there are")
    with quiet_pipe():
        Printer(output).rows(found, _ENTRIES, empty="")


@state_app.command(
    "ls",
    help=help_text(
        "List the keys that a pipeline remembers, and what it knows of each.",
        "queen pipeline state ls --checkpoint state/",
        "queen pipeline state ls --checkpoint state/ --step totals -n 10 | jq .key",
    ),
)
def ls(
    checkpoint: Where = None,
    pipeline: PipelineName = None,
    step: StepName = None,
    id: Id = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many of each step.")
    ] = 100,
    output: Output = None,
) -> None:
    """List state."""
    found = run_async(_entries(_place(checkpoint), pipeline, step, id, [""], limit))
    with quiet_pipe():
        Printer(output).rows(found, _ENTRIES, empty="no step remembers anything")


@checkpoints_app.callback()
def checkpoints(
    context: typer.Context, checkpoint: Where = None, pipeline: PipelineName = None, output: Output = None
) -> None:
    """List checkpoints, unless one is to be shown."""
    if context.invoked_subcommand is not None:
        return
    found = run_async(_list(_place(checkpoint), pipeline))
    with quiet_pipe():
        Printer(output).rows(found, _LIST, empty="no checkpoints in there")


@checkpoints_app.command(
    "show",
    help=help_text(
        "Show what is in a checkpoint: steps, positions, watermarks.",
        "queen pipeline checkpoints show 65f0a1b2c3d4e5-0000000007 --checkpoint s/",
    ),
)
def show(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="The checkpoint.")],
    checkpoint: Where = None,
    pipeline: PipelineName = None,
    output: Output = None,
) -> None:
    """Show a checkpoint."""
    before = context.parent.params if context.parent is not None else {}  # said before `show`
    where = _place(checkpoint or before.get("checkpoint"))
    found = run_async(_show(where, pipeline or before.get("pipeline"), id))
    tables = (("steps", _STEPS), ("positions", _POSITIONS), ("watermarks", _WATERMARKS))
    with quiet_pipe():
        Printer(output or before.get("output")).record(found, _FIELDS, tables)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine. asyncio is imported here: other commands start sooner without it."""
    import asyncio

    return asyncio.run(work)


def _place(checkpoint: str | None) -> str:
    if checkpoint is None:
        raise ConfigError("--checkpoint is missing; name the folder or URL that the pipeline was run with")
    return checkpoint


async def _entries(
    where: str, pipeline: str | None, step: str | None, id: str | None, beginnings: list[str], limit: int
) -> list[dict[str, Any]]:
    """The entries of keys that begin so, of all steps or of one."""
    from queenstream.cli.pipeline import spark_checkpoints
    from queenstream.cli.pipeline.locations import is_sparks, meant
    from queenstream.engines.local.checkpoints.locations import opened
    from queenstream.engines.local.checkpoints.state_view import find_entries

    pipeline = await meant(where, pipeline)
    if await is_sparks(where, pipeline):
        keys = None if beginnings == [""] else [each.removesuffix("\n") for each in beginnings]
        return spark_checkpoints.entries(where, pipeline, step, id, keys, limit)
    async with opened(where, pipeline) as store:
        return await find_entries(store, beginnings, limit, step, id)


async def _list(where: str, pipeline: str | None) -> list[dict[str, Any]]:
    from queenstream.cli.pipeline import spark_checkpoints
    from queenstream.cli.pipeline.locations import all_in, is_sparks
    from queenstream.engines.local.checkpoints.locations import opened

    found = []
    for name in [pipeline] if pipeline is not None else await all_in(where):
        if await is_sparks(where, name):
            found += spark_checkpoints.listed(where, name)
            continue
        async with opened(where, name) as store:
            found += [_summary(name, await store.inspect(info.id)) for info in await store.checkpoints()]
    return found


async def _show(where: str, pipeline: str | None, id: str) -> dict[str, Any]:
    from queenstream.cli.pipeline import spark_checkpoints
    from queenstream.cli.pipeline.locations import is_sparks, meant
    from queenstream.core.windows import from_us
    from queenstream.engines.local.checkpoints.locations import opened

    name = await meant(where, pipeline)
    if await is_sparks(where, name):
        return spark_checkpoints.shown(where, name, id)
    async with opened(where, name) as store:
        inside = await store.inspect(id)
    steps = [
        {
            "step": step,
            "kind": facts["kind"],
            "keys": inside.keys.get(step),
            "bytes": inside.bytes.get(step),
            "facts": dict(facts),
        }
        for step, facts in inside.facts.items()
    ]
    positions = [
        {"source": source, "of": of, "position": position}
        for source, each in inside.positions.items()
        for of, position in each.items()
    ]
    watermarks = [{"step": step, "watermark": from_us(at)} for step, at in (inside.watermarks or {}).items()]
    return {**_summary(name, inside), "steps": steps, "positions": positions, "watermarks": watermarks}


def _summary(pipeline: str, inside: Contents) -> dict[str, Any]:
    info = inside.info
    return {
        "id": info.id,
        "pipeline": pipeline,
        "committed_at": info.committed_at,
        "epoch": info.epoch,
        "keys": sum(inside.keys.values()),
        "bytes": sum(inside.bytes.values()),
        "clean": info.clean,
        "fingerprint": info.fingerprint,
    }
