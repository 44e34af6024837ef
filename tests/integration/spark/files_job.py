"""A pipeline over files as a process, for a test to kill: python -m tests.integration.spark.files_job FOLDER

Windows over ``in``, a file in each batch, into ``out``; the checkpoint is ``state``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from queenstream import Files, Pipeline, count, sum_, tumbling
from tests.sparks import local_session

SCHEMA = "n bigint, at timestamp"


def summed(folder: Path) -> Pipeline[Any]:
    """What the numbers of each ten minutes are."""
    source = Files(folder / "in", format="parquet", schema=SCHEMA, max_files=1)
    windows = Pipeline("summed").source(source).filter("n % 5 <> 0").window(tumbling("10m"), time="at")
    return windows.aggregate(n=count(), total=sum_("n")).to(Files(folder / "out", format="ndjson"))


if __name__ == "__main__":
    local_session()
    summed(Path(sys.argv[1])).run(checkpoint=f"{sys.argv[1]}/state", summary=False)
