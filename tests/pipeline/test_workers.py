"""A session that somebody made himself, whose Python is another one: he is told what to set. The other one is real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ottla.pipeline import interpreter, workers

# What a user writes; Spark's own words come if none of ours is reached.
SCRIPT = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
way = sys.argv[1]
if way == "import":
    import pyspark_ottla
elif way == "register":
    from ottla.pipeline.format import OttlaSource
    spark.dataSource.register(OttlaSource)
elif way == "session":
    from ottla.pipeline.session import session
    session()
print(spark.read.format("ottla").options(**{"kafka.bootstrap.servers": "b:1", "subscribe": "t"}).load().columns[0])
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with nothing in it."""
    place = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return str(place / "bin" / "python")


def spark_with(python: str, master: str = "local[2]") -> SimpleNamespace:
    """All that is asked of a SparkContext."""
    return SimpleNamespace(master=master, pythonExec=python)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def test_a_python_without_us(other, monkeypatch):
    told = workers.why_not(spark_with(other))
    assert told.startswith(
        f"Spark runs Python as {other}, which has no ottla: set PYSPARK_PYTHON={sys.executable} before"
    )
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", other)
    told = workers.why_not(spark_with(sys.executable))
    assert "which has no ottla" in told and "and PYSPARK_DRIVER_PYTHON too or not at all" in told


def test_no_python_at_all():
    assert "and there is no such program: set PYSPARK_PYTHON=" in workers.why_not(spark_with("no-such-python"))
    assert "which has no ottla" in workers.why_not(spark_with("true")), "a program, and no Python"


def test_a_python_of_another_version(tmp_path):
    """It has us, but what is pickled by one is not for the other."""
    place = tmp_path / "python"
    place.write_text("#!/bin/sh\necho 3 8 1\n")
    place.chmod(0o755)
    assert "which is 3.8, and this is" in workers.why_not(spark_with(str(place)))


def test_nothing_is_said_where_it_is_right_or_not_known(other):
    for spark in (None, spark_with(sys.executable), spark_with(interpreter.for_workers()), spark_with(other, "yarn")):
        assert workers.why_not(spark) == ""
    workers.check()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["import", "register", "session"])
def test_a_session_with_another_python_says_what_to_set(tmp_path, other, way):
    code, told = run(tmp_path, way, PYSPARK_PYTHON=other)
    assert code == 1 and f"which has no ottla: set PYSPARK_PYTHON={sys.executable}" in told, told


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", "import", "register"])
def test_a_session_with_the_right_python_reads_a_topic(tmp_path, way):
    code, told = run(tmp_path, way, PYSPARK_PYTHON=sys.executable)
    assert (code, told.splitlines()[-1]) == (0, "key"), told


def run(directory: Path, way: str, **environment: str) -> tuple[int, str]:
    script = directory / "own.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, way], env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stderr + done.stdout
