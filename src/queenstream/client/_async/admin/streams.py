"""Administration of streams: their windows, groups and late messages, and why a window does not come."""

from __future__ import annotations

from datetime import datetime

from queenstream.client._async.retry import Calls
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

_STREAMS = ("api", "v1", "resources", "streams")


class AsyncStreamAdmin:
    """Streams."""

    _calls: Calls

    async def streams(self) -> list[StreamInfo]:
        """The streams, with how many windows they have.

        >>> [(stream.name, stream.windows.open) for stream in await queen.admin.streams()]  # doctest: +SKIP
        [('per-minute', 3)]
        """
        return (await self._calls.call("GET", path_of(*_STREAMS), type=StreamList)).streams

    async def stream_stats(self) -> StreamStats:
        """What all streams come to: ``(await admin.stream_stats()).windows.leased``."""
        return await self._calls.call("GET", path_of(*_STREAMS, "stats"), type=StreamStats)

    async def stream(self, name: str) -> StreamDetail:
        """One stream: its definition, sources, windows and groups.

        >>> (await queen.admin.stream("per-minute")).window_duration_ms  # doctest: +SKIP
        60000
        """
        return await self._calls.call("GET", path_of(*_STREAMS, name), type=StreamDetail)

    async def stream_groups(self, name: str) -> list[StreamGroup]:
        """The groups of a stream, with how far behind they are.

        ``await admin.stream_groups("per-minute")``
        """
        path = path_of(*_STREAMS, name, "consumers")
        return (await self._calls.call("GET", path, type=StreamGroupList)).consumers

    async def stream_windows(
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

        >>> await queen.admin.stream_windows("per-minute", group="g", state="leased")  # doctest: +SKIP
        [WindowInfo(id='1:ann:…', key='ann', …)]
        """
        query = {
            "consumerGroup": group, "key": key, "state": state, "from": from_, "to": to, "limit": limit,
        }  # fmt: skip
        path = path_of(*_STREAMS, name, "windows")
        return (await self._calls.call("GET", path, query=query, type=WindowList)).windows

    async def stream_timeline(
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

        >>> line = await queen.admin.stream_timeline("per-minute", group="g")  # doctest: +SKIP
        >>> {each.key: [window.state for window in each.windows] for each in line.keys}  # doctest: +SKIP
        {'user-1': ['open', 'leased', 'done']}
        """
        query = {
            "consumerGroup": group, "key": key, "prefix": prefix, "after": after, "keys": keys, "from": from_,
            "to": to, "limit": limit,
        }  # fmt: skip
        path = path_of(*_STREAMS, name, "timeline")
        return await self._calls.call("GET", path, query=query, type=Timeline)

    async def stream_window(
        self,
        name: str,
        window_id: str,
        *,
        group: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> WindowDetail:
        """One window: its state to ``group``, its messages by pages, and why it has not come yet.

        >>> (await queen.admin.stream_window("per-minute", window.id)).reasons[0].message  # doctest: +SKIP
        'The next window, [12:04, 12:05) of key \'ann\', closes at 12:05:30.'
        """
        query = {"consumerGroup": group, "after": after, "limit": limit}
        path = path_of(*_STREAMS, name, "windows", window_id)
        return await self._calls.call("GET", path, query=query, type=WindowDetail)

    async def stream_late(self, name: str, *, key: str | None = None, limit: int = 100) -> Page[LateInfo]:
        """The messages that no window took, the newest first: ``await admin.stream_late("per-minute")``."""
        query = {"key": key, "limit": limit}
        found = await self._calls.call("GET", path_of(*_STREAMS, name, "late"), query=query, type=LateList)
        return Page(found.late, limit=limit, offset=0, total=found.total)

    async def explain_stream(
        self, name: str, *, group: str | None = None, key: str | None = None
    ) -> Explained:
        """Why a group gets no window, gets one again, or misses messages, and what to do.

        >>> explained = await queen.admin.explain_stream("per-minute", group="g")  # doctest: +SKIP
        >>> explained.reasons[0].remedy  # doctest: +SKIP
        'Wait until 12:05:30 UTC, or define the stream with a shorter grace period.'
        """
        query = {"consumerGroup": group, "key": key}
        return await self._calls.call("GET", path_of(*_STREAMS, name, "explain"), query=query, type=Explained)

    async def delete_stream(self, name: str) -> StreamDeleted:
        """Delete a stream with its windows, groups and dead letters; its sources stay as they are.

        ``await admin.delete_stream("per-minute")``; one that does not exist is no error.
        """
        # Sent again, it would delete a stream that somebody has defined since.
        return await self._calls.call("DELETE", path_of(*_STREAMS, name), type=StreamDeleted, repeat=False)
