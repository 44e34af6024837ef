"""The routes for sets of rules, which pipelines go by and which may change while they run."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from queenstream.broker.api.messages import check_name
from queenstream.broker.api.queues import pick
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.schemas.admin import Page, PageQuery
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.schemas.rules import (
    RulesApplied,
    RulesBody,
    RulesDefinition,
    RulesDeleted,
    RulesDetail,
    RulesInfo,
    RulesList,
    RulesQuery,
)
from queenstream.errors import Conflict, InvalidRequest, NotFound, TooLarge

routes = Routes("rules")

MOST_SETS = 1_000
MOST_BYTES = 262_144

_decode = msgspec.json.Decoder(RulesDefinition).decode


@routes.post(
    "/api/v1/rules/{rules}",
    role=Role.ADMIN,
    body=RulesBody,
    answers={200: RulesApplied, 400: ErrorBody, 409: ErrorBody, 413: ErrorBody},
)
async def apply_rules(call: Call) -> Response:
    """Make a set of rules, or replace all of one. Pipelines that go by it take it over within seconds."""
    body: RulesBody = call.body
    name, database = _name(call), call.broker.database
    [row] = await database.admin(
        "apply_rules", name, _definition(body), body.expected_version, MOST_SETS, database.now()
    )
    if row["outcome"] == "changed":
        now = f"version {row['version']}" if row["version"] else "deleted"
        raise Conflict(f"the rules {name} have changed meanwhile (now: {now}); look at them, and apply again")
    if row["outcome"] == "full":
        raise Conflict(
            f"there are {MOST_SETS} sets of rules already; DELETE /api/v1/rules/{{rules}} what is not needed"
        )
    changed = row["outcome"] == "stored"
    return reply(RulesApplied(name, row["version"], changed, row["changed_at"]))


def _definition(body: RulesBody) -> bytes:
    thresholds = [rule.threshold for rule in body.rules.anomalies.values() if rule.threshold is not None]
    if not all(map(math.isfinite, thresholds)):
        raise InvalidRequest("a threshold is infinite; send finite numbers")
    found = msgspec.json.encode(body.rules, order="deterministic")
    if len(found) > MOST_BYTES:
        raise TooLarge(f"the rules have {len(found)} bytes; make several sets of at most {MOST_BYTES}")
    return found


@routes.get("/api/v1/rules", role=Role.READ_ONLY, query=PageQuery, answers={200: RulesList, 400: ErrorBody})
async def list_rules(call: Call) -> Response:
    """List the sets of rules."""
    query: PageQuery = call.query
    database = call.broker.database
    rows = await database.admin("list_rules", query.limit, query.offset)
    [counted] = await database.admin("count_rules")
    found = [_info(row) for row in rows]
    return reply(RulesList(found, Page(query.limit, query.offset, total=counted["total"])))


def _info(row: Any) -> RulesInfo:
    says = _decode(row["definition"])
    counts = {"patterns": len(says.patterns), "anomalies": len(says.anomalies)}
    found: RulesInfo = pick(RulesInfo, row, **counts)
    return found


@routes.get(
    "/api/v1/rules/{rules}",
    role=Role.READ_ONLY,
    query=RulesQuery,
    answers={200: RulesDetail, 400: ErrorBody, 404: ErrorBody},
)
async def show_rules(call: Call) -> Response:
    """Show a set of rules; pipelines ask so every few seconds whether it has changed."""
    query: RulesQuery = call.query
    name = _name(call)
    rows = await call.broker.database.admin("show_rules", name, query.known)
    if not rows:
        raise NotFound(
            f"there is no set of rules {name[:200]!r}; `queen rules apply` makes one, "
            "GET /api/v1/rules lists them"
        )
    says = rows[0]["definition"]
    return reply(pick(RulesDetail, rows[0], rules=None if says is None else _decode(says)))


@routes.delete("/api/v1/rules/{rules}", role=Role.ADMIN, answers={200: RulesDeleted, 400: ErrorBody})
async def delete_rules(call: Call) -> Response:
    """Delete a set of rules. A pipeline that goes by it keeps what it knows, and cannot be started again."""
    name = _name(call)
    existed = bool(await call.broker.database.admin("delete_rules", name))
    return reply(RulesDeleted(existed, name, existed))


def _name(call: Call) -> str:
    return check_name(call.params["rules"], "the name of the rules")
