"""A Spark session with settings that suit us, on a laptop and on a cluster.

from queenstream.spark import session

spark = session("orders")                                    # local[*]
spark = session("orders", "spark://head:7077", "s3a://…")    # a cluster
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

import queenstream
from queenstream.engines.spark.datasource import register
from queenstream.engines.spark.session import gateway, java
from queenstream.engines.spark.session.executors import cores_of
from queenstream.engines.spark.session.jars import kafka_jars
from queenstream.errors import ConfigError

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # A plan shows the options of its sources: not these.
    "spark.sql.redaction.options.regex": "(?i)url|^pg$|token|password|secret|jaas|ssl[.]",
}
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_CHOSEN_PARTITIONS = "spark.queenstream.shufflePartitions"  # what they are if not the user has chosen them
_REDACTED = "spark.sql.redaction.options.regex"
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "queenstream.engines.spark.session.daemon",  # Arrow is loaded
}
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
logger.state.name = org.apache.spark.sql.execution.python.streaming
logger.state.level = error
"""
_GIB = 1 << 30
_TRIES = 4  # of a task; Spark's own number for clusters
_LOCAL_MASTER = re.compile(r"local(\[(?P<cores>\d+|\*)(,\s*(?P<tries>\d+))?\])?$")


def session(
    name: str,
    master: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one, with ``format("queen")`` registered.

    ``master`` is ``local[*]`` unless given (or ``spark.master`` in ``conf``, or ``spark-submit --master``).
    ``checkpoint`` is the folder in which queries without one of their own keep theirs. ``conf`` goes over
    every setting here. A running session keeps what it has set, except for what is given here.

    >>> spark = session("orders", conf={"spark.ui.enabled": "true"})  # doctest: +SKIP
    >>> spark.readStream.format("queen").option("queue", "orders").load()  # doctest: +SKIP
    DataFrame[data: variant, id: bigint, partition: string, …]
    """
    given = dict(conf or {})
    configured = given.pop("spark.master", None)
    chosen = _master(master or configured)
    if checkpoint is not None:
        given["spark.sql.streaming.checkpointLocation"] = os.fspath(checkpoint)
    spark = running_session()
    if spark is None:
        spark = _started(name, chosen, given)
        known = given
    else:
        known = spark.conf.getAll | given
        ours = {key: value for key, value in _EVERYWHERE.items() if key.startswith("spark.sql.")}
        _apply(spark, {**{key: ours[key] for key in ours.keys() - known.keys()}, **given})
    if _SHUFFLE_PARTITIONS not in known:
        # A shuffle of small batches costs by the partition; a stateful query keeps the number it began with.
        partitions = str(max(2, cores_of(spark)))
        spark.conf.set(_SHUFFLE_PARTITIONS, partitions)
        spark.conf.set(_CHOSEN_PARTITIONS, partitions)
    register(spark)
    return spark


def query_session(name: str, master: str | None = None, partitions: int | None = None) -> SparkSession:
    """A session for one query: a copy of the running session, or of a new one, with our settings.

    Nothing is changed in the session that it is a copy of. The copy has its own settings and temporary views.
    ``partitions``: of its shuffles; None: those that the user has set, or as many as cores.

    >>> query_session("orders").conf.get("spark.sql.session.timeZone")  # doctest: +SKIP
    'UTC'
    """
    running = running_session()
    if running is None:
        running = session(name, master)
    else:
        _master(master)
    settings = running.conf.getAll
    ours = {key: value for key, value in _EVERYWHERE.items() if key.startswith("spark.sql.")}
    redacted = settings.get(_REDACTED, ours[_REDACTED])
    if redacted != ours[_REDACTED]:
        ours[_REDACTED] = f"(?:{redacted})|(?:{ours[_REDACTED]})"
    if partitions is not None:
        ours[_SHUFFLE_PARTITIONS] = str(partitions)
    elif settings.get(_SHUFFLE_PARTITIONS) == settings.get(_CHOSEN_PARTITIONS):  # or the user has set neither
        ours[_SHUFFLE_PARTITIONS] = str(max(2, cores_of(running)))
    spark = running.newSession()
    _apply(spark, {**settings, **ours})
    register(spark)
    return spark


def _apply(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Change the settings of a session, as far as they are not the same for all sessions of a process."""
    of_java: Any = spark
    module = of_java._get_j_spark_session_module(of_java._jvm)
    module.applyModifiableSettings(of_java._jsparkSession, dict(settings))


def running_session() -> SparkSession | None:
    """The session of this process that is active in this thread, or else its first; None: it has none."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    first: Any = SparkSession._instantiatedSession
    return None if first is None or first.sparkContext._jsc is None else first


def _master(asked: str | None) -> str:
    """The master of a session; ``ConfigError`` if the running session has another one."""
    chosen = _retrying(asked or _submitted() or "local[*]")
    running = running_session()
    if running is not None and asked and _retrying(str(running.sparkContext.master)) != chosen:
        raise ConfigError(
            f"a session on {running.sparkContext.master} runs in this process; stop it before one on {chosen}"
        )
    return chosen


def _started(name: str, master: str, given: dict[str, str]) -> SparkSession:
    """A new session, and its JVM."""
    local = _LOCAL_MASTER.match(master) is not None
    settings = {**_EVERYWHERE, **(_LOCAL if local else {})}
    given["spark.driver.extraJavaOptions"] = _prepare_java(name, given)
    settings["spark.jars"] = ",".join(map(str, kafka_jars()))
    if master.startswith("local"):  # local-cluster, too
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise any python3 on the path
    if local:
        settings["spark.driver.memory"] = _driver_memory()
        settings["spark.sql.warehouse.dir"] = str(_folder() / "warehouse")
    settings |= given
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    home = _home(given) if local else None
    packed = None if local else package(_folder())
    with _told("SPARK_HOME", home), _told("PYTHONPATH", None if packed is None else _before(packed)):
        gateway.start({**settings, "spark.app.name": name, "spark.master": master})
        spark = builder.getOrCreate()
    if packed is not None:
        spark.sparkContext.addPyFile(str(packed))
    return spark


def _retrying(master: str) -> str:
    """A master of this machine that runs a failed task again, as any cluster does; by itself it would not.

    >>> _retrying("local[2]"), _retrying("spark://head:7077")
    ('local[2,4]', 'spark://head:7077')
    """
    found = _LOCAL_MASTER.match(master)
    if found is None or found["tries"] is not None:
        return master
    return f"local[{found['cores'] or 1},{_TRIES}]"


def _submitted() -> str | None:
    """The master that ``spark-submit`` was told, if that has started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master", None)


def _before(packed: Path) -> str:
    """The path that the JVM hands on to the Python processes here in which Spark asks a data source.

    They run the executors' Python, and our package may not be installed there. Executors get it with their
    tasks.
    """
    more = os.environ.get("PYTHONPATH")
    return f"{packed}{os.pathsep}{more}" if more else str(packed)


def _home(given: Mapping[str, str]) -> str | None:
    """A home of Spark without the zip that pyspark is in once more.

    Spark puts that zip before what is installed, and nothing in it is compiled: every Python process that it
    starts would compile pyspark anew, which takes longer than most batches. None where somebody else has said
    which Spark or which Python.
    """
    elsewhere = {"SPARK_HOME", "PYSPARK_GATEWAY_PORT"} & os.environ.keys()
    ours = os.environ.get("PYSPARK_PYTHON") == sys.executable and "spark.pyspark.python" not in given
    if elsewhere or not ours:
        return None
    installed = Path(pyspark.__file__).parent
    home = _folder() / f"home-{zlib.crc32(os.fsencode(installed)):08x}"
    home.mkdir(exist_ok=True)
    for each in installed.iterdir():
        if each.name != "python":
            with contextlib.suppress(FileExistsError):
                (home / each.name).symlink_to(each)
    return str(home)


@contextlib.contextmanager
def _told(name: str, value: str | None) -> Iterator[None]:
    """A variable for the JVM that is started meanwhile; None leaves it as it is."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        elif value is not None:
            del os.environ[name]


def log_file(name: str) -> Path:
    """Where the JVM of the session of this name writes its log.

    >>> log_file("orders").name
    'orders.log'
    """
    return _folder() / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name) or 'spark'}.log"


def _prepare_java(name: str, given: Mapping[str, str]) -> str:
    """Say which Java, and give its options: where the log goes, before what the user wants to tell it."""
    folder = _folder()
    home = java.launchable(java.find(os.environ, java.wheel_home()), folder)
    os.environ["JAVA_HOME"] = str(home)
    properties = folder / f"{log_file(name).stem}.log4j2.properties"
    properties.write_text(_LOG4J.format(file=log_file(name)))
    more = given.get("spark.driver.extraJavaOptions", "")
    return f"-Dlog4j2.configurationFile={properties.as_uri()} {more}".strip()


def _driver_memory() -> str:
    """A quarter of the machine's, from 1 to 8 GiB: PostgreSQL and the Python workers want some, too."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{min(8, max(1, total // 4 // _GIB))}g"


def _folder() -> Path:
    """For what a session needs on the disk: small, and made again when it is gone."""
    folder = Path(tempfile.gettempdir()) / f"queenstream-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(
            f"{folder} belongs to somebody else; remove it, or set TMPDIR to a folder of your own"
        )
    return folder


def package(folder: Path) -> Path:
    """Our own package as a zip, for the executors."""
    root = Path(queenstream.__file__).parent
    packed = folder / f"queenstream-{os.getpid()}.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(root.parent))
    return packed
