"""Commands that talk to a broker: the options that choose it, and the client they get."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, get_type_hints

import typer

from queenstream.cli.support import contexts
from queenstream.cli.support.completion import context_names
from queenstream.cli.support.output import quiet_pipe
from queenstream.cli.support.target import parse_target, unreachable
from queenstream.errors import BrokerUnreachable

if TYPE_CHECKING:
    from queenstream import Queen

CONNECT_SECONDS = 3.0

Url = Annotated[
    str | None,
    typer.Option(
        "--url", "-u", help="Address; several with commas. (QUEEN_URL)", metavar="URL",
        show_default=False,
    ),
]  # fmt: skip
Token = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", help="If the broker asks for one. (QUEEN_TOKEN)", show_default=False),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context", help="A context of `queen config`. (QUEEN_CONTEXT)", metavar="NAME",
        show_default=False, autocompletion=context_names,
    ),
]  # fmt: skip
_CHOICE = {"url": Url, "token": Token, "context": ContextName}


def connected(command: Callable[Concatenate[Queen, ...], None]) -> Callable[..., None]:
    """Give a command an open client as its first argument, and --url, --token and --context.

    >>> @connected
    ... def names(queen: Queen) -> None:
    ...     print(queen.admin.namespaces())
    >>> list(signature(names).parameters)
    ['url', 'token', 'context']
    """
    # The client is imported when a command runs; until then its name stands for nothing.
    hints = get_type_hints(command, localns={"Queen": object}, include_extras=True)
    own = list(signature(command).parameters.values())[1:]
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    parameters += [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
        for name, kind in _CHOICE.items()
    ]

    @wraps(command)
    def run(*, url: str | None, token: str | None, context: str | None, **given: Any) -> None:
        with quiet_pipe(), opened(contexts.Flags(url, token, context)) as queen:
            command(queen, **given)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def opened(flags: contexts.Flags, timeout: str = "30s") -> Queen:
    """The client for the broker that the flags, variables and contexts choose."""
    from queenstream import Queen

    context = resolved(flags)
    check_reachable(context)
    return Queen(list(context.urls), token=context.token, timeout=timeout)


def check_reachable(context: contexts.Context) -> None:
    """Somebody listens at one of the addresses, or ``BrokerUnreachable``.

    The client waits for a broker that is away, which is right in the middle of things. Who has just pressed
    Enter wants to know at once.
    """
    failures = []
    for target in map(parse_target, context.urls):
        try:
            socket.create_connection((target.host, target.port), CONNECT_SECONDS).close()
            return
        except OSError as error:
            failures.append(str(unreachable(target, error)))
    raise BrokerUnreachable(" — ".join(failures))


def resolved(flags: contexts.Flags) -> contexts.Context:
    """The broker that the flags, variables and contexts choose."""
    known = contexts.Contexts()
    # A file that cannot be used is no trouble for who names the broker otherwise.
    if not flags.url and (flags.context or not os.environ.get("QUEEN_URL")):
        known = contexts.load(contexts.default_path(os.environ))
    return contexts.chosen(flags, os.environ, known)
