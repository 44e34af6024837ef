"""Files that somebody edits: whether they have changed, and are whole again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

_Seen: TypeAlias = dict[Path, tuple[int, int] | None]


class Watcher:
    """Looks at files whenever it is asked; ``files`` gives those that matter now.

    >>> watcher = Watcher(loader.files)  # doctest: +SKIP
    >>> watcher.changed()  # doctest: +SKIP
    False
    """

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._known = self._look()
        self._last = self._known

    def changed(self) -> bool:
        """Whether they changed since the last ``True``, and rest by now: editors write in several steps."""
        now = self._look()
        rests, self._last = now == self._last, now
        # A file that was imported only now is no change.
        differs = any(self._known.get(path, seen) != seen for path, seen in now.items())
        self._known = {**now, **self._known}
        if not (differs and rests):
            return False
        self._known = now
        return True

    def _look(self) -> _Seen:
        return {path: _stamp(path) for path in self._files()}


def _stamp(path: Path) -> tuple[int, int] | None:
    """What a change of a file changes; None while it is away, as some editors have it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
