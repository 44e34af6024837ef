"""Which versions of PySpark are supported, and what each has."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pyspark
import pytest

from queenstream.engines.spark import versions
from queenstream.errors import ConfigError
from tests.pages import ROOT

FEATURES = [each for each in vars(versions).values() if isinstance(each, versions.Feature)]


@pytest.mark.parametrize("version", ["4.1.0", "4.1.4", "4.2.0", "4.3.0", "4.3.0.dev1", "4.1.2-amzn-0"])
def test_supported_versions_are_accepted(version: str) -> None:
    versions.check_supported(version)


@pytest.mark.parametrize("version", ["3.5.9", "4.0.3", "4.4.0", "5.0.0", "unknown"])
def test_other_versions_are_refused_with_what_to_install(version: str) -> None:
    with pytest.raises(ConfigError, match=r"from 4\.1 to 4\.3: pip install 'pyspark\[sql\]>=4\.1,<4\.4'"):
        versions.check_supported(version)


@pytest.mark.parametrize("version", ["3.5.9", "4.0.3", "5.0.0"])
def test_an_unsupported_version_is_named_when_the_engine_is_asked_for(tmp_path: Path, version: str) -> None:
    """Before a name is missed that another version does not have."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    program = """
from queenstream import Memory, Pipeline
Pipeline("p").source(Memory([])).to(print).run()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"ConfigError: PySpark {version} is not supported; install one from 4.1 to 4.3" in done.stderr


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_the_table_says_what_the_installed_version_has(feature: versions.Feature) -> None:
    assert feature.is_available() == (versions.release(pyspark.__version__)[:2] >= feature.since)


def test_examples_in_docstrings_are_true() -> None:
    assert doctest.testmod(versions).failed == 0


def test_the_package_requires_what_the_table_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [required] = [each for each in project["optional-dependencies"]["spark"] if each.startswith("pyspark")]
    oldest, newest = (tuple(map(int, found)) for found in re.findall(r"(\d+)\.(\d+)", required))
    assert (oldest, newest) == (versions.OLDEST, (versions.NEWEST[0], versions.NEWEST[1] + 1))


def test_every_supported_version_has_a_package_for_kafka() -> None:
    major, first = versions.OLDEST
    assert versions.KAFKA_PACKAGES.keys() == {
        (major, minor) for minor in range(first, versions.NEWEST[1] + 1)
    }
