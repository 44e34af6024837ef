"""How often the server of a data folder was restarted after a crash, kept in the folder for all processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from queenstream.postgres import _folder
from queenstream.postgres._account import Account

_FILE = "queenstream.restarts.json"


@dataclass(frozen=True)
class Restarts:
    """Restarts since ``start`` started the server; ``under_way``: it is down and being started again.

    >>> Restarts(count=2).count
    2
    """

    count: int = 0
    under_way: bool = False


def read(data: Path) -> Restarts:
    """What is noted in a data folder; none when nothing is, or it cannot be read."""
    try:
        noted = json.loads((data / _FILE).read_text())
        return Restarts(int(noted["count"]), bool(noted["under_way"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Restarts()


def note(data: Path, restarts: Restarts, account: Account) -> None:
    """Note restarts in a data folder. The caller holds its lock."""
    _folder.write(data / _FILE, json.dumps(asdict(restarts)), account)
