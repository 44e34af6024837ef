"""Files that the driver and all tasks of a run reach, in a folder of this machine or in shared storage."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from pyarrow import fs
from pyspark.sql import SparkSession

from queenstream.errors import ConfigError

_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<rest>.*)")


@dataclass(frozen=True)
class Storage:
    """A folder in which files appear whole or not at all.

    ``shared`` is the file system of a folder that is not on this machine. It travels to the tasks.

    >>> storage = Storage("/tmp/example")  # doctest: +SKIP
    >>> with storage.create("0000000007/00001.rows") as file:  # doctest: +SKIP
    ...     file.write(b"...")
    """

    root: str
    shared: fs.FileSystem | None = None

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file. It is durable when this ends, and is not there if an error ends it."""
        if self.shared is None:
            with _local(Path(self.root, path)) as file:
                yield file
            return
        full = f"{self.root}/{path}"
        self.shared.create_dir(full.rpartition("/")[0], recursive=True)
        stream = self.shared.open_output_stream(full)
        try:
            yield cast(BinaryIO, stream)
        except BaseException:
            with contextlib.suppress(OSError):
                stream.close()
                self.shared.delete_file(full)
            raise
        stream.close()

    def open(self, path: str) -> BinaryIO:
        """Read a file, from any place in it; ``FileNotFoundError`` if there is none."""
        if self.shared is None:
            return Path(self.root, path).open("rb")
        return cast(BinaryIO, self.shared.open_input_file(f"{self.root}/{path}"))

    def names(self, path: str = "") -> list[str]:
        """The names of the files and folders in a folder; none if there is no such folder."""
        if self.shared is None:
            folder = Path(self.root, path)
            return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
        selector = fs.FileSelector(f"{self.root}/{path}".rstrip("/"), allow_not_found=True)
        return sorted(each.base_name for each in self.shared.get_file_info(selector))

    def delete(self, path: str) -> None:
        """Delete a folder and all that is in it, if it is there."""
        if self.shared is None:
            shutil.rmtree(Path(self.root, path), ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                self.shared.delete_dir(f"{self.root}/{path}")


@contextlib.contextmanager
def _local(path: Path) -> Iterator[BinaryIO]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    try:
        with hidden.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def storage_at(spark: SparkSession, root: str) -> Storage:
    """The storage at a path or URL, with the access that Spark's session has to it.

    >>> storage_at(spark, "s3a://bucket/state").root  # doctest: +SKIP
    'bucket/state'
    """
    found = _SCHEME.fullmatch(root)
    if found is None or found["scheme"] == "file":
        return Storage(root if found is None else found["rest"])
    scheme, rest = found["scheme"], found["rest"]
    if scheme in ("s3", "s3a", "s3n"):
        return Storage(rest, _s3(spark, rest.partition("/")[0]))
    if scheme in ("hdfs", "viewfs"):
        shared, path = fs.FileSystem.from_uri(root)
        return Storage(path, shared)
    if scheme == "gs":
        return Storage(rest, fs.GcsFileSystem())
    raise ConfigError(
        f"the tasks cannot keep a batch's rows under {scheme}://; take a checkpoint on s3a://, gs:// or "
        "hdfs://, or in a folder that all executors share"
    )


def _s3(spark: SparkSession, bucket: str) -> fs.FileSystem:
    """With the credentials and the endpoint of Hadoop's settings, else those of the machine."""
    hadoop: Any = cast(Any, spark)._jsc.hadoopConfiguration()

    def told(name: str) -> str | None:
        value = hadoop.get(f"fs.s3a.bucket.{bucket}.{name}") or hadoop.get(f"fs.s3a.{name}")
        return None if value is None else str(value)

    endpoint = told("endpoint")
    secure = told("connection.ssl.enabled") != "false" and not (endpoint or "").startswith("http://")
    region = told("endpoint.region")
    return fs.S3FileSystem(
        access_key=told("access.key"),
        secret_key=told("secret.key"),
        session_token=told("session.token"),
        region=region if endpoint is None else region or "us-east-1",
        endpoint_override=None if endpoint is None else endpoint.partition("://")[2] or endpoint,
        scheme="https" if secure else "http",
        allow_bucket_creation=False,
    )
