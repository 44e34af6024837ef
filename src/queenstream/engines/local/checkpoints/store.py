"""Checkpoints: what a run needs to go on after a stop or a crash, in a folder or in PostgreSQL.

    store = open_store("state/", "totals")          # or postgresql://…
    await store.acquire(plan.state)
    snapshot = await store.load()
    …
    await store.commit(Epoch(snapshot.epoch + 1, positions=…, state=…, outbox=…))
    store.delivered(snapshot.epoch + 1)
    await store.close()

An epoch is committed as a whole, or not at all. It holds only what changed; the value of a key is the one
of the newest epoch that set it, so any of the last epochs can be gone back to. Older versions go as the
epochs that need them go.

Every epoch has an id that no other epoch has, in this store or another: its generation, which is new for
every store and whenever a run goes back, and its number. Sinks know by it what they have taken already.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

from queenstream.engines.local.checkpoints.backend import (
    Action,
    Forget,
    Home,
    Insert,
    Step,
    Superseded,
    damaged,
    holder_text,
)
from queenstream.engines.local.checkpoints.inspection import (
    POSITION,
    STATE,
    CheckpointReader,
    key_bytes,
    part_id,
)
from queenstream.engines.local.checkpoints.snapshots import (
    CheckpointInfo,
    Contents,
    Delivery,
    Epoch,
    Snapshot,
    StateKey,
    epoch_id,
    new_generation,
)
from queenstream.errors import CheckpointError
from queenstream.pipeline.plan import fingerprints
from queenstream.pipeline.plan.fingerprints import Facts
from queenstream.runtime import encoding

__all__ = [
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointStore",
    "Contents",
    "Delivery",
    "Epoch",
    "Snapshot",
    "StateKey",
    "check_plan",
    "epoch_id",
    "new_generation",
    "open_store",
]

FORMAT = 1  # of what is stored; another one is refused
KEEP = 10  # checkpoints that can be gone back to, and as many of clean stops

_OWN = "part in (select id from parts where pipeline = $1)"
# Versions that are newer than $2 and not newer than $3, if there is a newer one up to $4.
_PRUNE_VERSIONS = (
    f"delete from items where {_OWN} and epoch > $2 and epoch <= $3 and exists ("  # noqa: S608 - all ours
    " select 1 from items x where x.part = items.part and x.key = items.key"
    " and x.epoch > items.epoch and x.epoch <= $4)"
)
# That a key is gone need not be said where it never was.
_PRUNE_GONE = (
    f"delete from items where {_OWN} and value is null and not exists ("  # noqa: S608 - all ours
    " select 1 from items x where x.part = items.part and x.key = items.key and x.epoch < items.epoch)"
)

_Changed: TypeAlias = dict[int, tuple[list[bytes], list[bytes]]]  # by part: the keys set, and those gone


def open_store(where: str | Path, pipeline: str, *, keep: int = KEEP) -> CheckpointStore:
    """The checkpoints of a pipeline in a folder, or at a ``postgresql://`` URL. Nothing is opened yet."""
    home: Home
    if str(where).startswith(("postgresql://", "postgres://")):
        from queenstream.engines.local.checkpoints.postgres import PostgresHome

        home = PostgresHome(str(where), pipeline)
    else:
        from queenstream.engines.local.checkpoints.sqlite import SqliteHome

        home = SqliteHome(Path(where), pipeline)
    return CheckpointStore(home, pipeline, keep)


def check_plan(stored: Facts, now: Facts) -> None:
    """Raise ``CheckpointError`` if a plan cannot go on with what another one stored.

    >>> check_plan({"sum": {"window": "tumbling 5m"}}, {"sum": {"window": "tumbling 1h"}})
    Traceback (most recent call last):
    queenstream.errors.CheckpointError: the plan does not fit the checkpoint (sum: window was tumbling \
5m, is tumbling 1h); undo that, or start afresh with another checkpoint
    """
    broken = [change for change in fingerprints.compare(stored, now) if not change.harmless]
    if broken:
        told = "; ".join(f"{change.step}: {change.why}" for change in broken)
        raise CheckpointError(
            f"the plan does not fit the checkpoint ({told}); undo that, or start afresh with another "
            "checkpoint"
        )


class CheckpointStore(CheckpointReader):
    """The checkpoints of one pipeline. Who writes must ``acquire`` it; reading needs no lock.

    >>> store = open_store("state", "totals")
    >>> await store.checkpoints()  # doctest: +SKIP
    [CheckpointInfo(id='65f0a1b2c3d4e5-0000000007', …)]
    """

    def __init__(self, home: Home, pipeline: str, keep: int) -> None:
        super().__init__(home, pipeline)
        self._keep = keep
        self._holder = ""
        self._generation = ""
        self._epoch = 0
        self._delivered = 0
        self._noted = 0  # what the store knows of that
        self._facts_now: Facts = {}
        self._fingerprint = ""
        self._kept: list[tuple[int, bool]] = []  # what can be gone back to, and whether it was clean
        self._changed: dict[int, _Changed] = {}  # what those of them set that are not clean stops of old

    async def acquire(self, facts: Facts) -> None:
        """Take the pipeline for a run of the plan with these ``facts`` (``plan.state``).

        ``CheckpointError`` says who else has it. Where there is no store yet, it is made.
        """
        await self._home.open()
        holder = f"{holder_text()} [{secrets.token_hex(4)}]"
        await self._home.lock(holder)
        await self._home.create()
        await self._check_format()
        self._holder, self._facts_now = holder, _plain(facts)
        self._fingerprint = fingerprints.fingerprint(self._facts_now)
        await self._home.transact(
            [
                Step(
                    "insert into pipelines (name, format, generation, epoch, delivered, rewound, holder) "
                    "values ($1, $2, $3, 0, 0, 0, $4) "
                    "on conflict (name) do update set holder = excluded.holder",
                    (self._pipeline, FORMAT, new_generation(), holder),
                ),
                Step(
                    "insert into checkpoint_ids (pipeline, id) select name, generation from pipelines "
                    "where name = $1 on conflict (pipeline) do nothing",
                    (self._pipeline,),
                ),
                Step(
                    "insert into plans (pipeline, fingerprint, facts) values ($1, $2, $3) "
                    "on conflict (pipeline, fingerprint) do nothing",
                    (self._pipeline, self._fingerprint, encoding.pack(self._facts_now)),
                ),
            ]
        )

    async def load(self, checkpoint_id: str | None = None) -> Snapshot:
        """The newest checkpoint, or the one with that id, from which the run then goes on.

        The plan must fit it. To go back to an older one forgets those after it, and starts a new generation;
        the snapshot is ``rewound`` until the first commit.
        """
        generation, epoch, delivered, rewound = await self._current()
        info = None if epoch == 0 and checkpoint_id is None else await self._find(checkpoint_id)
        facts = {} if info is None else await self._facts(info.fingerprint)
        check_plan(facts, self._facts_now)
        if info is not None and info.epoch != epoch:
            generation, rewound = new_generation(), True
            epoch, delivered = info.epoch, min(delivered, info.epoch)
            await self._go_back(generation, epoch, delivered)
        self._generation, self._epoch = generation, epoch
        self._delivered = self._noted = delivered
        self._kept = [(kept.epoch, kept.clean) for kept in reversed(await self.checkpoints())]
        await self._load_changed()
        return Snapshot(
            epoch=epoch,
            generation=generation,
            facts=facts,
            positions=await self._positions(epoch),
            state=await self._items(epoch, STATE),
            watermarks=None if info is None else await self._watermarks(epoch),
            outbox=await self._outbox(delivered),
            rewound=rewound,
        )

    async def identity(self) -> str:
        """What tells this store from all others, also when it is moved or gone back in."""
        rows = await self._home.fetch("select id from checkpoint_ids where pipeline = $1", self._pipeline)
        return str(rows[0][0])

    async def commit(self, epoch: Epoch) -> str:
        """Store an epoch as a whole; when it returns, it is on the disk. Gives its id."""
        if epoch.number != self._epoch + 1:
            raise ValueError(f"epoch {epoch.number} does not follow {self._epoch}; commit them in order")
        kept = _kept([*self._kept, (epoch.number, epoch.clean)], self._keep)
        delivered = min(self._delivered, self._epoch)
        who = (self._pipeline, self._generation, self._holder)
        changed = self._changed[epoch.number] = self._changes(epoch)
        actions = [
            Step(
                "update pipelines set epoch = $4, delivered = $5, rewound = 0 "
                "where name = $1 and generation = $2 and holder = $3 and epoch = $4 - 1",
                (*who, epoch.number, delivered),
                must=True,
            ),
            *self._additions(epoch, changed),
            Step("delete from outbox where pipeline = $1 and epoch <= $2", (self._pipeline, delivered)),
            *self._prunings(kept, epoch.number),
        ]
        done = ("select 1 from pipelines where name = $1 and generation = $2 and holder = $3 and epoch = $4",)
        try:
            await self._home.transact(actions, (*done, *who, epoch.number))
        except Superseded:
            raise CheckpointError(
                f"another run has taken over the pipeline {self._pipeline!r}, and this one ends; "
                "see that only one is started"
            ) from None
        self._epoch, self._noted, self._kept = epoch.number, delivered, kept
        self._changed = {
            number: self._changed[number] for number, _ in kept[-self._keep :] if number in self._changed
        }
        return epoch_id(self._generation, epoch.number)

    def delivered(self, number: int) -> None:
        """All sinks have what epochs up to ``number`` gave: it is noted with the next commit, or on close."""
        self._delivered = max(self._delivered, number)

    async def close(self) -> None:
        """Note what was delivered, and let others have the pipeline."""
        try:
            if self._generation and self._delivered > self._noted:
                # If it cannot be noted, it is delivered once more, which changes nothing.
                with contextlib.suppress(CheckpointError, Superseded):
                    await self._note_delivered()
        finally:
            await self._home.close()

    async def _note_delivered(self) -> None:
        noted = Step(
            "update pipelines set delivered = $3 where name = $1 and holder = $2",
            (self._pipeline, self._holder, self._delivered),
            must=True,
        )
        gone = Step(
            "delete from outbox where pipeline = $1 and epoch <= $2", (self._pipeline, self._delivered)
        )
        await self._home.transact([noted, gone])
        self._noted = self._delivered

    # How it is stored

    async def _check_format(self) -> None:
        rows = await self._home.fetch("select format from pipelines where name = $1", self._pipeline)
        if rows and rows[0][0] != FORMAT:
            raise CheckpointError(
                f"the checkpoint of {self._pipeline!r} has format {rows[0][0]}, this version reads {FORMAT}; "
                "use the version that wrote it, or start afresh with another checkpoint"
            )

    async def _current(self) -> tuple[str, int, int, bool]:
        [[generation, epoch, delivered, rewound]] = await self._home.fetch(
            "select generation, epoch, delivered, rewound from pipelines where name = $1", self._pipeline
        )
        newest = await self._home.fetch(
            "select coalesce(max(epoch), 0) from epochs where pipeline = $1", self._pipeline
        )
        if newest[0][0] != epoch:
            raise damaged(self._home.where, f"epoch {epoch} is not there")
        return generation, epoch, delivered, bool(rewound)

    async def _go_back(self, generation: str, epoch: int, delivered: int) -> None:
        after = (self._pipeline, epoch)
        await self._home.transact(
            [
                Step(
                    "update pipelines set generation = $3, epoch = $4, delivered = $5, rewound = 1 "
                    "where name = $1 and holder = $2",
                    (self._pipeline, self._holder, generation, epoch, delivered),
                    must=True,
                ),
                Step("delete from epochs where pipeline = $1 and epoch > $2", after),
                Step(f"delete from items where {_OWN} and epoch > $2", after),  # noqa: S608 - all ours
                Step("delete from outbox where pipeline = $1 and epoch > $2", after),
            ]
        )

    async def _load_changed(self) -> None:
        rows = await self._home.fetch(
            "select epoch, changed from epochs where pipeline = $1 order by epoch desc", self._pipeline
        )
        self._changed = {epoch: self._unpacked(changed) for epoch, changed in rows[: self._keep]}

    def _changes(self, epoch: Epoch) -> _Changed:
        changed: _Changed = {}
        for kind, nodes in ((POSITION, epoch.positions), (STATE, epoch.state)):
            for node, items in nodes.items():
                gone = sorted(key_bytes(key) for key, value in items.items() if value is None)
                # In the order of the table: neighbours are changed together.
                changed[part_id(self._pipeline, kind, node)] = sorted(map(key_bytes, items)), gone
        return changed

    def _additions(self, epoch: Epoch, changed: _Changed) -> Iterator[Action]:
        own, number, pack = self._pipeline, epoch.number, encoding.pack
        row = {
            "pipeline": own,
            "epoch": number,
            "generation": self._generation,
            "committed_us": time.time_ns() // 1000,
            "clean": int(epoch.clean),
            "fingerprint": self._fingerprint,
            "watermarks": pack(epoch.watermarks),
            "changed": pack(changed),
        }
        yield Insert("epochs", tuple(row), [tuple(row.values())])
        for kind, nodes in ((POSITION, epoch.positions), (STATE, epoch.state)):
            for node, items in nodes.items():
                part = part_id(own, kind, node)
                yield Step(
                    "insert into parts (id, pipeline, kind, node) values ($1, $2, $3, $4) "
                    "on conflict (id) do nothing",
                    (part, own, kind, node),
                )
                rows = [
                    (part, key_bytes(key), number, None if value is None else pack(value))
                    for key, value in items.items()
                ]
                yield Insert("items", ("part", "key", "epoch", "value"), sorted(rows, key=itemgetter(1)))
        yield Insert(
            "outbox",
            ("pipeline", "epoch", "generation", "sink", "rows"),
            [
                (own, number, self._generation, sink, pack(list(rows)))
                for sink, rows in epoch.outbox.items()
                if rows
            ],
        )

    def _prunings(self, kept: Sequence[tuple[int, bool]], newest: int) -> Iterator[Action]:
        """For each epoch that can be gone back to no longer: the versions that only it needed."""
        left = sorted({epoch for epoch, _ in self._kept} | {newest})
        for dropped in [epoch for epoch in left if epoch not in dict(kept)]:
            at = left.index(dropped)
            before = left[at - 1] if at else 0
            del left[at]
            after = left[at]
            if after == dropped + 1 and after in self._changed:
                # What the next epoch set anew, it need not have had before.
                for part, (keys, gone) in self._changed[after].items():
                    yield Forget(part, keys, before, dropped)
                    if not before:
                        yield Forget(part, gone, dropped, after)
            else:  # a clean stop of long ago: much may have changed since
                yield Step(_PRUNE_VERSIONS, (self._pipeline, before, dropped, after))
                yield Step(_PRUNE_GONE, (self._pipeline,))
            yield Step("delete from epochs where pipeline = $1 and epoch = $2", (self._pipeline, dropped))


def _kept(epochs: Sequence[tuple[int, bool]], keep: int) -> list[tuple[int, bool]]:
    """Of epochs in order: the last ones, and of the clean ones as many.

    >>> _kept([(1, True), (2, False), (3, False), (4, False)], keep=2)
    [(1, True), (3, False), (4, False)]
    """
    clean = [epoch for epoch, was_clean in epochs if was_clean][-keep:]
    return [entry for at, entry in enumerate(epochs) if at >= len(epochs) - keep or entry[0] in clean]


def _plain(facts: Facts) -> dict[str, dict[str, str]]:
    return {step: dict(said) for step, said in facts.items()}
