"""Where steps find the rules that they go by: with the run's broker, which every process asks now and then.

A process asks at most every ``POLL_SECONDS``, when a step needs its rules, and never waits longer than
``CALL_SECONDS``. While the broker is away, or says what cannot be read, the rules stay as they are last
known; the log tells it once.

>>> plan = with_rules(plan, RunOptions())  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from queenstream.client._base import addresses
from queenstream.client._base.responses.rules import RulesDetail
from queenstream.client._sync.client import Queen
from queenstream.connectors.reporter import Broker, broker_of
from queenstream.errors import ConfigError, NotFound, QueenstreamError
from queenstream.pipeline.analytics.dynamic_rules import with_book
from queenstream.pipeline.analytics.rules import Book, RuleSet, Version
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.nodes import Node, Stateful
from queenstream.pipeline.plan.planner import Plan

log = logging.getLogger("queenstream.rules")

POLL_SECONDS = 2.0  # how old what is known may be
CALL_SECONDS = 1.0  # a broker that takes longer is away
START_SECONDS = 10.0  # and when a pipeline starts
LONGEST_PAUSE_SECONDS = 60.0


def with_rules(plan: Plan, options: RunOptions) -> Plan:
    """The plan with where its steps find their rules; what cannot be found is said here.

    A plan without such steps is given back as it is, and nobody is asked.
    """
    called = dict.fromkeys(_rules_of(node) for node in plan.nodes)
    books = {name: _book(name, plan, options) for name in called if name is not None}
    return completed(plan, books) if books else plan


def completed(plan: Plan, books: Mapping[str, Book]) -> Plan:
    """The plan with these books by the names of the sets."""

    def change(node: Node) -> Node:
        name = _rules_of(node)
        if name is None or not isinstance(node, Stateful):
            return node
        book = books.get(name)
        if book is None:
            raise ConfigError(f"{node.name}: no rules {name!r} are given; give that set, too")
        function = with_book(node.function, book)
        return replace(node, function=function, on_timer=function.on_timer)

    return plan.changed(change)


def _rules_of(node: Node) -> str | None:
    return node.rules if isinstance(node, Stateful) else None


def _book(name: str, plan: Plan, options: RunOptions) -> Book:
    broker = broker_of(plan, options) or Broker(addresses.DEFAULT, options.token)
    if broker.token is None:  # tasks on other machines have no such variable
        broker = replace(broker, token=os.environ.get("QUEEN_TOKEN"))
    try:
        with Queen(broker.url, token=broker.token, timeout=START_SECONDS) as queen:
            first = _version(queen.admin.rules(name))
    except NotFound:
        raise ConfigError(
            f"there is no set of rules {name!r} at {broker.url}; make it with: queen rules apply FILE"
        ) from None
    watch = _watch(broker, name, first)
    watch.known = first
    return BrokerBook(broker, name, first)


@dataclass(frozen=True, slots=True)
class BrokerBook:
    """The rules of one set. It travels to the processes that work, and each of them keeps what it knows.

    ``first``: what a process goes by that cannot ask.
    """

    broker: Broker
    name: str
    first: Version

    def current(self, at_least: int = 0) -> Version:
        """The newest version that this process knows of; it asks, if that is some time ago."""
        return _watch(self.broker, self.name, self.first).current(at_least)


class _Watch:
    """What this process knows of one set, and when to ask again."""

    def __init__(self, broker: Broker, name: str, first: Version) -> None:
        self.known = first
        self._broker = broker
        self._name = name
        self._asking = threading.Lock()
        self._next = 0.0
        self._soonest = 0.0  # even for somebody who has seen a newer version
        self._failures = 0

    def current(self, at_least: int) -> Version:
        now = time.monotonic()
        stale = now >= self._next or (self.known.number < at_least and now >= self._soonest)
        if stale and self._asking.acquire(blocking=False):
            try:
                self._ask()
            finally:
                self._asking.release()
        return self.known

    def _ask(self) -> None:
        try:
            with Queen(self._broker.url, token=self._broker.token, timeout=CALL_SECONDS) as queen:
                found = queen.admin.rules(self._name, known=self.known.number)
            if found.rules is not None:
                self.known = _version(found)
                log.info("%s: the rules of version %s hold from now on", self._name, found.version)
        except QueenstreamError as error:
            self._failed(error)
        else:
            self._failures = 0
            self._next = time.monotonic() + POLL_SECONDS
            self._soonest = self._next - POLL_SECONDS / 2

    def _failed(self, error: QueenstreamError) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning(
                "%s: the rules stay those of version %s, for no newer ones can be had: %s",
                self._name,
                self.known.number,
                error,
            )
        pause = min(LONGEST_PAUSE_SECONDS, POLL_SECONDS * 2 ** min(self._failures - 1, 10))
        self._next = self._soonest = time.monotonic() + pause


def _version(found: RulesDetail) -> Version:
    return Version(found.version, RuleSet.of(found.rules, found.name))


_watches: dict[tuple[Broker, str], _Watch] = {}
_making = threading.Lock()


def _watch(broker: Broker, name: str, first: Version) -> _Watch:
    """The one of this process."""
    found = _watches.get((broker, name))
    if found is None:
        with _making:
            found = _watches.setdefault((broker, name), _Watch(broker, name, first))
    return found
