"""Who may import whom: the table of the design, held over every file, and the public names."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import queenstream

ROOT = Path(queenstream.__file__).parent

VALUES = {"config", "core", "errors"}

# What a part of the package may import of ours, beside itself; None: anything. A part that is not here yet
# (or not in the table at all) makes the test fail until somebody has thought about it.
MAY_IMPORT: dict[str, set[str] | None] = {
    "errors": set(),
    "core": {"errors"},
    "config": {"core", "errors"},
    "postgres": {"errors"},
    "broker": VALUES | {"postgres"},
    "client": VALUES,
    "pipeline": VALUES,
    "runtime": VALUES | {"pipeline"},
    "connectors": VALUES | {"client", "pipeline", "postgres", "runtime"},
    "engines": set(),
    "engines.local": VALUES | {"client", "connectors", "pipeline", "postgres", "runtime"},
    "engines.spark": VALUES | {"client", "connectors", "pipeline", "postgres", "runtime"},
    "processor": VALUES | {"pipeline"},
    "spark": {"engines.spark"},
    "testing": None,
    "cli": None,
    "__init__": None,
    "__main__": None,
}
TYPES_ONLY = {("pipeline", "runtime")}  # may be imported for type checkers, not when the program runs
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
    """``broker`` for any file of the broker, ``engines.spark`` for any file of the Spark engine."""
    return part_named([name.removesuffix(".py") for name in path.relative_to(ROOT).parts])


def part_named(names: list[str]) -> str:
    """The part that a module belongs to, by the pieces of its name below ``queenstream``."""
    is_engine = names[0] == "engines" and len(names) > 1 and names[1] != "__init__"
    return ".".join(names[:2]) if is_engine else names[0]


def imports_of(path: Path, *, at_run_time: bool = False) -> Iterator[str]:
    """Every module a file imports, wherever in the file, by its full name.

    ``at_run_time``: without imports below ``if TYPE_CHECKING:``.
    """
    package = ["queenstream", *path.relative_to(ROOT).parts[:-1]]
    tree = ast.parse(path.read_text("utf-8"), str(path))
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if at_run_time and node in typing_only:
            continue
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
            assert part in ("engines.spark", "cli", "testing"), f"only the Spark engine imports {top}"
        if top != "queenstream" or allowed is None:
            continue
        other = part_named(rest.split(".")) if rest else ""
        if not other:  # the package itself: its version and place; it loads nothing
            continue
        if (part, other) in TYPES_ONLY and module not in set(imports_of(path, at_run_time=True)):
            continue
        assert other == part or other in allowed, f"{part} must not import {module}"


def test_the_table_says_what_the_design_says() -> None:
    def may(part: str) -> set[str]:
        allowed = MAY_IMPORT[part]
        assert allowed is not None
        return allowed

    assert may("errors") == set()
    assert may("core") == {"errors"}
    assert not may("broker") & {"client", "pipeline", "runtime"}
    assert not may("client") & {"broker", "pipeline", "runtime"}
    assert not may("pipeline") & {"runtime", "connectors", "engines.local", "engines.spark"}
    assert "engines.spark" not in may("engines.local")
    assert "engines.local" not in may("engines.spark")


def test_an_import_is_found_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "broker" / "api" / "x.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os, queenstream.client\n"
        "from queenstream import errors\n"
        "from .. import app\n"
        "from ...pipeline import nodes\n"
        "def late():\n"
        "    from . import y\n"
        "    from queenstream.engines.local.run import go\n"
    )
    assert list(imports_of(file)) == [
        "os",
        "queenstream.client",
        "queenstream.errors",
        "queenstream.broker",
        "queenstream.pipeline",
        "queenstream.broker.api",
        "queenstream.engines.local.run",
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
