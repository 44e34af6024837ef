"""The routes for pipelines: runs tell of themselves, others look. The broker runs none of them."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from queenstream.broker.api.messages import check_name
from queenstream.broker.api.queues import pick
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.messaging.encryption import unseal
from queenstream.broker.ops.gauges import LOST_SECONDS
from queenstream.broker.schemas.admin import Page, PageQuery
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.schemas.pipelines import (
    Inside,
    InsideQuery,
    PipelineDeleted,
    PipelineDetail,
    PipelineInfo,
    PipelineInside,
    PipelineList,
    PipelinePoint,
    PipelineQuery,
    PipelineRun,
    ReportBody,
    Reported,
    Wanted,
)
from queenstream.core import metric_names
from queenstream.errors import Conflict, DecryptionError, InvalidRequest, NotFound, TooLarge

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

routes = Routes("pipelines")

REPORT_SECONDS = 5.0  # how often a run is asked to tell
MOST_PLAN_BYTES = 262_144
MOST_STATS_BYTES = 65_536
MOST_PIPELINES = 1_000
MOST_RUNS = 20  # kept of each

LOOK_SECONDS = 30.0  # how long somebody's question makes a run tell
LOOKED_AT_SECONDS = 2.0  # how often it tells meanwhile
MOST_INSIDE_BYTES = 262_144
_SEALED = "sealed:"

_decode_inside = msgspec.json.Decoder(Inside).decode
_decode = msgspec.json.Decoder(dict[str, float]).decode


@routes.post(
    "/api/v1/pipelines/{pipeline}/report",
    audited=False,
    role=Role.READ_WRITE,
    body=ReportBody,
    answers={200: Reported, 400: ErrorBody, 409: ErrorBody, 413: ErrorBody},
)
async def report_pipeline(call: Call) -> Response:
    """Take in what a run of a pipeline tells of itself."""
    body: ReportBody = call.body
    name = _name(call)
    database = call.broker.database
    [row] = await database.admin(
        "report_pipeline", name, body.instance, body.engine, body.state,
        _sealed_error(call.broker, name, body.error), body.checkpoint, _plan(body),
        _stats(body), [body.stats.get(each) for each in metric_names.HISTORY],
        MOST_PIPELINES, MOST_RUNS, database.now(),
    )  # fmt: skip
    if row["outcome"] == "full":
        raise Conflict(
            f"there are {MOST_PIPELINES} pipelines already; DELETE /api/v1/pipelines/{{pipeline}} those that "
            "are gone"
        )
    stored = row["outcome"] == "stored"
    inside = _told_inside(body)
    keyring = call.broker.keyring
    if inside is not None and keyring is not None:
        inside = keyring.seal(inside, _identity("inside", name))
    looks = await database.admin("tell_inside", name, inside, LOOK_SECONDS, database.now())
    wanted = Wanted(looks[0]["key"]) if looks else None
    pause = LOOKED_AT_SECONDS if looks else REPORT_SECONDS
    return reply(Reported(stored, row["wants_plan"], pause, wanted))


def _identity(what: str, pipeline: str) -> bytes:
    return f"{what} of pipeline {pipeline}".encode()


def _sealed_error(broker: Broker, pipeline: str, error: str | None) -> str | None:
    """What a run failed with. It may quote a record of an encrypted queue: a broker with a key seals it."""
    if error is None or broker.keyring is None:
        return error and error.replace("\0", "")
    sealed = broker.keyring.seal(error.encode(), _identity("error", pipeline))
    return _SEALED + base64.b64encode(sealed).decode()


def _error(broker: Broker, pipeline: str, stored: str | None) -> str | None:
    if stored is None or not stored.startswith(_SEALED):
        return stored
    try:
        sealed = base64.b64decode(stored.removeprefix(_SEALED))
        return unseal(broker.keyring, sealed, _identity("error", pipeline)).decode()
    except (DecryptionError, ValueError) as error:
        return f"(what it failed with cannot be shown: {error})"


def _inside(broker: Broker, pipeline: str, stored: bytes | None) -> Inside:
    if stored is None:
        return Inside()
    try:
        return _decode_inside(unseal(broker.keyring, stored, _identity("inside", pipeline)))
    except DecryptionError as error:
        return Inside(error=f"what the run told cannot be shown: {error}")


def _told_inside(body: ReportBody) -> bytes | None:
    if isinstance(body.inside, msgspec.UnsetType):
        return None
    inside = bytes(body.inside)
    if len(inside) > MOST_INSIDE_BYTES:
        raise TooLarge(f"inside has {len(inside)} bytes; send at most {MOST_INSIDE_BYTES}")
    try:
        _decode_inside(inside)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"inside does not fit: {error}") from None
    return inside


def _stats(body: ReportBody) -> bytes:
    if not all(map(math.isfinite, body.stats.values())):
        raise InvalidRequest("a figure of stats is infinite; send finite numbers")
    if any("\0" in name for name in body.stats):
        raise InvalidRequest("NUL (\\u0000) is in a name of stats; leave it out")
    stats = msgspec.json.encode(body.stats)
    if len(stats) > MOST_STATS_BYTES:
        raise TooLarge(f"stats has {len(stats)} bytes; send at most {MOST_STATS_BYTES}")
    return stats


def _plan(body: ReportBody) -> bytes | None:
    if isinstance(body.plan, msgspec.UnsetType):
        return None
    plan = bytes(body.plan)
    if len(plan) > MOST_PLAN_BYTES:
        raise TooLarge(f"the plan has {len(plan)} bytes; send at most {MOST_PLAN_BYTES}, or none")
    if not plan.startswith(b"{"):
        raise InvalidRequest("plan is no object; send what describe('json') gives")
    return plan


@routes.get(
    "/api/v1/pipelines", role=Role.READ_ONLY, query=PageQuery, answers={200: PipelineList, 400: ErrorBody}
)
async def list_pipelines(call: Call) -> Response:
    """List the pipelines that have told of themselves, each with its newest run."""
    query: PageQuery = call.query
    database = call.broker.database
    rows = await database.admin("list_pipelines", database.now(), LOST_SECONDS, query.limit, query.offset)
    found = [
        pick(
            PipelineInfo,
            {**row, "stats": _main(row["stats"]), "error": _error(call.broker, row["name"], row["error"])},
        )
        for row in rows
    ]
    [counted] = await database.admin("count_pipelines")
    return reply(PipelineList(found, Page(query.limit, query.offset, total=counted["total"])))


@routes.get(
    "/api/v1/pipelines/{pipeline}",
    role=Role.READ_ONLY,
    query=PipelineQuery,
    answers={200: PipelineDetail, 400: ErrorBody, 404: ErrorBody},
)
async def show_pipeline(call: Call) -> Response:
    """Show a pipeline: what its newest run told last, its plan, its runs, and its figures over time."""
    query: PipelineQuery = call.query
    name, database = _name(call), call.broker.database
    rows = await database.admin("pipeline_runs", name, database.now(), LOST_SECONDS)
    if not rows:
        raise _unknown(name)
    series = await database.admin("pipeline_series", name, database.now(), query.minutes)
    errors = [_error(call.broker, name, row["error"]) for row in rows]
    runs: list[PipelineRun] = [
        pick(PipelineRun, {**row, "stats": _main(row["stats"]), "error": error})
        for row, error in zip(rows, errors, strict=True)
    ]
    newest = {
        **rows[0],
        "error": errors[0],
        "stats": _decode(rows[0]["stats"]),
        "plan": Raw(rows[0]["plan"] or b"null"),
    }
    points = [pick(PipelinePoint, point) for point in series]
    return reply(pick(PipelineDetail, newest, name=name, runs=runs, series=points))


@routes.get(
    "/api/v1/pipelines/{pipeline}/inside",
    role=Role.READ_ONLY,
    query=InsideQuery,
    answers={200: PipelineInside, 400: ErrorBody, 404: ErrorBody},
)
async def look_inside(call: Call) -> Response:
    """Show the last batches, sample rows, checkpoints and state by key of a run; it tells while one asks."""
    query: InsideQuery = call.query
    name, database = _name(call), call.broker.database
    rows = await database.admin("look_inside", name, query.key or None, database.now())
    if not rows:
        raise _unknown(name)
    row = rows[0]
    inside = _inside(call.broker, name, row["inside"])
    return reply(PipelineInside(name, row["told_at"], row["key"], inside))


@routes.delete(
    "/api/v1/pipelines/{pipeline}", role=Role.ADMIN, answers={200: PipelineDeleted, 400: ErrorBody}
)
async def delete_pipeline(call: Call) -> Response:
    """Forget what a pipeline told. One that runs goes on, and tells again."""
    name = _name(call)
    existed = bool(await call.broker.database.admin("delete_pipeline", name))
    return reply(PipelineDeleted(existed, name, existed))


def _name(call: Call) -> str:
    return check_name(call.params["pipeline"], "the pipeline's name")


def _main(stats: bytes) -> dict[str, Any]:
    """Without the figures of steps, sinks and phases."""
    return {name: value for name, value in _decode(stats).items() if metric_names.is_of_whole(name)}


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"no run of a pipeline {name} has told of itself here; GET /api/v1/pipelines lists those that have"
    )
