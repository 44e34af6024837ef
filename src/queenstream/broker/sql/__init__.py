"""The SQL of the broker: numbered migrations, functions, and named queries.

A named query is a block in ``queries/*.sql`` that starts with ``-- name: what_it_does``; the comment lines
below the name describe it. Each is loaded once, at import.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Migration:
    """One numbered step of the schema."""

    number: int
    name: str
    text: str


def _read(folder: str) -> list[tuple[str, str]]:
    files = [f for f in resources.files(__package__).joinpath(folder).iterdir() if f.name.endswith(".sql")]
    return sorted((f.name, f.read_text("utf-8")) for f in files)


def _load_queries() -> dict[str, str]:
    queries: dict[str, str] = {}
    for file, text in _read("queries"):
        parts = _NAME.split(text)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name in queries:
                raise ValueError(f"{file}: the query {name} is there twice")
            queries[name] = body.strip().rstrip(";")
    return queries


MIGRATIONS = tuple(
    Migration(int(file.split("_", 1)[0]), file.removesuffix(".sql"), text)
    for file, text in _read("migrations")
)
FUNCTIONS = "\n".join(text for _, text in _read("functions"))
FUNCTIONS_HASH = hashlib.sha256(FUNCTIONS.encode()).hexdigest()
QUERIES = _load_queries()
