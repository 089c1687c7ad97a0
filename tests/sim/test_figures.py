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
# What tests of other processes report arrives as text, by these two calls.
CARRIED = """
import json
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    hook, config = item.config.hook, item.config
    sent = json.dumps(hook.pytest_report_to_serializable(config=config, report=report))
    return hook.pytest_report_from_serializable(config=config, data=json.loads(sent))
"""
TOLD = ["a cluster: 3 seeds, 1.00 simulated hours, 8 starts, 5 faults", "5 faults: kill 4, pause 1"]


@pytest.mark.parametrize("plugin", ["", CARRIED], ids=["alone", "beside others"])
def test_figures_are_told_in_the_end(tmp_path: Path, plugin: str) -> None:
    """Without processes of its own: one of many runs of pytest-xdist within pytest-xdist did not end."""
    path = tmp_path / "test_noting.py"
    path.write_text(A_TEST)
    (tmp_path / "carried.py").write_text(plugin)
    plugins = ["-p", "conftest", "-p", "carried", "-p", "no:cacheprovider", "-p", "no:xdist"]
    searched = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": searched}
    command = [sys.executable, "-m", "pytest", "-q", *plugins, str(path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert [line for line in done.stdout.splitlines() if line in TOLD] == TOLD, done.stdout


def test_a_run_without_plays_tells_nothing() -> None:
    assert figures.lines([]) == []


def test_kinds_are_without_their_victims() -> None:
    noted = {"seeds": 1, "fault: prepared: who coordinates": 2, "fault: prepared: who leads": 1, "acked": 9}
    assert figures.lines([("transactions", noted)])[1] == "3 faults: prepared 3"
