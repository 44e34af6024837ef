"""``queen pipeline run``: a pipeline from a file, until it has ended or is stopped."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from queenstream.cli.pipeline.finder import Loader
from queenstream.cli.pipeline.options import PipelineFile, refused_with_code
from queenstream.cli.support import contexts
from queenstream.cli.support.connection import ContextName, Token, Url, resolved
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Output, Printer, quiet_pipe

if TYPE_CHECKING:
    from queenstream.cli.pipeline.display import View
    from queenstream.pipeline.engine_api import Engine, RunKeywords, RunOptions
    from queenstream.pipeline.plan.planner import Plan

HELP = help_text(
    "Run a pipeline, on Spark or in this process.",
    "queen pipeline run jobs.py --engine local",
    "queen pipeline run jobs.py:totals --master spark://… --checkpoint s3a://…",
    "queen pipeline run shop.jobs --engine local --checkpoint state/ --watch",
    "queen pipeline run jobs.py --engine local --until caught_up | jq .messages",
    more="On a terminal it shows how it does; in a pipe it prints its figures every second. Ctrl-C lets it "
    "finish what is under way; a second one does not.",
)


class EngineChoice(StrEnum):
    """What runs it."""

    SPARK = "spark"
    LOCAL = "local"


class UntilChoice(StrEnum):
    """When it ends by itself."""

    STOPPED = "stopped"
    CAUGHT_UP = "caught_up"


def run(
    target: PipelineFile,
    engine: Annotated[EngineChoice, typer.Option(help="On Spark, or in this process.")] = EngineChoice.SPARK,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's: spark://…, yarn, k8s://…, local[4].")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Go on from here: a folder or postgresql://…")
    ] = None,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Go back to this one, or start from this savepoint."),
    ] = None,
    start_over: Annotated[
        bool,
        typer.Option("--start-over", help="Deliver again into sinks that another checkpoint has written."),
    ] = False,
    interval: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How often to checkpoint: 1s.")
    ] = None,
    max_batch_rows: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Read at most so many records in a batch.")
    ] = None,
    max_batch_bytes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="And at most about so many bytes.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="On Spark: tasks that read, and partitions of a shuffle."),
    ] = None,
    until: Annotated[
        UntilChoice, typer.Option(help="Run on, or only up to what is there when it starts.")
    ] = UntilChoice.STOPPED,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow edits of the file, and keep the state.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary/--no-summary", help="Print what it did to standard error at the end.")
    ] = True,
    url: Url = None,
    token: Token = None,
    context: ContextName = None,
    output: Output = None,
) -> None:
    """Run a pipeline."""
    from queenstream.pipeline.engine_api import RunOptions, find_engine

    if watch:
        # An edit within the same second could be taken for what was compiled before it.
        sys.dont_write_bytecode = True
    loader = Loader(target)
    with quiet_pipe(), refused_with_code():
        plan = loader.load().plan()
        said: RunKeywords = {
            "master": master,
            "checkpoint": checkpoint,
            "from_checkpoint": from_checkpoint,
            "start_over": start_over,
            "interval": interval,
            "max_batch_rows": max_batch_rows,
            "max_batch_bytes": max_batch_bytes,
            "partitions": partitions,
            "until": until.value,
            "url": broker_of(plan, contexts.Flags(url, token, context)),
            "summary": False,  # the view prints it, where no display is in the way
        }
        options, found = RunOptions.of(said), find_engine(engine.value)
        view = _view(Printer(output), sums_up=summary)
        try:
            if watch:
                _watch(loader, plan, found, options, view)
            else:
                from queenstream.cli.pipeline.session import run_once

                run_once(plan, found, options, view)
        finally:
            view.close()


def _watch(loader: Loader, plan: Plan, engine: Engine, options: RunOptions, view: View) -> None:
    """Follow the file; without a checkpoint of the user's, state is carried over in a temporary one."""
    from queenstream.cli.pipeline.reload import WatchedRun

    if options.checkpoint is not None:
        WatchedRun(loader, plan, engine, options, view).run()
        return
    with tempfile.TemporaryDirectory(prefix="queen-pipeline-") as folder:
        numbers = itertools.count(1)
        WatchedRun(loader, plan, engine, options, view, lambda: f"{folder}/{next(numbers)}").run()


def _view(out: Printer, *, sums_up: bool) -> View:
    from queenstream.cli.pipeline.display import Lines, Screen

    return Screen(sums_up=sums_up) if out.for_people else Lines(out, sums_up=sums_up)


def broker_of(plan: Plan, flags: contexts.Flags) -> str | None:
    """The broker of the queues and streams that name none; connectors take its token from the environment.

    None: nobody has named one, and nobody needs one.
    """
    from queenstream.pipeline.endpoints import Queue, Stream

    found = resolved(flags)
    sources, sinks = [node.source for node in plan.sources], [node.sink for node in plan.sinks]
    ours = [each for each in (*sources, *sinks, *plan.dead_letters) if isinstance(each, Queue | Stream)]
    own = any(each.url for each in ours)
    # A context's token is for its own broker: not where a queue of the pipeline names another one.
    if found.token and (flags.token or not own):
        os.environ["QUEEN_TOKEN"] = found.token
    if not ours and not flags.url and found.urls == (contexts.DEFAULT_URL,):
        return None
    return ",".join(found.urls)
