"""Spark's daemon of Python workers, with what they need loaded beforehand: a worker is a fork of it.

Without this every new worker would load Arrow and our steps anew, which takes longer than most batches.
``spark.python.daemon.module`` names it.
"""

import gc
import socket

from pyspark import daemon

from queenstream.engines.spark.tasks import stages  # noqa: F401 - loaded for the workers

_serve = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one task.

    Spark sends a task in pieces, the last of which waits until the one before it is acknowledged: at once,
    instead of 40 ms later in every batch.
    """
    if hasattr(socket, "TCP_QUICKACK"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _serve(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = worker
    # The collector passes over what is loaded: it took more than half of the time of a step in Python.
    gc.collect()
    gc.freeze()
    daemon.manager()
