"""Other releases of Queenstream to run beside this one: the previous one from git, and a made-up next one."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from queenstream.broker.storage import sql

ROOT = Path(__file__).parents[2]
MARKER = Path(__file__).with_name("previous_release")


def previous_release(place: Path) -> Path:
    """Put the sources of the previous release in a folder: as the file of that name says."""
    revision = MARKER.read_text().strip()
    # Whoever owns the clone: CI may run as another user.
    argv = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "archive", revision, "src"]
    archived = subprocess.run(argv, capture_output=True, check=False)
    if archived.returncode != 0:
        pytest.fail(
            f"the previous release, {revision} ({MARKER.name}), is not in this clone; "
            f"fetch it: git fetch --unshallow --tags. git said: {archived.stderr.decode().strip()}"
        )
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(place, filter="data")
    return place / "src"


def next_release(place: Path) -> Path:
    """This release with other functions and one more migration, which this release can work with."""
    package = place / "src" / "queenstream"
    shutil.copytree(
        ROOT / "src" / "queenstream", package, ignore=shutil.ignore_patterns("__pycache__", "static")
    )
    texts = package / "broker" / "storage" / "sql"
    newest = sql.MIGRATIONS[-1].number
    (texts / "migrations" / f"{newest + 1:04}_next.sql").write_text(
        f"-- compatible from: {newest}\n"
        "alter table queen.messages add column of_the_next_release integer;\n"
        "alter table queen.cursors add column of_the_next_release integer;\n"
        "alter table queen.queues add column of_the_next_release integer;\n"
    )
    push = texts / "functions" / "push.sql"
    push.write_text(push.read_text() + "\n-- another text, and so another set of functions\n")
    return package.parent
