"""The state of a key as Spark stores it: one text for the key, and pages of what grows with time.

The text has the key, the timer that is set, and what the step keeps (``held``). Both are JSON (``encoding``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType

from queenstream.engines.spark.keyed import pages
from queenstream.engines.spark.keyed.encoding import pack, unpack
from queenstream.engines.spark.keyed.pages import PageReader, TimeMap
from queenstream.engines.spark.keyed.requests import RequestPipeline

VALUE, PAGES = "state", "pages"
"""The names of the state variables."""

_TEXT = StructType([StructField("text", StringType())])
_PAGE = StructType([StructField("map", StringType()), StructField("page", LongType())])


@dataclass(slots=True)
class KeyState:
    """What is stored of a key. ``text``: as it was read; None: the key is new."""

    key: Any
    held: dict[str, Any]
    timer: int | None = None
    text: str | None = None


class StateStore:
    """The state of the keys of one task; Spark says whose turn it is."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._requests = RequestPipeline.of(handle)
        self._value = handle.getValueState(VALUE, _TEXT)
        self._pages = _MapState(handle)

    def read(self) -> KeyState | None:
        """The state of the key; None: there is none."""
        found = self._value.get()
        return None if found is None else restored(found[0], self._pages)

    def write(self, state: KeyState) -> None:
        """Store what has changed."""
        with self._deferred():
            self._write(state)

    def _write(self, state: KeyState) -> None:
        paged = [name for name, value in state.held.items() if type(value) is TimeMap and value.is_paged]
        for name in paged:
            state.held[name].save(name, self._pages, outside=False)
        text = _text(state)
        if len(text) > pages.PAGE_BYTES:
            for name, value in state.held.items():
                if type(value) is TimeMap and value and not value.is_paged:
                    value.save(name, self._pages, outside=True)
            text = _text(state)
        if text != state.text:
            self._value.update((text,))

    def clear(self, state: KeyState) -> None:
        """Delete all that is stored of the key."""
        with self._deferred():
            for name, value in state.held.items():
                if type(value) is TimeMap:
                    value.save(name, self._pages, outside=False)  # it is empty, and so deletes its pages
            if state.text is not None:
                self._value.clear()

    def move_timer(self, before: int | None, timer: int | None) -> None:
        """Set the timer of the key to another time; None: there is none."""
        with self._deferred():
            if before is not None:
                self._handle.deleteTimer(before)
            if timer is not None:
                self._handle.registerTimer(timer)

    def flush(self) -> None:
        """Wait until all is stored."""
        if self._requests is not None:
            self._requests.flush()

    def _deferred(self) -> AbstractContextManager[None]:
        return nullcontext() if self._requests is None else self._requests.deferred()


def restored(text: str, store: PageReader) -> KeyState:
    """The state that a text is of."""
    kept: dict[str, Any] = unpack(text)
    held = kept["held"]
    for name in kept.get("maps", ()):
        held[name] = TimeMap.restore(held[name], name, store)
    return KeyState(kept["key"], held, kept["timer"], text)


def _text(state: KeyState) -> str:
    kept = {"key": state.key, "held": state.held, "timer": state.timer}
    maps = [name for name, value in state.held.items() if type(value) is TimeMap]
    if maps:
        kept["held"] = {name: value.stored() if name in maps else value for name, value in state.held.items()}
        kept["maps"] = maps
    return pack(kept)


class _MapState:
    """The pages of the key whose turn it is."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getMapState(PAGES, _PAGE, _TEXT)

    def read(self, name: str, page: int) -> str:
        found = self._state.getValue((name, page))
        assert found is not None, f"page {page} of {name} is in the list of pages, and not stored"
        text: str = found[0]
        return text

    def write(self, name: str, page: int, text: str) -> None:
        self._state.updateValue((name, page), (text,))

    def remove(self, name: str, page: int) -> None:
        self._state.removeKey((name, page))
