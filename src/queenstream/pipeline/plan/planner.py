"""From a draft to a plan: nodes in order, each with its name, its policy and its keys; checked as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from queenstream.core import windows
from queenstream.core.schemas import Schema
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Cassandra, Files, Postgres, Sink
from queenstream.pipeline.errors import PipelineError, Problem
from queenstream.pipeline.plan import describe as describing
from queenstream.pipeline.plan import fingerprints, validate
from queenstream.pipeline.plan.lineage import in_order, keys_of
from queenstream.pipeline.plan.nodes import (
    Aggregation,
    Apply,
    Late,
    Node,
    Place,
    Project,
    Read,
    Replay,
    Stateful,
    Union,
    Write,
)
from queenstream.pipeline.policies import FAIL, ErrorPolicy


@dataclass(frozen=True)
class PendingWindow:
    """A window that waits for its aggregate."""

    window: windows.Definition
    grace: timedelta
    where: Place

    def unused(self) -> Problem:
        """What is wrong if none comes."""
        return Problem(str(self.where), "window", "has no aggregate", "add .aggregate(n=count()) after it")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A pipeline as far as it is written. ``pinned``: policies of pipelines that were taken in."""

    name: str
    where: Place
    head: Node | None = None
    writes: tuple[Write, ...] = ()
    policy: ErrorPolicy | None = None
    pinned: Mapping[Node, ErrorPolicy] = field(default_factory=dict)
    window: PendingWindow | None = None
    misuse: tuple[Problem, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """All nodes so far, in order."""
        return in_order([*self.writes, *([self.head] if self.head else [])])

    def merged(self, other: Draft) -> Draft:
        """This with another's sinks and problems; the other's steps keep the error policy they had there."""
        mine = set(self.nodes)
        pinned = {node: policy for node, policy in other.pinned.items() if node not in mine}
        if other.policy is not None:
            pinned |= {node: other.policy for node in other.nodes if node not in mine | pinned.keys()}
        writes = [write for write in other.writes if write not in self.writes]
        unused = () if other.window is None else (other.window.unused(),)
        nothing = () if other.head else (_without_source(other),)
        return replace(
            self,
            writes=(*self.writes, *writes),
            pinned={**self.pinned, **pinned},
            misuse=(*self.misuse, *other.misuse, *unused, *nothing),
        )

    def policy_for(self, node: Node) -> ErrorPolicy:
        """A node's own policy, else that of the pipeline it came with, else this one's, else to fail."""
        return node.on_error or self.pinned.get(node) or self.policy or FAIL


@dataclass(frozen=True)
class Plan:
    """What an engine runs: nodes in an order in which inputs come first.

    Every node has a name that is its own, all that is needed to run it, and ``policy`` (which is the
    plan's, if it has none of its own); ``schemas`` has the fields of a node's output by the node's name, or
    None where they are not known.
    """

    name: str
    nodes: tuple[Node, ...]
    schemas: Mapping[str, Schema | None]
    policy: ErrorPolicy = FAIL

    @property
    def sources(self) -> tuple[Read, ...]:
        """The nodes that read; those that bring dead letters back come last."""
        return tuple(node for node in self.nodes if isinstance(node, Read))

    @property
    def inputs(self) -> tuple[Read, ...]:
        """The sources that the user named: all but those that bring dead letters back."""
        return tuple(node for node in self.sources if not isinstance(node, Replay))

    @property
    def sinks(self) -> tuple[Write, ...]:
        """The nodes that write."""
        return tuple(node for node in self.nodes if isinstance(node, Write))

    @property
    def remote_files(self) -> list[tuple[Node, str, Files]]:
        """The folders of other file systems that it writes, each with the step and with what is written."""
        found: list[tuple[Node, str, Sink]] = [(node, "writes files to", node.sink) for node in self.sinks]
        found += [
            (node, "has its dead letters in files at", node.policy.letters.sink)
            for node in self.nodes
            if node.policy.letters is not None
        ]
        return [(node, does, sink) for node, does, sink in found if isinstance(sink, Files) and sink.remote]

    @property
    def dead_letters(self) -> tuple[Sink, ...]:
        """Where the dead letters of its steps go, each once."""
        letters = [node.policy.letters for node in self.nodes]
        found = {each.sink.address: each.sink for each in letters if each is not None}
        return tuple(found.values())

    @property
    def bounded(self) -> bool:
        """Whether it comes to an end by itself."""
        return all(read.source.bounded for read in self.inputs)

    @cached_property
    def state(self) -> fingerprints.Facts:
        """What a checkpoint depends on; ``fingerprints.compare`` takes an older one and this."""
        return MappingProxyType(fingerprints.state_of(self.nodes))

    @cached_property
    def fingerprint(self) -> str:
        """The same in sixteen letters: equal ones can use each other's checkpoints."""
        return fingerprints.fingerprint(dict(self.state))

    def node(self, name: str) -> Node:
        """The node of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ConfigError(f"no step {name!r}; there are {', '.join(node.name for node in self.nodes)}")

    def consumers(self, node: Node) -> tuple[Node, ...]:
        """The nodes that a node feeds."""
        return tuple(each for each in self.nodes if node in each.inputs)

    def schema(self, node: Node) -> Schema | None:
        """The fields of a node's output, if they are known."""
        return self.schemas[node.name]

    def changed(self, change: Callable[[Node], Node]) -> Plan:
        """The same plan of nodes that an engine has completed, such as with where their rules are."""
        done: dict[Node, Node] = {}
        for node in self.nodes:
            done[node] = change(replace(node, inputs=tuple(done[each] for each in node.inputs)))
        return replace(self, nodes=tuple(done.values()))

    def describe(self, form: Literal["text", "json", "svg"] = "text") -> str:
        """For people, for programs, or as a picture."""
        return describing.describe(self, form)


def make_plan(draft: Draft) -> Plan:
    """Name, complete and check; ``PipelineError`` has all that is wrong."""
    nodes = _completed(draft)
    problems = [*draft.misuse]
    if draft.window is not None:
        problems.append(draft.window.unused())
    if draft.head is None:
        problems.append(_without_source(draft))
    found, schemas = validate.check(nodes)
    problems += found
    if problems:
        raise PipelineError(draft.name, tuple(dict.fromkeys(problems)))
    nodes = [_with_schema(node, schemas) for node in nodes]
    return Plan(draft.name, tuple(nodes), MappingProxyType(schemas), draft.policy or FAIL)


def _with_schema(node: Node, schemas: Mapping[str, Schema | None]) -> Node:
    """A sink that makes its table makes it of the fields that reach it, if it has no others."""
    sink = node.sink if isinstance(node, Write) else None
    if not isinstance(sink, Cassandra | Postgres) or not sink.create_table or sink.schema is not None:
        return node
    assert isinstance(node, Write)
    return replace(node, sink=replace(sink, schema=schemas[node.inputs[0].name]))


def _without_source(draft: Draft) -> Problem:
    what = f"the pipeline {draft.name!r}"
    return Problem(
        str(draft.where), what, "has no source", "begin it with .source(Queue('name')) or another one"
    )


def _completed(draft: Draft) -> list[Node]:
    """The nodes of a draft in order, with names, policies and keys."""
    done: dict[Node, Node] = {}
    drafted = draft.nodes
    names = _Names(node.name for node in drafted)
    for node in drafted:
        complete = replace(
            node,
            inputs=tuple(done[each] for each in node.inputs),
            on_error=draft.policy_for(node),
        )
        complete = replace(complete, name=node.name or names.fresh(_called(complete)))
        if isinstance(complete, Aggregation | Stateful):
            complete = replace(complete, keys=keys_of(complete))
        done[node] = complete
    return [*done.values(), *_replays(done.values(), names)]


def _replays(nodes: Collection[Node], names: _Names) -> list[Replay]:
    """For each place of dead letters, what brings them back to the steps that they are from."""
    found: dict[tuple[str, ...], Replay] = {}
    for node in nodes:
        letters = node.policy.letters
        if letters is None or isinstance(node, Late | Union):  # these never fail
            continue
        source, sink = letters.comes_back_from, letters.sink
        if source is None:
            continue
        replay = found.get(sink.address)
        if replay is None:
            name = names.fresh(f"replay:{sink.label}")
            # A letter that cannot be let in again goes back to where the dead letters are.
            back = ErrorPolicy(then=letters)
            replay = Replay(where=node.where, source=source, name=name, on_error=back)
        found[sink.address] = replace(replay, steps=(*replay.steps, node.name))
    return list(found.values())


def _called(node: Node) -> str:
    """What a node is called if its user does not say."""
    if isinstance(node, Read):
        return node.source.slug
    if isinstance(node, Write):
        return node.sink.slug
    if isinstance(node, Apply):
        return node.mode
    if isinstance(node, Project):
        return "with_columns" if node.keep else "select"
    if isinstance(node, Late):
        return f"late:{node.inputs[0].name}" if node.inputs else "late"
    return node.kind


class _Names:
    """Names that are not taken: the second ``filter`` is ``filter-2``."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            self._numbers[wanted] = self._numbers.get(wanted, 1) + 1
            name = f"{wanted}-{self._numbers[wanted]}"
        self._taken.add(name)
        return name
