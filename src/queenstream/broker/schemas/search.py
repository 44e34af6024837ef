"""What crosses the wire about the search for messages."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from queenstream.broker.schemas.admin import Moment
from queenstream.broker.schemas.history import MessageInfo
from queenstream.broker.schemas.messages import Text

MessageId = Annotated[str, Meta(pattern="^[0-9]{1,18}$")]


class SearchQuery(Struct, rename="camel"):
    """All that is said has to fit.

    ``prefix``: how the partition's name begins. ``path`` and ``value``: a field of the payload and what it
    is, as JSON or as text (``data.user.id`` and ``7``); a path alone: that the field is there. ``contains``:
    a piece of the payload's text. ``before``: the id that the last page ended with.
    """

    partition: Text | None = None
    prefix: Text | None = None
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None
    transaction_id: Text | None = None
    path: Text | None = None
    value: Annotated[str, Meta(max_length=1000)] | None = None
    contains: Text | None = None
    before: MessageId | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class FoundMessage(MessageInfo, rename="camel", kw_only=True):
    """``size``: of the payload as stored. ``left_out``: ``data`` is null, being too large for a list."""

    size: int
    left_out: bool


class Found(Struct):
    """The newest first. ``scanned``: how many messages were looked at.

    ``stopped``: why it ended early, if it did: so many rows, or so much time. ``next``: what ``before`` has
    to be to go on; None: there is nothing more.
    """

    messages: list[FoundMessage]
    scanned: int
    stopped: Literal["rows", "time"] | None
    next: str | None
