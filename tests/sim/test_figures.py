"""What plays have noted reaches the end of the run, whoever played them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim import figures
from sim.many_seeds import TESTS

A_TEST = """
from sim import figures

def test_some_seeds():
    figures.note("a cluster", {"seeds": 2, "restarts": 7, "fault: kill, nothing lost": 3, "fault: kill, power lost": 1}, 1800)

def test_more_seeds():
    figures.note("a cluster", {"seeds": 1, "restarts": 1, "fault: pause": 1}, 1800)
"""
TOLD = ["a cluster: 3 seeds, 1.00 simulated hours, 8 starts, 5 faults", "5 faults: kill 4, pause 1"]


@pytest.mark.parametrize("processes", [["-p", "no:xdist"], ["-n", "1"]], ids=["alone", "beside others"])
def test_figures_are_told_in_the_end(tmp_path: Path, processes: list[str]) -> None:
    path = tmp_path / "test_noting.py"
    path.write_text(A_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *processes, str(path)]
    searched = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": searched}
    done = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert [line for line in done.stdout.splitlines() if line in TOLD] == TOLD, done.stdout


def test_a_run_without_plays_tells_nothing() -> None:
    assert figures.lines([]) == []


def test_kinds_are_without_their_victims() -> None:
    noted = {"seeds": 1, "fault: prepared: who coordinates": 2, "fault: prepared: who leads": 1, "acked": 9}
    assert figures.lines([("transactions", noted)])[1] == "3 faults: prepared 3"
