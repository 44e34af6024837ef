"""ORC files, with pyarrow, which is imported when one is opened. They are only read.

A position is ``[stripe, row]``: of the next row. Files do not grow: one is placed whole, or not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from queenstream.connectors.files.lines import Part
from queenstream.connectors.files.parquet import import_arrow
from queenstream.errors import PayloadInvalid


class OrcFile:
    """A file of stripes."""

    def __init__(self, path: Path, position: Sequence[int], follow: bool) -> None:  # noqa: ARG002 - as all formats
        self._stripe, self._row = position or (0, 0)
        self._waiting: list[Any] = []
        orc = import_arrow("pyarrow.orc")
        try:
            self._file: Any = orc.ORCFile(path)
        except (import_arrow("pyarrow").ArrowInvalid, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise PayloadInvalid(f"{path} is no ORC file: {error}") from None
        self._pages = self._read()

    @property
    def position(self) -> list[int]:
        return [self._stripe, self._row]

    def _read(self) -> Iterator[list[Any]]:
        """The rows from the position on; moves to the next stripe at the end of each."""
        while self._stripe < self._file.nstripes:
            rows = self._file.read_stripe(self._stripe)
            yield rows.slice(self._row).to_pylist()
            self._stripe, self._row = self._stripe + 1, 0

    def take(self, most: int) -> Part:
        """Up to ``most`` rows, of one stripe."""
        part = Part(more=True)
        if not self._waiting:
            page = next(self._pages, None)
            if page is None:
                part.more = False
                return part
            self._waiting = page
        part.records, self._waiting = self._waiting[:most], self._waiting[most:]
        self._row += len(part.records)
        return part

    def close(self) -> None:
        """Nothing is open between two stripes."""
