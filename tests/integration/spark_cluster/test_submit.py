"""A program that ``spark-submit`` starts runs where that was told to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from queenstream.engines.spark.session import java
from tests.sparks import QUICK

PROGRAM = """
from queenstream.spark import session
print(session("submitted").sparkContext.master)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_master_is_the_one_of_spark_submit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    home = java.launchable(java.find(os.environ, java.wheel_home()), tmp_path)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    flags = ["--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    said = subprocess.run(
        [str(submit), *flags, str(program)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": QUICK},
    )
    assert said.stdout.strip() == "local[1,4]", said.stderr
