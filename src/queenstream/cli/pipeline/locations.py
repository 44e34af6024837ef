"""Whose checkpoints a command is about."""

from __future__ import annotations

from queenstream.errors import ConfigError, NotFound


async def all_in(where: str) -> list[str]:
    """The names of the pipelines that have checkpoints there, of either engine."""
    from queenstream.cli.pipeline import spark_checkpoints
    from queenstream.engines.local.checkpoints.locations import pipelines_in

    return sorted({*await pipelines_in(where), *spark_checkpoints.pipelines_in(where)})


async def is_sparks(where: str, pipeline: str) -> bool:
    """Whether a pipeline's checkpoints there are Spark's."""
    from queenstream.cli.pipeline import spark_checkpoints
    from queenstream.engines.local.checkpoints.locations import pipelines_in

    return pipeline in spark_checkpoints.pipelines_in(where) and pipeline not in await pipelines_in(where)


async def meant(where: str, pipeline: str | None) -> str:
    """The pipeline that was named, or the only one that has checkpoints there."""
    if pipeline is not None:
        return pipeline
    names = await all_in(where)
    if not names:
        raise NotFound("there are no checkpoints in there; run a pipeline with this --checkpoint first")
    if len(names) > 1:
        raise ConfigError(f"several pipelines have checkpoints in there, {', '.join(names)}; say --pipeline")
    return names[0]


async def meant_in_folder(where: str, pipeline: str | None) -> str:
    """The same, for a command that only works on folders of this machine."""
    if "://" in where and not where.startswith("file://"):
        raise ConfigError(f"{where} is not a folder of this machine; copy it with the tools of its storage")
    return await meant(where, pipeline)


async def meant_on_spark(where: str, pipeline: str | None) -> str:
    """The same, for a command about checkpoints of Spark. Only folders of this machine are looked into."""
    if "://" in where and not where.startswith("file://"):
        if pipeline is None or where.startswith(("postgres://", "postgresql://")):
            raise ConfigError(f"{where} is not a folder of this machine; name Spark's and say --pipeline")
        return pipeline
    name = await meant(where, pipeline)
    if not await is_sparks(where, name):
        raise ConfigError(f"the checkpoint of {name} in there is not Spark's, and has no partitions")
    return name
