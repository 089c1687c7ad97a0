"""The interpreter that Spark starts for its Python workers: this one, without the archive that Spark puts before its path.

Spark lets every worker import PySpark from `pyspark.zip`. Python cannot keep compiled modules in an archive, so that each
process compiles them again: 0.97 s of CPU instead of 0.30 s, for each of the five or so processes that a query starts, and
Spark gives them ten seconds to come up, which on a busy machine are not enough. The package itself is installed beside us,
the same version, compiled. There is no setting for this: what is called instead of Python is a short script. The script
also puts `daemon` in the place of Spark's own, for which there is a setting that Spark forgets when it plans.
"""

from __future__ import annotations

import atexit
import shlex
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

# Spark names them twice. An entry that is left empty would stand for the current directory.
ARCHIVES = r"s#[^:]*/python/lib/pyspark\.zip##g; s#[^:]*/py4j-[^:/]*-src\.zip##g; s#::*#:#g; s#^:##; s#:$##"
SCRIPT = """#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | sed '{archives}')
export PYTHONPATH
[ "$1 $2" = "-m pyspark.daemon" ] && shift 2 && set -- -m ottla.pipeline.daemon "$@"
exec {python} "$@"
"""


@cache
def for_workers() -> str:
    """The path of that script; it goes away with this process."""
    if not Path("/bin/sh").exists():
        return sys.executable
    directory = tempfile.mkdtemp(prefix="ottla-python-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    script = Path(directory) / "python"
    script.write_text(SCRIPT.format(archives=ARCHIVES, python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    return str(script)
