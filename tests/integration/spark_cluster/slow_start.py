"""A driver whose executors come one after the other: prints the shuffle partitions of a run and its cores."""

from __future__ import annotations

import json
import sys

from queenstream.engines.spark.session.factory import query_session, session

MASTER = "local-cluster[3,1,512]"


def main() -> None:
    """Start a cluster on this machine, and a session of a query as soon as it is there."""
    small = {"spark.executor.memory": "512m", "spark.driver.extraJavaOptions": sys.argv[1]}
    small |= {"spark.ui.enabled": "false"}
    spark = session("slow", MASTER, conf=small)
    query = query_session("slow")
    found = [query.conf.get("spark.sql.shuffle.partitions"), spark.sparkContext.defaultParallelism]
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
