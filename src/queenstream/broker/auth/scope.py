"""Tokens that are limited to some queues: what their claims say, and which queues a request names.

A token with the claim ``queues`` or ``namespaces`` reaches the queues whose name, or whose namespace, one of
its patterns matches; ``*`` stands for any characters and ``?`` for one. Each route declares with a
``ScopeRule`` which queues a request names; a limited token is refused on a route that declares nothing.

>>> scope = Scope.from_claims({"queues": ["orders", "eu.*"]})
>>> [scope.allows_name(name) for name in ("orders", "eu.carts", "users")]
[True, True, False]
>>> Scope.from_claims({"role": "admin"}) is None
True
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from queenstream.broker.messaging.ack import lease_number, partition_number
from queenstream.broker.schemas.messages import (
    Ack,
    AckBatchBody,
    AckOperation,
    ConfigureBody,
    PushOperation,
    TransactionBody,
    WindowOperation,
)
from queenstream.broker.streams.model import OWN
from queenstream.errors import Forbidden, Unauthorized

if TYPE_CHECKING:
    from queenstream.broker.app import Broker
    from queenstream.broker.http.routing import Call

MOST_PATTERNS = 100


class Scope:
    """The queues that a token reaches."""

    def __init__(self, queues: Iterable[str] = (), namespaces: Iterable[str] = ()) -> None:
        self.queues, self.namespaces = tuple(queues), tuple(namespaces)
        self._names, self._namespaces = _compile(self.queues), _compile(self.namespaces)

    @classmethod
    def from_claims(cls, claims: Mapping[str, Any]) -> Scope | None:
        """The limits that claims set; None: there are none."""
        if "queues" not in claims and "namespaces" not in claims:
            return None
        return cls(_patterns(claims, "queues"), _patterns(claims, "namespaces"))

    def allows_name(self, name: str) -> bool:
        return self._names.fullmatch(name) is not None

    def allows_namespace(self, namespace: str) -> bool:
        return bool(namespace) and self._namespaces.fullmatch(namespace) is not None

    async def covers(self, broker: Broker, name: str) -> bool:
        """Whether the queue is within; a stream's own queue is if all its sources are.

        A stream whose sources are all deleted is not: nobody can tell whose messages its windows hold.
        """
        if name.startswith(OWN):
            stream = await broker.streams.find(name.removeprefix(OWN))
            if stream is None or not stream.sources:
                return False
            for source in stream.sources:
                if not await self.covers(broker, source.name):
                    return False
            return True
        if self.allows_name(name):
            return True
        queue = await broker.directory.queue(name) if self.namespaces else None
        return queue is not None and self.allows_namespace(queue.namespace)


def _patterns(claims: Mapping[str, Any], name: str) -> list[str]:
    found = claims.get(name, [])
    if (
        not isinstance(found, list)
        or len(found) > MOST_PATTERNS
        or not all(isinstance(p, str) for p in found)
    ):
        raise Unauthorized(
            f"the token's {name} is not a list of at most {MOST_PATTERNS} names or patterns; get a new token"
        )
    return found


@lru_cache(256)
def _compile(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all patterns; without patterns, one that matches nothing."""
    return re.compile("|".join(map(_translate, patterns)) or "(?!)", re.DOTALL)


def _translate(pattern: str) -> str:
    # A run of * counts as one: more would only make the match slow.
    parts = re.split(r"(\*+|\?)", pattern)
    return "".join(".*" if p.startswith("*") else "." if p == "?" else re.escape(p) for p in parts)


# Which queues a request names


class ScopeRule(NamedTuple):
    """Where a route's requests name queues: in words, for the docs, and as a function."""

    text: str
    names: Callable[[Call], Awaitable[Iterable[str]]]


async def require_scope(call: Call) -> None:
    """Forbidden, unless the token reaches every queue that the request names."""
    scope, route = call.request.scope, call.route
    assert scope is not None
    assert route is not None
    assert route.scope is not None
    for name in dict.fromkeys(await route.scope.names(call)):
        if not await scope.covers(call.broker, name):
            raise outside(f"the queue {name[:255]}")


def outside(what: str) -> Forbidden:
    return Forbidden(f"the token is limited to other queues than {what}; ask for a token that includes it")


async def visible(call: Call, rows: Iterable[Any]) -> list[Any]:
    """The rows whose ``queue`` the caller's token reaches."""
    scope = call.request.scope
    if scope is None:
        return list(rows)
    return [row for row in rows if await scope.covers(call.broker, row["queue"])]


async def visible_queues(call: Call) -> list[str] | None:
    """The names of the queues that the caller's token reaches; None: all."""
    scope = call.request.scope
    if scope is None:
        return None
    rows = await call.broker.database.admin("queue_namespaces")
    return [
        row["name"] for row in rows
        if scope.allows_name(row["name"]) or scope.allows_namespace(row["namespace"])
    ]  # fmt: skip


async def _no_names(_: Call) -> Iterable[str]:
    return ()


async def _in_path(call: Call) -> Iterable[str]:
    return [call.params["queue"]]


async def _in_query(call: Call) -> Iterable[str]:
    if not call.query.queue:
        raise Forbidden("the token is limited to some queues; name one of them with queue=")
    return [call.query.queue]


async def _in_body(call: Call) -> Iterable[str]:
    return [call.body.queue]


async def _configured(call: Call) -> Iterable[str]:
    body: ConfigureBody = call.body
    scope, queue = call.request.scope, await call.broker.directory.queue(body.queue)
    assert scope is not None
    allowed = scope.allows_namespace(body.namespace or "")
    if body.namespace and not allowed and (queue is None or queue.namespace != body.namespace):
        # Who consumes a namespace trusts those who may put queues into it.
        raise outside(f"those of the namespace {body.namespace}")
    return () if queue is None and allowed else [body.queue]


async def _pushed(call: Call) -> Iterable[str]:
    return {item.queue for item in call.body.items}


async def _of_namespace(call: Call) -> Iterable[str]:
    scope = call.request.scope
    assert scope is not None
    named = [call.query.namespace, getattr(call.body, "namespace", None)]  # a POST may have it in either
    given = [namespace for namespace in named if namespace]
    if not given:
        raise Forbidden("the token is limited to some queues; name one of them, or its namespace")
    for namespace in given:
        if not scope.allows_namespace(namespace):
            raise outside(f"those of the namespace {namespace}")
    return ()


async def _of_partitions(call: Call, ids: Iterable[str]) -> list[str]:
    """The queues of partitions; one that does not exist is nobody's."""
    wanted = {partition_number(each) for each in ids}
    names = await call.broker.database.admin("queues_of_partitions", list(wanted))
    if len(names) < len(wanted):
        raise outside("that of a partition which does not exist")
    return [row["name"] for row in names]


async def _acked(call: Call) -> Iterable[str]:
    body: Ack | AckBatchBody = call.body
    acks = body.acknowledgments if isinstance(body, AckBatchBody) else [body]
    return await _of_partitions(call, (ack.partition_id for ack in acks))


async def _in_transaction(call: Call) -> Iterable[str]:
    body: TransactionBody = call.body
    pushes = [operation for operation in body.operations if isinstance(operation, PushOperation)]
    acks = [operation for operation in body.operations if isinstance(operation, AckOperation)]
    windows = [operation for operation in body.operations if isinstance(operation, WindowOperation)]
    names = {item.queue for push in pushes for item in push.items}
    names.update(await _of_windows(call, [window.window_id for window in windows]))
    for lease in body.required_leases:
        names.update(await _of_lease(call, lease))
    return [*names, *await _of_partitions(call, (ack.partition_id for ack in acks))]


async def _of_windows(call: Call, window_ids: list[str]) -> list[str]:
    """The queues of the streams whose windows these are."""
    streams = call.broker.streams
    names = []
    for window_id in window_ids:
        number = partition_number(window_id.partition(":")[0])
        if streams.by_id(number) is None:
            await streams.load()
        stream = streams.by_id(number)
        if stream is None:
            raise outside("those of a window which does not exist")
        names.append(stream.queue)
    return names


async def _window_in_body(call: Call) -> Iterable[str]:
    return await _of_windows(call, [call.body.window_id])


async def _of_lease(call: Call, lease: str) -> list[str]:
    rows = await call.broker.database.admin("queues_of_lease", lease_number(lease))
    return [row["name"] for row in rows]


async def _lease_in_path(call: Call) -> Iterable[str]:
    return await _of_lease(call, call.params["lease"])


async def _lease_in_body(call: Call) -> Iterable[str]:
    return await _of_lease(call, call.body.lease_id)


async def _partition_in_path(call: Call) -> Iterable[str]:
    return await _of_partitions(call, [call.params["partitionId"]])


async def _partition_in_body(call: Call) -> Iterable[str]:
    return await _of_partitions(call, [call.body.partition_id])


async def _letter_in_path(call: Call) -> Iterable[str]:
    rows = await call.broker.database.admin("queue_of_letter", partition_number(call.params["id"]))
    return [row["name"] for row in rows]


async def _stream_in_path(call: Call) -> Iterable[str]:
    return [OWN + call.params["stream"]]


async def _stream_in_body(call: Call) -> Iterable[str]:
    return [OWN + call.body.stream_name]


async def _defined(call: Call) -> Iterable[str]:
    existing = await call.broker.streams.find(call.body.name)
    own = [] if existing is None else [existing.queue]
    return [*call.body.source_queue_names, *own]


ANYTHING = ScopeRule("about no queue", _no_names)
FILTERED = ScopeRule("shows only what the token reaches", _no_names)
QUEUE_IN_PATH = ScopeRule("queue in the path", _in_path)
QUEUE_IN_QUERY = ScopeRule("queue in the query, required", _in_query)
QUEUE_IN_BODY = ScopeRule("queue in the body", _in_body)
CONFIGURED_QUEUE = ScopeRule("queue and namespace in the body", _configured)
PUSHED_QUEUES = ScopeRule("queues of all items", _pushed)
NAMESPACE = ScopeRule("namespace, required", _of_namespace)
ACKED_QUEUES = ScopeRule("queues of all acknowledgements", _acked)
TRANSACTION_QUEUES = ScopeRule("queues of all operations", _in_transaction)
LEASE_IN_PATH = ScopeRule("queue of the lease", _lease_in_path)
LEASE_IN_BODY = ScopeRule("all sources of the lease's stream", _lease_in_body)
WINDOW_IN_BODY = ScopeRule("all sources of the window's stream", _window_in_body)
PARTITION_IN_PATH = ScopeRule("queue of the partition", _partition_in_path)
PARTITION_IN_BODY = ScopeRule("queue of the partition", _partition_in_body)
LETTER_IN_PATH = ScopeRule("queue of the dead letter", _letter_in_path)
STREAM_IN_PATH = ScopeRule("all sources of the stream", _stream_in_path)
STREAM_IN_BODY = ScopeRule("all sources of the stream", _stream_in_body)
DEFINED_STREAM = ScopeRule("all sources of the stream, as it is and will be", _defined)
