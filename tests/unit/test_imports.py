"""Who may import whom: the table of the design, held over every file, and the public names."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import queenstream

ROOT = Path(queenstream.__file__).parent

VALUES = {"aggregates", "batches", "config", "durations", "errors", "figures", "paths", "schemas", "windows"}

# What a part of the package may import of ours, beside itself; None: anything. A part that is not here yet
# (or not in the table at all) makes the test fail until somebody has thought about it.
MAY_IMPORT: dict[str, set[str] | None] = {
    "errors": set(),
    "windows": set(),
    "durations": {"errors"},
    "paths": {"errors"},
    "batches": set(),
    "figures": set(),
    "schemas": {"errors", "paths"},
    "aggregates": {"errors", "paths"},
    "config": {"durations", "errors"},
    "postgres": {"errors"},
    "broker": VALUES | {"postgres"},
    "client": VALUES,
    "pipeline": VALUES,
    "local": VALUES | {"client", "connectors", "pipeline", "postgres"},
    "spark": VALUES | {"client", "connectors", "pipeline", "postgres"},
    "connectors": VALUES | {"client", "pipeline", "postgres"},
    "testing": None,
    "cli": None,
    "__init__": None,
    "__main__": None,
}
ONLY_SPARK = {"pyspark", "py4j"}
PUBLIC = {  # what the documentation shows as ``from queenstream import …``
    "AckResult",
    "AsyncMessage",
    "AsyncMessages",
    "AsyncProducer",
    "AsyncQueen",
    "AsyncWindow",
    "Backpressure",
    "Cassandra",
    "DeadLetters",
    "Event",
    "EventWindow",
    "Files",
    "Function",
    "Generator",
    "Kafka",
    "LateEvent",
    "Letters",
    "Memory",
    "Message",
    "Messages",
    "Pipeline",
    "Postgres",
    "Producer",
    "PushResult",
    "Queen",
    "Queue",
    "Stream",
    "StreamProcessor",
    "Window",
    "avg",
    "coalesce",
    "col",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "custom",
    "first",
    "last",
    "lit",
    "max_",
    "min_",
    "percentile",
    "retry",
    "session",
    "sliding",
    "stddev",
    "sum_",
    "tumbling",
    "when",
}


def part_of(path: Path) -> str:
    """``broker`` for any file of the broker, ``errors`` for errors.py."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file, by its full name."""
    package = ["queenstream", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "queenstream":
                yield from (f"queenstream.{alias.name}" for alias in node.names)
            else:
                yield module


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", files(), ids=named)
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"{part} is new: say in the table what it may import"
    allowed = MAY_IMPORT[part]
    for module in imports_of(path):
        top, _, rest = module.partition(".")
        if top in ONLY_SPARK:
            assert part in ("spark", "cli", "testing"), f"only spark imports {top}"
        if top != "queenstream" or allowed is None:
            continue
        other = rest.partition(".")[0]
        if not other:  # the package itself: its version and place; it loads nothing
            continue
        assert other == part or other in allowed, f"{part} must not import {module}"


def test_the_table_says_what_the_design_says() -> None:
    def may(part: str) -> set[str]:
        allowed = MAY_IMPORT[part]
        assert allowed is not None
        return allowed

    for part in ("errors", "windows"):
        assert may(part) == set()
    assert not may("broker") & {"client", "pipeline"}
    assert not may("client") & {"broker", "pipeline"}
    assert not may("pipeline") & {"local", "spark", "connectors"}
    assert "spark" not in may("local")
    assert "local" not in may("spark")


def test_an_import_is_found_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "broker" / "routes" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os, queenstream.client\n"
        "from queenstream import errors\n"
        "from .. import app\n"
        "from ...pipeline import nodes\n"
        "def late():\n"
        "    from . import y\n"
        "    from queenstream.local.run import go\n"
    )
    assert list(imports_of(file)) == [
        "os",
        "queenstream.client",
        "queenstream.errors",
        "queenstream.broker",
        "queenstream.pipeline",
        "queenstream.broker.routes",
        "queenstream.local.run",
    ]
    assert part_of(file) == "broker"


def test_importing_queenstream_imports_nothing_heavy() -> None:
    """Checked by the files: the top says nothing but names of ours."""
    heavy = {"asyncpg", "pyspark", "pandas", "pyarrow", "cassandra", "confluent_kafka"}
    assert not {name.partition(".")[0] for name in imports_of(ROOT / "__init__.py")} & heavy


def test_public_names() -> None:
    exported = set(getattr(queenstream, "__all__", ()))
    assert exported == PUBLIC
    for name in exported:
        assert getattr(queenstream, name).__module__.startswith("queenstream")


@pytest.mark.parametrize("path", [path for path in files() if path.name == "__init__.py"], ids=named)
def test_what_a_package_says_it_exports_is_there(path: Path) -> None:
    module = ".".join(["queenstream", *path.relative_to(ROOT).parts[:-1]])
    found = importlib.import_module(module)
    for name in getattr(found, "__all__", ()):
        assert hasattr(found, name), f"{module}.__all__ names {name}"
