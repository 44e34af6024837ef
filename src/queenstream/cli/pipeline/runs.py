"""``queen pipeline ls`` and ``status``: what the runs of pipelines have told the broker of themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.support.completion import pipeline_names
from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, clock, fields_of, lasting, since
from queenstream.core import metric_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queenstream import Queen

LS = help_text(
    "List the pipelines that have told the broker of themselves.",
    "queen pipeline ls",
    "queen pipeline ls | jq 'select(.state != \"running\")'",
    more="A run tells the broker of its queues, or of --url or QUEEN_URL, every few seconds.",
)
STATUS = help_text(
    "Show a pipeline: figures, steps, sinks, phases, last runs.",
    "queen pipeline status totals",
    "queen pipeline status totals | jq .series[-1].messagesPerSecond",
    "queen pipeline status totals | jq '.sinks[] | {sink, rows, bytes}'",
    more="Phases say where the time of batches goes: read, compute, stage, commit (docs/monitoring.md).",
)

Reported = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="The pipeline.", autocompletion=pipeline_names)
]
_COLOURS = {"running": "green", "failed": "red", "lost": "yellow"}


def _whole(value: Any) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _tenths(value: Any) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _share(value: Any) -> str:
    return "-" if value is None else f"{value:.0%}"


def _seconds(value: Any) -> str:
    from queenstream.runtime.summary import format_seconds

    return "-" if value is None else format_seconds(value)


def _moment(value: Any) -> str:
    return "-" if value is None else clock(datetime.fromtimestamp(value, UTC))


def _state(path: str, title: str) -> Column:
    return Column(title, path, style=lambda state: _COLOURS.get(state, ""))


_LIST = (
    Column("PIPELINE", "name"),
    _state("state", "STATE"),
    Column("ENGINE", "engine"),
    Column("RECORDS/S", "stats.messages_per_second", _tenths, right=True),
    Column("P95 MS", "stats.latency_p95_ms", _tenths, right=True),
    Column("BEHIND", "stats.queue_depth", _whole, right=True),
    Column("ERRORS", "stats.errors", _whole, right=True),
    Column("STARTED", "startedAt", since),
    Column("TOLD", "reportedAt", since),
)
_FIELDS = (
    Column("pipeline", "name"),
    _state("state", "state"),
    Column("error", "error", style="red"),
    Column("engine", "engine"),
    Column("run", "instance"),
    Column("started", "startedAt", clock),
    Column("told last", "reportedAt", clock),
    Column("checkpoint", "checkpoint"),
    Column("records", "stats.messages", _whole),
    Column("records/s", "stats.messages_per_second", _tenths),
    Column("latency p50 ms", "stats.latency_p50_ms", _tenths),
    Column("latency p95 ms", "stats.latency_p95_ms", _tenths),
    Column("latency p99 ms", "stats.latency_p99_ms", _tenths),
    Column("not taken yet", "stats.queue_depth", _whole),
    Column("watermark behind", "stats.watermark_lag_seconds", lasting),
    Column("errors", "stats.errors", _whole),
    Column("error rate %", "stats.error_rate", _tenths),
    Column("late", "stats.late", _whole),
    Column("dead letters", "stats.dead_letters", _whole),
    Column("dropped", "stats.dropped", _whole),
    Column("state rows", "stats.state_rows", _whole),
    Column("state bytes", "stats.state_bytes", _whole),
    Column("restarts", "stats.restarts", _whole),
)
_STEPS = (
    Column("STEP", "step"),
    Column("TAKEN", "taken", _whole, right=True),
    Column("GIVEN", "given", _whole, right=True),
    Column("FAILED", "failed", _whole, right=True, style=lambda failed: "red" if failed else ""),
    Column("LATE", "late", _whole, right=True),
    Column("BUSY", "busy_ratio", _share, right=True),
    Column("HELD UP", "backpressure_ratio", _share, right=True),
    Column("WATERMARK", "watermark_timestamp_seconds", _moment, right=True),
)
_SINKS = (
    Column("SINK", "sink"),
    Column("ROWS", "rows", _whole, right=True),
    Column("ROWS/S", "rows_per_second", _tenths, right=True),
    Column("BYTES", "bytes", _whole, right=True),
    Column("COMMIT", "commit_seconds", _seconds, right=True),
    Column("LAST ROWS", "last_batch_rows", _whole, right=True),
    Column("LAST BYTES", "last_batch_bytes", _whole, right=True),
    Column("LAST COMMIT", "last_batch_commit_seconds", _seconds, right=True),
)
_PHASES = (
    Column("PHASE", "phase"),
    Column("TIME", "seconds", _seconds, right=True),
    Column("SHARE", "share", _share, right=True),
    Column("LAST BATCH", "last_batch_seconds", _seconds, right=True),
)
_RUNS = (
    Column("RUN", "instance"),
    _state("state", "STATE"),
    Column("STARTED", "startedAt", clock),
    Column("TOLD LAST", "reportedAt", clock),
    Column("RECORDS", "stats.messages", _whole, right=True),
    Column("ERROR", "error", cut=True),
)


@connected
def ls(queen: Queen, output: Output = None) -> None:
    """List pipelines."""
    found = queen.admin.pipelines(limit=1000)
    Printer(output).rows(found, _LIST, empty="no pipeline has told of itself; `queen pipeline run` runs one")


@connected
def status(queen: Queen, pipeline: Reported, output: Output = None) -> None:
    """Show a pipeline."""
    found = queen.admin.pipeline(pipeline)
    shown = {
        **fields_of(found),
        "steps": _listed(found.stats, metric_names.STEP),
        "sinks": _listed(found.stats, metric_names.SINK),
        "phases": with_shares(_listed(found.stats, metric_names.PHASE)),
    }
    tables = [("steps", _STEPS), ("sinks", _SINKS), ("phases", _PHASES), ("runs", _RUNS)]
    Printer(output).record(shown, _FIELDS, tables)


def _listed(stats: Mapping[str, float], part: metric_names.Part) -> list[dict[str, Any]]:
    """The figures of steps, sinks or phases, each with its name, in the order in which they were reported.

    >>> _listed({"messages": 2.0, "steps.in.taken": 2.0, "steps.in.failed": 1.0}, figures.STEP)
    [{'step': 'in', 'taken': 2.0, 'failed': 1.0}]
    """
    return [{part.label: name, **values} for name, values in part.group(stats).items()]


def with_shares(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Phases with the share that each has of the time of all.

    >>> with_shares([{"phase": "read", "seconds": 1.0}, {"phase": "compute", "seconds": 3.0}])
    [{'phase': 'read', 'seconds': 1.0, 'share': 0.25}, {'phase': 'compute', 'seconds': 3.0, 'share': 0.75}]
    """
    whole = sum(each.get("seconds", 0.0) for each in phases)
    return [{**each, "share": each.get("seconds", 0.0) / whole if whole else 0.0} for each in phases]
