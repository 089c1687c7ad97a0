"""The interpreter that Spark starts for its Python workers: this one, without the archive that Spark puts before its path.

Spark lets every worker import PySpark from `pyspark.zip`. Python cannot keep compiled modules in an archive, so that each
process compiles them again: 0.97 s of CPU instead of 0.30 s, for each of the five or so processes that a query starts, and
Spark gives them ten seconds to come up, which on a busy machine are not enough. The package itself is installed beside us,
the same version, compiled. There is no setting for this: what is called instead of Python is a short script. It goes on
with `start_worker`, which also puts `daemon` in the place of Spark's own, for which there is a setting that Spark forgets when
it plans, puts `planning` around the processes with which it plans, and lets the nursery give birth to them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("worker.sh")


def for_workers() -> str:
    """The path of that script, which finds this interpreter in the environment."""
    os.environ["OTTLA_WORKER_PYTHON"] = sys.executable
    return str(SCRIPT) if Path("/bin/sh").exists() and os.access(SCRIPT, os.X_OK) else sys.executable
