# Generated from _async/admin/streams.py by `python tools/async_to_sync.py`; do not edit.
"""Administration of streams: their windows, groups and late messages, and why a window does not come."""

from __future__ import annotations

from datetime import datetime

from queenstream.client._base.http import path_of
from queenstream.client._base.responses.resources import Page
from queenstream.client._base.responses.streams import (
    Explained,
    LateInfo,
    LateList,
    StreamDeleted,
    StreamDetail,
    StreamGroup,
    StreamGroupList,
    StreamInfo,
    StreamList,
    StreamStats,
    Timeline,
    WindowDetail,
    WindowInfo,
    WindowList,
    WindowState,
)
from queenstream.client._sync.retry import Calls

_STREAMS = ("api", "v1", "resources", "streams")


class StreamAdmin:
    """Streams."""

    _calls: Calls

    def streams(self) -> list[StreamInfo]:
        """The streams, with how many windows they have.

        >>> [(stream.name, stream.windows.open) for stream in queen.admin.streams()]  # doctest: +SKIP
        [('per-minute', 3)]
        """
        return self._calls.call("GET", path_of(*_STREAMS), type=StreamList).streams

    def stream_stats(self) -> StreamStats:
        """What all streams come to: ``admin.stream_stats().windows.leased``."""
        return self._calls.call("GET", path_of(*_STREAMS, "stats"), type=StreamStats)

    def stream(self, name: str) -> StreamDetail:
        """One stream: its definition, sources, windows and groups.

        >>> queen.admin.stream("per-minute").window_duration_ms  # doctest: +SKIP
        60000
        """
        return self._calls.call("GET", path_of(*_STREAMS, name), type=StreamDetail)

    def stream_groups(self, name: str) -> list[StreamGroup]:
        """The groups of a stream, with how far behind they are.

        ``admin.stream_groups("per-minute")``
        """
        path = path_of(*_STREAMS, name, "consumers")
        return self._calls.call("GET", path, type=StreamGroupList).consumers

    def stream_windows(
        self,
        name: str,
        *,
        group: str | None = None,
        key: str | None = None,
        state: WindowState | None = None,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        limit: int = 100,
    ) -> list[WindowInfo]:
        """Windows of a stream, those made last first, with what each is to ``group``.

        >>> queen.admin.stream_windows("per-minute", group="g", state="leased")  # doctest: +SKIP
        [WindowInfo(id='1:ann:…', key='ann', …)]
        """
        query = {
            "consumerGroup": group, "key": key, "state": state, "from": from_, "to": to, "limit": limit,
        }  # fmt: skip
        path = path_of(*_STREAMS, name, "windows")
        return self._calls.call("GET", path, query=query, type=WindowList).windows

    def stream_timeline(
        self,
        name: str,
        *,
        group: str | None = None,
        key: str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        keys: int = 20,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        limit: int = 1000,
    ) -> Timeline:
        """The windows of some keys, by key, with what came too late.

        >>> line = queen.admin.stream_timeline("per-minute", group="g")  # doctest: +SKIP
        >>> {each.key: [window.state for window in each.windows] for each in line.keys}  # doctest: +SKIP
        {'user-1': ['open', 'leased', 'done']}
        """
        query = {
            "consumerGroup": group, "key": key, "prefix": prefix, "after": after, "keys": keys, "from": from_,
            "to": to, "limit": limit,
        }  # fmt: skip
        path = path_of(*_STREAMS, name, "timeline")
        return self._calls.call("GET", path, query=query, type=Timeline)

    def stream_window(
        self,
        name: str,
        window_id: str,
        *,
        group: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> WindowDetail:
        """One window: its state to ``group``, its messages by pages, and why it has not come yet.

        >>> queen.admin.stream_window("per-minute", window.id).reasons[0].message  # doctest: +SKIP
        'The next window, [12:04, 12:05) of key \'ann\', closes at 12:05:30.'
        """
        query = {"consumerGroup": group, "after": after, "limit": limit}
        path = path_of(*_STREAMS, name, "windows", window_id)
        return self._calls.call("GET", path, query=query, type=WindowDetail)

    def stream_late(self, name: str, *, key: str | None = None, limit: int = 100) -> Page[LateInfo]:
        """The messages that no window took, the newest first: ``admin.stream_late("per-minute")``."""
        query = {"key": key, "limit": limit}
        found = self._calls.call("GET", path_of(*_STREAMS, name, "late"), query=query, type=LateList)
        return Page(found.late, limit=limit, offset=0, total=found.total)

    def explain_stream(self, name: str, *, group: str | None = None, key: str | None = None) -> Explained:
        """Why a group gets no window, gets one again, or misses messages, and what to do.

        >>> explained = queen.admin.explain_stream("per-minute", group="g")  # doctest: +SKIP
        >>> explained.reasons[0].remedy  # doctest: +SKIP
        'Wait until 12:05:30 UTC, or define the stream with a shorter grace period.'
        """
        query = {"consumerGroup": group, "key": key}
        return self._calls.call("GET", path_of(*_STREAMS, name, "explain"), query=query, type=Explained)

    def delete_stream(self, name: str) -> StreamDeleted:
        """Delete a stream with its windows, groups and dead letters; its sources stay as they are.

        ``admin.delete_stream("per-minute")``; one that does not exist is no error.
        """
        # Sent again, it would delete a stream that somebody has defined since.
        return self._calls.call("DELETE", path_of(*_STREAMS, name), type=StreamDeleted, repeat=False)
