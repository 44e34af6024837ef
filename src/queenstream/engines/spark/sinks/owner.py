"""Which run owns a checkpoint. Each run takes it over from the one before, which must then write nothing.

A folder of this machine has a lock as well. A lock does not reach other machines, and it does not stop a
driver that was paused, lost its place and wakes up. So a run takes the next *owner epoch*, a file that is
created only if it is not there:

    owners/0000000007     {"token": "…", "name": "process 123 on host-a, started 2026-01-31T12:00:00Z"}

The run with the highest epoch is the owner. A run looks before it prepares or commits a batch, and ends with
``OwnershipLost`` if there is a newer one. Sinks with transactions check it themselves, in the transaction
that stores a batch: the new owner claims them before it does anything else.
"""

from __future__ import annotations

import os
import secrets
import socket
from datetime import UTC, datetime

import msgspec

from queenstream.engines.spark.sinks.storage import SmallFiles
from queenstream.errors import OwnershipLost

_FOLDER = "owners"


class Owner(msgspec.Struct, frozen=True):
    """A run as the owner of a checkpoint.

    ``token`` tells apart two runs of one epoch, which there are when a checkpoint was copied.
    """

    epoch: int
    token: str
    name: str


class _File(msgspec.Struct):
    token: str
    name: str


def take_ownership(storage: SmallFiles) -> Owner:
    """Become the owner of a checkpoint. The owner before it can commit nothing from here on."""
    name = f"process {os.getpid()} on {socket.gethostname()}, started {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    while True:
        last = _last_epoch(storage)
        owner = Owner(last + 1, secrets.token_hex(8), name)
        data = msgspec.json.encode(_File(owner.token, owner.name))
        path = _path(owner.epoch)
        # Not every object store creates a file only if it is not there: the one that is read back has won.
        if storage.create_new(path, data) and storage.read(path) == data:
            for epoch in _epochs(storage):
                if epoch < last:
                    storage.delete(_path(epoch))
            return owner


def check_ownership(storage: SmallFiles, owner: Owner) -> None:
    """Raise ``OwnershipLost`` if another run has taken the checkpoint over."""
    last = _last_epoch(storage)
    if last == owner.epoch:
        return
    raise OwnershipLost(taken_over(f"the checkpoint {storage.root}", _name(storage, last)))


def taken_over(what: str, by: str) -> str:
    """The message of ``OwnershipLost``: what was taken over, and by which run."""
    return (
        f"{by} has taken over {what}, so this run ends without writing more; "
        "keep one of the two runs, and give the other a checkpoint folder of its own"
    )


def _path(epoch: int) -> str:
    return f"{_FOLDER}/{epoch:010}"


def _epochs(storage: SmallFiles) -> list[int]:
    return [int(name) for name in storage.names(_FOLDER) if name.isdecimal()]


def _last_epoch(storage: SmallFiles) -> int:
    return max(_epochs(storage), default=0)


def _name(storage: SmallFiles, epoch: int) -> str:
    try:
        return msgspec.json.decode(storage.read(_path(epoch)) or b"", type=_File).name
    except msgspec.MsgspecError:
        return "another run"
