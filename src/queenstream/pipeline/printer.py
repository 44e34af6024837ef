"""Records on standard output, a line each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from queenstream.core.records import as_row


@dataclass(frozen=True)
class RowPrinter:
    """Prints a record as a line of JSON, after a label if there is one.

    >>> RowPrinter("large")({"amount": 150})
    large: {"amount":150}
    """

    label: str | None = None

    def __call__(self, record: Any) -> None:
        line = format_record(record)
        sys.stdout.write(f"{line}\n" if self.label is None else f"{self.label}: {line}\n")
        sys.stdout.flush()


def format_record(record: Any) -> str:
    """A record as people read it: JSON, and as Python shows it where JSON cannot.

    >>> from datetime import date
    >>> format_record({"at": date(2026, 1, 31), "set": frozenset([1])}), format_record(7)
    ('{"at":"2026-01-31","set":[1]}', '7')
    """
    try:
        return msgspec.json.encode(as_row(record), enc_hook=str).decode()
    except (msgspec.MsgspecError, TypeError, ValueError):
        return repr(record)
