"""Where a run keeps what is on its way to the sinks: a folder of this machine, or a path that Hadoop knows.

Tasks write and read files of a folder themselves. Python in a task does not know Hadoop's file systems: there
Spark carries the files, as rows with pieces of them (``pieces.py``), and the driver writes the small ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from queenstream.engines.spark.sources.files.storage import RemoteStorage

_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+://")


class SmallFiles(Protocol):
    """What the driver keeps of a batch."""

    @property
    def root(self) -> str:
        """The path that all others are below."""
        ...

    def read(self, path: str) -> bytes | None:
        """What is in a file; None: there is none."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Place a file, whole or not at all. It is durable when this returns."""
        ...

    def create_new(self, path: str, data: bytes) -> bool:
        """Create a file; False if it is there already."""
        ...

    def names(self, path: str) -> list[str]:
        """The names of the files and folders in a folder; none if there is no such folder."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder and all that is in it, if it is there."""
        ...


@dataclass(frozen=True)
class Folder:
    """A folder that the driver and all tasks reach by the same path. It travels to the tasks.

    >>> folder = Folder("/tmp/example")  # doctest: +SKIP
    >>> with folder.create("0000000007/00001.rows") as file:  # doctest: +SKIP
    ...     file.write(b"...")
    """

    root: str

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file. It is durable when this ends, and is not there if an error ends it."""
        final = Path(self.root, path)
        final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        hidden = final.with_name(f".{final.name}")
        try:
            with hidden.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            hidden.rename(final)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        sync(final.parent)

    def open(self, path: str) -> BinaryIO:
        """Read a file, from any place in it; ``FileNotFoundError`` if there is none."""
        return Path(self.root, path).open("rb")

    def read(self, path: str) -> bytes | None:
        """What is in a file; None: there is none."""
        try:
            return Path(self.root, path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Place a file, whole or not at all. It is durable when this returns."""
        with self.create(path) as file:
            file.write(data)

    def create_new(self, path: str, data: bytes) -> bool:
        """Create a file; False if it is there already."""
        final = Path(self.root, path)
        final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with final.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
        sync(final.parent)
        return True

    def names(self, path: str) -> list[str]:
        """The names of the files and folders in a folder; none if there is no such folder."""
        folder = Path(self.root, path)
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []

    def delete(self, path: str) -> None:
        """Delete a file, or a folder and all that is in it, if it is there."""
        found = Path(self.root, path)
        if found.is_dir():
            shutil.rmtree(found, ignore_errors=True)
        else:
            found.unlink(missing_ok=True)


class HadoopFolder:
    """A path on any file system that Hadoop knows, with the session's settings: for the driver only."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root
        self._spark = spark
        self._files = RemoteStorage(spark)

    def read(self, path: str) -> bytes | None:
        """What is in a file; None: there is none."""
        return self._files.read(f"{self.root}/{path}")

    def write(self, path: str, data: bytes) -> None:
        """Place a file, whole or not at all."""
        self._files.write(f"{self.root}/{path}", data)

    def create_new(self, path: str, data: bytes) -> bool:
        """Create a file; False if it is there already."""
        where, files = self._at(path)
        builder = files.createFile(where).overwrite(False).recursive()
        # Object stores that can create a file on the condition that it is new do; the others look first.
        builder = builder.opt("fs.option.create.conditional.overwrite", "true")
        try:
            stream = builder.build()
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()
        except Py4JJavaError as error:
            if "AlreadyExists" in str(error.java_exception) or files.exists(where):
                return False
            raise
        return True

    def names(self, path: str) -> list[str]:
        """The names of the files and folders in a folder; none if there is no such folder."""
        where, files = self._at(path)
        return (
            sorted(each.getPath().getName() for each in files.listStatus(where))
            if files.exists(where)
            else []
        )

    def delete(self, path: str) -> None:
        """Delete a file, or a folder and all that is in it, if it is there."""
        where, files = self._at(path)
        files.delete(where, True)

    def _at(self, path: str) -> tuple[Any, Any]:
        jvm: Any = self._spark._jvm
        where = jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}")
        return where, where.getFileSystem(self._spark._jsc.hadoopConfiguration())


def folder_at(spark: SparkSession, root: str) -> Folder | HadoopFolder:
    """The folder at a path or URL.

    >>> folder_at(spark, "file:///srv/state").root  # doctest: +SKIP
    '/srv/state'
    """
    if _REMOTE.match(root):
        return HadoopFolder(spark, root)
    return Folder(root.removeprefix("file://"))


def sync(path: Path) -> None:
    """Make a file or the entries of a folder of this machine durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
