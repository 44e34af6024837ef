# Generated from _async/admin/rules.py by `python tools/async_to_sync.py`; do not edit.
"""Administration of rules: named sets that pipelines go by, and that may change while they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queenstream.client._base.http import path_of
from queenstream.client._base.responses.resources import Page
from queenstream.client._base.responses.rules import (
    RulesApplied,
    RulesDeleted,
    RulesDetail,
    RulesInfo,
    RulesList,
)
from queenstream.client._sync.retry import Calls

_RULES = ("api", "v1", "rules")


class RulesAdmin:
    """Sets of rules."""

    _calls: Calls

    def rule_sets(self, *, limit: int = 100, offset: int = 0) -> Page[RulesInfo]:
        """The sets of rules.

        >>> [(each.name, each.version) for each in queen.admin.rule_sets()]  # doctest: +SKIP
        [('fraud', 3)]
        """
        query = {"limit": limit, "offset": offset}
        found = self._calls.call("GET", path_of(*_RULES), query=query, type=RulesList)
        return Page(found.rules, limit=limit, offset=offset, total=found.pagination.total)

    def rules(self, name: str, *, known: int = 0) -> RulesDetail:
        """One set; ``known``: the version that you have, which is not sent again.

        >>> queen.admin.rules("fraud").rules["patterns"]  # doctest: +SKIP
        {'rapid': "COUNT(*) > 10 IN 30s WHERE action = 'click'"}
        """
        path = path_of(*_RULES, name)
        return self._calls.call("GET", path, query={"known": known}, type=RulesDetail)

    def apply_rules(
        self, name: str, rules: Mapping[str, Any], *, expected_version: int | None = None
    ) -> RulesApplied:
        """Make a set, or replace all of it; ``queen rules apply`` reads a file and checks it first.

        ``expected_version``: refuse it, if the set has another version by now (0: if there is one at all).

        >>> says = {"patterns": {"rapid": "COUNT(*) > 10 IN 30s"}}
        >>> queen.admin.apply_rules("fraud", says).version  # doctest: +SKIP
        4
        """
        body = {"rules": dict(rules), "expectedVersion": expected_version}
        return self._calls.call("POST", path_of(*_RULES, name), body=body, type=RulesApplied)

    def delete_rules(self, name: str) -> RulesDeleted:
        """Delete a set. A pipeline that goes by it keeps what it knows, and cannot be started again.

        ``admin.delete_rules("fraud")``; one that is not there is no error.
        """
        return self._calls.call("DELETE", path_of(*_RULES, name), type=RulesDeleted)
