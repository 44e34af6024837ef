"""What crosses the wire about who does what: the audit log, who asks, and what a broker runs with."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from queenstream.broker.schemas.admin import Limit, Moment
from queenstream.broker.schemas.messages import Text

RowId = Annotated[str, Meta(pattern="^[0-9]{1,18}$")]


class ActsQuery(Struct, rename="camel"):
    """``before``: the id of the last act that is known, for the page behind it."""

    before: RowId | None = None
    subject: Text | None = None
    action: Text | None = None
    target: Text | None = None
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None
    limit: Limit = 100


class Act(Struct, rename="camel"):
    """One administrative act that was done.

    ``action`` is the route's name in ``/openapi.json``, ``address`` that of the connection, and
    ``forwarded_for`` what a proxy, or anybody, has put into the header. Payloads are not in ``details``.
    """

    id: str
    at: datetime
    subject: str | None
    role: str
    address: str | None
    forwarded_for: str | None
    action: str
    target: str
    details: Raw


class ActList(Struct):
    """``next``: what ``before`` has to be for the page behind this one; None: there is none."""

    acts: list[Act]
    next: str | None


class Me(Struct):
    """``authentication``: whether the broker asks for tokens; without, everybody is ``admin``.

    ``insecure``: it asks for none, and other machines can reach it. ``queues`` and ``namespaces``: what the
    token is limited to; null: it is not.
    """

    subject: str | None
    role: Literal["read-only", "read-write", "admin"]
    authentication: bool
    insecure: bool
    queues: list[str] | None = None
    namespaces: list[str] | None = None


class SettingValue(Struct):
    """A secret is masked. ``source``: where the value came from."""

    value: Any
    source: str


class BrokerSettings(Struct):
    """Of the broker that answers."""

    broker: str
    settings: dict[str, SettingValue]
