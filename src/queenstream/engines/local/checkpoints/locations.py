"""Where checkpoints are: a folder or PostgreSQL, and whose are in there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

from queenstream.engines.local.checkpoints.postgres import PostgresHome
from queenstream.engines.local.checkpoints.store import CheckpointStore, open_store
from queenstream.errors import ConfigError

_SUFFIX = ".checkpoint"


@asynccontextmanager
async def opened(where: str, pipeline: str) -> AsyncIterator[CheckpointStore]:
    """The checkpoints of a pipeline, to look at, also while it runs."""
    found = open_store(where, pipeline)
    try:
        yield found
    finally:
        await found.close()


async def pipelines_in(where: str) -> list[str]:
    """The names of the pipelines that have checkpoints there."""
    if where.startswith(("postgresql://", "postgres://")):
        return await _in_postgres(where)
    return _in_folder(Path(where))


def _in_folder(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; name the checkpoint that the pipeline was run with")
    return sorted(unquote(path.name.removesuffix(_SUFFIX)) for path in folder.glob(f"*{_SUFFIX}"))


async def _in_postgres(url: str) -> list[str]:
    home = PostgresHome(url, "")
    try:
        if not await home.open():
            return []
        return [name for [name] in await home.fetch("select name from pipelines order by name")]
    finally:
        await home.close()
