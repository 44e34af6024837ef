"""Whose checkpoints a command is about."""

from __future__ import annotations

from queenstream.errors import ConfigError, NotFound


async def all_in(where: str) -> list[str]:
    """The names of the pipelines that have checkpoints there, of either engine."""
    from queenstream.cli.pipeline import on_spark
    from queenstream.local.places import pipelines_in

    return sorted({*await pipelines_in(where), *on_spark.pipelines_in(where)})


async def is_sparks(where: str, pipeline: str) -> bool:
    """Whether a pipeline's checkpoints there are Spark's."""
    from queenstream.cli.pipeline import on_spark
    from queenstream.local.places import pipelines_in

    return pipeline in on_spark.pipelines_in(where) and pipeline not in await pipelines_in(where)


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
