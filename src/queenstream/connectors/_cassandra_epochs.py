"""When an epoch was written: the time that all its rows carry, and that a repeat of it finds again.

For each sink there is one row in the table ``queenstream_epochs`` of the sink's keyspace: the last epoch, its
time, and the last time that one of its rows got. It is written before the rows are. So a repeat after a crash
writes the same rows with the same times, which changes nothing, and times never run backwards, whatever the
clock does.
"""

from __future__ import annotations

import time

from queenstream.connectors._cassandra_link import Link
from queenstream.connectors._cassandra_tables import quoted

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
        columns = "epoch, started, ended"
        insert = f"insert into {place} (sink, {columns}) values (?, ?, ?, ?) using timestamp ?"  # noqa: S608 - quoted
        select = f"select {columns} from {place} where sink = ?"  # noqa: S608 - as above
        self._insert = link.prepare(insert)
        known = link.ask(link.prepare(select), sink)
        self._epoch: str = known[0]["epoch"] if known else ""
        self._started: int = known[0]["started"] if known else 0
        self._ended: int = known[0]["ended"] if known else 0

    def time_of(self, epoch: str, rows: int) -> int:
        """The time of the first of so many rows; those after it get one microsecond more each.

        What belongs to the last epoch (a repeat, a second try of some rows) has that one's time.
        """
        if self._epoch and (epoch == self._epoch or epoch.startswith(f"{self._epoch}-")):
            return self._started
        started = max(time.time_ns() // 1_000, self._ended + 1)
        # Its own time is the epoch's: by a clock that is behind, it would lose against an older one.
        self._link.ask(self._insert, self._sink, epoch, started, started + rows, started)
        self._epoch, self._started, self._ended = epoch, started, started + rows
        return started
