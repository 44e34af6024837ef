"""Dead letters of pipelines, in the queues where they wait for somebody: to look at, edit, replay or delete.

>>> with Queen() as queen:  # doctest: +SKIP
...     letters = Letters(queen, "failed-events")
...     for letter in letters.find(step="parse", error="timeout"):
...         letters.edit(letter, record={**letter.record, "amount": 5})
...     letters.replay(letters.find(step="parse"))

A letter is an ordinary message of its queue: a list takes it from nobody. To replay it is to put it into the
queue ``<name>.replay``, which the pipeline reads, and then to delete it here. It keeps its transaction id, so
what was done by halves, because something crashed in between, may simply be done again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from queenstream.client._async.client import AsyncQueen
from queenstream.client._base.payloads import encode
from queenstream.client._base.responses.history import MessageInfo
from queenstream.client._sync.client import Queen
from queenstream.connectors.base import Context
from queenstream.connectors.broker.connection import connect
from queenstream.errors import ConfigError, NotFound
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.plan.nodes import Replay
from queenstream.pipeline.plan.planner import Plan
from queenstream.pipeline.policies import REPLAY

_REPLAYED_SECONDS = 7 * 86_400  # so long, to replay a letter once more does nothing
_PAGE = 200
_BATCH = 100  # letters that are moved in one go
_LONGEST_ID = 230  # characters; the broker takes 255


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that a step gave up on. ``id`` is its message's; ``input`` None: it cannot be replayed.

    ``time`` and ``key`` are what went along with the record where it failed, ``input`` which of the step's
    inputs it came by.
    """

    id: str
    pipeline: str
    step: str
    error: str
    error_type: str
    attempts: int
    failed_at: str
    record: Any
    time: str | None
    key: Any
    input: int | None
    partition: str
    partition_id: str
    transaction_id: str

    @property
    def content(self) -> dict[str, Any]:
        """What is in the message."""
        return {name: getattr(self, name) for name in _CONTENT}


_CONTENT = (
    "pipeline", "step", "error", "error_type", "attempts", "failed_at", "record", "time", "key", "input",
)  # fmt: skip

Which: TypeAlias = Letter | str | Iterable[Letter | str]
"""A letter, its id, or several of either."""


class Letters:
    """The dead letters in a queue, which ``DeadLetters("name")`` has named; a loop over it has all of them.

    >>> [letter.step for letter in Letters(queen, "failed-events")]  # doctest: +SKIP
    ['parse', 'enrich']
    """

    def __init__(self, queen: Queen, queue: str) -> None:
        self._queen = queen
        self._queue = queue

    def __iter__(self) -> Iterator[Letter]:
        return self.find()

    def find(
        self,
        *,
        step: str | None = None,
        error: str | None = None,
        matching: Callable[[Letter], bool] | None = None,
    ) -> Iterator[Letter]:
        """Those of a step, with a text in the error, or for which a function says so; the newest first."""
        wanted = None if error is None else error.lower()
        for letter in self._all():
            if step is not None and letter.step != step:
                continue
            if wanted is not None and wanted not in f"{letter.error_type}: {letter.error}".lower():
                continue
            if matching is None or matching(letter):
                yield letter

    def get(self, id: str) -> Letter:
        """One of them: ``letters.get("17").record``."""
        [letter] = self.those(id)
        return letter

    def those(self, which: Which) -> list[Letter]:
        """The letters that are meant; ``NotFound`` if one that is named is not there (any more)."""
        given = [which] if isinstance(which, Letter | str) else list(which)
        found: dict[str, Letter | None] = {
            **{each: None for each in given if isinstance(each, str)},
            **{each.id: each for each in given if isinstance(each, Letter)},
        }
        missing = {id for id, letter in found.items() if letter is None}
        for letter in self._all() if missing else ():
            if letter.id in missing:
                found[letter.id] = letter
                missing.remove(letter.id)
                if not missing:
                    break
        if missing:
            raise NotFound(
                f"there is no dead letter {', '.join(sorted(missing))} in queue {self._queue}; it may have "
                "been replayed, edited or deleted"
            )
        return [letter for letter in found.values() if letter is not None]

    def edit(
        self,
        letter: Letter | str,
        *,
        record: object = UNSET,
        time: str | UnsetType | None = UNSET,
        key: object = UNSET,
        step: str | UnsetType = UNSET,
    ) -> Letter:
        """Put another letter in its place, with another record, event time, key or step; gives that one.

        >>> letters.edit("17", record={"amount": 5})  # doctest: +SKIP
        """
        [old] = self.those(letter)
        said = {"record": record, "time": time, "key": key, "step": step}
        content = old.content | {name: value for name, value in said.items() if value is not UNSET}
        if content == old.content:
            return old
        digest = hashlib.sha256(encode(content)).hexdigest()[:16]
        queue = self._queen.queue(self._queue).partition(old.partition)
        pushed = queue.push(content, transaction_id=_edited_id(old.transaction_id, digest))
        self._delete(old)
        where = (pushed.message_id, old.partition, pushed.partition_id, pushed.transaction_id)
        return _letter(msgspec.json.decode(encode(content)), *where)

    def replay(self, which: Which) -> int:
        """Let their records in again, at the steps that they are from, oldest first; how many.

        The pipeline takes them when it runs, or when it runs next.
        """
        meant = self.those(which)
        for letter in meant:
            if letter.input is None:
                raise ConfigError(
                    f"letter {letter.id} is about a timer or a closed window of {letter.step!r}, not about a "
                    "record that came in, so there is nothing to replay; delete it"
                )
        meant = sorted(meant, key=lambda letter: int(letter.id))
        if meant:
            self._make_replay_queue()
        for first in range(0, len(meant), _BATCH):
            self._move(meant[first : first + _BATCH])
        return len(meant)

    def delete(self, which: Which) -> int:
        """Delete them for good; how many were still there."""
        return sum(map(self._delete, self.those(which)))

    # How it is done

    def _all(self) -> Iterator[Letter]:
        seen: set[str] = set()  # what comes while the list is read moves the rest down
        offset = 0
        while True:
            page = self._queen.admin.queue_messages(self._queue, limit=_PAGE, offset=offset)
            for message in page:
                if message.id not in seen and is_letter(message.data):
                    yield _of(message)
                seen.add(message.id)
            if not page.more:
                return
            offset += len(page)

    def _make_replay_queue(self) -> None:
        try:
            self._queen.admin.queue(self._queue + REPLAY)
        except NotFound:
            self._queen.queue(self._queue + REPLAY).config(
                retention_enabled=True, completed_retention_seconds=_REPLAYED_SECONDS
            ).create()

    def _move(self, letters: Sequence[Letter]) -> None:
        for partition in dict.fromkeys(letter.partition for letter in letters):
            own = [letter for letter in letters if letter.partition == partition]
            self._queen.queue(self._queue + REPLAY).partition(partition).push(
                [letter.content for letter in own],
                transaction_ids=[letter.transaction_id for letter in own],
            )
        for letter in letters:
            self._delete(letter)

    def _delete(self, letter: Letter) -> bool:
        try:
            return self._queen.admin.delete_message(letter.partition_id, letter.transaction_id).deleted
        except NotFound:  # somebody else was quicker
            return False


def is_letter(content: Any) -> bool:
    """Whether a message is a dead letter of a pipeline; a queue may have others.

    >>> is_letter({"pipeline": "totals", "step": "parse", "record": None, "error": "no"})
    True
    """
    needed = ("pipeline", "step", "record", "error")
    return isinstance(content, Mapping) and all(name in content for name in needed)


def _of(message: MessageInfo) -> Letter:
    where = (message.id, message.partition, message.partition_id, message.transaction_id)
    return _letter(message.data, *where)


def _letter(
    content: Mapping[str, Any], id: str, partition: str, partition_id: str, transaction_id: str
) -> Letter:
    return Letter(
        id=id,
        pipeline=str(content["pipeline"]),
        step=str(content["step"]),
        error=str(content["error"]),
        error_type=str(content.get("error_type", "")),
        attempts=int(content.get("attempts", 1)),
        failed_at=str(content.get("failed_at", "")),
        record=content["record"],
        time=content.get("time"),
        key=content.get("key"),
        input=content.get("input", 0),
        partition=partition,
        partition_id=partition_id,
        transaction_id=transaction_id,
    )


def _edited_id(old: str, digest: str) -> str:
    """The same edit of the same letter has the same id, so that to do it again changes nothing."""
    name = f"{old}~{digest}"
    return name if len(name) <= _LONGEST_ID else hashlib.sha256(name.encode()).hexdigest()


# Before a pipeline runs


async def make_queues(plan: Plan, context: Context) -> None:
    """Make the queues of the plan's dead letters, and those that they come back from.

    Their letters can then be listed before the first one comes. What came back is kept for a while, and what
    waits is kept for good. Queues that are there already stay as they are.
    """
    replays = [each.source for each in plan.sources if isinstance(each, Replay)]
    for each in (*plan.dead_letters, *replays):
        if isinstance(each, Queue):
            async with await connect(each.url, context) as queen:
                await _make(queen, each.name, for_good=each not in replays)


async def _make(queen: AsyncQueen, name: str, *, for_good: bool) -> None:
    queue = queen.queue(name)
    if not for_good:
        queue = queue.config(retention_enabled=True, completed_retention_seconds=_REPLAYED_SECONDS)
    try:
        await queen.admin.queue(name)
    except NotFound:
        await queue.create()
