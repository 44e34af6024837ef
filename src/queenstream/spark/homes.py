"""Where a run keeps what it needs to go on: Spark's checkpoint, what was fed, the outbox, and which plan it
was.

A folder holds one for each pipeline:

    <checkpoint>/<pipeline>/run.json     the plan's facts, and the generation that tells its deliveries apart
    <checkpoint>/<pipeline>/spark/       Spark's own
    <checkpoint>/<pipeline>/feed/        what was read on the driver
    <checkpoint>/<pipeline>/outbox/      the last batch, until the next one is there
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from queenstream.errors import CheckpointError, ConfigError
from queenstream.pipeline import fingerprints
from queenstream.pipeline.planning import Plan

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://")


@dataclass(frozen=True)
class Home:
    """The places of one run. ``folder`` is None on a file system that is not this machine's."""

    root: str
    folder: Path | None
    generation: str
    temporary: bool = False

    @property
    def spark(self) -> str:
        """Spark's checkpoint."""
        return f"{self.root}/spark"

    def query_name(self, pipeline: str) -> str:
        """What Spark calls the query; without a checkpoint there may be many of one pipeline."""
        return f"{pipeline} {self.generation}" if self.temporary else pipeline

    def feed(self, step: str) -> Path:
        """What a step that reads is fed from."""
        if self.folder is None:
            raise ConfigError(
                f"{step} is read on the driver, and keeps what it read in the checkpoint: give a folder "
                "of this machine, or read a queue"
            )
        return self.folder / "feed" / slug(step)

    @property
    def outbox(self) -> Path | None:
        """Where a batch waits until it is written."""
        if self.folder is None:
            return None
        outbox = self.folder / "outbox"
        outbox.mkdir(parents=True, exist_ok=True)
        return outbox

    def leave(self) -> None:
        """The run is over."""
        if self.temporary:
            shutil.rmtree(self.root, ignore_errors=True)


def slug(name: str) -> str:
    """A name as a file system takes it.

    >>> slug("queue:orders / eu")
    'queue-orders-eu'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "pipeline"


def home_for(spark: SparkSession, plan: Plan, checkpoint: str | None, *, native: bool) -> Home:
    """The home of a plan under a checkpoint folder: the one it has, if its plan is the same, or a new one.

    ``native``: it runs without Python, and so with another kind of state.
    """
    if checkpoint is None:
        folder = Path(tempfile.mkdtemp(prefix="queenstream-"))
        return Home(str(folder), folder, secrets.token_hex(8), temporary=True)
    if checkpoint.startswith(("postgres://", "postgresql://")):
        raise ConfigError(
            "Spark keeps its checkpoints in files; write checkpoint='folder' or 's3a://bucket/folder'"
        )
    remote = _REMOTE.match(checkpoint) and not checkpoint.startswith("file://")
    root = f"{checkpoint.removeprefix('file://').rstrip('/')}/{slug(plan.name)}"
    files = _Remote(spark, root) if remote else _Local(Path(root))
    told = _known(files, root)
    if told is None:
        told = {"pipeline": plan.name, "generation": secrets.token_hex(8), "native": native}
        told["facts"] = _facts(plan)
        files.write(json.dumps(told))
        return Home(root, None if remote else Path(root).absolute(), told["generation"])
    _refuse_changed(plan, root, told["facts"])
    if told["native"] != native:
        raise CheckpointError(
            f"the checkpoint {root} is of a plan {_kind(told['native'])}, and this one is {_kind(native)}: "
            "their state is not the same; undo that, or take another checkpoint folder to begin anew"
        )
    return Home(root, None if remote else Path(root).absolute(), told["generation"])


def _kind(native: bool) -> str:
    return "of expressions alone" if native else "with functions in it"


def _facts(plan: Plan) -> dict[str, dict[str, str]]:
    return {step: dict(facts) for step, facts in plan.state.items()}


def _known(files: _Local | _Remote, root: str) -> dict[str, Any] | None:
    text = files.read()
    if text is None:
        return None
    try:
        told = json.loads(text)
        if isinstance(told, dict) and {"generation", "facts", "native"} <= told.keys():
            return told
    except ValueError:
        pass
    raise CheckpointError(
        f"{root}/run.json is damaged; put a copy back, or take another checkpoint folder to begin anew"
    )


def _refuse_changed(plan: Plan, root: str, stored: fingerprints.Facts) -> None:
    """Spark's state goes by the place of a step in the query: any difference there is one too many."""
    changes = [each for each in fingerprints.compare(stored, plan.state) if each.verdict != "kept"]
    if changes:
        told = "; ".join(f"{each.step} ({each.verdict}): {each.why}" for each in changes)
        raise CheckpointError(
            f"the checkpoint {root} is of another plan: {told}; undo that, or take another checkpoint folder "
            "to begin anew"
        )


class _Local:
    def __init__(self, root: Path) -> None:
        self._path = root / "run.json"

    def read(self) -> str | None:
        return self._path.read_text() if self._path.exists() else None

    def write(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        hidden = self._path.with_suffix(".new")
        hidden.write_text(text)
        hidden.rename(self._path)


class _Remote:
    """Through Hadoop, which knows the file systems that Spark knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path(f"{root}/run.json")
        self._files = self._path.getFileSystem(spark._jsc.hadoopConfiguration())
        self._io = jvm.org.apache.commons.io.IOUtils

    def read(self) -> str | None:
        if not self._files.exists(self._path):
            return None
        stream = self._files.open(self._path)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, text: str) -> None:
        stream = self._files.create(self._path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
