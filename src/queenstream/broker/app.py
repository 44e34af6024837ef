"""The broker: one process that serves HTTP and keeps all its state in PostgreSQL.

The way of a message: ``http/server.py`` reads the request, ``Broker.handle`` finds the route and checks it,
``api/messages.py`` calls ``push``, ``pop`` or ``ack`` of ``messaging``, and those run one database function
(``storage/sql/functions``) for all requests that wait together.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from datetime import datetime
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from queenstream.broker.api import PAGES, ROUTES
from queenstream.broker.auth import access
from queenstream.broker.auth.scope import require_scope
from queenstream.broker.auth.tokens import Authenticator, Identity, require
from queenstream.broker.http.response_cache import Remembered, most_age
from queenstream.broker.http.routing import Call, Request, Response, Role, Router, error_response
from queenstream.broker.http.server import HttpServer, Limits
from queenstream.broker.http.throttle import Throttle
from queenstream.broker.messaging import rejection
from queenstream.broker.messaging.ack import Acker
from queenstream.broker.messaging.catalog import Directory
from queenstream.broker.messaging.encryption import Keyring, message_identity
from queenstream.broker.messaging.pop import Popper, Ride
from queenstream.broker.messaging.push import Pusher
from queenstream.broker.messaging.rejection import Rejected
from queenstream.broker.ops import audit
from queenstream.broker.ops.gauges import GaugeReader, Probe
from queenstream.broker.ops.lag_history import Lags
from queenstream.broker.ops.live_metrics import Live
from queenstream.broker.ops.metrics import Metrics
from queenstream.broker.ops.search import Searches
from queenstream.broker.ops.supervisor import Supervisor
from queenstream.broker.ops.tasks import Background
from queenstream.broker.storage.database import EXPENSIVE_REQUESTS, Database
from queenstream.broker.storage.notifications import Notice, Notices
from queenstream.broker.streams.runner import Streams
from queenstream.config import Settings, http_address
from queenstream.errors import DecryptionError, Forbidden, RequestError
from queenstream.postgres import Restarts, read_restarts

log = logging.getLogger(__name__)

EXPENSIVE_OF_CALLER = 2  # expensive requests of one caller at once
ANYBODY = Identity(subject=None, role=Role.ADMIN)  # who asks when no key is configured


class Broker:
    """Everything one broker process holds.

    >>> broker = Broker(settings, "postgresql://…")
    >>> await broker.start()        # ready to serve
    >>> await broker.stop()         # drained
    """

    def __init__(
        self, settings: Settings, database_url: str, *, embedded: Path | None = None,
        clock: Callable[[], datetime | None] | None = None,
    ) -> None:  # fmt: skip
        access.refuse_exposure(settings)
        self.settings: Settings = settings
        self.embedded = embedded  # the data folder, if the database is the embedded PostgreSQL
        self.id = uuid.uuid4()
        self.version = version("queenstream")
        self.hostname = socket.gethostname()
        self.port = settings.port
        self.ready = False
        self.maintenance = False
        self._loading = asyncio.Lock()
        self.metrics = Metrics()
        self.supervisor = Supervisor(self.metrics)
        self.database = Database(database_url, connections=settings.pool, clock=clock)
        self.probe = Probe(self.database)
        self.gauges = GaugeReader(self.database, self.metrics)
        self.directory = Directory(self.database, settings)
        self.keyring = Keyring.parse(settings.encryption_keys) if settings.encryption_keys else None
        self.authenticator = Authenticator.from_settings(settings)
        guarded = self.authenticator is not None
        self.host_policy = None if guarded else access.HostPolicy.from_settings(settings)
        self.exposed = access.is_exposed(settings)  # other machines need no token
        self.popper = Popper(
            self.database, self.directory, self.keyring, self.metrics, self.freed, self.reject,
            max_pop_bytes=settings.max_pop_bytes,
        )  # fmt: skip
        self.pusher = Pusher(
            self.database, self.directory, self.keyring, self.metrics, self.popper, self.stored,
            lambda: self.notices.alone, max_batch=settings.max_batch,
        )  # fmt: skip
        self.acker = Acker(self.database, self.metrics, self.freed, max_batch=settings.max_batch)
        self.notices = Notices(database_url, self._noticed, self.supervisor)
        self.live_figures = Live(self)
        self.lags = Lags(self)
        self.searches = Searches(self)
        self.remembered = Remembered()
        self.throttle = Throttle(EXPENSIVE_REQUESTS, EXPENSIVE_OF_CALLER)
        self.background = Background(self)
        self.streams = Streams(self)
        self.router = Router(ROUTES + PAGES)
        self.http = HttpServer(
            self.handle,
            Limits(body_bytes=settings.max_body_bytes, receive_seconds=settings.receive_timeout),
            check=self.check,
            decide=self.decide,
        )

    @property
    def address(self) -> str:
        return http_address(self.settings.host, self.port)

    async def start(self, *, reuse_port: bool = False) -> None:
        """Open the database, listen, and only then be ready."""
        await self.database.open()
        await self.notices.open()
        await self.load_settings()
        self.port = await self.http.listen(self.settings.host, self.settings.port, reuse_port=reuse_port)
        self.background.start()
        self.ready = True

    async def stop(self) -> None:
        """Drain: no new requests, those in flight finish, waiting pops are answered, then close."""
        self.ready = False
        self.http.close_listener()
        await self.live_figures.close()
        await self.lags.close()
        await self.streams.close()
        await self.popper.close()
        await self.http.drain(self.settings.drain_timeout)
        await self.pusher.drain()
        await self.acker.drain()
        await self.popper.close()  # leases that the drain gave back
        await self.background.stop()
        await self.notices.close()
        await self.supervisor.close()
        await self.database.close()

    # What happened, told to those who wait here and elsewhere

    def stored(self, touched: dict[str, set[str]], ride: Ride | None) -> None:
        """Messages were stored; the pops of ``ride`` were there."""
        self.popper.stored(touched, ride)
        self.streams.stored(touched)
        self.notices.ready(touched)

    def freed(self, queues: set[str]) -> None:
        """Partitions of these queues can be taken again."""
        self.popper.changed(queues)
        self.notices.ready(queues)

    def reject(self, rejected: Rejected) -> None:
        """These messages were altered in the database: their group is not given them."""

        async def bury_altered() -> None:
            await rejection.bury(self, rejected)

        self.background.soon(bury_altered)

    def changed(self, queue: str) -> None:
        """A queue was configured, cleared, deleted, or its groups were moved."""
        self.directory.drop(queue)
        self.popper.changed([queue])
        self.notices.changed(queue)
        if self.streams.reads(queue):
            self.background.soon(self.streams.load)

    def _noticed(self, notice: Notice) -> None:
        """Another broker speaks."""
        for queue in notice.changed:
            self.directory.drop(queue)
        if notice.all:
            self.directory.clear()
            self.popper.wake_all()
            self.streams.wake_all()
        else:
            self.popper.changed([*notice.ready, *notice.changed])
            self.streams.stored(notice.ready)
        if notice.settings:
            self.background.soon(self.load_settings)

    def live(self) -> dict[str, float]:
        """What is going on in this process right now."""
        busy, most = self.database.usage
        return {
            "pool_connections_busy": busy,
            "pool_connections_max": most,
            "waiting_pops": self.popper.waiting,
            "open_connections": self.http.connections_open,
            "requests_in_flight": self.http.requests_in_flight,
            "postgres_restarts": self.postgres_restarts.count,
        }

    @property
    def postgres_restarts(self) -> Restarts:
        """How often the embedded PostgreSQL had to be started again."""
        return Restarts() if self.embedded is None else read_restarts(self.embedded)

    def reveal(
        self, key_id: str | None, payload: bytes, queue: str, partition: str, transaction_id: str
    ) -> bytes | None:
        """A message's stored payload as JSON; None when it is encrypted and cannot be read here."""
        if key_id is None:
            return payload
        if self.keyring is None:
            return None
        try:
            return self.keyring.decrypt(key_id, payload, message_identity(queue, partition, transaction_id))
        except DecryptionError:
            return None

    async def load_settings(self) -> None:
        """Read what all brokers share: the maintenance modes. One at a time: the last to read is right."""
        async with self._loading:
            rows = await self.database.upkeep("read_settings")
            values = {row["key"]: msgspec.json.decode(row["value"]) for row in rows}
            self.maintenance = bool(values.get("maintenance", False))
            paused = self.maintenance or bool(values.get("maintenance_pop", False))
            was, self.popper.paused = self.popper.paused, paused
            if was and not paused:
                self.popper.wake_all()
        await self.streams.load()

    # Requests

    def check(self, request: Request) -> Response | None:
        """Look at a request's headers before its body is read; gives the answer if they are refused."""
        call = request.call = Call(self, request)
        try:
            if self.host_policy is not None:
                self.host_policy.check(request.headers)
            call.route, call.params = self.router.match(request.method, request.path)
            if self.authenticator is not None:
                request.anonymous = True
                if call.route.role is not Role.PUBLIC:
                    identity = self.authenticator.check_now(request.headers.get(b"authorization"))
                    if identity is None:
                        request.undecided = True
                    else:
                        _admit(call, identity)
                        request.anonymous = False
        except Exception as error:  # noqa: BLE001 - it is the answer
            del request.call
            return self.respond(call, error)
        return None

    async def decide(self, request: Request) -> Response | None:
        """The same for a token whose key has to be fetched."""
        assert self.authenticator is not None
        try:
            _admit(request.call, await self.authenticator.check(request.headers.get(b"authorization")))
        except Exception as error:  # noqa: BLE001 - it is the answer
            return self.respond(request.call, error)
        return None

    def handle(self, request: Request) -> Coroutine[Any, Any, Response | None] | None:
        """Answer a request that was not refused: decode what it says, call its route's handler."""
        call = request.call
        call.started = time.perf_counter()
        if request.undecided:
            return self._decide_first(call)
        del request.call  # a cycle would be left to the garbage collector, with every request
        try:
            work = self._begin(call)
        except Exception as error:  # noqa: BLE001 - it is the answer
            call.answer(error)
            return None
        return None if work is None else self._finish(call, work)

    async def _decide_first(self, call: Call) -> Response | None:
        refusal = await self.decide(call.request)
        del call.request.call
        if refusal is not None:
            return refusal
        try:
            work = self._begin(call)
        except Exception as error:  # noqa: BLE001 - it is the answer
            return self.respond(call, error)
        return None if work is None else await self._finish(call, work)

    def _begin(self, call: Call) -> Coroutine[Any, Any, Response | None] | None:
        route, request = call.route, call.request
        assert route is not None
        if route.query is not None:
            call.query = route.decode_query(request.query)
        if route.decoder is not None:
            call.body = route.decode_body(request.body)
        if request.scope is not None:
            return self._handle_in_scope(call)
        if route.costly and most_age(request):
            return self.remembered.answer(request, lambda: self._handle_in_turn(call))
        return self._handle_in_turn(call) if route.expensive else route.handler(call)

    async def _handle_in_turn(self, call: Call) -> Response | None:
        assert call.route is not None
        async with self.throttle.place(call.request.caller):
            work = call.route.handler(call)
            return None if work is None else await work

    async def _handle_in_scope(self, call: Call) -> Response | None:
        assert call.route is not None
        await require_scope(call)
        if call.route.expensive:
            return await self._handle_in_turn(call)
        work = call.route.handler(call)
        return None if work is None else await work

    async def _finish(self, call: Call, work: Coroutine[Any, Any, Response | None]) -> Response | None:
        try:
            response = await work
            if response is None:
                return None
            if call.route is not None and call.route.audited and response.status < HTTPStatus.BAD_REQUEST:
                await audit.note(self, call)
            return self.respond(call, response)
        except Exception as error:  # noqa: BLE001 - it is the answer
            return self.respond(call, error)

    def respond(self, call: Call, outcome: Response | BaseException) -> Response:
        """Count the request; an error becomes an answer that says what is wrong."""
        method, path = call.request.method, call.route.path if call.route else "(none)"
        if isinstance(outcome, Response):
            response = outcome
        elif isinstance(outcome, RequestError):
            response = error_response(outcome)
        else:
            log.error("%s %s", method, path, exc_info=outcome)
            response = Response(500, b'{"error":"the broker failed at this request; its log says why"}')
        self.metrics.request(path, method, response.status, time.perf_counter() - call.started)
        return response


def _admit(call: Call, identity: Identity) -> None:
    """Note who asks; Forbidden, if the route is not for them."""
    assert call.route is not None
    require(identity, call.route.role)
    if identity.scope is not None and call.route.scope is None:
        raise Forbidden(
            "the token is limited to some queues, and this is not about single queues; "
            "ask for a token without queues and namespaces"
        )
    call.request.subject, call.request.role = identity.subject, identity.role
    call.request.scope = identity.scope
