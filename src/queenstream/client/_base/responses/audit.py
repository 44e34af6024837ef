"""What a broker answers about who does what, and about what it runs with."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from queenstream.client._base.responses.resources import Reply


class Act(Reply, kw_only=True):
    """One administrative act that was done. ``forwarded_for`` is what a proxy, or anybody, has said."""

    id: str
    at: datetime
    subject: str | None = None
    role: str
    address: str | None = None
    forwarded_for: str | None = None
    action: str
    target: str
    details: dict[str, Any]


class ActList(Reply):
    """``next``: what ``before`` has to be for the page behind this one; None: there is none."""

    acts: list[Act]
    next: str | None = None


class Me(Reply):
    """Who asks. ``authentication``: whether the broker asks for tokens; without, everybody is ``admin``.

    ``insecure``: it asks for none, and other machines can reach it. ``queues`` and ``namespaces``: what the
    token is limited to; None: it is not.
    """

    subject: str | None
    role: Literal["read-only", "read-write", "admin"]
    authentication: bool
    insecure: bool = False
    queues: list[str] | None = None
    namespaces: list[str] | None = None


class SettingValue(Reply):
    """A secret is masked. ``source``: where the value came from."""

    value: Any
    source: str


class BrokerSettings(Reply):
    """Of the broker that answers."""

    broker: str
    settings: dict[str, SettingValue]
