"""``queen pipeline check``, ``rescale`` and ``savepoint``: work on the checkpoint of a pipeline."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.pipeline.finder import Loader
from queenstream.cli.pipeline.options import PipelineFile, refused_with_code
from queenstream.cli.pipeline.run import broker_of
from queenstream.cli.pipeline.state import PipelineName, run_async
from queenstream.cli.support import contexts
from queenstream.cli.support.connection import ContextName, Token, Url
from queenstream.cli.support.exit_codes import FAILED
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, amount, note, quiet_pipe

if TYPE_CHECKING:
    from queenstream.pipeline.plan.fingerprints import Change
    from queenstream.pipeline.plan.planner import Plan

CHECK = help_text(
    "Compare a changed pipeline with a checkpoint.",
    "queen pipeline check jobs.py --against state/",
    "queen pipeline check jobs.py --against state/ | jq .why",
    more="It says what a run would do, and changes nothing. It ends with 1 if the pipeline cannot go on "
    "from the checkpoint.",
)
RESCALE = help_text(
    "Repartition the state of a pipeline on Spark.",
    "queen pipeline rescale state/ --partitions 16",
    "queen pipeline rescale s3a://… --pipeline totals --partitions 16",
    more="Stop the pipeline first. Interrupted, the command is run again with the same number.",
)
SAVEPOINT = help_text(
    "Copy a checkpoint to start pipelines from.",
    "queen pipeline savepoint state/ saved/",
    "queen pipeline run jobs.py --checkpoint new/ --from-checkpoint saved/",
    more="The pipeline may run meanwhile.",
)

_CHANGES = (
    Column("STEP", "step"),
    Column("LINE", "line"),
    Column("CHECKPOINT", "verdict"),
    Column("WHY", "why", cut=True),
)

Place = Annotated[
    str,
    typer.Argument(metavar="CHECKPOINT", help="As the pipeline was run with: a folder.", show_default=False),
]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's: spark://…, yarn, k8s://…, local[4].")
]


def check(
    target: PipelineFile,
    against: Annotated[
        str,
        typer.Option(metavar="CHECKPOINT", help="A folder or postgresql://…: that of the run."),
    ],
    master: Master = None,
    url: Url = None,
    token: Token = None,
    context: ContextName = None,
    output: Output = None,
) -> None:
    """Compare a plan with a checkpoint."""
    with quiet_pipe(), refused_with_code():
        plan = Loader(target).load().plan()
        changes = _changes(plan, against, master, broker_of(plan, contexts.Flags(url, token, context)))
        lines = {node.name: str(node.where) for node in plan.nodes}
        rows = [_row(change, lines.get(change.step)) for change in changes]
        out = Printer(output)
        out.rows(rows, _CHANGES, empty=f"{plan.name} has nothing in a checkpoint")
        broken = [change for change in changes if not change.harmless]
        if out.for_people:
            note(_sentence(plan.name, changes, broken))
    if broken:
        raise typer.Exit(FAILED)


def rescale(
    checkpoint: Place,
    partitions: Annotated[int, typer.Option(metavar="N", min=1, help="In how many partitions from now on.")],
    pipeline: PipelineName = None,
    master: Master = None,
    output: Output = None,
) -> None:
    """Repartition state."""
    from queenstream.cli.pipeline import spark_checkpoints
    from queenstream.cli.pipeline.locations import meant_on_spark

    name = run_async(meant_on_spark(checkpoint, pipeline))
    done = spark_checkpoints.rescale(checkpoint, name, partitions, master)
    sentence = f"{name} keeps its state in {amount(partitions, 'partition')} now, instead of {done.before}"
    if done.before == partitions:
        sentence = f"{name} keeps its state in {amount(partitions, 'partition')} already"
    with quiet_pipe():
        Printer(output).done(asdict(done), sentence)


def savepoint(
    checkpoint: Place,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the copy.")],
    pipeline: PipelineName = None,
    output: Output = None,
) -> None:
    """Copy a checkpoint."""
    from queenstream.cli.pipeline import spark_checkpoints
    from queenstream.cli.pipeline.locations import is_sparks, meant_in_folder
    from queenstream.engines.local.checkpoints import savepoint as local

    name = run_async(meant_in_folder(checkpoint, pipeline))
    if run_async(is_sparks(checkpoint, name)):
        id = str(spark_checkpoints.save(checkpoint, name, folder))
    else:
        id = local.save(Path(checkpoint.removeprefix("file://")), name, folder)
    with quiet_pipe():
        found = {"pipeline": name, "checkpoint": id, "savepoint": str(folder)}
        Printer(output).done(found, f"{folder} has checkpoint {id} of {name}")


def _changes(plan: Plan, against: str, master: str | None, url: str | None) -> list[Change]:
    from queenstream.cli.pipeline import spark_checkpoints
    from queenstream.cli.pipeline.locations import all_in, is_sparks

    if "://" in against and not against.startswith(("file://", "postgresql://", "postgres://")):
        return spark_checkpoints.changes(plan, against, master, url)
    if plan.name not in run_async(all_in(against)):
        return []
    if run_async(is_sparks(against, plan.name)):
        return spark_checkpoints.changes(plan, against, master, url)
    return run_async(_local_changes(plan, against))


async def _local_changes(plan: Plan, against: str) -> list[Change]:
    from queenstream.engines.local.checkpoints.locations import opened
    from queenstream.pipeline.plan.fingerprints import compare

    async with opened(against, plan.name) as store:
        if not await store.checkpoints():
            return []
        inside = await store.inspect()
    return list(compare(inside.facts, plan.state))


def _row(change: Change, line: str | None) -> dict[str, Any]:
    return {
        "step": change.step,
        "line": line,
        "verdict": change.verdict,
        "why": change.why,
        "compatible": change.harmless,
    }


def _sentence(name: str, changes: list[Change], broken: list[Change]) -> str:
    if broken:
        return f"{name} cannot go on from the checkpoint: " + "; ".join(
            f"{each.step}: {each.why}" for each in broken
        )
    if not changes:
        return f"there is no checkpoint of {name}, so a run would begin with one"
    if all(change.verdict == "kept" for change in changes):
        return f"{name} goes on from the checkpoint, and nothing that it depends on has changed"
    return f"{name} goes on from the checkpoint with these changes"
