"""What the shell offers after Tab: names that the broker knows, or nothing if it does not say so at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from queenstream import Queen

PATIENCE_SECONDS = 1.0  # for the broker; who presses Tab does not wait longer


def context_names(incomplete: str) -> list[str]:
    """The contexts of ``queen config``."""
    from queenstream.cli.support import contexts

    def look() -> Iterable[str]:
        return contexts.load(contexts.default_path(os.environ)).by_name

    return _starting(incomplete, look)


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The queues of the broker."""
    return _of_broker(ctx, incomplete, lambda queen: [queue.name for queue in queen.admin.queues(limit=1000)])


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The consumer groups of the broker."""
    return _of_broker(ctx, incomplete, lambda queen: [group.name for group in queen.admin.groups()])


def stream_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The streams of the broker."""
    return _of_broker(ctx, incomplete, lambda queen: [stream.name for stream in queen.admin.streams()])


def pipeline_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The pipelines that have told the broker of themselves."""
    return _of_broker(
        ctx, incomplete, lambda queen: [each.name for each in queen.admin.pipelines(limit=1000)]
    )


def rules_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The sets of rules of the broker."""
    return _of_broker(
        ctx, incomplete, lambda queen: [each.name for each in queen.admin.rule_sets(limit=1000)]
    )


def _of_broker(ctx: typer.Context, incomplete: str, names: Callable[[Queen], Iterable[str]]) -> list[str]:
    from queenstream.cli.support.connection import opened
    from queenstream.cli.support.contexts import Flags

    flags = Flags(*(ctx.params.get(name) for name in ("url", "token", "context")))

    def look() -> Iterable[str]:
        with opened(flags, timeout=f"{PATIENCE_SECONDS}s") as queen:
            return names(queen)

    return _starting(incomplete, look)


def _starting(incomplete: str, look: Callable[[], Iterable[str]]) -> list[str]:
    """What ``look`` finds in time; a completion that complains would be worse than none."""
    found: list[str] = []

    def work() -> None:
        try:
            found.extend(sorted(name for name in look() if name.startswith(incomplete)))
        except Exception:  # noqa: BLE001 - whatever it is, the shell's prompt is no place for it
            found.clear()

    # A thread that need not end: whatever it hangs on, the shell gets its answer.
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(PATIENCE_SECONDS)
    return list(found)
