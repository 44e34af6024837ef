# Generated from _async/admin/pipelines.py by `python tools/async_to_sync.py`; do not edit.
"""Administration of pipelines: what their runs tell of themselves, and telling it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Raw

from queenstream.client._base.http import path_of
from queenstream.client._base.responses.pipelines import (
    PipelineDeleted,
    PipelineDetail,
    PipelineInfo,
    PipelineInside,
    PipelineList,
    Reported,
)
from queenstream.client._base.responses.resources import Page
from queenstream.client._sync.retry import Calls

_PIPELINES = ("api", "v1", "pipelines")


class PipelineAdmin:
    """Pipelines."""

    _calls: Calls

    def pipelines(self, *, limit: int = 100, offset: int = 0) -> Page[PipelineInfo]:
        """The pipelines that have told of themselves, each with its newest run.

        >>> [(each.name, each.state) for each in queen.admin.pipelines()]  # doctest: +SKIP
        [('totals', 'running')]
        """
        query = {"limit": limit, "offset": offset}
        found = self._calls.call("GET", path_of(*_PIPELINES), query=query, type=PipelineList)
        return Page(found.pipelines, limit=limit, offset=offset, total=found.pagination.total)

    def pipeline(self, name: str, *, minutes: int = 60) -> PipelineDetail:
        """One pipeline: its newest run with all figures, its plan, its runs, and figures over time.

        >>> queen.admin.pipeline("totals").stats["messages_per_second"]  # doctest: +SKIP
        1203.5
        """
        path = path_of(*_PIPELINES, name)
        return self._calls.call("GET", path, query={"minutes": minutes}, type=PipelineDetail)

    def report_pipeline(
        self,
        name: str,
        *,
        engine: Literal["local", "spark"],
        instance: str,
        state: Literal["running", "stopped", "failed"],
        stats: Mapping[str, float],
        plan: str | None = None,
        error: str | None = None,
        checkpoint: str | None = None,
        inside: str | None = None,
        timeout: float | None = None,
    ) -> Reported:
        """Tell of a run, as engines do by themselves.

        ``plan``: the JSON of ``describe("json")``; ``inside``: if it is wanted, the JSON of ``run.look()``.

        ``admin.report_pipeline("totals", engine="local", instance="a1", state="running", stats={})``
        """
        body: dict[str, object] = {
            "engine": engine,
            "instance": instance,
            "state": state,
            "stats": dict(stats),
            "error": error,
            "checkpoint": checkpoint,
        }
        if plan is not None:
            body["plan"] = Raw(plan.strip().encode())
        if inside is not None:
            body["inside"] = Raw(inside.encode())
        path = path_of(*_PIPELINES, name, "report")
        return self._calls.call("POST", path, body=body, type=Reported, timeout=timeout)

    def pipeline_inside(self, name: str, *, key: str | None = None) -> PipelineInside:
        """Look inside its run: the last batches, sample rows by step, checkpoints, what it knows of a key.

        A run tells only while somebody asks: ask again in a few seconds.

        >>> queen.admin.pipeline_inside("totals").inside.samples["parse"]  # doctest: +SKIP
        ['{"user":"ann"}']
        """
        path = path_of(*_PIPELINES, name, "inside")
        return self._calls.call("GET", path, query={"key": key}, type=PipelineInside)

    def delete_pipeline(self, name: str) -> PipelineDeleted:
        """Forget what a pipeline told; one that runs goes on, and tells again.

        ``admin.delete_pipeline("totals")``; one that is not known is no error.
        """
        return self._calls.call("DELETE", path_of(*_PIPELINES, name), type=PipelineDeleted)
