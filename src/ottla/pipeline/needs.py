"""What the pipeline needs on this machine: PySpark and its companions from PyPI, and Java. What is missing is named together
with the command that brings it, before Spark fails in its own words. This file loads none of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

# Module, and the extra of ours that brings it.
FORMAT_MODULES = {"pyspark": "spark", "pyarrow": "spark", "numpy": "spark"}
MODULES = {**FORMAT_MODULES, "yaml": "spark"}
CONNECT_MODULES = {"grpc": "connect", "grpc_status": "connect", "google.protobuf": "connect", "pandas": "connect"}
JAVA_MIN = 17
VERSION = re.compile(r'(?:^JAVA_VERSION=|version )"(\d+)', re.MULTILINE)


class Missing(Exception):
    """Something has to be installed first; the text says what, and how."""


def check(remote: bool = False) -> None:
    """Everything is there, or it is said what is not. A remote Spark brings Java itself."""
    modules(MODULES)
    if remote:
        modules(CONNECT_MODULES)
    else:
        java()


def modules(wanted: dict[str, str]) -> None:
    absent = [name for name in wanted if not _is_there(name)]
    if absent:
        extra = wanted[absent[0]]
        raise Missing(f"this needs {_listed(absent)}, which is not installed: pip install 'ottla[{extra}]'")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package above it
        return False


def java() -> None:
    """Spark 4 runs on Java 17 and later."""
    command = java_command()
    if command is None:
        raise Missing(f"Spark needs Java {JAVA_MIN} or later, and there is none: {_how_to_get_java()}")
    version = java_version(command)
    if version is not None and version < JAVA_MIN:
        raise Missing(f"Spark needs Java {JAVA_MIN} or later, and {command} is {version}: {_how_to_get_java()}")


def java_command() -> str | None:
    """The one that Spark will start: that of JAVA_HOME, or the first on the path."""
    if home := os.environ.get("JAVA_HOME"):
        return shutil.which(str(Path(home) / "bin" / "java"))
    return shutil.which("java")


def java_version(command: str) -> int | None:
    """17 for "17.0.15", 1 for "1.8.0": what is written beside it, or else what it says; None if that is something else."""
    found = VERSION.search(_written_beside(command))
    if found is None:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30)
        found = VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else None


def _written_beside(command: str) -> str:
    """What a JDK says of itself without being started."""
    try:
        return (Path(command).resolve().parent.parent / "release").read_text(errors="replace")
    except OSError:
        return ""


def _how_to_get_java() -> str:
    wrong_home = f"JAVA_HOME is {os.environ['JAVA_HOME']}; " if "JAVA_HOME" in os.environ else ""
    return f"{wrong_home}apt install openjdk-17-jre-headless, brew install openjdk@17, or set JAVA_HOME to one you have"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
