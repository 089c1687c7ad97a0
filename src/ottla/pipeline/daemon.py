"""Spark's daemon, which forks its Python workers, with two things better. Run by Spark: `python -m ottla.pipeline.daemon`.

It collects garbage after every task, and goes through all that was ever imported each time: 55 ms, for tasks of a
micro-batch that take ten. What is there after a worker's first task stays, and is not looked at again.

A worker that Spark does not need any more finds its socket closed. Over TCP it does not notice, over a Unix socket it
does, and would write a traceback to the terminal of whoever runs the query.
"""

from __future__ import annotations

import gc
import socket

from pyspark import daemon

spark_worker = daemon.worker
_is_first = True


def worker(sock: socket.socket, authenticated: bool) -> int:
    """One task, or the end of this process if the answer is not 0."""
    global _is_first
    try:
        code = spark_worker(sock, authenticated)
    except BrokenPipeError:
        return 1
    if _is_first:
        _is_first = False
        gc.collect()
        gc.freeze()
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
