"""Both readers of micro-batches, asked as their versions of Spark ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from queenstream.engines.spark.datasource.readers import Offset
from queenstream.engines.spark.datasource.stream_reader_4_1 import CappedStreamReader
from queenstream.engines.spark.versions import ADMISSION_CONTROL


class Asking(Protocol):
    """A reader that a test asks as Spark does."""

    def initialOffset(self) -> Offset: ...

    def partitions(self, start: Offset, end: Offset) -> list[Any]: ...

    def read(self, partition: Any) -> Any: ...

    def ahead(self, start: Offset) -> Offset:
        """The end of the batch that begins there."""
        ...

    def behind(self, end: Offset) -> int:
        """How many messages were left after the batch that was planned last, and ends there."""
        ...

    def end_here(self) -> None:
        """Read what is there, and nothing that comes later."""
        ...


Kind: TypeAlias = Callable[..., Asking]


class AskedByOldSpark(CappedStreamReader):
    """As Spark 4.1 does."""

    def ahead(self, start: Offset) -> Offset:
        # A query from a checkpoint shows its last offset; one that runs has planned a batch to it.
        self.partitions(start, start)
        return self.latestOffset()

    def behind(self, end: Offset) -> int:
        return end["behind"]

    def end_here(self) -> None:
        self._end_at_what_is_there()


KINDS: list[Kind] = [AskedByOldSpark]

if TYPE_CHECKING or ADMISSION_CONTROL.is_available():
    from queenstream.engines.spark.datasource.stream_reader import QueenStreamReader

    class AskedByNewSpark(QueenStreamReader):
        """As Spark 4.2 and newer do."""

        def ahead(self, start: Offset) -> Offset:
            return self.latestOffset(start, self.getDefaultReadLimit())

        def behind(self, end: Offset) -> int:
            latest = self.reportLatestOffset()
            assert latest is not None
            return latest["behind"]

        def end_here(self) -> None:
            self.prepareForTriggerAvailableNow()

    KINDS.append(AskedByNewSpark)
