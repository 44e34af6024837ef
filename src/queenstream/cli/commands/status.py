"""``queen status``: how the broker does, on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, count, lasting, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queenstream import Queen
    from queenstream.client._base.responses.system import BrokerState

HELP = help_text(
    "Show how the broker does: what waits, who is late.",
    "queen status",
    "queen status --context production",
    "queen status | jq .messages.pending",
)
MOST_LAGGING = 10
_FLOWS = ("pushed", "popped", "acked", "failed", "dead", "expired")


def _sum_up_upkeep(brokers: Sequence[BrokerState]) -> dict[str, Any]:
    tasks = [(name, state) for broker in brokers for name, state in broker.upkeep.items()]
    return {
        "rows": sum(state.rows for _, state in tasks),
        "errors": sum(state.errors for _, state in tasks),
        "failing": sorted({name for name, state in tasks if state.error}),
    }


def _show_upkeep(upkeep: Any) -> str:
    if upkeep["failing"]:
        return f"fails: {', '.join(upkeep['failing'])}; the broker's log says why"
    return f"ok, {count(upkeep['rows'])} rows since the start"


def _alarm(value: Any) -> str:
    return "red" if value else ""


_FIELDS = (
    Column("health", "health", style=lambda value: "green" if value == "healthy" else "red"),
    Column("failing tasks", "failingTasks", lambda names: ", ".join(names) or "none", style=_alarm),
    Column("postgres restarts", "postgresRestarts", count, style=_alarm),
    Column("mode", "mode"),
    Column("upkeep", "upkeep", _show_upkeep, style=lambda upkeep: _alarm(upkeep["failing"])),
    Column("queues", "queues", count),
    Column("partitions", "partitions", count),
    Column("groups", "consumerGroups", count),
    Column("pending", "messages.pending", count),
    Column("processing", "messages.processing", count),
    Column("completed", "messages.completed", count),
    Column("dead letters", "messages.deadLetter", count, style=_alarm),
    Column("pushed, last hour", "lastHour.pushed", count),
    Column("acked, last hour", "lastHour.acked", count),
    Column("failed, last hour", "lastHour.failed", count, style=_alarm),
)
_BROKERS = (
    Column("ADDRESS", "address"),
    Column("HOST", "hostname"),
    Column("VERSION", "version"),
    Column("UP", "uptimeSeconds", lasting, right=True),
    Column("PUSHED/S", "messagesPerSecond.pushed", "{:,.1f}".format, right=True),
    Column("POPPED/S", "messagesPerSecond.popped", "{:,.1f}".format, right=True),
    number("WAITING POPS", "waitingPops"),
)
_LAGGING = (
    Column("GROUP", "consumerGroup"),
    Column("QUEUE", "queue"),
    Column("PARTITION", "partition"),
    number("LAG", "lag"),
    Column("BEHIND", "lagSeconds", lasting, right=True, style="yellow"),
)


@connected
def status(queen: Queen, output: Output = None) -> None:
    """Show the sums, the brokers, and the groups that are late."""
    admin = queen.admin
    health, overview, hour = admin.health(), admin.overview(), admin.status()
    brokers = admin.system_metrics().brokers
    Printer(output).record(
        {
            "health": health.status,
            "failingTasks": health.failing_tasks,
            "postgresRestarts": max((broker.postgres_restarts for broker in brokers), default=0),
            "mode": admin.maintenance().message,
            "queues": overview.queues,
            "partitions": overview.partitions,
            "consumerGroups": overview.consumer_groups,
            "leases": overview.leases,
            "messages": overview.messages,
            "lastHour": {name: sum(getattr(point, name) for point in hour.throughput) for name in _FLOWS},
            "upkeep": _sum_up_upkeep(brokers),
            "brokers": brokers,
            "lagging": admin.lagging("1m", limit=MOST_LAGGING),
            "timestamp": overview.timestamp,
        },
        _FIELDS,
        [("brokers", _BROKERS), ("lagging", _LAGGING)],
    )
