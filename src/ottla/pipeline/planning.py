"""A process that plans for Spark, such as the one that asks a source for its offsets, and ends without a word when Spark does
not need it any more. Run by Spark through `worker.sh`: `python -m ottla.pipeline.planning MODULE`.

When its query is stopped it finds its socket closed, wants to say so through that socket, and would write three tracebacks
to the terminal of whoever stopped it. What else goes wrong in it is told to Spark before it comes here.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(1)
