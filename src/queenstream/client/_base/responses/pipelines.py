"""What a broker answers about pipelines: what their runs have told of themselves."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import field

from queenstream.client._base.responses.resources import Pagination, Reply

RunState = Literal["running", "stopped", "failed", "lost"]


class Wanted(Reply):
    """What somebody wants to see inside a run; ``key``: and what it remembers of that."""

    key: str | None = None


class Reported(Reply):
    """``stored``: False, if the run told a moment ago. ``wants_plan``: say the plan with the next report.

    ``wants_inside``: somebody looks; say what there is to see inside.
    """

    stored: bool = True
    wants_plan: bool = False
    next_seconds: float = 5.0
    wants_inside: Wanted | None = None


class PipelineRun(Reply, kw_only=True):
    """One run, and the figures that it told last; ``lost``: it ran, and tells nothing any more."""

    instance: str
    engine: str
    state: RunState
    error: str | None = None
    checkpoint: str | None = None
    started_at: datetime
    reported_at: datetime
    stats: dict[str, float] = field(default_factory=dict)


class PipelineInfo(PipelineRun, kw_only=True):
    """A pipeline with its newest run."""

    name: str


class PipelineList(Reply):
    """Pipelines."""

    pipelines: list[PipelineInfo]
    pagination: Pagination


class PipelinePoint(Reply, kw_only=True):
    """The main figures at a time; None: the run had no such figure."""

    time: datetime
    messages: float | None = None
    errors: float | None = None
    late: float | None = None
    dead_letters: float | None = None
    dropped: float | None = None
    messages_per_second: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    latency_p99_ms: float | None = None
    error_rate: float | None = None
    queue_depth: float | None = None
    watermark_lag_seconds: float | None = None
    state_rows: float | None = None
    state_bytes: float | None = None


class PipelineDetail(PipelineInfo, kw_only=True):
    """``plan``: as ``describe("json")`` gives it; ``runs``: the newest first, this one included."""

    plan: dict[str, Any] | None = None
    runs: list[PipelineRun] = field(default_factory=list)
    series: list[PipelinePoint] = field(default_factory=list)


class PipelineDeleted(Reply):
    """``existed``: whether there was anything to forget."""

    deleted: bool
    pipeline: str
    existed: bool


class BatchInfo(Reply):
    """A batch that is in the sinks: when (seconds since 1970), how many records, how many seconds it took."""

    ended: float
    records: float
    seconds: float


class CheckpointInfo(Reply):
    """``clean``: the run was stopped there; None: that is not known."""

    id: str
    committed_at: datetime
    clean: bool | None = None


class KeyState(Reply):
    """What steps remember of a key."""

    key: str
    entries: list[dict[str, Any]]


class Inside(Reply):
    """What a run can show of itself; ``error``: why it cannot. ``samples``: rows by step, as text."""

    batches: list[BatchInfo] = field(default_factory=list)
    samples: dict[str, list[str]] = field(default_factory=dict)
    checkpoints: list[CheckpointInfo] = field(default_factory=list)
    state: KeyState | None = None
    error: str | None = None


class PipelineInside(Reply):
    """What the run told last; nothing, if nobody has looked before."""

    pipeline: str
    told_at: datetime | None
    key: str | None
    inside: Inside
