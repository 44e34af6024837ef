"""``queen pipeline dlq``: the records that steps gave up on, to look at, edit, replay or delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.support.completion import queue_names
from queenstream.cli.support.confirm import DryRun, Yes, confirm, somebody_there
from queenstream.cli.support.connection import connected
from queenstream.cli.support.dead_letters import All, Ids, OneId, chosen, json_of, matching_option
from queenstream.cli.support.filters import predicate
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, amount, compact, number, since
from queenstream.cli.support.paging import Limit
from queenstream.core import paths
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from queenstream import Queen
    from queenstream.connectors.dead_letters import Letter

app = typer.Typer(
    help=help_text(
        "Dead letters of pipelines: list, show, edit, replay, delete.",
        "queen pipeline dlq ls failed-events --step parse",
        "queen pipeline dlq edit failed-events 17 --set amount=5",
        "queen pipeline dlq replay failed-events 17",
        more="QUEUE is the one that DeadLetters(…) names in the pipeline.",
    ),
    no_args_is_help=True,
)

QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The queue with the dead letters.", autocompletion=queue_names)
]
Step = Annotated[str | None, typer.Option("--step", metavar="NAME", help="Of this step.")]
Error = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="With this text in the error.")]
Matching = Annotated[str | None, matching_option("record.amount > 9")]

_EDITED = ("step", "time", "key", "record")  # what of a letter one may change
_PREFIXES = ("record", "data", "payload")  # of a path into it, as people write them elsewhere
_LIST = (
    Column("ID", "id"),
    Column("FAILED", "failed_at", lambda text: since(_moment(text))),
    Column("PIPELINE", "pipeline"),
    Column("STEP", "step"),
    number("ATTEMPTS", "attempts"),
    Column("ERROR", "", lambda letter: _error(letter), style="red", cut=True),
    Column("RECORD", "record", compact, cut=True),
)
_FIELDS = (
    Column("id", "id"),
    Column("pipeline", "pipeline"),
    Column("step", "step"),
    Column("failed", "failed_at", lambda text: since(_moment(text))),
    Column("attempts", "attempts"),
    Column("error", "", lambda letter: _error(letter), style="red"),
    Column("time", "time"),
    Column("key", "key", compact),
    Column("record", "record", compact),
)


def _moment(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _error(letter: Any) -> str:
    return f"{letter['error_type']}: {letter['error']}"


@app.command(
    "ls",
    help=help_text(
        "List the dead letters of a queue, the newest first.",
        "queen pipeline dlq ls failed-events",
        "queen pipeline dlq ls failed-events --step parse --error timeout -n 20",
        "queen pipeline dlq ls failed-events --matching 'record.amount > 9'",
        more="Nothing is taken from the queue. An expression sees what -o json prints: record, step, error …",
    ),
)
@connected
def ls(
    queen: Queen,
    queue: QueueName,
    step: Step = None,
    error: Error = None,
    matching: Matching = None,
    limit: Limit = None,
    output: Output = None,
) -> None:
    """List dead letters."""
    found = _found(queen, queue, step, error, matching)
    Printer(output).rows(islice(found, limit), _LIST, empty="no dead letters")


@app.command(
    "show",
    help=help_text(
        "Show one dead letter: its step, its error, and the record.",
        "queen pipeline dlq show failed-events 17",
        "queen pipeline dlq show failed-events 17 | jq .record",
    ),
)
@connected
def show(queen: Queen, queue: QueueName, id: OneId, output: Output = None) -> None:
    """Show a dead letter."""
    from queenstream.connectors.dead_letters import Letters

    Printer(output).record(Letters(queen, queue).get(id), _FIELDS)


@app.command(
    "edit",
    help=help_text(
        "Change the record of a dead letter, its time, key or step.",
        "queen pipeline dlq edit failed-events 17",
        "queen pipeline dlq edit failed 17 --set amount=5 --set user.country=DE",
        "queen pipeline dlq edit failed-events 17 --record '{\"amount\": 5}'",
        "queen pipeline dlq edit failed-events 17 --set amount=5 --replay",
        more="Without an option it opens $EDITOR. The edited letter is a new message, with an id of its own.",
    ),
)
@connected
def edit(
    queen: Queen,
    queue: QueueName,
    id: OneId,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="A field of the record: amount=5, user.name=Ann."),
    ] = None,
    record: Annotated[str | None, typer.Option(metavar="JSON", help="Another record.")] = None,
    time: Annotated[str | None, typer.Option(metavar="ISO", help="Another event time.")] = None,
    key: Annotated[str | None, typer.Option(metavar="JSON", help="Another key.")] = None,
    step: Annotated[str | None, typer.Option(metavar="NAME", help="To another step.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Replay it then.")] = False,
    output: Output = None,
) -> None:
    """Edit a dead letter."""
    from queenstream.connectors.dead_letters import Letters

    letters = Letters(queen, queue)
    old = letters.get(id)
    wanted: dict[str, Any] = {}
    if record is not None:
        wanted["record"] = json_of("--record", record)
    if time is not None:
        wanted["time"] = time
    if key is not None:
        wanted["key"] = _value(key)
    if step is not None:
        wanted["step"] = step
    for each in sets or ():
        wanted["record"] = _with(wanted.get("record", old.record), each)
    new = letters.edit(old, **(wanted or _by_hand(old)))
    out = Printer(output)
    if new is old:
        out.done(new, "nothing was changed")
        return
    if replay:
        letters.replay(new)
    done = "is replayed" if replay else f"is now {new.id}"
    out.done(new, f"edited: dead letter {id} {done}")


@app.command(
    "replay",
    help=help_text(
        "Let records in again, at the steps that failed on them.",
        "queen pipeline dlq replay failed-events 17 18",
        "queen pipeline dlq replay failed --step parse --error timeout --dry-run",
        "queen pipeline dlq replay failed-events --all",
        more="They go to the queue QUEUE.replay, which the pipeline reads: at once, or when it runs next.",
    ),
)
@connected
def replay(
    queen: Queen,
    queue: QueueName,
    ids: Ids = None,
    step: Step = None,
    error: Error = None,
    matching: Matching = None,
    everything: All = False,
    dry_run: DryRun = False,
    output: Output = None,
) -> None:
    """Replay dead letters."""
    from queenstream.connectors.dead_letters import Letters

    those = _chosen(queen, queue, ids, step, error, matching, everything)
    out = Printer(output)
    if dry_run:
        out.rows(those, _LIST, empty="no dead letters fit; nothing would be replayed")
        return
    replayed = Letters(queen, queue).replay(those)
    out.done({"replayed": replayed}, f"replayed {amount(replayed, 'dead letter')}")


@app.command(
    "delete",
    help=help_text(
        "Delete dead letters for good.",
        "queen pipeline dlq delete failed-events 17 18",
        "queen pipeline dlq delete failed --matching 'record.test' --dry-run",
        "queen pipeline dlq delete failed-events --all --yes",
    ),
)
@connected
def delete(
    queen: Queen,
    queue: QueueName,
    ids: Ids = None,
    step: Step = None,
    error: Error = None,
    matching: Matching = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Delete dead letters."""
    from queenstream.connectors.dead_letters import Letters

    those = _chosen(queen, queue, ids, step, error, matching, everything)
    out = Printer(output)
    if dry_run:
        out.rows(those, _LIST, empty="no dead letters fit; nothing would be deleted")
        return
    confirm(f"Delete {amount(len(those), 'dead letter')}?", yes=yes)
    deleted = Letters(queen, queue).delete(those)
    out.done({"deleted": deleted}, f"deleted {amount(deleted, 'dead letter')}")


def _found(
    queen: Queen, queue: str, step: str | None, error: str | None, matching: str | None
) -> Iterator[Letter]:
    from queenstream.connectors.dead_letters import Letters

    return Letters(queen, queue).find(step=step, error=error, matching=predicate(matching))


def _chosen(
    queen: Queen,
    queue: str,
    ids: list[str] | None,
    step: str | None,
    error: str | None,
    matching: str | None,
    everything: bool,
) -> Sequence[Letter]:
    """Those that a command is to act on, in the order in which they failed."""
    from queenstream.connectors.dead_letters import Letters

    return chosen(
        ids,
        Letters(queen, queue).those,
        lambda: _found(queen, queue, step, error, matching),
        by="--step, --error and --matching",
        filtered=any(value is not None for value in (step, error, matching)),
        everything=everything,
    )


def _by_hand(letter: Letter) -> dict[str, Any]:
    """What somebody makes of a letter in their editor."""
    import click
    import msgspec

    if not somebody_there():
        raise ConfigError("there is nobody to edit it; say --set PATH=VALUE or --record JSON")
    shown = {name: getattr(letter, name) for name in _EDITED}
    text = msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
    edited = click.edit(text, extension=".json")
    if edited is None:
        return {}
    made = json_of("what you wrote", edited)
    if not isinstance(made, dict) or set(made) != set(_EDITED):
        raise ConfigError(f"what you wrote is not an object with {', '.join(_EDITED)}; nothing was changed")
    return made


def _with(record: Any, written: str) -> Any:
    """The record with one field set, as in ``user.country=DE``; what is on the way there is made."""
    path, mark, value = written.partition("=")
    names = paths.segments(path)
    if not mark or not names:
        raise ConfigError(f"--set {written}: write PATH=VALUE, such as user.country=DE")
    if names[0] in _PREFIXES and len(names) > 1 and not (isinstance(record, dict) and names[0] in record):
        names = names[1:]
    return _placed(record, names, _value(value), written)


def _placed(record: Any, names: Sequence[str], value: Any, written: str) -> Any:
    if not names:
        return value
    first, rest = names[0], names[1:]
    if isinstance(record, list) and first.isdecimal() and int(first) < len(record):
        at = int(first)
        return [*record[:at], _placed(record[at], rest, value, written), *record[at + 1 :]]
    if record is None or isinstance(record, dict):
        held = record or {}
        return {**held, first: _placed(held.get(first), rest, value, written)}
    raise ConfigError(
        f"--set {written}: there is no place {first!r} in {compact(record)}; give --record JSON"
    )


def _value(written: str) -> Any:
    """A value as somebody types it: JSON, or text without quotes."""
    import msgspec

    try:
        return msgspec.json.decode(written)
    except msgspec.DecodeError:
        return written
