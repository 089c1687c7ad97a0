"""Whether the Python that Spark starts can do what the one that runs this can.

In a session that somebody made himself, Spark starts PYSPARK_PYTHON, or else whatever `python3` is. If that is another one,
without this package, Spark says that there is no format `ottla`, or that a module is missing, and not what to set. On the
driver we are asked at three places: when `pyspark_ottla` is imported, when the format is registered by hand, and when
`session()` finds a session that is there already. They look here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

from ottla.pipeline import interpreter
from ottla.pipeline.needs import Missing

SECONDS = 30
ASK = """
import importlib.util, sys
print(*sys.version_info[:2], int(importlib.util.find_spec("pyspark_ottla") is not None))
"""


def check() -> None:
    """Raises Missing with what to set. Where no Spark runs in this process, or runs its tasks elsewhere, nobody knows."""
    told = why_not(_context())
    if told:
        raise Missing(told)


def why_not(context: Any) -> str:
    """Why the Python of this SparkContext will not do; empty if it will."""
    if context is None or not str(context.master).startswith("local"):
        return ""
    # Spark plans with the first, if it is set, and runs tasks with the other.
    planning = os.environ.get("PYSPARK_DRIVER_PYTHON") or context.pythonExec
    found = (_fault(command) for command in dict.fromkeys((planning, context.pythonExec)))
    return next(filter(None, found), "")


def _context() -> Any:
    """The one of this process, if it is a driver; PySpark may not even be installed."""
    core = sys.modules.get("pyspark.core.context")
    return core.SparkContext._active_spark_context if core is not None else None


def _fault(command: str) -> str:
    place = shutil.which(command)
    if place is None:
        return f"Spark runs Python as {command!r}, and there is no such program: {_way_out()}"
    if os.path.abspath(place) == os.path.abspath(sys.executable) or place == str(interpreter.SCRIPT):
        return ""
    version, has_us = _asked(place)
    if not has_us:
        return f"Spark runs Python as {place}, which has no ottla: {_way_out()}"
    if version != sys.version_info[:2]:
        theirs, ours = (".".join(map(str, each)) for each in (version, sys.version_info[:2]))
        return f"Spark runs Python as {place}, which is {theirs}, and this is {ours}: {_way_out()}"
    return ""


def _asked(place: str) -> tuple[tuple[int, ...], bool]:
    """Its version, and whether it has us; what is no Python has neither."""
    try:
        done = subprocess.run([place, "-c", ASK], capture_output=True, text=True, timeout=SECONDS)
        *version, has_us = map(int, done.stdout.split())
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return (), False
    return tuple(version), bool(has_us)


def _way_out() -> str:
    also = ", and PYSPARK_DRIVER_PYTHON too or not at all," if "PYSPARK_DRIVER_PYTHON" in os.environ else ""
    return (
        f"set PYSPARK_PYTHON={sys.executable}{also} before Spark starts (os.environ['PYSPARK_PYTHON'] = sys.executable), or "
        "make the session with ottla.pipeline.session.session()"
    )
