# Generated from _async/dead_letters.py by `python tools/async_to_sync.py`; do not edit.
"""``queen.dlq(…)``: the messages that groups gave up on, to look at, replay, put right or delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from queenstream.client._base.responses.history import DeadLetter, DeadLetterDetail, Replayed
from queenstream.client._base.responses.resources import Page
from queenstream.client._sync.admin.api import Admin
from queenstream.client._sync.retry import Calls
from queenstream.errors import NotFound

Matching: TypeAlias = Callable[[DeadLetter], bool]
Which: TypeAlias = DeadLetter | str | Iterable[DeadLetter | str] | Matching

_PAGE = 200
_BATCH = 1000  # what a broker replays or deletes in one go unless told otherwise


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters of a queue; each step of the chain gives a new one, with one more condition.

    >>> letters = queen.dlq("orders").group("billing").between("2026-01-31T00:00:00Z")  # doctest: +SKIP
    >>> for letter in letters:  # doctest: +SKIP
    ...     print(letter.error_message, letter.data)
    >>> letters.retry(lambda letter: "timeout" in letter.error_message)  # doctest: +SKIP
    """

    _calls: Calls
    _queue: str
    _group: str | None = None
    _partition: str | None = None
    _from: datetime | str | None = None
    _to: datetime | str | None = None

    def group(self, name: str) -> DeadLetters:
        """Those of one consumer group: ``queen.dlq("orders").group("billing")``."""
        return replace(self, _group=name)

    def partition(self, name: str) -> DeadLetters:
        """Those of one partition: ``queen.dlq("orders").partition("ann")``."""
        return replace(self, _partition=name)

    def between(self, start: datetime | str | None = None, end: datetime | str | None = None) -> DeadLetters:
        """Those that failed from ``start`` to ``end``, both included; None leaves that side open.

        ``queen.dlq("orders").between("2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z")``
        """
        return replace(self, _from=start, _to=end)

    # Looking

    def list(self, *, limit: int = 100, offset: int = 0) -> Page[DeadLetter]:
        """A page of them, the newest first; ``total`` says how many there are.

        >>> queen.dlq("orders").list(limit=10).total  # doctest: +SKIP
        3
        """
        return self._page(self._to, limit, offset)

    def count(self) -> int:
        """How many there are: ``queen.dlq("orders").count()``."""
        return self.list(limit=1).total or 0

    def get(self, letter: DeadLetter | str) -> DeadLetterDetail:
        """One of them, with how it came here: ``queen.dlq("orders").get("17").cause``."""
        return self._admin.dead_letter(_id(letter))

    def __iter__(self) -> Iterator[DeadLetter]:
        """All of them, the newest first. The loop may replay or delete what it gets, and misses none."""
        # By time, not by offset: what goes while the loop runs would move the rest past it.
        to, offset = self._to, 0
        seen: set[str] = set()  # of those that failed at ``to``, which the next page has again
        while True:
            page = self._page(to, _PAGE, offset)
            fresh = [letter for letter in page if letter.id not in seen]
            yield from fresh
            if len(page) < _PAGE:
                return
            if not fresh:
                offset += len(page)
                continue
            last = page[-1].failed_at
            seen = {letter.id for letter in page if letter.failed_at == last} | (
                seen if to == last else set()
            )
            to, offset = last, 0

    # Doing

    def retry(self, which: Which) -> tuple[Replayed, ...]:
        """Replay a letter, several, or those for which a function says so, in the order in which they died.

        A replayed letter is a new message at the end of its partition that only its group sees. A letter that
        is named and gone is ``NotFound``; what came before it has been replayed.

        >>> queen.dlq("orders").retry(letter)  # doctest: +SKIP
        >>> queen.dlq("orders").retry(lambda letter: letter.data["amount"] < 100)  # doctest: +SKIP
        """
        replayed = []
        for letter in self._chosen(which):
            try:
                replayed += self._admin.retry_dead_letter(letter).messages
            except NotFound:  # one that was only found may have been taken by somebody else since
                if not callable(which):
                    raise
        return tuple(replayed)

    def retry_all(self, *, error_contains: str | None = None) -> int:
        """Replay every letter there is now, or those with a text in the error; how many.

        >>> queen.dlq("orders").group("billing").retry_all(error_contains="timeout")  # doctest: +SKIP
        3
        """
        if self._timed:
            return len(self.retry(_with_error(error_contains)))

        def some(limit: int) -> int:
            answer = self._admin.retry_dead_letters(
                self._queue,
                group=self._group,
                partition=self._partition,
                error_contains=error_contains,
                limit=limit,
            )
            return answer.retried

        return self._in_batches(some)

    def edit(self, letter: DeadLetter | str, data: object) -> Replayed:
        """Replay one letter with other data; ``None`` is data, too.

        >>> queen.dlq("orders").edit(letter, {**letter.data, "customer": "ann"})  # doctest: +SKIP
        """
        answer = self._admin.retry_dead_letter(_id(letter), payload=data)
        return answer.messages[0]

    def delete(self, which: Which) -> int:
        """Delete a letter, several, or those for which a function says so; how many.

        >>> queen.dlq("orders").delete([first, second])  # doctest: +SKIP
        2
        """
        deleted = 0
        for letter in self._chosen(which):
            try:
                deleted += self._admin.delete_dead_letter(letter).deleted
            except NotFound:
                if not callable(which):
                    raise
        return deleted

    def delete_all(self, *, error_contains: str | None = None) -> int:
        """Delete every letter there is now, or those with a text in the error; how many.

        >>> queen.dlq("orders").partition("ann").delete_all()  # doctest: +SKIP
        3
        """
        if self._timed:
            return self.delete(_with_error(error_contains))

        def some(limit: int) -> int:
            answer = self._admin.delete_dead_letters(
                self._queue,
                group=self._group,
                partition=self._partition,
                error_contains=error_contains,
                limit=limit,
            )
            return answer.deleted

        return self._in_batches(some)

    def _in_batches(self, some: Callable[[int], int]) -> int:
        """Do ``some`` at a time, to the number there is now: what dies again meanwhile has to wait."""
        done, left = 0, self.count()
        while left > 0:
            batch = min(left, _BATCH)
            now = some(batch)
            done += now
            left = left - batch if now == batch else 0
        return done

    @property
    def _admin(self) -> Admin:
        return Admin(self._calls)

    @property
    def _timed(self) -> bool:
        """Whether there is a condition on time, which the broker knows only for lists."""
        return self._from is not None or self._to is not None

    def _page(self, to: datetime | str | None, limit: int, offset: int) -> Page[DeadLetter]:
        return self._admin.dead_letters(
            queue=self._queue,
            group=self._group,
            partition=self._partition,
            from_=self._from,
            to=to,
            limit=limit,
            offset=offset,
        )

    def _chosen(self, which: Which) -> tuple[str, ...]:
        """The ids of those meant. Asked of a function, they come oldest first, as they died."""
        if isinstance(which, DeadLetter | str):
            return (_id(which),)
        if not callable(which):
            return tuple(_id(letter) for letter in which)
        found = [letter.id for letter in self if which(letter)]
        return tuple(reversed(found))


def _id(letter: DeadLetter | str) -> str:
    return letter if isinstance(letter, str) else letter.id


def _with_error(text: str | None) -> Matching:
    # The broker's own comparison does not mind case either.
    return lambda letter: text is None or text.lower() in (letter.error_message or "").lower()
