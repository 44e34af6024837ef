"""What a broker answers about sets of rules."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from queenstream.client._base.responses.resources import Pagination, Reply


class RulesApplied(Reply):
    """``changed``: False, if the set said just that already."""

    name: str
    version: int
    changed: bool
    changed_at: datetime


class RulesInfo(Reply, kw_only=True):
    """A set in a list: how many rules of each kind it has."""

    name: str
    version: int
    patterns: int
    anomalies: int
    changed_at: datetime


class RulesList(Reply):
    """Sets of rules."""

    rules: list[RulesInfo]
    pagination: Pagination


class RulesDetail(Reply, kw_only=True):
    """One set; ``rules`` None: it is the version that the asker knows."""

    name: str
    version: int
    changed_at: datetime
    rules: dict[str, Any] | None = None


class RulesDeleted(Reply):
    """``existed``: whether there was one."""

    name: str
    deleted: bool
    existed: bool
