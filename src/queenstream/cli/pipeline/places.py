"""Where checkpoints are: a folder or PostgreSQL, and whose are in there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from queenstream.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from queenstream.local.checkpoints import CheckpointStore

_SUFFIX = ".checkpoint"


@asynccontextmanager
async def opened(where: str, pipeline: str) -> AsyncIterator[CheckpointStore]:
    """The checkpoints of a pipeline, to look at, also while it runs."""
    from queenstream.local.checkpoints import open_store

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


async def meant(where: str, pipeline: str | None) -> str:
    """The pipeline that was named, or the only one that has checkpoints there."""
    if pipeline is not None:
        return pipeline
    names = await pipelines_in(where)
    if not names:
        raise NotFound("there are no checkpoints in there; run a pipeline with this --checkpoint first")
    if len(names) > 1:
        raise ConfigError(f"several pipelines have checkpoints in there, {', '.join(names)}; say --pipeline")
    return names[0]


def _in_folder(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; name what the pipeline was run with as --checkpoint")
    return sorted(unquote(path.name.removesuffix(_SUFFIX)) for path in folder.glob(f"*{_SUFFIX}"))


async def _in_postgres(url: str) -> list[str]:
    from queenstream.local._postgres import PostgresHome

    home = PostgresHome(url, "")
    try:
        if not await home.open():
            return []
        return [name for [name] in await home.fetch("select name from pipelines order by name")]
    finally:
        await home.close()
