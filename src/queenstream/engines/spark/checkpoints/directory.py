"""Where a run keeps what it needs to go on: Spark's checkpoint, what was fed, what is on its way to
the sinks, and which plan it was.

A folder holds one for each pipeline:

    <checkpoint>/<pipeline>/run.json     the plan's facts, the id of the checkpoint, and the generation
                                         that tells its deliveries apart
    <checkpoint>/<pipeline>/state.json   the columns of state without Python
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from queenstream.engines.spark.checkpoints import rewind as rewinding
from queenstream.engines.spark.maintenance.changes import Layout, changes_between, chosen, refuse, restored
from queenstream.engines.spark.maintenance.positions import checkpoint_id_of, positions_of
from queenstream.engines.spark.maintenance.savepoint import is_of_spark, is_savepoint, restore
from queenstream.errors import CheckpointError, ConfigError
from queenstream.pipeline.plan.planner import Plan

if TYPE_CHECKING:
    from queenstream.engines.spark.native.frames import Clock

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://")
_LAYOUTS = {True: 4, False: 5}
"""What is kept of plans without Python, and of the others: more by one whenever that changes."""


@dataclass(frozen=True)
class Home:
    """The places of one run. ``folder`` is None on a file system that is not this machine's.

    ``generation`` tells the batches of the query from others of their numbers: it is new when a run goes
    back. ``checkpoint_id`` stays. ``fresh``: the query has not begun its first batch. ``native``: the run is
    without Python. ``stored``: the layout of the run before, which ``accept`` replaces by that of this run.
    ``positions``: where the sources were by a savepoint of the local engine, until Spark has begun.
    """

    root: str
    folder: Path | None
    generation: str
    checkpoint_id: str = ""
    fresh: bool = True
    temporary: bool = False
    lock: Lock | None = field(default=None, compare=False)
    native: bool = False
    stored: Layout | None = field(default=None, compare=False)
    positions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    accept: Callable[[], None] = field(default=lambda: None, compare=False)

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
    layouts: tuple[Layout, Layout],
    clock: Clock | None = None,
) -> Home:
    """The home of a plan under a checkpoint folder: the one it has, if the plan can use it, or a new one.

    ``from_checkpoint``: the batch to go back to, or a savepoint. ``layouts``: of the query, and of the
    same query in Python, if it has to go on with that. ``clock``: what the watermark is of without Python.
    """
    if checkpoint is None:
        master = str(spark.sparkContext.master)
        if not master.startswith("local"):
            raise ConfigError(
                f"a run on {master} keeps the rows of a batch where the driver and all executors find them; "
                "write checkpoint='s3a://bucket/folder', or a folder that they share"
            )
        folder = Path(tempfile.mkdtemp(prefix="queenstream-"))
        return Home(str(folder), folder, secrets.token_hex(8), temporary=True, native=layouts[0].native)
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
        return _home(remote, root, None, _known(remote, root), plan, layouts, clock)
    root = f"{checkpoint.removeprefix('file://').rstrip('/')}/{slug(plan.name)}"
    folder = Path(root).absolute()
    files = _Local(folder)
    savepoint = from_checkpoint if from_checkpoint is not None and is_savepoint(from_checkpoint) else None
    if savepoint is not None:
        from_checkpoint = None
    if from_checkpoint is not None and files.read() is None:
        raise _unknown(plan.name, checkpoint)
    lock = Lock(folder)
    try:
        begun: dict[str, Any] = {}
        if savepoint is not None and is_of_spark(savepoint):
            restore(savepoint, folder)
        elif savepoint is not None:
            if files.read() is not None:
                raise CheckpointError(f"{folder} has a checkpoint already; take another checkpoint folder")
            saved = Path(savepoint.removeprefix("file://"))
            begun = {"positions": positions_of(saved, plan), "checkpoint_id": checkpoint_id_of(saved)}
        told = _known(files, root)
        home = _home(files, root, folder, told, plan, layouts, clock, begun)
        if told is not None and from_checkpoint is not None:
            told = _going_back(files, folder, plan.name, told, from_checkpoint)
        if told is not None and "rewind" in told:
            _gone_back(files, folder, told)
            home = _home(files, root, folder, _known(files, root), plan, layouts, clock)
    except BaseException:
        lock.release()
        raise
    return replace(home, lock=lock)


def stored_layout(spark: SparkSession, checkpoint: str, pipeline: str) -> Layout:
    """The layout of the last run of a pipeline in a checkpoint folder."""
    files, root = _files_of(spark, checkpoint, pipeline)
    told = _known(files, root)
    if told is None:
        raise _unknown(pipeline, checkpoint)
    return restored(told)


def root_of(checkpoint: str, pipeline: str) -> str:
    """The folder of a pipeline in a checkpoint folder."""
    return f"{checkpoint.removeprefix('file://').rstrip('/')}/{slug(pipeline)}"


def _files_of(spark: SparkSession, checkpoint: str, pipeline: str) -> tuple[_Local | _Remote, str]:
    root = root_of(checkpoint, pipeline)
    return _Remote(spark, root) if _REMOTE.match(root) else _Local(Path(root).absolute()), root


@contextmanager
def reserved(spark: SparkSession, checkpoint: str, pipeline: str) -> Iterator[str]:
    """Keep runs out of the checkpoint of a pipeline, which must be there; gives its path.

    Only a folder of this machine has a lock: on other file systems, take the ownership as well.
    """
    files, root = _files_of(spark, checkpoint, pipeline)
    told = _known(files, root)
    if told is None:
        raise _unknown(pipeline, checkpoint)
    lock = Lock(Path(root)) if isinstance(files, _Local) else None
    try:
        if "rewind" in told:
            raise CheckpointError(
                f"the checkpoint {root} is going back to an older batch; run the pipeline once first"
            )
        yield root
    finally:
        if lock is not None:
            lock.release()


def _home(
    files: _Local | _Remote,
    root: str,
    folder: Path | None,
    told: dict[str, Any] | None,
    plan: Plan,
    layouts: tuple[Layout, Layout],
    clock: Clock | None,
    begun: Mapping[str, Any] | None = None,
) -> Home:
    """A home whose runs before, if there were any, had a plan that this one can go on from."""
    stored = None if told is None else restored(told)
    layout = chosen(stored, *layouts)
    if told is not None and stored is not None:
        if told.get("layout", 1) != _LAYOUTS[stored.native]:
            raise CheckpointError(
                f"the checkpoint {root} was written by another version of queenstream, which kept its state "
                "in another way; go on with that version, or take another checkpoint folder to begin anew"
            )
        refuse(changes_between(stored, layout), root, plan)
    fresh = not files.has_batches()
    generation = secrets.token_hex(8)
    if told is None:
        now = {"pipeline": plan.name, "generation": generation, "checkpoint_id": generation, **(begun or {})}
    elif fresh:
        # Spark's folder may have been deleted, and then the sinks know other batches of these numbers.
        files.forget_prepared()
        now = {**told, "generation": generation}
    else:
        now = told
    now = now | layout.stored() | {"layout": _LAYOUTS[layout.native]}
    now["clock"] = None if clock is None or not layout.native else asdict(clock)

    def accept() -> None:
        if now != told:
            files.write(json.dumps(now))

    if told is None:
        accept()
    return Home(
        root,
        folder,
        now["generation"],
        now["checkpoint_id"],
        fresh,
        native=layout.native,
        stored=stored,
        positions=now.get("positions", {}) if fresh else {},
        accept=accept,
    )


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


def _gone_back(files: _Local, folder: Path, told: dict[str, Any]) -> None:
    """Do what was written down. A new generation: the sinks have seen batches of these numbers before."""
    rewind = told["rewind"]
    rewinding.take_back(folder, rewind["to"], rewind["generation"])
    told = {name: value for name, value in told.items() if name != "rewind"}
    told["generation"] = rewind["generation"]
    files.write(json.dumps(told))


def _unknown(pipeline: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"there is no checkpoint of {pipeline!r} in {where}; run the pipeline once, or check its name and "
        "the place"
    )


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
