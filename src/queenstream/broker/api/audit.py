"""The routes about who does what: the audit log, who asks, and what a broker runs with."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from queenstream.broker.api.queues import moment_or_none, pick
from queenstream.broker.auth.scope import ANYTHING
from queenstream.broker.http.openapi import role_name
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.schemas.audit import Act, ActList, ActsQuery, BrokerSettings, Me, SettingValue
from queenstream.broker.schemas.messages import ErrorBody

routes = Routes("system")


@routes.get("/api/v1/audit", role=Role.READ_ONLY, query=ActsQuery, answers={200: ActList, 400: ErrorBody})
async def list_acts(call: Call) -> Response:
    """List administrative acts, the newest first: who did what to what, when and from where."""
    query: ActsQuery = call.query
    rows = await call.broker.database.admin(
        "list_acts", int(query.before) if query.before else None, query.subject or None, query.action or None,
        query.target or None, moment_or_none(query.from_, "from"), moment_or_none(query.to, "to"),
        query.limit + 1,
    )  # fmt: skip
    acts = [_act(row) for row in rows[: query.limit]]
    return reply(ActList(acts, acts[-1].id if len(rows) > query.limit else None))


def _act(row: Any) -> Act:
    made: Act = pick(Act, {**row, "details": Raw(row["details"])})
    return made


@routes.get("/api/v1/system/me", scope=ANYTHING, role=Role.READ_ONLY, answers={200: Me})
async def show_me(call: Call) -> Response:
    """Show who asks, and what they may do."""
    request, broker = call.request, call.broker
    role: Any = role_name(request.role)
    me = Me(request.subject, role, broker.authenticator is not None, broker.exposed)
    if request.scope is not None:
        me.queues, me.namespaces = list(request.scope.queues), list(request.scope.namespaces)
    return reply(me)


@routes.get("/api/v1/system/settings", role=Role.READ_ONLY, answers={200: BrokerSettings})
async def show_settings(call: Call) -> Response:
    """Show what this broker runs with, and where each value came from; secrets are masked."""
    shown = call.broker.settings.describe()
    return reply(
        BrokerSettings(
            str(call.broker.id),
            {name: SettingValue(row["value"], str(row["source"])) for name, row in shown.items()},
        )
    )
