"""``queen bridge``: a topic of Kafka into a queue, or the other way round."""

from __future__ import annotations

import os
import re
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from queenstream.cli.support import contexts
from queenstream.cli.support.connection import ContextName, Token, Url, check_reachable, resolved
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Output, Printer, note, quiet_pipe
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from rich.status import Status

    from queenstream.cli.pipeline.display import Progress
    from queenstream.pipeline.builder import Pipeline
    from queenstream.pipeline.endpoints import Kafka, Queue
    from queenstream.pipeline.policies import OnError
    from queenstream.runtime.summary import Summary

HELP = help_text(
    "Carry messages from Kafka into a queue, or back, until Ctrl-C.",
    "queen bridge kafka://localhost:9092/orders queue://orders",
    "queen bridge queue://orders kafka://kafka1:9092,kafka2:9092/orders --once",
    "queen bridge kafka://localhost/orders queue://orders --start latest",
    more="A message's key is its partition, and the order of each key is kept. Started again, it goes on "
    "where it was: nothing is lost, and into a queue nothing comes twice. TLS and SASL: a file of name=value "
    "lines with --settings.",
)


class OnBad(StrEnum):
    """What to do with a message that cannot be carried over."""

    STOP = "stop"
    SKIP = "skip"


class FormatChoice(StrEnum):
    """How a value is written in Kafka."""

    JSON = "json"
    STRING = "string"


def bridge(
    source: Annotated[str, typer.Argument(metavar="FROM", help="kafka://host:port/topic or queue://name.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The other one.")],
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="The consumer group. Default: the bridge's name.")
    ] = None,
    start: Annotated[
        str, typer.Option(metavar="WHERE", help="For a new group: earliest, latest, or a time.")
    ] = "earliest",
    once: Annotated[bool, typer.Option("--once", help="Stop at the end of what is there.")] = False,
    format: Annotated[
        FormatChoice, typer.Option(help="Values in Kafka: JSON, or any text.")
    ] = FormatChoice.JSON,
    on_bad: Annotated[OnBad, typer.Option(help="What to do with a value that is no JSON.")] = OnBad.STOP,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings of Kafka's client: name=value lines.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Go on from here: a folder or postgresql://…")
    ] = None,
    start_over: Annotated[
        bool, typer.Option("--start-over", help="Begin with a new checkpoint, though the target was written.")
    ] = False,
    url: Url = None,
    token: Token = None,
    context: ContextName = None,
    output: Output = None,
) -> None:
    """Run a pipeline of one source and one sink."""
    from queenstream.cli.pipeline.session import run_once
    from queenstream.pipeline.engine_api import RunOptions, find_engine

    ends = {"group": group, "start": start}, {"format": format.value, "settings": _settings(settings)}
    pipeline = _pipeline(source, target, *ends, on_bad)
    broker = resolved(contexts.Flags(url, token, context))
    check_reachable(broker)
    options = RunOptions(
        checkpoint=checkpoint or str(_state_folder()),
        start_over=start_over,
        until="caught_up" if once else "stopped",
        url=",".join(broker.urls),
        token=broker.token,
        summary=False,
    )
    with quiet_pipe():
        view = _View(Printer(output), source, target)
        try:
            run_once(pipeline.plan(), find_engine("local"), options, view)
        finally:
            view.close()


def _pipeline(
    source: str, target: str, reading: dict[str, Any], kafka: dict[str, Any], on_bad: OnBad
) -> Pipeline[Any]:
    from queenstream.pipeline.builder import Pipeline

    on_error: OnError = "fail" if on_bad is OnBad.STOP else "skip"
    began = Pipeline(f"bridge {_slug(source)} to {_slug(target)}").on_error(on_error)
    kinds = source.partition("://")[0], target.partition("://")[0]
    if kinds == ("kafka", "queue"):
        topic = began.source(_topic(source, {**reading, **kafka}))
        return topic.transform("as message", _to_queue).to(_queue(target, {}))
    if kinds == ("queue", "kafka"):
        queue = began.source(_queue(source, reading))
        return queue.transform("as message", _to_kafka).to(_topic(target, kafka))
    raise ConfigError(
        f"from {source!r} to {target!r} is no bridge; write kafka://host:port/topic and queue://name, in the "
        "order of the way"
    )


def _to_queue(message: dict[str, Any]) -> dict[str, Any]:
    """Known by its place in the topic, so that it is stored once even by a bridge that begins anew."""
    place = f"{message['topic']}/{message['partition']}/{message['offset']}"
    return {"data": message["value"], "partition": message["key"], "transaction_id": f"kafka:{place}"}


def _to_kafka(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "key": message["partition"],
        "value": message["data"],
        "timestamp": message["created_at"],
        "headers": {"transaction-id": message["transaction_id"]},
    }


def _topic(address: str, options: dict[str, Any]) -> Kafka:
    from queenstream.pipeline.endpoints import Kafka

    found = urlsplit(address)
    topic = unquote(found.path.removeprefix("/"))
    if not found.netloc or not topic or "/" in topic or found.query or "@" in found.netloc:
        raise ConfigError(f"{address!r} is no topic; write kafka://host:port/topic, and logins in --settings")
    return Kafka(topic, servers=found.netloc, envelope=True, **options)


def _queue(address: str, options: dict[str, Any]) -> Queue:
    from queenstream.pipeline.endpoints import Queue

    name = unquote(address.removeprefix("queue://"))
    if not name:
        raise ConfigError(f"{address!r} is no queue; write queue://name")
    return Queue(name, envelope=True, **options)


def _slug(address: str) -> str:
    """An address as a part of a pipeline's name, which must be the same the next time."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", address).strip("-")


def _settings(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except OSError as error:
        raise ConfigError(f"--settings: {file} cannot be read: {error.strerror}") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(equals for _, equals, _ in pairs):
        raise ConfigError(f"--settings: {file} has a line that is not name=value; correct it")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _state_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "queenstream" / "bridges"


class _View:
    """How much was carried over at what rate: a line on a terminal, and a sentence at the end."""

    def __init__(self, out: Printer, source: str, target: str) -> None:
        self._out = out
        self._ends = {"from": source, "to": target}
        self._began = time.monotonic()
        self._status: Status | None = None
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()

    def show(self, progress: Progress) -> None:
        if self._status is not None:
            waiting = int(progress.stats.get("queue_depth", 0))
            self._status.update(f"{self._rate(progress)}, {waiting:,} to come, {progress.state}")

    def _rate(self, progress: Progress) -> str:
        carried = int(progress.stats.get("messages", 0))
        seconds = max(time.monotonic() - self._began, 0.001)
        return f"{carried:,} carried over ({carried / seconds:,.0f}/s)"

    def say(self, event: str, sentence: str, **facts: object) -> None:  # noqa: ARG002 - as views are told
        note(sentence)

    def end(self, progress: Progress, summary: Summary) -> None:  # noqa: ARG002 - the sentence says it all
        self.close()
        bad = int(progress.stats.get("errors", 0))
        record = {
            **self._ends,
            "messages": int(progress.stats.get("messages", 0)),
            "bad": bad,
            "seconds": round(time.monotonic() - self._began, 3),
            "ended": progress.state,
        }
        said = f"{self._rate(progress)}{f', {bad:,} bad' if bad else ''}; {progress.state}"
        self._out.done(record, said)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
