"""What a case is: a pipeline, what arrives in which batches, and what its sinks must hold then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.conformance.pipelines.engines import Batches, Build, Row


@dataclass(frozen=True)
class Case:
    """``expected``: rows by sink, worked out by hand. ``end``: the input is over after the last batch.

    ``ignoring``: fields that say when or how, and differ from run to run. ``in_order``: the rows must come
    as they are written here, not only be the same.
    """

    name: str
    build: Build
    batches: Batches
    expected: dict[str, list[Row]]
    end: bool = False
    ignoring: frozenset[str] = field(default=frozenset())
    in_order: bool = False


@dataclass
class Casebook:
    """Cases by name."""

    cases: dict[str, Case] = field(default_factory=dict)

    def case(
        self,
        batches: Batches,
        expected: dict[str, list[Row]],
        *,
        end: bool = False,
        ignoring: tuple[str, ...] = (),
        in_order: bool = False,
    ) -> Callable[[Build], Build]:
        """The function below builds the pipeline; its name is the case's."""

        def add(build: Build) -> Build:
            name = build.__name__
            assert name not in self.cases, f"two cases are called {name}"
            self.cases[name] = Case(name, build, batches, expected, end, frozenset(ignoring), in_order)
            return build

        return add


def one(*records: Row) -> Batches:
    """A single batch of the source ``in``."""
    return [{"in": list(records)}]


def batches_of(*batches: list[Row]) -> Batches:
    """Batches of the source ``in``."""
    return [{"in": batch} for batch in batches]
