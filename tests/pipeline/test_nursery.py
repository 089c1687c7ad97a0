"""Spark's Python processes come from one that has imported everything, and are as new ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.pipeline import interpreter

SECONDS = 60
PROBE = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv[1:], "name": __name__, "here": os.getcwd(), "said": sys.stdin.read(), "mine": os.environ.get("MINE"),
    "path": sys.path[:2], "executable": sys.executable,
}))
print("prepared" if "pyarrow" in sys.modules else "new", file=sys.stderr)
sys.exit(7)
"""
PROGRAM = """
import os, sys
from ottla.pipeline import interpreter, nursery
interpreter.for_workers()
nursery.open_for_workers()
print(os.environ["OTTLA_NURSERY"], flush=True)
sys.stdin.read()
"""


class Program:
    """A program that uses Spark, as far as the nursery is concerned."""

    def __init__(self, **environment: str) -> None:
        pipe = subprocess.PIPE
        told = os.environ | environment
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=told, text=True, stdin=pipe, stdout=pipe)
        assert self.process.stdout is not None
        self.door = Path(self.process.stdout.readline().strip())

    def environment(self, **more: str) -> dict[str, str]:
        return os.environ | {"OTTLA_WORKER_PYTHON": sys.executable, "OTTLA_NURSERY": str(self.door), **more}

    def await_closed(self) -> None:
        until = time.monotonic() + SECONDS
        while self.door.parent.exists():
            assert time.monotonic() < until
            time.sleep(0.01)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program()
    yield made
    made.end()


def probe(folder: Path, environment: dict[str, str]) -> tuple[dict[str, object], str]:
    """What a process finds that Spark starts with these words, and whether it had to import everything itself."""
    (folder / "probe.py").write_text(PROBE)
    command = [str(interpreter.SCRIPT), "-m", "probe", "a b", ""]
    done = subprocess.run(
        command, input="words", env=environment, cwd=folder.parent, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 7, done.stderr
    return json.loads(done.stdout), done.stderr.strip()


def test_it_is_as_a_new_interpreter(program: Program, tmp_path: Path) -> None:
    told = program.environment(MINE="yes", PYTHONPATH=f"/s/python/lib/pyspark.zip:{tmp_path}")
    found, kind = probe(tmp_path, told)
    assert kind == "prepared"
    del told["OTTLA_NURSERY"]
    assert probe(tmp_path, told) == (found, "new")
    assert found["argv"] == ["a b", ""] and found["mine"] == "yes" and found["said"] == "words"


@pytest.mark.parametrize(
    "other", [{"PYTHONHASHSEED": "1"}, {"PYTHONOPTIMIZE": "1"}, {"OMP_NUM_THREADS": "2"}, {"TZ": "Asia/Tokyo"}]
)
def test_one_that_has_to_be_started_otherwise_is(other: dict[str, str], program: Program, tmp_path: Path) -> None:
    told = program.environment(PYTHONPATH=str(tmp_path))
    assert probe(tmp_path, told | {"PYTHONHASHSEED": "0", "PYTHON_OF_SPARK": "x"})[1] == "prepared"
    assert probe(tmp_path, told | other)[1] == "new"


def test_it_ends_with_the_program_and_nobody_needs_it(program: Program, tmp_path: Path) -> None:
    told = program.environment(PYTHONPATH=str(tmp_path))
    assert probe(tmp_path, told)[1] == "prepared"
    program.process.kill()
    program.await_closed()
    assert probe(tmp_path, told)[1] == "new"


def test_it_gives_up_where_a_library_has_started_threads(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    program = Program(PYTHONPATH=str(tmp_path))
    try:
        assert probe(tmp_path, program.environment(PYTHONPATH=str(tmp_path)))[1] == "new"
        program.await_closed()
    finally:
        program.end()


def test_a_directory_whose_name_is_too_long_for_a_socket(tmp_path: Path) -> None:
    """There is none then, and nothing is left of the attempt."""
    (long := tmp_path / ("x" * 120)).mkdir()
    code = "import os; from ottla.pipeline import nursery; nursery.open_for_workers(); print('OTTLA_NURSERY' in os.environ)"
    told = {name: value for name, value in os.environ.items() if name != "OTTLA_NURSERY"} | {"TMPDIR": str(long)}
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, timeout=SECONDS)
    assert (done.stdout, done.stderr, list(long.iterdir())) == ("False\n", "", [])


def test_who_kills_the_process_kills_what_was_born(program: Program, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    told = program.environment(PYTHONPATH=str(tmp_path))
    command = [str(interpreter.SCRIPT), "-m", "long"]
    with subprocess.Popen(command, env=told, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        assert pid != started.pid
        started.kill()
        assert started.stdout.read() == b""  # the end of the last process that could have written
    with pytest.raises(ProcessLookupError):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            os.kill(pid, 0)
            time.sleep(0.01)


def test_death_by_a_signal_is_told(program: Program, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os; os.kill(os.getpid(), 9)")
    told = program.environment(PYTHONPATH=str(tmp_path))
    done = subprocess.run([str(interpreter.SCRIPT), "-m", "dies"], env=told, timeout=SECONDS)
    assert done.returncode == 128 + signal.SIGKILL


def test_sparks_workers_come_from_it(spark) -> None:
    """Whatever Spark sets for its workers, they are alike."""

    def is_prepared(_: int) -> bool:
        return "ottla.pipeline.start_worker" in sys.modules

    assert spark.sparkContext.parallelize([0], 1).map(is_prepared).collect() == [True]


@pytest.mark.parametrize("said", [b"", b"\0\0\0\4", b"\0\0\0\4what", b"\0\0\0\1N"])
def test_a_stranger_at_the_door_is_sent_away(said: bytes, program: Program, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(program.door))
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
    assert probe(tmp_path, program.environment(PYTHONPATH=str(tmp_path)))[1] == "prepared"
