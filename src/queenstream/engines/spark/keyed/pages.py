"""Values of one key by time, kept in pages: a batch reads and writes only the pages that it touches.

A small map is part of the key's own state, so that it costs no further call. A larger one is cut into pages,
each a state entry of its own; the key's state has the first time of each page. With the number of pages their
size grows, too, so neither a page nor the list of pages gets large.

>>> windows = TimeMap()
>>> windows.change(60, list).append("a")
>>> windows.first, [*windows.items()]
(60, [(60, ['a'])])
>>> windows.pop_until(61)
[(60, ['a'])]
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from queenstream.engines.spark.keyed.encoding import pack, unpack

PAGE_BYTES = 4_000
"""Of what is part of the key's own state, and of a page, as long as there are few."""

_BYTES_FOR_EACH = 32  # that a page may have more for each page that there is


class PageReader(Protocol):
    """Where the pages of a key are read. ``name`` is that of the map."""

    def read(self, name: str, page: int) -> str:
        """The text of a page."""
        ...


class PageStore(PageReader, Protocol):
    """Where the pages of a key are kept."""

    def write(self, name: str, page: int, text: str) -> None:
        """Store the text of a page."""
        ...

    def remove(self, name: str, page: int) -> None:
        """Delete a page."""
        ...


@dataclass(slots=True)
class _Page:
    """``number`` None: it has not been stored as a page. ``entries`` None: it has not been read."""

    first: int
    number: int | None
    entries: list[list[Any]] | None
    changed: bool = False


class TimeMap:
    """Values by time."""

    def __init__(self) -> None:
        self._pages: list[_Page] = []
        self._next = 0
        self._removed: list[int] = []
        self._read: Callable[[int], str] | None = None

    @classmethod
    def restore(cls, stored: Any, name: str, store: PageReader) -> TimeMap:
        """The map that ``stored`` is of; its pages are read when they are needed."""
        found = cls()
        if isinstance(stored, list):
            if stored:
                found._pages.append(_Page(stored[0][0], None, stored))
        else:
            found._next = stored["next"]
            found._pages = [_Page(first, number, None) for first, number in stored["pages"]]
            found._read = lambda page: store.read(name, page)
        return found

    def stored(self) -> Any:
        """What the key's own state has of the map: its entries, or the list of its pages."""
        if all(page.number is None for page in self._pages):
            return [entry for page in self._pages for entry in page.entries or ()]
        return {"next": self._next, "pages": [[page.first, page.number] for page in self._pages]}

    @property
    def is_paged(self) -> bool:
        """Whether it has pages outside of the key's own state, or had some until now."""
        return bool(self._removed) or any(page.number is not None for page in self._pages)

    def save(self, name: str, store: PageStore, *, outside: bool) -> None:
        """Store the pages that have changed. ``outside``: what was part of the key's state is to be pages."""
        if outside or any(page.number is not None for page in self._pages):
            self._write(name, store)
        for number in self._removed:
            store.remove(name, number)
        self._removed = []

    def _write(self, name: str, store: PageStore) -> None:
        limit = max(PAGE_BYTES, _BYTES_FOR_EACH * len(self._pages))
        pages: list[_Page] = []
        for page in self._pages:
            if page.entries is None or not (page.changed or page.number is None):
                pages.append(page)
                continue
            text = pack(page.entries)
            if len(self._pages) == 1 and page.number is not None and len(text) <= PAGE_BYTES // 4:
                self._removed.append(page.number)
                page.number = None
                pages.append(page)
                continue
            parts = _parts(page.entries, -(-2 * len(text) // limit) if len(text) > limit else 1)
            for part in parts:
                number = page.number if part is parts[0] else None
                if number is None:
                    number, self._next = self._next, self._next + 1
                store.write(name, number, text if len(parts) == 1 else pack(part))
                pages.append(_Page(part[0][0], number, part))
        self._pages = pages

    # Looking

    def __bool__(self) -> bool:
        return bool(self._pages)

    @property
    def first(self) -> int | None:
        """The earliest time; None: it is empty. This reads no page."""
        return self._pages[0].first if self._pages else None

    def first_read(self) -> tuple[int, Any] | None:
        """The first entry, if its page has been read; otherwise it is what it was."""
        if not self._pages or not self._pages[0].entries:
            return None
        at, value = self._pages[0].entries[0]
        return at, value

    def floor(self, at: int) -> tuple[int, Any] | None:
        """The last entry that is not after ``at``."""
        if not self._pages or self._pages[0].first > at:
            return None
        entries = self._entries(self._pages[self._page_of(at)])
        time, value = entries[bisect_right(entries, at, key=_time) - 1]
        return time, value

    def items(self, start: int | None = None, stop: int | None = None) -> Iterator[tuple[int, Any]]:
        """The entries from ``start`` to before ``stop``, in order. The map must not change meanwhile."""
        number = 0 if start is None else self._page_of(start)
        for page in self._pages[number:]:
            if stop is not None and page.first >= stop:
                return
            entries = self._entries(page)
            low = 0 if start is None else bisect_left(entries, start, key=_time)
            high = len(entries) if stop is None else bisect_left(entries, stop, key=_time)
            yield from ((at, value) for at, value in entries[low:high])

    # Changing

    def change(self, at: int, new: Callable[[], Any]) -> Any:
        """The value at a time, a new one if there is none, which the caller is going to change."""
        if not self._pages:
            self._pages.append(_Page(at, None, []))
        page = self._pages[self._page_of(at)]
        entries = self._entries(page)
        place = bisect_left(entries, at, key=_time)
        if place == len(entries) or entries[place][0] != at:
            entries.insert(place, [at, new()])
            page.first = entries[0][0]
        page.changed = True
        return entries[place][1]

    def remove(self, at: int) -> None:
        """Delete the entry of a time, which is there."""
        number = self._page_of(at)
        page = self._pages[number]
        entries = self._entries(page)
        del entries[bisect_left(entries, at, key=_time)]
        self._shrunk(number)

    def pop_until(self, stop: int) -> list[tuple[int, Any]]:
        """Delete the entries before ``stop``, and return them in order."""
        found: list[tuple[int, Any]] = []
        while self._pages and self._pages[0].first < stop:
            entries = self._entries(self._pages[0])
            end = bisect_left(entries, stop, key=_time)
            found += [(at, value) for at, value in entries[:end]]
            del entries[:end]
            self._shrunk(0)
        return found

    def _shrunk(self, number: int) -> None:
        page = self._pages[number]
        if page.entries:
            page.first, page.changed = page.entries[0][0], True
            return
        if page.number is not None:
            self._removed.append(page.number)
        del self._pages[number]

    def _page_of(self, at: int) -> int:
        return max(0, bisect_right(self._pages, at, key=_first) - 1)

    def _entries(self, page: _Page) -> list[list[Any]]:
        if page.entries is None:
            assert self._read is not None, "it has been stored"
            assert page.number is not None, "it is a page"
            page.entries = unpack(self._read(page.number))
        return page.entries


def _parts(entries: list[list[Any]], number: int) -> list[list[list[Any]]]:
    """As many parts of equal length, or fewer, if there are not so many entries."""
    length = -(-len(entries) // number)
    return [entries[first : first + length] for first in range(0, len(entries), length)]


_time = itemgetter(0)
_first = attrgetter("first")
