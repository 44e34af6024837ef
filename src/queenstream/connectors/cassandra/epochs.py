"""When an epoch was written: the time that all its rows carry, and that a repeat of it finds again.

For each sink there is one row in the table ``queenstream_epochs`` of the sink's keyspace: the last epoch, its
time, and the last time that one of its rows got. It is written before the rows are. So a repeat after a crash
writes the same rows with the same times, which changes nothing, and times never run backwards, whatever the
clock does.

The row changes only from the epoch that a run has seen last (a lightweight transaction). So a run that
another one has replaced gets no new time, and its rows cannot win over newer ones; nor can those of an older
epoch.
"""

from __future__ import annotations

import time

import msgspec

from queenstream.connectors.cassandra.connection import Link
from queenstream.connectors.cassandra.schemas import quoted
from queenstream.connectors.provenance import Provenance
from queenstream.errors import CheckpointError, OwnershipLost

TABLE = "queenstream_epochs"


class Epochs:
    """The times of a sink's epochs, in microseconds since 1970. Its calls block."""

    def __init__(self, link: Link, sink: str) -> None:
        self._link = link
        self._sink = sink
        place = f"{quoted(link.keyspace)}.{TABLE}"
        if not link.has_table(TABLE):
            link.define(
                f"create table if not exists {place} "
                "(sink text primary key, epoch text, started bigint, ended bigint)"
            )
        where, what = "where sink = ?", "epoch, started, ended"
        self._select = link.prepare(f"select {what} from {place} {where}")  # noqa: S608 - quoted
        self._insert = link.prepare(
            f"insert into {place} (sink, {what}) values (?, ?, ?, ?) if not exists"  # noqa: S608 - as above
        )
        self._update = link.prepare(
            f"update {place} set epoch = ?, started = ?, ended = ? {where} if epoch = ?"  # noqa: S608 - as above
        )
        self._replace = link.prepare(
            f"insert into {place} (sink, {what}) values (?, ?, ?, ?)"  # noqa: S608 - as above
        )
        self._epoch, self._started, self._ended = self._stored()

    def _stored(self) -> tuple[str, int, int]:
        known = self._link.ask(self._select, self._sink)
        return (known[0]["epoch"], known[0]["started"], known[0]["ended"]) if known else ("", 0, 0)

    def time_of(self, epoch: str, rows: int) -> int:
        """The time of the first of so many rows; those after it get one microsecond more each.

        What belongs to the last epoch (a repeat, a second try of some rows) has that one's time. Of another
        run ``OwnershipLost`` tells, of an epoch before the last one ``CheckpointError``.
        """
        if not self._is_last(epoch):
            self._refuse_older(epoch)
            started = max(time.time_ns() // 1_000, self._ended + 1)
            times = (epoch, started, started + rows)
            if self._epoch:
                [answer] = self._link.ask(self._update, *times, self._sink, self._epoch)
            else:
                [answer] = self._link.ask(self._insert, self._sink, *times)
            self._epoch, self._started, self._ended = times if answer["[applied]"] else self._stored()
            if not self._is_last(epoch):
                raise OwnershipLost(
                    f"another run has written epoch {self._epoch} to the sink {self._sink}, so this run ends "
                    "without writing more; keep one of the two runs, and give the other a checkpoint folder "
                    "of its own"
                )
        return self._started

    def provenance(self) -> Provenance | None:
        """Which checkpoint the sink was last written from."""
        known = self._link.ask(self._select, self._own_row)
        return msgspec.json.decode(known[0]["epoch"], type=Provenance) if known else None

    def store_provenance(self, provenance: Provenance) -> None:
        """Store it in a row that is no sink's."""
        text = msgspec.json.encode(provenance).decode()
        self._link.ask(self._replace, self._own_row, text, 0, 0)

    @property
    def _own_row(self) -> str:
        return f"checkpoint of {self._sink} in {self._link.place}"

    def _is_last(self, epoch: str) -> bool:
        return bool(self._epoch) and (epoch == self._epoch or epoch.startswith(f"{self._epoch}-"))

    def _refuse_older(self, epoch: str) -> None:
        """An epoch's name is the generation of its run and a number."""
        last, this = (name.split("-")[:2] for name in (self._epoch, epoch))
        if len(last) == len(this) == 2 and last[0] == this[0] and this[1] < last[1]:
            raise CheckpointError(
                f"epoch {epoch} of the sink {self._sink} comes after epoch {self._epoch}, which is written: "
                "the checkpoint is older than the table; continue from the newest checkpoint, or start over "
                "in another checkpoint folder, which writes everything again"
            )
