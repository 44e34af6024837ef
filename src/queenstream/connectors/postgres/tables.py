"""Tables of PostgreSQL, read and written; docs/tables.md has what users rely on.

Writing, the rows of an epoch and its name (in ``queen_deliveries``, beside the table) are one transaction:
a repeat finds the name, changes nothing, and is told what was refused the first time. Rows travel as one
JSON document for each statement, and ``json_to_recordset`` makes them the table's own types: as fast as
arrays, and every type that PostgreSQL has works. A statement that fails is halved until the row is found.

Reading, a table is a snapshot with an end, or, with a cursor column, goes on for ever.
"""

from __future__ import annotations

from queenstream.connectors.postgres.reader import postgres_reader
from queenstream.connectors.postgres.writer import PostgresWriter

__all__ = ["PostgresWriter", "postgres_reader"]
