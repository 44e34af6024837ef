# Generated from _async/stream.py by `python tools/async_to_sync.py`; do not edit.
"""``queen.stream(…)``: define windows over queues, and move groups among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Self

from queenstream.client._base.chain import Duration, at_least, seconds
from queenstream.client._base.http import BEGINNING, Place, moment, path_of
from queenstream.client._sync.retry import Calls
from queenstream.errors import ConfigError

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _ms(what: str, value: Duration) -> int:
    return round(seconds(what, value) * 1000)


def seek_stream(calls: Calls, stream: str, group: str, to: Place) -> None:
    """Move a group among the windows of a stream."""
    to_end = to in ("end", "now")
    when = "now" if to_end else BEGINNING if to == "beginning" else moment(to)
    body = {"streamName": stream, "consumerGroup": group, "timestamp": when}
    # A later "now" is another place: sent again, it would skip what was closed since.
    calls.call("POST", "/api/v1/stream/seek", body=body, repeat=not to_end)


class Stream:
    """A stream by name, and the words that define one. A window must be chosen before ``define``.

    >>> (  # doctest: +SKIP
    ...     queen.stream("activity", "analytics")
    ...     .sources(["clicks", "views"]).partitioned().tumbling_time(60).grace_period(10).define()
    ... )
    """

    def __init__(
        self, calls: Calls, name: str, namespace: str | None, said: Mapping[str, Any] = _NOTHING
    ) -> None:
        self._calls = calls
        self._name = name
        self._namespace = namespace
        self._said = said

    def _with(self, **more: Any) -> Self:
        return type(self)(self._calls, self._name, self._namespace, {**self._said, **more})

    def _window(self, kind: str, **more: int) -> WindowedStream:
        said = {**self._said, "window_type": kind, **more}
        return WindowedStream(self._calls, self._name, self._namespace, said)

    def sources(self, queues: Iterable[str]) -> Self:
        """The queues whose messages are put into windows; they must exist."""
        names = [queues] if isinstance(queues, str) else list(queues)
        return self._with(source_queue_names=names)

    def partitioned(self, wanted: bool = True) -> Self:
        """Windows for each partition name, over all sources, instead of one for all."""
        return self._with(partitioned=wanted)

    def tumbling_time(self, size: Duration) -> WindowedStream:
        """Windows of one size, one after the other, aligned to the epoch."""
        return self._window("tumbling", window_duration_ms=_ms("tumbling_time", size))

    def sliding_time(self, size: Duration, slide: Duration) -> WindowedStream:
        """Windows of one size, a new one every ``slide``."""
        return self._window(
            "sliding", window_duration_ms=_ms("size", size), window_slide_ms=_ms("slide", slide)
        )

    def session_gap(self, gap: Duration) -> WindowedStream:
        """Windows that end when nothing has come for ``gap``."""
        return self._window("session", window_session_gap_ms=_ms("session_gap", gap))

    def count(self, size: int, slide: int | None = None) -> WindowedStream:
        """Windows of so many messages of a key, a new one every ``slide`` messages."""
        more = {} if slide is None else {"window_slide_count": at_least("slide", slide)}
        return self._window("count", window_size_count=at_least("count", size), **more)

    def grace_period(self, time: Duration) -> Self:
        """How long after its end a window still takes messages (30 s)."""
        return self._with(window_grace_period_ms=_ms("grace_period", time))

    def lease_timeout(self, time: Duration) -> Self:
        """How long a consumer has for a window before it goes to another (60 s); it is renewed meanwhile."""
        return self._with(window_lease_timeout_ms=_ms("lease_timeout", time))

    def event_time(self, path: str) -> Self:
        """Window by a time in the payload, such as ``data.ts``, instead of when the message was stored."""
        return self._with(event_time_path=path)

    def idle_timeout(self, time: Duration) -> Self:
        """With event time: a source that is quiet for so long holds nothing back any more."""
        return self._with(idle_timeout_ms=_ms("idle_timeout", time))

    def retry_limit(self, count: int) -> Self:
        """How often a window comes again after a failure before it goes to the dead letters (10)."""
        return self._with(retry_limit=at_least("retry_limit", count, 0))

    def max_in_flight(self, count: int) -> Self:
        """How many windows of one key may be out at once (1)."""
        return self._with(max_in_flight=at_least("max_in_flight", count))

    def emit_empty(self, wanted: bool = True) -> Self:
        """Windows without messages come too."""
        return self._with(emit_empty=wanted)

    def subscription_from(self, when: datetime | str) -> Self:
        """Where new groups start: a time, or ``now``."""
        return self._with(subscription_from=moment(when))

    def seek(self, group: str, to: Place) -> None:
        """Move a group to the windows from a time on, back or forward. Leases that are out become void.

        ``to`` is a time, ``"beginning"``, or ``"now"`` (also ``"end"``): the window of this moment.

        >>> queen.stream("activity").seek("analytics", "2026-11-03T10:00:00Z")  # doctest: +SKIP
        """
        seek_stream(self._calls, self._name, group, to)

    def explain(self, group: str | None = None, key: str | None = None) -> dict[str, Any]:
        """Why a window has not come yet: what holds it, and what to do."""
        path = path_of("api", "v1", "resources", "streams", self._name, "explain")
        found: dict[str, Any] = self._calls.call("GET", path, query={"consumerGroup": group, "key": key})
        return found

    def delete(self) -> bool:
        """Delete the stream, its windows and its groups; the sources stay. Whether there was one."""
        path = path_of("api", "v1", "resources", "streams", self._name)
        answer: dict[str, Any] = self._calls.call("DELETE", path, repeat=False)
        return bool(answer["existed"])


class WindowedStream(Stream):
    """A stream whose windows are chosen: it can be defined."""

    def define(self, *, reset: bool = False) -> str:
        """Make the stream, or take over new sources; its id.

        The same definition again changes nothing. One with other windows is refused, unless ``reset`` throws
        the progress of all groups away.
        """
        if not self._said.get("source_queue_names"):
            raise ConfigError('a stream needs sources; write .sources(["queue"]) before .define()')
        body = {"name": self._name, **self._said, **({"reset": True} if reset else {})}
        if self._namespace is not None:
            body["namespace"] = self._namespace
        answer: dict[str, Any] = self._calls.call("POST", "/api/v1/stream/define", body=body)
        return str(answer["stream_id"])
