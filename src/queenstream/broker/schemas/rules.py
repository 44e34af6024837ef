"""What the routes about rules take and answer.

The broker checks the shape of a set and its size. Whether a pattern can be read, the clients look before they
send it, and a pipeline when it takes it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from queenstream.broker.schemas.admin import Page
from queenstream.broker.schemas.messages import Name, Text

RuleText = Annotated[str, Meta(min_length=1, max_length=10_000)]
Number = Annotated[int, Meta(ge=0, le=2**53)]


class AnomalyDefinition(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A number that is unlike those before it, as ``.anomalies(…)`` of a pipeline takes it."""

    field: RuleText
    window: Text
    algorithm: Text | None = None
    threshold: float | None = None
    min_samples: Number | None = None
    where: RuleText | None = None


class RulesDefinition(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A set of rules. ``event``: the field that a bare name in a sequence is a value of."""

    event: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    patterns: Annotated[dict[Name, RuleText], Meta(max_length=200)] = {}
    anomalies: Annotated[dict[Name, AnomalyDefinition], Meta(max_length=200)] = {}


class RulesBody(Struct, rename="camel", kw_only=True):
    """A set as it is to be; ``expected_version``: the one that it has, 0: there is none, None: whatever."""

    rules: RulesDefinition
    expected_version: Number | None = None


class RulesApplied(Struct, rename="camel"):
    """``changed``: False, if the set said just that already."""

    name: str
    version: int
    changed: bool
    changed_at: datetime


class RulesInfo(Struct, rename="camel", kw_only=True):
    """A set in a list: how many rules of each kind it has."""

    name: str
    version: int
    patterns: int
    anomalies: int
    changed_at: datetime


class RulesList(Struct):
    rules: list[RulesInfo]
    pagination: Page


class RulesQuery(Struct):
    """``known``: the version that the asker has; if it is still that one, what it says is left out."""

    known: Number = 0


class RulesDetail(Struct, rename="camel", kw_only=True):
    """One set; ``rules`` None: it is the version that the asker knows."""

    name: str
    version: int
    changed_at: datetime
    rules: RulesDefinition | None


class RulesDeleted(Struct):
    deleted: bool
    name: str
    existed: bool
