"""``queen config``: contexts, which are brokers by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from queenstream.cli.support import contexts
from queenstream.cli.support.completion import context_names
from queenstream.cli.support.confirm import Yes, confirm, somebody_there
from queenstream.cli.support.contexts import Context, Contexts
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, quiet_pipe, text, write, yes_no
from queenstream.cli.support.target import checked_token
from queenstream.errors import ConfigError

app = typer.Typer(
    help=help_text(
        "Contexts: brokers by name, with address and token.",
        "queen config set-context prod --url https://queen.example.com",
        "queen config use-context prod",
        more="They are in a file that only you may read. A flag (--url, --token, --context) comes before a "
        "variable (QUEEN_URL, QUEEN_TOKEN, QUEEN_CONTEXT), a variable before the current context.",
    ),
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context.", autocompletion=context_names)]

_COLUMNS = (
    Column("CURRENT", "current", lambda value: "*" if value else "", style="green"),
    Column("CONTEXT", "name"),
    Column("URL", "url"),
    Column("TOKEN", "token", text),
)


def _shown(found: Contexts, name: str, context: Context) -> dict[str, object]:
    """A context as it is printed: that there is a token, never which."""
    return {
        "name": name,
        "current": name == found.current,
        "url": ",".join(context.urls),
        "token": "***" if context.token else None,
    }


@app.command(
    "set-context",
    help=help_text(
        "Make a context, or change one.",
        "queen config set-context dev --url http://127.0.0.1:6632",
        "queen config set-context prod --url https://one.example,https://two.example",
        "queen config set-context prod --token-stdin < token.txt",
        more="The first becomes the current one. A token comes by standard input: on the command line "
        "others could see it.",
    ),
)
def set_context(
    name: Name,
    url: Annotated[
        str | None, typer.Option("--url", "-u", metavar="URL", help="Address, or several with commas.")
    ] = None,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Read the token.")] = False,
    no_token: Annotated[bool, typer.Option("--no-token", help="Forget the token.")] = False,
    output: Output = None,
) -> None:
    if token_stdin and no_token:
        raise ConfigError("--token-stdin and --no-token contradict each other; give one of them")
    addresses = None if url is None else contexts.addresses(url)
    token = _read_token() if token_stdin else None

    def made(found: Contexts) -> Contexts:
        before = found.by_name.get(name)
        if addresses is None and before is None:
            raise ConfigError(f"context {name} is new; give its address with --url")
        urls = addresses or (before.urls if before else ())
        kept = before.token if before and not no_token else None
        if kept and not token and before and urls != before.urls:
            # The token was meant for the old address.
            raise ConfigError(
                f"context {name} has a token for another address; add --token-stdin or --no-token"
            )
        return found.with_context(name, Context(urls, token or kept))

    changed = contexts.change(_path(), made)
    Printer(output).done(_shown(changed, name, changed.named(name)), f"context {name} is set")


def _read_token() -> str:
    if somebody_there():
        from getpass import getpass

        token = getpass("Token: ")  # asks on the terminal, and does not show it
    else:
        token = sys.stdin.read()
    if not token.strip():
        raise ConfigError("--token-stdin got nothing; send the token to standard input")
    return checked_token(token.strip())


@app.command(
    "use-context",
    help=help_text("Make a context the current one.", "queen config use-context prod"),
)
def use_context(name: Name, output: Output = None) -> None:
    changed = contexts.change(_path(), lambda found: found.using(name))
    Printer(output).done(_shown(changed, name, changed.named(name)), f"{name} is the current context")


@app.command(
    "get-contexts",
    help=help_text("List the contexts.", "queen config get-contexts", "queen config get-contexts -o yaml"),
)
def get_contexts(output: Output = None) -> None:
    found = contexts.load(_path())
    rows = [_shown(found, name, context) for name, context in sorted(found.by_name.items())]
    with quiet_pipe():
        Printer(output).rows(rows, _COLUMNS, empty="no contexts; make one with `queen config set-context`")


@app.command(
    "current-context",
    help=help_text("Print the name of the current context.", "queen config current-context"),
)
def current_context() -> None:
    found = contexts.load(_path())
    if found.current is None:
        raise ConfigError("no context is current; choose one with `queen config use-context NAME`")
    write(f"{found.current}\n")


@app.command(
    "delete-context",
    help=help_text(
        "Delete a context, with its token.",
        "queen config delete-context old",
        "queen config delete-context old --yes",
    ),
)
def delete_context(name: Name, yes: Yes = False, output: Output = None) -> None:
    contexts.load(_path()).named(name)
    confirm(f"Delete context {name}?", yes=yes)
    contexts.change(_path(), lambda found: found.without(name))
    Printer(output).done({"deleted": True, "name": name}, f"deleted context {name}")


@app.command(
    "view",
    help=help_text(
        "Show which broker commands talk to, and why.",
        "queen config view",
        "queen config view --context prod",
    ),
)
def view(
    context: Annotated[
        str | None, typer.Option("--context", metavar="NAME", help="As if it were given to a command.")
    ] = None,
    output: Output = None,
) -> None:
    path = _path()
    found = contexts.load(path)
    chosen = contexts.chosen(contexts.Flags(context=context), os.environ, found)
    fields = (
        Column("file", "file"),
        Column("exists", "exists", yes_no),
        Column("decided by", "decidedBy"),
        Column("url", "url"),
        Column("token", "token", text),
    )
    Printer(output).record(
        {
            "file": str(path),
            "exists": path.exists(),
            "decidedBy": _decided_by(context, found),
            "url": ",".join(chosen.urls),
            "token": "***" if chosen.token else None,
        },
        fields,
    )


def _decided_by(context: str | None, found: Contexts) -> str:
    if context:
        return f"--context {context}"
    for variable in ("QUEEN_URL", "QUEEN_CONTEXT"):
        if os.environ.get(variable):
            return variable
    return f"current context {found.current}" if found.current else "the default"


def _path() -> Path:
    return contexts.default_path(os.environ)
