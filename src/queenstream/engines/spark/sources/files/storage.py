"""Small files and listings, on this machine and on every file system that Hadoop knows."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from pyspark.sql import SparkSession

from queenstream.connectors.files.files import files_at

_UNUSUAL = frozenset("%?#:\\ ")


class Found(NamedTuple):
    """A file: its URI as Spark writes it, its size, and the second when it was placed there."""

    uri: str
    size: int
    seconds: int


class Storage(Protocol):
    """Where a manifest lies, and where the files are looked for."""

    def read(self, path: str) -> bytes | None:
        """What is in a file; None: there is none."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Place a file, whole or not at all, over one that is there."""
        ...

    def find(self, place: str) -> list[Found] | None:
        """The files at a path or that a pattern finds, by name; None: there is nothing."""
        ...

    def uri(self, path: str) -> str:
        """What Spark calls a file."""
        ...


class LocalStorage:
    """This machine, or what is mounted there."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        final = Path(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        hidden = final.with_name(f".{final.name}.new")
        with hidden.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(final)

    def find(self, place: str) -> list[Found] | None:
        files = files_at(place)
        if files is None:
            return None
        found = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # it went away meanwhile
                stat = file.stat()
                found.append(Found(self.uri(str(file)), stat.st_size, int(stat.st_mtime)))
        return found

    def uri(self, path: str) -> str:
        whole = os.path.abspath(path)  # noqa: PTH100 - a link stays one, as for Spark
        if whole.isascii() and not _UNUSUAL & set(whole) and whole.isprintable():
            return f"file:{whole}"  # asked of Java, each would take a millisecond
        return _hadoop_uri(self._spark, f"file:{whole}")


class RemoteStorage:
    """Whatever Hadoop knows, with the settings of the session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def _path(self, path: str) -> tuple[Any, Any]:
        found = self._jvm.org.apache.hadoop.fs.Path(path)
        return found, found.getFileSystem(self._conf)

    def read(self, path: str) -> bytes | None:
        where, files = self._path(path)
        if not files.exists(where):
            return None
        stream = files.open(where)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        final, files = self._path(path)
        hidden = self._jvm.org.apache.hadoop.fs.Path(final.getParent(), f".{final.getName()}.new")
        stream = files.create(hidden, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(final.toUri(), self._conf)
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        ways = self._spark.sparkContext._gateway.new_array(rename, 1)  # type: ignore[union-attr]
        ways[0] = rename.OVERWRITE
        context.rename(hidden, final, ways)

    def find(self, place: str) -> list[Found] | None:
        where, files = self._path(place)
        listed: Any
        is_pattern = glob.has_magic(place) or "{" in place
        if not is_pattern:
            if not files.exists(where):
                return None
            listed = files.listStatus(where)
        else:
            listed = files.globStatus(where)
        found = [
            Found(each.getPath().toUri().toString(), each.getLen(), each.getModificationTime() // 1_000)
            for each in listed or ()
            if each.isFile() and each.getPath().getName()[0] not in "._"
        ]
        return None if is_pattern and not found else sorted(found)

    def uri(self, path: str) -> str:
        return _hadoop_uri(self._spark, path)


def _hadoop_uri(spark: SparkSession, path: str) -> str:
    jvm: Any = spark._jvm
    return str(jvm.org.apache.hadoop.fs.Path(path).toUri().toString())


def local_path(uri: str) -> Path | None:
    """The path of a file of this machine; None: it is elsewhere.

    >>> local_path("file:/in/a%20b.csv"), local_path("s3a://bucket/a.csv")
    (PosixPath('/in/a b.csv'), None)
    """
    scheme, _, rest = uri.partition(":")
    return Path(unquote(rest if not rest.startswith("//") else rest[2:])) if scheme == "file" else None
