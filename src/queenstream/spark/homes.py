"""Where a run keeps what it needs to go on: Spark's checkpoint, what was fed, what is on its way to
the sinks, and which plan it was.

A folder holds one for each pipeline:

    <checkpoint>/<pipeline>/run.json     the plan's facts, the id of the checkpoint, and the generation
                                         that tells its deliveries apart
    <checkpoint>/<pipeline>/lock         held by the run that is at work there
    <checkpoint>/<pipeline>/spark/       Spark's own
    <checkpoint>/<pipeline>/feed/        what was read on the driver
    <checkpoint>/<pipeline>/prepared/    the rows of the last batch, until the next one is there
    <checkpoint>/<pipeline>/watermarks.json  how far each source's event time is, if one of them may be idle
    <checkpoint>/<pipeline>/rewound/     what came after the batch that a run went back to
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from queenstream.errors import CheckpointError, ConfigError
from queenstream.pipeline import fingerprints
from queenstream.pipeline.planning import Plan
from queenstream.spark import rewinding

if TYPE_CHECKING:
    from queenstream.spark.native.frames import Clock

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://")
_LAYOUTS = {True: 4, False: 5}
"""What is kept of plans without Python, and of the others: more by one whenever that changes."""


@dataclass(frozen=True)
class Home:
    """The places of one run. ``folder`` is None on a file system that is not this machine's.

    ``generation`` tells the batches of the query from others of their numbers: it is new when a run goes
    back. ``checkpoint_id`` stays. ``fresh``: the query has not begun its first batch.
    """

    root: str
    folder: Path | None
    generation: str
    checkpoint_id: str = ""
    fresh: bool = True
    temporary: bool = False
    lock: Lock | None = field(default=None, compare=False)

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

    def leave(self) -> None:
        """The run is over."""
        if self.temporary:
            shutil.rmtree(self.root, ignore_errors=True)
        if self.lock is not None:
            self.lock.release()


class Lock:
    """What keeps a second run out of a folder; it ends with the process, however that ends."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = (root / "lock").open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another run"
            self._file.close()
            raise CheckpointError(
                f"the checkpoint {root} is in use by {holder}; stop that run, or take another folder"
            ) from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let others have it."""
        self._file.close()


def slug(name: str) -> str:
    """A name as a file system takes it.

    >>> slug("queue:orders / eu")
    'queue-orders-eu'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "pipeline"


def home_for(
    spark: SparkSession,
    plan: Plan,
    checkpoint: str | None,
    from_checkpoint: str | None = None,
    *,
    native: bool,
    clock: Clock | None = None,
) -> Home:
    """The home of a plan under a checkpoint folder: the one it has, if its plan is the same, or a new one.

    ``from_checkpoint``: the batch to go back to. ``native``: it runs without Python, and so with another
    kind of state; ``clock``: what the watermark is of, then.
    """
    if checkpoint is None:
        master = str(spark.sparkContext.master)
        if not master.startswith("local"):
            raise ConfigError(
                f"a run on {master} keeps the rows of a batch where the driver and all executors find them; "
                "write checkpoint='s3a://bucket/folder', or a folder that they share"
            )
        folder = Path(tempfile.mkdtemp(prefix="queenstream-"))
        return Home(str(folder), folder, secrets.token_hex(8), temporary=True)
    if checkpoint.startswith(("postgres://", "postgresql://")):
        raise ConfigError(
            "Spark keeps its checkpoints in files; write checkpoint='folder' or 's3a://bucket/folder'"
        )
    if _REMOTE.match(checkpoint) and not checkpoint.startswith("file://"):
        if from_checkpoint is not None:
            raise ConfigError(
                f"only a checkpoint on this machine can be gone back in; copy {checkpoint} into a folder, "
                "run with that and from_checkpoint until it is caught up, and copy it back"
            )
        root = f"{checkpoint.rstrip('/')}/{slug(plan.name)}"
        remote = _Remote(spark, root)
        told = _told(remote, root, plan, native=native, clock=clock)
        return Home(root, None, told["generation"], told["checkpoint_id"], not remote.has_batches())
    root = f"{checkpoint.removeprefix('file://').rstrip('/')}/{slug(plan.name)}"
    folder = Path(root).absolute()
    files = _Local(folder)
    if from_checkpoint is not None and files.read() is None:
        raise _unknown(plan.name, checkpoint)
    lock = Lock(folder)
    try:
        told = _told(files, root, plan, native=native, clock=clock)
        if from_checkpoint is not None:
            told = _going_back(files, folder, plan.name, told, from_checkpoint)
        told = _gone_back(files, folder, told)
    except BaseException:
        lock.release()
        raise
    fresh = not files.has_batches()
    return Home(root, folder, told["generation"], told["checkpoint_id"], fresh, lock=lock)


def _told(
    files: _Local | _Remote, root: str, plan: Plan, *, native: bool, clock: Clock | None
) -> dict[str, Any]:
    """What is known of the runs before, which must have had the same plan; made, if this is the first."""
    told = _known(files, root)
    if told is None:
        generation = secrets.token_hex(8)
        told = {
            "pipeline": plan.name,
            "generation": generation,
            "checkpoint_id": generation,
            "native": native,
        }
        told |= {"facts": _facts(plan), "clock": None if clock is None else asdict(clock)}
        told["layout"] = _LAYOUTS[native]
        files.write(json.dumps(told))
        return told
    _refuse_changed(plan, root, told["facts"])
    if told["native"] != native:
        raise CheckpointError(
            f"the checkpoint {root} is of a plan {_kind(told['native'])}, and this one is {_kind(native)}: "
            "their state is not the same; undo that, or take another checkpoint folder to begin anew"
        )
    if told.get("layout", 1) != _LAYOUTS[native]:
        raise CheckpointError(
            f"the checkpoint {root} was written by another version of queenstream, which kept its state in "
            "another way; go on with that version, or take another checkpoint folder to begin anew"
        )
    if not files.has_batches():
        # Spark's folder may have been deleted, and then the sinks know other batches of these numbers.
        files.forget_prepared()
        told["generation"] = secrets.token_hex(8)
        files.write(json.dumps(told))
    return told


def _going_back(files: _Local, folder: Path, pipeline: str, told: dict[str, Any], to: str) -> dict[str, Any]:
    """Write down that what came after a batch is void: from then on it is, whatever happens."""
    done = sorted(
        int(each.name) for each in (folder / "spark" / "commits").glob("*") if each.name.isdecimal()
    )
    if not done:
        raise _unknown(pipeline, str(folder.parent))
    if not to.isdecimal() or int(to) not in done:
        ids = ", ".join(str(each) for each in reversed(done))
        raise CheckpointError(f"there is no checkpoint {to!r} of {pipeline!r}; name one of {ids}")
    if int(to) == done[-1]:
        return told  # where it goes on anyway
    rewinding.check(folder, int(to))
    told = {**told, "rewind": {"to": int(to), "generation": secrets.token_hex(8)}}
    files.write(json.dumps(told))
    return told


def _gone_back(files: _Local, folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """Do what was written down. A new generation: the sinks have seen batches of these numbers before."""
    rewind = told.get("rewind")
    if rewind is None:
        return told
    rewinding.take_back(folder, rewind["to"], rewind["generation"])
    told = {name: value for name, value in told.items() if name != "rewind"}
    told["generation"] = rewind["generation"]
    files.write(json.dumps(told))
    return told


def _unknown(pipeline: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"there is no checkpoint of {pipeline!r} in {where}; run the pipeline once, or check its name and "
        "the place"
    )


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
            return {"checkpoint_id": told["generation"], **told}  # which earlier versions did not write
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
        with hidden.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(self._path)

    def has_batches(self) -> bool:
        """Whether Spark has begun a batch."""
        return any(each.name.isdecimal() for each in (self._path.parent / "spark" / "offsets").glob("*"))

    def forget_prepared(self) -> None:
        """Delete what is prepared for batches that are not there."""
        shutil.rmtree(self._path.parent / "prepared", ignore_errors=True)


class _Remote:
    """Through Hadoop, which knows the file systems that Spark knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._root = root
        self._to_path = jvm.org.apache.hadoop.fs.Path
        self._path = self._to_path(f"{root}/run.json")
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

    def has_batches(self) -> bool:
        """As of a local folder."""
        offsets = self._to_path(f"{self._root}/spark/offsets")
        if not self._files.exists(offsets):
            return False
        return any(each.getPath().getName().isdecimal() for each in self._files.listStatus(offsets))

    def forget_prepared(self) -> None:
        """As of a local folder."""
        self._files.delete(self._to_path(f"{self._root}/prepared"), True)
