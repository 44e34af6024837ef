"""What a data source of a table is told: options of Spark, which are text.

Names under which secrets are (``pg``, ``password``) are among those that Spark leaves out of its plans
(``session.py``).
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructType

from queenstream.errors import CheckpointError


class Offset(TypedDict):
    """How far a table was read: after the row at this position; None: nothing was read yet.

    ``seq``: the place that the next row gets. ``done``: there is no more.
    """

    after: list[str] | None
    seq: int
    done: bool


BEGINNING: Offset = {"after": None, "seq": 0, "done": False}


@dataclass(frozen=True)
class Limits:
    """How much a batch may have, and how many tasks read it.

    ``adapts``: it may have more, if the batch before it was quickly done.
    """

    rows: int
    bytes: int
    tasks: int
    adapts: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Limits:
        """From a data source's options, their names in small letters."""
        rows, size, tasks = (int(options[name]) for name in ("maxrowsperbatch", "maxbytesperbatch", "tasks"))
        return cls(rows, size, tasks, options["adaptivebatches"] == "true")

    def times(self, number: int) -> Limits:
        """So many times as much."""
        return replace(self, rows=self.rows * number, bytes=self.bytes * number)

    def options(self) -> dict[str, str]:
        """The inverse."""
        return {
            "maxRowsPerBatch": str(self.rows),
            "maxBytesPerBatch": str(self.bytes),
            "tasks": str(self.tasks),
            "adaptiveBatches": str(self.adapts).lower(),
        }

    def most(self, row_bytes: float | None) -> int:
        """How many rows a batch may have, if a row has so many bytes."""
        fitting = self.rows if not row_bytes else int(self.bytes / row_bytes)
        return max(1, min(self.rows, fitting))


def packed_value(value: Any) -> str:
    """A value as the text of an option.

    >>> unpacked_value(packed_value({"n": 1}))
    {'n': 1}
    """
    text: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return base64.b64encode(text).decode()


def unpacked_value(text: str) -> Any:
    """The inverse."""
    return pickle.loads(base64.b64decode(text))  # noqa: S301 - of this run's own making


def typed_names(columns: StructType) -> tuple[str, ...] | None:
    """The fields of a record in typed columns; None: records are bytes."""
    record = columns["record"].dataType
    if isinstance(record, BinaryType):
        return None
    assert isinstance(record, StructType), "a record has fields"
    return tuple(record.names)


def offset_of(found: Mapping[str, Any], title: str) -> Offset:
    """An offset that Spark has kept."""
    if not BEGINNING.keys() <= found.keys():
        raise CheckpointError(
            f"this checkpoint was written when {title} was still read in another way; go on with the version "
            "of queenstream that wrote it, or take another checkpoint folder to begin anew"
        )
    return {"after": found["after"], "seq": found["seq"], "done": found["done"]}


def is_final(options: Mapping[str, str]) -> bool:
    """Whether only what is there at the start of a run is read."""
    return {name.lower(): value for name, value in options.items()}.get("final") == "true"


def span_of(options: Mapping[str, str]) -> tuple[Offset, Offset]:
    """From where to where a batch went, for who reads it once more."""
    return json.loads(options["start"]) or BEGINNING, json.loads(options["end"])
