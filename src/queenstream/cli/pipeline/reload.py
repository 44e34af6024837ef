"""``--watch``: with every edit the new version goes on where the old one was, if the state allows.

An edit that cannot be loaded, is wrong, or cannot use the state changes nothing: the version that runs goes
on, and the user reads why.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import typer

from queenstream.cli.pipeline.display import View
from queenstream.cli.pipeline.finder import Loader
from queenstream.cli.pipeline.session import POLL_SECONDS, Active, Stops, begin, explained
from queenstream.cli.pipeline.watch import Watcher
from queenstream.cli.support.exit_codes import FAILED
from queenstream.errors import QueenstreamError
from queenstream.pipeline.plan.fingerprints import Change, compare

if TYPE_CHECKING:
    from queenstream.pipeline.engine_api import Engine, RunOptions
    from queenstream.pipeline.plan.planner import Plan
    from queenstream.runtime.summary import Summary


def changes_between(old: Plan, new: Plan) -> tuple[Change, ...]:
    """What a new version makes of the old one's state, step by step; by another name it finds none of it."""
    if old.name != new.name:
        why = f"its name was {old.name}, is {new.name}, and checkpoints go by it"
        return (Change(old.name, "gone", why),)
    return compare(old.state, new.state)


class WatchedRun:
    """A pipeline that follows its file.

    ``afresh`` gives an empty checkpoint, where the user has named none: then a version that came to its end
    by itself is followed by one that starts over.
    """

    def __init__(
        self,
        loader: Loader,
        plan: Plan,
        engine: Engine,
        options: RunOptions,
        view: View,
        afresh: Callable[[], str] | None = None,
    ) -> None:
        self._loader = loader
        self._plan = plan
        self._engine = engine
        self._view = view
        self._afresh = afresh
        self._options = options if afresh is None else replace(options, checkpoint=afresh(), start_over=True)
        self._stops = Stops()
        self._active: Active | None = None
        self._failed = False
        self._from_nothing = False

    def run(self) -> None:
        """Until somebody asks for its end."""
        watcher = Watcher(self._loader.files)
        with self._stops.listening(), contextlib.closing(self):
            self._begin(self._plan)
            while not self._stops.asked:
                self._look()
                if watcher.changed():
                    self._renew()
            self._finish()
        if self._failed:
            raise typer.Exit(FAILED)

    def close(self) -> None:
        """Leave nothing running."""
        if self._active is not None:
            self._active.close()

    def _begin(self, plan: Plan) -> None:
        self._active = begin(plan, self._engine, self._options)
        self._plan = plan
        self._failed = self._from_nothing = False
        # To go back to an older checkpoint is done once, not with every edit.
        self._options = replace(self._options, from_checkpoint=None)

    def _look(self) -> None:
        """Show how the run does, for a moment; its end is not ours."""
        if self._active is None:
            time.sleep(POLL_SECONDS)
        elif not self._is_over(self._active):
            self._view.show(self._active.progress())
        elif self._failed:
            self._view.say("waiting", "waiting for an edit")
        else:
            self._from_nothing = self._afresh is not None
            again = "starts over" if self._from_nothing else "goes on from its checkpoint"
            self._view.say("waiting", f"{self._plan.name} has come to its end; after an edit it {again}")

    def _is_over(self, active: Active, stops: int = 0, *, quiet: bool = False) -> bool:
        """Whether it has ended, by itself or with an error, which is shown in any case."""
        failure: Exception | None = None
        try:
            if not active.wait(stops):
                return False
        except Exception as error:  # noqa: BLE001 - whatever ended it, an edit may mend it
            failure = error
        self._active = None
        self._failed = failure is not None
        if failure is not None:
            self._view.end(active.progress("failed"), self._summary(active))
            self._view.say("failed", str(explained(active.plan, failure)), pipeline=active.plan.name)
        elif not quiet:
            self._view.end(active.progress("ended"), self._summary(active))
        return True

    def _summary(self, active: Active) -> Summary:
        """What a run did; a temporary checkpoint is nothing to go on from."""
        found = active.summary()
        return found if self._afresh is None else replace(found, checkpoint=None)

    def _finish(self, *, quiet: bool = False) -> None:
        """Stop what runs; asked twice, without waiting for what is under way."""
        while self._active is not None:
            if not self._is_over(self._active, max(1, self._stops.asked), quiet=quiet):
                self._view.show(self._active.progress())

    def _renew(self) -> None:
        """Put the edited version in the place of the one that runs, unless something speaks against it."""
        try:
            plan = self._loader.load().plan()
        except QueenstreamError as error:
            self._refuse(str(error))
            return
        changes = () if self._from_nothing else changes_between(self._plan, plan)
        broken = [change for change in changes if not change.harmless]
        if broken:
            self._refuse(self._obstacles(broken), changes)
            return
        before = self._plan
        self._finish(quiet=True)
        if self._from_nothing and self._afresh is not None:
            self._options = replace(self._options, checkpoint=self._afresh())
        try:
            self._begin(plan)
        except QueenstreamError as error:
            self._begin(before)
            self._refuse(str(error))
            return
        self._view.say(
            "reloaded",
            f"reloaded {self._loader.target.shown}: {_carried(changes)}",
            pipeline=plan.name,
            changes=[asdict(change) for change in changes],
        )

    def _refuse(self, why: str, changes: Sequence[Change] = ()) -> None:
        goes_on = "the version before the edit goes on" if self._active is not None else "nothing runs"
        self._view.say(
            "refused",
            f"{why}\n{goes_on}",
            pipeline=self._plan.name,
            changes=[asdict(change) for change in changes],
        )

    def _obstacles(self, broken: Sequence[Change]) -> str:
        reasons = "; ".join(f"{change.step}: {change.why}" for change in broken)
        remedy = "another --checkpoint" if self._afresh is None else "an empty state"
        return (
            f"the edited {self._loader.target.shown} cannot go on with the state ({reasons}); undo that, or "
            f"stop with Ctrl-C and start again with {remedy}"
        )


def _carried(changes: Sequence[Change]) -> str:
    """Whose state a new version goes on with.

    >>> _carried([Change("totals", "kept", ""), Change("seen", "new", "it starts from nothing")])
    'state is carried over (totals); new: seen'
    """
    kept = ", ".join(change.step for change in changes if change.verdict in ("kept", "extended"))
    new = ", ".join(change.step for change in changes if change.verdict == "new")
    parts = [f"state is carried over ({kept})" if kept else "it starts from nothing"]
    return "; ".join([*parts, f"new: {new}"] if new and kept else parts)
