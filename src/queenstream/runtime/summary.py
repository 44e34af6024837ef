"""The summary of a run: records per step and sink, time, checkpoint and warnings, as text and as HTML.

Engines give counts by step; what they do not count follows from the plan where it can (``complete_counts``),
and is shown as ``-`` where it cannot. Nothing here does I/O but ``print_summary``.
"""

from __future__ import annotations

import contextlib
import html
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node
from queenstream.runtime.missing_fields import find_missing

if TYPE_CHECKING:
    from queenstream.pipeline.plan.planner import Plan
    from queenstream.runtime.metrics import Counts

State: TypeAlias = Literal["running", "ended", "stopped", "failed"]

UNKNOWN = "-"
"""Stands for a number that would cost a second pass over the records."""

_ONE_TO_ONE = (nodes.Project, nodes.EventTime, nodes.KeyBy)
_GAP = "  "
_USUAL_WIDTH = 80  # of a terminal that does not know its own
_LEAST_WIDTH = 12  # of a column of text that is shortened


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run can go on from: the last checkpoint's id (None: there is none yet), and the place."""

    id: str | None
    place: str

    def __str__(self) -> str:
        return f"none yet in {self.place}" if self.id is None else f"{self.id} in {self.place}"


@dataclass(frozen=True, slots=True)
class StepSummary:
    """What one step did; None: not known.

    ``taken``: of a source, the records read. ``given``: of a sink, the records written; ``bytes``: their
    size, as they were staged. ``filtered``: dropped because a filter said no, a look-up found nothing, or an
    equal record was there before.
    """

    name: str
    where: str
    taken: int | None
    filtered: int | None
    failed: int
    late: int
    given: int | None
    dead_letters: int = 0
    retried: int = 0
    dropped: int = 0
    bytes: int | None = None
    filters: bool = False
    role: Literal["source", "step", "sink"] = "step"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run has done so far, or did in all. ``print(run.summary())`` shows it.

    >>> run = pipeline.run(engine="local")  # doctest: +SKIP
    >>> run.summary().written  # doctest: +SKIP
    3
    """

    pipeline: str
    state: State
    seconds: float
    steps: tuple[StepSummary, ...]
    checkpoint: Checkpoint | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None
    phases: tuple[tuple[str, float], ...] = ()

    @property
    def read(self) -> int:
        """Records read from all sources."""
        return sum(step.taken or 0 for step in self.steps if step.role == "source")

    @property
    def filtered(self) -> int | None:
        """Records that steps dropped on purpose; None, where that is not known of each of them."""
        found = [step.filtered for step in self.steps if step.filters]
        return None if None in found else sum(each or 0 for each in found)

    @property
    def failed(self) -> int:
        """Records that steps failed on."""
        return sum(step.failed for step in self.steps)

    @property
    def late(self) -> int:
        """Records that came too late for a step."""
        return sum(step.late for step in self.steps)

    @property
    def written(self) -> int | None:
        """Records written to all sinks, without dead letters; None, where that is not known of a sink."""
        found = [step.given for step in self.steps if step.role == "sink"]
        return None if None in found else sum(each or 0 for each in found)

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The summary as lines of text, at most ``width`` characters wide; None: as wide as it needs."""
        lines = [self._heading(), ""]
        titles, rows = self._table()
        lines += [f"{_GAP}{line}" for line in _aligned(titles, rows, None if width is None else width - 2)]
        lines.append("")
        lines += [f"{_GAP}{name}: {text}" for name, text in self._notes()]
        while not lines[-1]:
            lines.pop()
        return "\n".join(lines)

    def html(self) -> str:
        """The same for a notebook: one element, with its styles in it."""
        titles, rows = self._table()
        cell = "padding:2px 12px 2px 0;text-align:{};white-space:nowrap"
        sides = ["left" if at < _TEXTS else "right" for at in range(len(titles))]
        head = "".join(
            f'<th style="{cell.format(side)}">{html.escape(title.lower())}</th>'
            for title, side in zip(titles, sides, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="{cell.format(side)}">{html.escape(text)}</td>'
                for text, side in zip(row, sides, strict=True)
            )
            + "</tr>"
            for row in rows
        )
        notes = "".join(
            f'<div style="{_NOTE_STYLES.get(name, "")}">{html.escape(f"{name}: {text}")}</div>'
            for name, text in self._notes()
        )
        heading = f'<div style="margin-bottom:4px">{html.escape(self._heading())}</div>'
        return (
            f'<div class="queenstream-run">{heading}'
            f'<table style="{_TABLE_STYLE}">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}</div>"
        )

    def _heading(self) -> str:
        time = format_seconds(self.seconds)
        state = f"{self.state} for {time}" if self.state == "running" else f"{self.state} after {time}"
        counts = [
            f"{_number(self.read)} {'record' if self.read == 1 else 'records'} read",
            f"{_number(self.filtered)} filtered",
            f"{_number(self.failed)} failed",
            f"{_number(self.late)} late",
            f"{_number(self.written)} written",
        ]
        return f"{_printable(self.pipeline)} {state}: {', '.join(counts)}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Titles and rows. Columns of what seldom happens are there only if it did."""
        some = [title for title, name in _SOME if any(getattr(step, name) for step in self.steps)]
        sized = any(step.bytes is not None for step in self.steps)
        titles = ["STEP", "LINE", "IN", "FILTERED", "FAILED", "LATE", *some, "OUT", *(["BYTES"] * sized)]
        rows = []
        for step in self.steps:
            row = [_printable(step.name), step.where]
            row += [_number(step.taken), _number(step.filtered) if step.filters else ""]
            row += [_number(step.failed), _number(step.late)]
            row += [_number(getattr(step, name)) for title, name in _SOME if title in some]
            row.append(_number(step.given))
            if sized:
                row.append("" if step.bytes is None else _number(step.bytes))
            rows.append(row)
        return titles, rows

    def _notes(self) -> list[tuple[str, str]]:
        notes = [("warning", _printable(warning)) for warning in self.warnings]
        if self.error is not None:
            notes.append(("error", _printable(self.error)))
        if self.phases:
            shown = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in self.phases)
            notes.append(("time", shown))
        if self.checkpoint is not None:
            notes.append(("checkpoint", _printable(str(self.checkpoint))))
        return notes


_TEXTS = 2  # the first columns, which are text
_SOME = (("RETRIED", "retried"), ("DEAD LETTERS", "dead_letters"), ("DROPPED", "dropped"))
# A page in quirks mode gives a table neither its color nor its font.
_TABLE_STYLE = "border-collapse:collapse;color:inherit;font:inherit;font-variant-numeric:tabular-nums"
_NOTE_STYLES = {
    "warning": "border-left:3px solid #d98c00;padding-left:8px;margin-top:4px",
    "error": "border-left:3px solid #c0392b;padding-left:8px;margin-top:4px",
    "time": "margin-top:4px",
    "checkpoint": "margin-top:4px",
}


class Summarized:
    """Shows the summary as the ``repr`` of a run, and as its HTML in a notebook."""

    def summary(self) -> Summary:
        """What the run has done so far."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()


def make_summary(
    plan: Plan,
    counts: Counts,
    *,
    state: State,
    seconds: float,
    checkpoint: Checkpoint | None = None,
    error: BaseException | None = None,
    phases: Mapping[str, float] | None = None,
) -> Summary:
    """The summary of a run of a plan from what its engine has counted.

    ``counts`` are those of ``metrics.Counts``, and of a sink ``written`` and ``bytes``. Dead letters go to
    sinks that are not in the plan. ``phases``: the seconds of each.
    """
    whole = complete_counts(plan, counts)
    steps = [_step(node, whole[node.name]) for node in plan.nodes]
    known = {node.name for node in plan.nodes}
    steps += [
        StepSummary(name, "", None, None, 0, 0, each["written"], bytes=each.get("bytes"))
        for name, each in counts.items()
        if name not in known and each.get("written")
    ]
    return Summary(
        plan.name,
        state,
        seconds,
        tuple(steps),
        checkpoint,
        tuple(str(each) for each in find_missing(plan, counts)),
        None if error is None else _told(error),
        tuple((phases or {}).items()),
    )


def _step(node: Node, counts: Mapping[str, int]) -> StepSummary:
    taken, given, failed, late = (counts.get(name) for name in ("taken", "given", "failed", "late"))
    role: Literal["source", "step", "sink"] = "step"
    if isinstance(node, nodes.Read):
        taken = (taken or 0) + (failed or 0)
        role = "step" if isinstance(node, nodes.Replay) else "source"
    elif isinstance(node, nodes.Write):
        given = counts.get("written")
        role = "sink"
    filters = _filters(node)
    filtered = None
    if filters and taken is not None and given is not None:
        filtered = max(0, taken - given - (failed or 0) - (late or 0))
    return StepSummary(
        name=node.name,
        where=str(node.where),
        taken=taken,
        filtered=filtered,
        failed=failed or 0,
        late=late or 0,
        given=given,
        dead_letters=counts.get("dead_letters", 0),
        retried=counts.get("retried", 0),
        dropped=counts.get("dropped", 0),
        bytes=counts.get("bytes"),
        filters=filters,
        role=role,
    )


def _filters(node: Node) -> bool:
    """Whether a step drops records on purpose."""
    if isinstance(node, nodes.Apply):
        return node.mode == "filter"
    if isinstance(node, nodes.Lookup):
        return node.how == "inner"
    return isinstance(node, nodes.Filter | nodes.Deduplicate)


def complete_counts(plan: Plan, counts: Counts) -> dict[str, dict[str, int]]:
    """Counts with those that follow from others: a step takes what the steps before it gave.

    Dead letters that came back enter in the middle: then nothing follows.
    """
    found = {node.name: dict(counts.get(node.name, {})) for node in plan.nodes}
    replayed = any(found[node.name].get("taken") for node in plan.nodes if isinstance(node, nodes.Replay))
    if replayed:
        return found
    for node in plan.nodes:  # forwards: inputs come first
        own = found[node.name]
        given = [found[each.name].get("given") for each in node.inputs]
        if isinstance(node, nodes.Read):
            own.setdefault("given", own.get("taken", 0))
        elif "taken" not in own and not isinstance(node, nodes.Late) and None not in given:
            own["taken"] = sum(each or 0 for each in given)
        _set_given(node, own)
    for node in reversed(plan.nodes):  # backwards: from the sinks
        own = found[node.name]
        takers = [each for each in plan.consumers(node) if len(each.inputs) == 1]
        taken = [found[each.name].get("taken") for each in takers if not isinstance(each, nodes.Late)]
        if "given" not in own and any(each is not None for each in taken):
            own["given"] = next(each for each in taken if each is not None)
        if isinstance(node, _ONE_TO_ONE) and "taken" not in own and "given" in own:
            own["taken"] = own["given"] + own.get("failed", 0)
    return found


def _set_given(node: Node, own: dict[str, int]) -> None:
    taken = own.get("taken")
    if "given" in own or taken is None:
        return
    if isinstance(node, _ONE_TO_ONE) or (isinstance(node, nodes.Apply) and node.mode == "map"):
        own["given"] = max(0, taken - own.get("failed", 0))
    elif isinstance(node, nodes.Union) or (taken == 0 and isinstance(node, nodes.Filter | nodes.Apply)):
        own["given"] = taken


def print_summary(summary: Summary, stream: TextIO | None = None) -> None:
    """Write a summary to standard error, as wide as the terminal; a closed stream is no error."""
    out = sys.stderr if stream is None else stream
    if out is None:  # a program without a console
        return
    with contextlib.suppress(OSError, ValueError):
        out.write(f"{summary.text(terminal_width(out))}\n")
        out.flush()


def terminal_width(stream: TextIO) -> int | None:
    """How wide the terminal is that a stream writes to; None: it is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH if stream.isatty() else None
    except (OSError, ValueError):
        return None


def format_seconds(seconds: float) -> str:
    """A time in the units that people would take.

    >>> format_seconds(0.042), format_seconds(4.25), format_seconds(75), format_seconds(7_500)
    ('42 ms', '4.2 s', '1 min 15 s', '2 h 5 min')
    """
    if seconds < 1:
        return f"{1_000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600:,} h {whole % 3_600 // 60} min"


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    ours = type(error).__module__.partition(".")[0] == "queenstream"
    return text if ours and text else f"{type(error).__name__}: {text}".rstrip(": ")


def _printable(text: str) -> str:
    """The text with control characters spelled out: what a record holds must not command the terminal."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


def _aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Lines with columns under each other; the columns of text are shortened where there is no room."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    over = 0 if width is None else sum(widths) + len(_GAP) * (len(widths) - 1) - width
    for at in reversed(range(_TEXTS)):
        cut = max(0, min(over, widths[at] - _LEAST_WIDTH))
        widths[at] -= cut
        over -= cut
    lines = []
    for row in (titles, *rows):
        cells = [
            _cut(text, width, front=at == 1).ljust(width) if at < _TEXTS else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(_GAP.join(cells).rstrip())
    return lines


def _cut(text: str, width: int, *, front: bool) -> str:
    """A text of at most that width; of a line of code the end says most."""
    if len(text) <= width:
        return text
    return f"…{text[len(text) - width + 1 :]}" if front else f"{text[: width - 1]}…"
