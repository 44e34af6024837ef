"""What the routes about pipelines take and answer; ``core.metric_names`` has the names of the figures."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from queenstream.broker.schemas.admin import Page
from queenstream.broker.schemas.messages import Long, Name

Figure = Annotated[str, Meta(min_length=1, max_length=300)]
Figures = Annotated[dict[Figure, float], Meta(max_length=2_000)]
Place = Annotated[str, Meta(max_length=2_000)]


class ReportBody(Struct, rename="camel", kw_only=True):
    """What a run tells of itself. ``plan``: the JSON of ``describe("json")``, once is enough."""

    engine: Literal["local", "spark"]
    instance: Name
    state: Literal["running", "stopped", "failed"]
    stats: Figures
    plan: Raw | UnsetType = UNSET
    error: Long | None = None
    checkpoint: Place | None = None
    inside: Raw | UnsetType = UNSET


class Wanted(Struct):
    """What somebody wants to see inside a run; ``key``: and what it remembers of that."""

    key: str | None


class Reported(Struct, rename="camel"):
    """``stored``: False, if it told a moment ago. ``wants_plan``: say the plan with the next report.

    ``wants_inside``: somebody looks; say what there is to see inside.
    """

    stored: bool
    wants_plan: bool
    next_seconds: float
    wants_inside: Wanted | None


class InsideQuery(Struct):
    """``key``: what the run remembers of it, too; it comes with a later answer."""

    key: Name | None = None


class BatchInfo(Struct):
    """A batch that is in the sinks: when (seconds since 1970), how many records, how many seconds it took."""

    ended: float
    records: float
    seconds: float


class CheckpointInfo(Struct, rename="camel"):
    """``clean``: the run was stopped there; None: that is not known."""

    id: str
    committed_at: datetime
    clean: bool | None


class KeyState(Struct):
    """What steps remember of a key."""

    key: str
    entries: list[dict[str, Any]]


class Inside(Struct):
    """What a run can show of itself; ``error``: why it cannot. ``samples``: rows by step, as text."""

    batches: list[BatchInfo] = []
    samples: dict[str, list[str]] = {}
    checkpoints: list[CheckpointInfo] = []
    state: KeyState | None = None
    error: str | None = None


class PipelineInside(Struct, rename="camel"):
    """What the run told last; nothing, if nobody has looked before: ask again in a few seconds.

    ``key``: of which the state was asked for; ``inside.state`` may still be that of another one.
    """

    pipeline: str
    told_at: datetime | None
    key: str | None
    inside: Inside


RunState = Literal["running", "stopped", "failed", "lost"]


class PipelineRun(Struct, rename="camel", kw_only=True):
    """One run; ``lost``: it ran, and has told nothing for half a minute."""

    instance: str
    engine: str
    state: RunState
    error: str | None
    checkpoint: str | None
    started_at: datetime
    reported_at: datetime
    stats: dict[str, float]


class PipelineInfo(PipelineRun, rename="camel", kw_only=True):
    """A pipeline with its newest run; figures of steps are with the one pipeline that is asked for."""

    name: str


class PipelineList(Struct):
    pipelines: list[PipelineInfo]
    pagination: Page


class PipelinePoint(Struct, rename="camel", kw_only=True):
    """The main figures at a time; None: the run has no such figure."""

    time: datetime
    messages: float | None
    errors: float | None
    late: float | None
    dead_letters: float | None
    dropped: float | None
    messages_per_second: float | None
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    error_rate: float | None
    queue_depth: float | None
    watermark_lag_seconds: float | None
    state_rows: float | None
    state_bytes: float | None


class PipelineQuery(Struct):
    """How far back the series goes."""

    minutes: Annotated[int, Meta(ge=1, le=360)] = 60


class PipelineDetail(PipelineInfo, rename="camel", kw_only=True):
    """``plan``: as ``describe("json")`` gives it; ``runs``: the newest first, this one included."""

    plan: Raw
    runs: list[PipelineRun]
    series: list[PipelinePoint]


class PipelineDeleted(Struct):
    deleted: bool
    pipeline: str
    existed: bool
