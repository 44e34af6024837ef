"""The SQL of the broker: numbered migrations, functions, and named queries.

A named query is a block in ``queries/*.sql`` that starts with ``-- name: what_it_does``; the comment lines
below the name describe it. Each is loaded once, at import.

Every release has its own set of the functions in ``functions/``: in the database their names end with a hash
of their text, so brokers of two releases call theirs side by side. In the sources they are called by their
plain names, and ``bind`` adds the ending. What other programs call (Spark) is in ``interface/`` and keeps its
plain name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_COMPATIBLE = re.compile(r"^-- compatible from: (\d+)$", re.MULTILINE)
_DEFINED = re.compile(r"^create or replace function queen\.(\w+)", re.MULTILINE)
_CALL = re.compile(r"\bqueen\.(\w+)(?= ?\()")


@dataclass(frozen=True)
class Migration:
    """One numbered step of the schema. Brokers that know ``compatible_from`` or newer work after it."""

    number: int
    name: str
    text: str
    compatible_from: int


def _read(folder: str) -> list[tuple[str, str]]:
    files = [f for f in resources.files(__package__).joinpath(folder).iterdir() if f.name.endswith(".sql")]
    return sorted((f.name, f.read_text("utf-8")) for f in files)


def _load_migration(file: str, text: str) -> Migration:
    number = int(file.split("_", 1)[0])
    compatible = _COMPATIBLE.search(text)
    return Migration(number, file.removesuffix(".sql"), text, int(compatible[1]) if compatible else number)


def bind(statement: str) -> str:
    """A statement that calls the functions of this release's set.

    >>> bind("select queen.depth(id) from queen.queues").replace(FUNCTION_SET, "3fa9c1d2e4")
    'select queen.depth_3fa9c1d2e4(id) from queen.queues'
    """
    return _CALL.sub(lambda call: f"{call[0]}_{FUNCTION_SET}" if call[1] in _OWN else call[0], statement)


def _load_queries() -> dict[str, str]:
    queries: dict[str, str] = {}
    for file, text in _read("queries"):
        parts = _NAME.split(text)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name in queries:
                raise ValueError(f"{file}: the query {name} is there twice")
            queries[name] = bind(body.strip().rstrip(";"))
    return queries


MIGRATIONS = tuple(_load_migration(file, text) for file, text in _read("migrations"))
_FUNCTIONS = "\n".join(text for _, text in _read("functions"))
_INTERFACE = "\n".join(text for _, text in _read("interface"))
_OWN = frozenset(_DEFINED.findall(_FUNCTIONS))
FUNCTION_SET = hashlib.sha256((_FUNCTIONS + _INTERFACE).encode()).hexdigest()[:10]
FUNCTIONS = bind(_FUNCTIONS)
FUNCTION_COUNT = len(_OWN)
INTERFACE = bind(_INTERFACE)
INTERFACE_NAMES = sorted(set(_DEFINED.findall(_INTERFACE)))
QUERIES = _load_queries()
