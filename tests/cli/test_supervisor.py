"""Several processes under one command. The nodes here are small programs that say what they do; real ones: tests/cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

# A program in the place of a node: says its pid and what it is told. "stubborn" does not stop, "broken" does not start. It
# takes its signals from a queue: a handler is called late if the signal comes just before a sleep (one in five hundred did).
NODE = """
import asyncio, os, signal, sys
from ottla.cli.supervisor import supervised
kind, fd = sys.argv[1], int(sys.argv[-1])
if kind == "broken":
    sys.exit("the port is taken")
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
beside = supervised(fd)
print("pid", os.getpid(), flush=True)
asyncio.run(beside(None).__aenter__())
while signal.sigwait({signal.SIGTERM}):
    print("told to stop", flush=True)
    if kind != "stubborn":
        sys.exit(0)
"""

COMMAND = """
import sys
from ottla.cli import supervisor
kinds = sys.argv[2:]
children = [(n, kind == "controller", [sys.executable, "-c", sys.argv[1], kind]) for n, kind in enumerate(kinds, 1)]
sys.exit(supervisor.run(children, "all are there", lambda n: True, as_json=False))
"""

Start = Callable[..., "Supervised"]


class Supervised:
    """The supervisor as a process, and its output line by line."""

    def __init__(self, *kinds: str) -> None:
        words = [sys.executable, "-c", COMMAND, NODE, *kinds]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """Read on up to a line that matches."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"nobody said {pattern!r}: {''.join(self.lines)}")

    def pids(self, count: int) -> list[int]:
        return [int(self.until(r"node \d  \| pid (\d+)")[1]) for _ in range(count)]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Supervised] = []

    def run(*kinds: str) -> Supervised:
        made.append(Supervised(*kinds))
        return made[-1]

    yield run
    for each in made:
        each.process.kill()
        each.process.wait()
        assert each.process.stderr is not None
        each.process.stderr.close()


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} are still there"
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_one_word_stops_all_and_brokers_go_first(start: Start) -> None:
    several = start("controller", "broker", "controller")
    pids = several.pids(3)
    several.until("cluster .* all are there")
    several.process.send_signal(signal.SIGINT)
    several.until("cluster .* the nodes stop")
    order = [int(several.until(r"node (\d)  \| told to stop")[1]) for _ in range(3)]
    assert order[0] == 2 and sorted(order) == [1, 2, 3]
    assert several.process.wait(30) == 0
    wait_gone(pids)


def test_who_crashes_is_started_again_and_that_is_said(start: Start) -> None:
    several = start("controller", "broker")
    pids = several.pids(2)
    several.until("all are there")
    os.kill(pids[1], signal.SIGKILL)
    several.until(r"cluster .* ended \(SIGKILL\): it is started again in 0.5 s")
    several.until("cluster .* node . has an empty disk: it begins anew")
    assert several.pids(1) not in ([pids[0]], [pids[1]])


def test_nobody_outlives_the_supervisor(start: Start) -> None:
    several = start("controller", "broker")
    pids = several.pids(2)
    several.process.kill()
    wait_gone(pids)


def test_a_second_word_kills(start: Start) -> None:
    several = start("stubborn")
    pids = several.pids(1)
    several.until("all are there")
    several.process.send_signal(signal.SIGTERM)
    several.until("told to stop")
    time.sleep(0.4)  # sooner it would count as the same word
    several.process.send_signal(signal.SIGTERM)
    several.until("node 1 is killed: told twice")
    assert several.process.wait(30) == 1
    wait_gone(pids)


def test_a_node_that_cannot_start_ends_it_all(start: Start) -> None:
    several = start("broken")
    several.until(r"node 1  \| the port is taken")
    several.until("cannot start: the others are stopped")
    assert several.process.wait(30) == 1


def test_lines_of_json_stay_json() -> None:
    say = (
        "import sys; from ottla.cli.supervisor import Output; out = Output(sys.stdout.buffer, as_json=True);"
        "out.pass_on('node 2', b'{\"level\":\"info\"}'); out.pass_on('node 2', b'plain'); out.say('hello')"
    )
    said = subprocess.run([sys.executable, "-c", say], capture_output=True, check=True).stdout.splitlines()
    first, second, third = map(json.loads, said)
    assert first == {"node": 2, "level": "info"}
    assert second == {"node": 2, "message": "plain"}
    assert (third["level"], third["message"]) == ("info", "hello")
