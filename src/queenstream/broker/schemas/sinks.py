"""What the routes about the sinks of pipelines take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from queenstream.broker.schemas.messages import Name, Text

Place = Annotated[str, Meta(max_length=4_096)]
Step = Annotated[str, Meta(min_length=1, max_length=1_000)]


class SinkQuery(Struct):
    """A queue, and the step of a pipeline that writes it."""

    queue: Name
    pipeline: Name
    step: Step


class SinkCheckpoint(Struct, rename="camel", kw_only=True):
    """The checkpoint that a queue is written from.

    ``place`` and ``run`` are for people: where the checkpoint was, and which process wrote.
    """

    checkpoint_id: Name
    place: Place
    run: Text
    began_at: datetime


class SinkCheckpointBody(Struct, rename="camel", kw_only=True):
    """A run delivers its first batch to a queue."""

    queue: Name
    pipeline: Name
    step: Step
    checkpoint_id: Name
    place: Place
    run: Text
