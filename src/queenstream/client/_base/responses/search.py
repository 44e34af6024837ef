"""What a broker answers to a search for messages."""

from __future__ import annotations

from typing import Literal

from queenstream.client._base.responses.history import MessageInfo
from queenstream.client._base.responses.resources import Reply


class FoundMessage(MessageInfo, kw_only=True):
    """``left_out``: ``data`` is None, being too large for a list; ``admin.message`` has it."""

    size: int
    left_out: bool


class Found(Reply):
    """The newest first. ``scanned``: how many messages were looked at.

    ``stopped``: why it ended early, if it did. ``next``: what ``before`` has to be to go on; None: there is
    nothing more.
    """

    messages: list[FoundMessage]
    scanned: int
    stopped: Literal["rows", "time"] | None = None
    next: str | None = None
