"""Which jars go with which version of Spark."""

from pathlib import Path

import pytest

from queenstream.engines.spark.session.jars import KAFKA, kafka_jars
from queenstream.engines.spark.versions import kafka_version
from queenstream.errors import ConfigError


@pytest.mark.parametrize(
    ("spark", "package"),
    [
        ("4.1.0", "4.1.0"),
        ("4.1.2-amzn-0", "4.1.2"),
        ("4.1.4", "4.1.3"),
        ("4.2.0", "4.2.0"),
        ("4.2.1", "4.2.0"),
        ("4.3.0", "4.2.0"),
        ("4.3.0.dev1", "4.2.0"),
    ],
)
def test_supported_versions_have_a_source_for_kafka(spark: str, package: str) -> None:
    assert kafka_version(spark) == package


@pytest.mark.parametrize("spark", ["3.5.9", "4.0.1", "5.0.0"])
def test_another_version_is_refused_with_those_that_work(spark: str) -> None:
    with pytest.raises(ConfigError, match=r"install one from 4\.1 to 4\.3"):
        kafka_version(spark)


def test_jars_of_another_version_in_the_cache_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEENSTREAM_CACHE", str(tmp_path))
    for version in ("4.0.1", "4.1.0", "4.1.3", "4.2.0"):
        folder = tmp_path / f"spark-kafka-{version}"
        folder.mkdir()
        (folder / f"{KAFKA}-{version}.jar").touch()
    for running in ("4.1.0", "4.1.4", "4.2.1", "4.3.0"):
        assert [jar.name for jar in kafka_jars(running)] == [f"{KAFKA}-{kafka_version(running)}.jar"]
    assert kafka_jars("4.1.1") == []
