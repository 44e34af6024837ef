"""Where a folder of files is: on this machine, or on any other file system that Hadoop knows.

The driver uses this. Paths are relative to the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from queenstream.engines.spark.sinks.storage import sync
from queenstream.engines.spark.tasks.failures import cause_of
from queenstream.errors import ConfigError, Unavailable


class Location(Protocol):
    """What the driver does with files."""

    def url(self, path: str) -> str:
        """The path as Spark takes it."""
        ...

    def files(self, folder: str) -> list[tuple[str, int]]:
        """The names and sizes of the files in a folder, without those that readers ignore."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder; none if there is no such folder."""
        ...

    def count_rows(self, path: str) -> int:
        """How many rows a Parquet file has, by its footer."""
        ...

    def has(self, path: str) -> bool:
        """Whether a file or folder is there."""
        ...

    def move(self, path: str, to: str) -> bool:
        """Rename a file; False: it is not there."""
        ...

    def sync(self, path: str) -> None:
        """Make a file or the entries of a folder durable."""
        ...

    def delete(self, folder: str) -> None:
        """Delete a folder and all that is in it, if it is there."""
        ...

    def delete_empty(self, folder: str) -> None:
        """Delete a folder if nothing is in it."""
        ...


class LocalLocation:
    """A folder that the driver and all tasks reach by the same path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def url(self, path: str) -> str:
        return f"file:{self.folder / path}"  # not quoted: Hadoop takes each character as it is

    def files(self, folder: str) -> list[tuple[str, int]]:
        with os.scandir(self.folder / folder) as entries:
            return sorted(
                (each.name, each.stat().st_size)
                for each in entries
                if each.is_file() and each.name[0] not in "._"
            )

    def names(self, folder: str) -> list[str]:
        path = self.folder / folder
        return sorted(each.name for each in path.iterdir()) if path.is_dir() else []

    def count_rows(self, path: str) -> int:
        return int(pq.read_metadata(self.folder / path).num_rows)

    def has(self, path: str) -> bool:
        return (self.folder / path).exists()

    def move(self, path: str, to: str) -> bool:
        try:
            (self.folder / path).rename(self.folder / to)
        except FileNotFoundError:
            return False
        return True

    def sync(self, path: str) -> None:
        sync(self.folder / path)

    def delete(self, folder: str) -> None:
        shutil.rmtree(self.folder / folder, ignore_errors=True)

    def delete_empty(self, folder: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / folder).rmdir()


class HadoopLocation:
    """A folder by its URL, with the Hadoop settings of the Spark application."""

    def __init__(self, url: str) -> None:
        context: Any = SparkContext.getOrCreate()
        self._jvm = context._jvm
        self._conf = context._jsc.hadoopConfiguration()
        self._root = url.rstrip("/")
        try:
            self._files = self._path("").getFileSystem(self._conf)
        except Py4JJavaError as error:
            raise ConfigError(
                f"{url} is not reached: {cause_of(str(error))}; check the session's Hadoop settings, and "
                "that it has the jar of this file system (spark.jars.packages)"
            ) from None

    def url(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.url(path))

    def files(self, folder: str) -> list[tuple[str, int]]:
        listed = self._files.listStatus(self._path(folder))
        found = [(each.getPath().getName(), each.getLen()) for each in listed if each.isFile()]
        return sorted((name, size) for name, size in found if name[0] not in "._")

    def names(self, folder: str) -> list[str]:
        if not self.has(folder):
            return []
        return sorted(each.getPath().getName() for each in self._files.listStatus(self._path(folder)))

    def count_rows(self, path: str) -> int:
        parquet = self._jvm.org.apache.parquet.hadoop
        file = parquet.util.HadoopInputFile.fromPath(self._path(path), self._conf)
        reader = parquet.ParquetFileReader.open(file)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def has(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def move(self, path: str, to: str) -> bool:
        if self._files.rename(self._path(path), self._path(to)):
            return True
        if self.has(path):
            raise Unavailable(f"{self.url(path)} could not be renamed to {self.url(to)}")
        return False

    def sync(self, path: str) -> None:
        """A file system that is not local stores a file before it says that it is closed."""

    def delete(self, folder: str) -> None:
        with contextlib.suppress(Exception):  # what is left is deleted before the next batch
            self._files.delete(self._path(folder), True)

    def delete_empty(self, folder: str) -> None:
        with contextlib.suppress(Exception):  # it is not empty, or not there
            self._files.delete(self._path(folder), False)


def batch_folder(epoch: int, batch: int) -> str:
    """Where the run of an owner epoch stages a batch.

    >>> batch_folder(2, 7)
    '0000000002/0000000007'
    """
    return f"{epoch:010}/{batch:010}"
