"""Which dead letters a command is to act on: of queues (``queen dlq``) and of pipelines alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from queenstream.errors import ConfigError

T = TypeVar("T")

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Dead letters, by their ids.")]
OneId = Annotated[str, typer.Argument(metavar="ID", help="Its id.")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter of the queue.")]


def matching_option(example: str) -> Any:
    """The option ``--matching``, with an example of what fits."""
    return typer.Option("--matching", help=f'Only those that fit, such as "{example}".', metavar="EXPRESSION")


def chosen(
    ids: Sequence[str] | None,
    named: Callable[[Sequence[str]], Sequence[T]],
    found: Callable[[], Iterable[T]],
    *,
    by: str,
    filtered: bool,
    everything: bool,
) -> Sequence[T]:
    """Those with these ids; or those that are found, which come the newest first, in the order they failed.

    ``by`` are the options that choose, as the user writes them; ``filtered`` whether one of them was given.

    >>> chosen(None, list, lambda: ["18", "17"], by="--matching", filtered=False, everything=True)
    ['17', '18']
    """
    if bool(ids) + filtered + everything != 1:
        raise ConfigError(f"say which dead letters: their ids, or {by}, or --all; one of the three")
    return named(ids) if ids else list(found())[::-1]


def json_of(what: str, written: str) -> Any:
    """What somebody wrote as JSON; ``what`` says where."""
    import msgspec

    try:
        return msgspec.json.decode(written)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{what} is not JSON: {error}") from None
