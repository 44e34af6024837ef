"""Look-ups in the process of a task: all keys of a piece of work are asked for together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from queenstream.engines.spark.tasks.failures import Guard, along
from queenstream.engines.spark.tasks.graph import Step
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.lookups import Found, Joining, answered, failures
from queenstream.pipeline.plan import nodes
from queenstream.runtime.failures import GONE, may_retry

if TYPE_CHECKING:
    from queenstream.connectors.lookups import Finder  # with all that it needs: not in every worker


class LookingUp:
    """Asks the finder of this process, which outlives the task."""

    def __init__(self, step: Step, guard: Guard) -> None:
        assert isinstance(step.node, nodes.Lookup)
        self._step = step
        self._node = step.node
        self._guard = guard
        self._joining = Joining.of(step.node)

    def __call__(self, items: list[Item]) -> list[Item]:
        """The rows; those of an inner look-up for which nothing is there are left out."""
        keys = self._guard.each([item.record for item in items], self._joining.key, items)
        found = self._finder().find([None if key is GONE else key for key in keys])
        attempts = self._again(items, keys, found)
        rows = [
            (item, None if key is GONE else self._row(item, each, tries))
            for item, key, each, tries in zip(items, keys, found, attempts, strict=True)
        ]
        return [item._replace(record=row) for item, row in rows if row is not None]

    def _again(self, items: list[Item], keys: list[Any], found: list[Found]) -> list[int]:
        """Ask again, together, for what could not be answered; how many tries each record had."""
        attempts = [1] * len(items)
        attempt = 1
        while failed := [
            at
            for at, error in failures(found)
            if may_retry(self._node, items[at].record, error, attempts[at])
        ]:
            time.sleep(self._node.policy.pause(attempt).total_seconds())
            self._guard.retried(len(failed))
            attempt += 1
            for index, each in zip(failed, self._finder().find([keys[at] for at in failed]), strict=True):
                found[index] = each
                attempts[index] = attempt
        return attempts

    def _row(self, item: Item, found: Found, attempts: int) -> dict[str, Any] | None:
        """The row; None: it is left out, or has failed."""
        try:
            return self._joining.row(item.record, answered(found))
        except Exception as error:  # noqa: BLE001 - of the look-up, or a record that has no fields
            self._guard.give_up(item.record, error, along(item), attempts)
            return None

    def _finder(self) -> Finder:
        from queenstream.connectors import Context
        from queenstream.connectors.lookups import kept_finder

        url, token = self._step.broker
        return kept_finder(self._node, Context(self._step.name, self._step.name, url, token=token))
