"""Lists that are longer than one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from queenstream.client._base.responses.resources import Page

T = TypeVar("T")

PAGE = 1000  # what a broker gives at most

Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.", show_default=False)
]


def every(page: Callable[[int, int], Page[T]]) -> Iterator[T]:
    """All there is, page by page; ``page`` takes a size and an offset."""
    offset = 0
    while True:
        found = page(PAGE, offset)
        yield from found
        offset += len(found)
        if not found.more:
            return
