"""Pipelines that the tests of this folder share. Their lines are in the snapshots: add at the end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from queenstream.core.aggregates import collect_set, sum_
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Cassandra, Files, Kafka, Memory, Queue, Record
from queenstream.pipeline.expr.expressions import col
from queenstream.pipeline.policies import DeadLetters, retry
from queenstream.pipeline.shorthand import count, session, tumbling
from queenstream.pipeline.state import State


def parse(event: Record) -> Record:
    return {**event, "timestamp": datetime.fromisoformat(event["at"])}


async def enrich(event: Record) -> Record:
    return {**event, "user_segment": "premium"}


def visits(user: Any, event: Record, state: State) -> Record | None:
    state.set("seen", state.get("seen", 0) + 1)
    return {"user": user, "seen": state.get("seen"), "page": event["page"]}


def user_activity() -> Pipeline[Record]:
    """Seed 003's transformation, with what else a chain can have."""
    return (
        Pipeline("user-activity")
        .source(Kafka("raw-events", settings={"sasl.password": "hunter2"}), idle_timeout="30s")
        .transform("parse", parse)
        .transform("enrich", enrich, concurrency=32, timeout="2s", on_error=retry(5))
        .filter("user_segment = 'premium'")
        .key_by("user_id")
        .window(tumbling("5m"), grace="30s", time="timestamp")
        .aggregate(event_count=count(), total=sum_("value"), users=collect_set("user_id"))
        .late(Queue("late-events"))
        .on_error(DeadLetters("failed-events"))
        .to(Cassandra("user_activity_summary", partition_key=("user_id",)))
    )


def orders() -> Pipeline[Record]:
    """Two typed sources that meet, then part again."""
    users = (
        Pipeline("users")
        .source(Queue("users", schema="id string not null, country string"))
        .deduplicate("id", within="1h")
    )
    enriched = (
        Pipeline("orders")
        .source(Queue("orders", schema="user_id string, amount double, qty int, at timestamp"))
        .event_time("at")
        .with_columns(total=col("amount") * col("qty"))
        .join(users, on=("user_id", "id"), within="5m", how="left", grace="10s")
    )
    sums = (
        enriched.key_by("country")
        .window(session("30m"))
        .aggregate({"n": {"$sum": 1}, "spent": {"$sum": "total"}}, emit="update", step_name="by-country")
    )
    return (
        sums.to(Queue("sums", partition_by="country"))
        .union(enriched.filter(col("total") > 1000).to(Files("big.ndjson")))
        .to(print)
    )


def pages() -> Pipeline[Record]:
    """State by key, from a list."""
    return (
        Pipeline("pages")
        .source(Memory([{"user": "a", "page": "/", "at": "2026-01-31T12:00:00Z"}]))
        .event_time("at")
        .key_by("user")
        .stateful(visits, ttl="1h")
        .to(print)
    )
