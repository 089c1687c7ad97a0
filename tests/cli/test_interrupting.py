"""Ctrl-C, at whatever moment, and a reader who leaves: the command ends, and nobody is shown a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import StartNode
from harness import TREE, free_port

# Ctrl-C while a certain module is being loaded.
INTERRUPTED_WHILE_LOADING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ottla.cli.main import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.exit(main(sys.argv[2:]))
"""

# The same in a callback, whose exceptions Python drops.
INTERRUPTED_IN_A_CALLBACK = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ottla.cli.main import main

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            Last()

sys.meta_path.insert(0, Interrupt())
sys.exit(main(sys.argv[2:]))
"""

# While the event loop is being made, which complains when it is collected half made.
INTERRUPTED_WHILE_A_LOOP_IS_MADE = """
import asyncio, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ottla.cli.main import main
asyncio.BaseEventLoop.__init__ = lambda self: os.kill(os.getpid(), signal.SIGINT)
sys.exit(main(sys.argv[1:]))
"""

# The moment a node serves, while something else beside it begins.
INTERRUPTED_AT_THE_START = """
import contextlib, os, signal, sys
from ottla.server.process import Options, serve_forever
signal.signal(signal.SIGINT, signal.default_int_handler)

@contextlib.asynccontextmanager
async def beside(node):
    os.kill(os.getpid(), signal.SIGINT)
    yield

properties = {"log.dirs": sys.argv[1], "listeners": "PLAINTEXT://127.0.0.1:" + sys.argv[2]}
sys.exit(serve_forever(properties, Options(), beside))
"""

# Tells when Python is done with its own loading, which is not ours to teach manners.
TELLING_WHEN_IT_BEGINS = """
import os, sys
from ottla.cli.main import main

class Tell:
    def find_spec(self, name, path=None, target=None):
        if name == "argparse":
            os.write(int(sys.argv[1]), b"!")

sys.meta_path.insert(0, Tell())
sys.exit(main(sys.argv[2:]))
"""


def start(*words: str) -> subprocess.Popen[bytes]:
    """A command with the usual SIGINT, which a child of a background shell would ignore. It has begun when this returns."""
    begun, tells = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", TELLING_WHEN_IT_BEGINS, str(tells), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=TREE,
        pass_fds=[tells],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(tells)
    assert os.read(begun, 1) == b"!"
    os.close(begun)
    return process


@pytest.mark.parametrize("module", ["argparse", "ottla.cli.serve", "ottla.config", "asyncio", "ottla.server.node"])
@pytest.mark.parametrize(
    "program", [INTERRUPTED_WHILE_LOADING, INTERRUPTED_IN_A_CALLBACK], ids=["plainly", "in a callback"]
)
def test_while_it_is_loaded(tmp_path: Path, module: str, program: str) -> None:
    """FTM-12"""
    words = ["serve", "--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{free_port()}"]
    command = [sys.executable, "-c", program, module, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=TREE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("verb", "code"), [("produce t", 130), ("consume t", 0), ("topic list", 130), ("serve --data DATA", 130)]
)
def test_while_a_loop_is_made(tmp_path: Path, verb: str, code: int) -> None:
    words = [str(tmp_path / "data") if word == "DATA" else word for word in verb.split()]
    command = [sys.executable, "-c", INTERRUPTED_WHILE_A_LOOP_IS_MADE, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=TREE)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("delay_s", [0, 0.1, 0.2, 0.3, 0.4])
@pytest.mark.parametrize("verb", [["produce", "t"], ["consume", "t", "--from-beginning"], ["topic", "list"]])
def test_while_it_works(node: StartNode, verb: list[str], delay_s: float) -> None:
    process = start(*verb, "--bootstrap-server", node().address)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (0, 1, 130, -signal.SIGINT)
    assert b"Traceback" not in said and b"never retrieved" not in said, said


def test_when_it_has_just_begun_to_serve(tmp_path: Path) -> None:
    """It is stopped as at any other time: the next start has nothing to recover."""
    command = [sys.executable, "-c", INTERRUPTED_AT_THE_START, str(tmp_path / "data"), str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=TREE)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_reader_who_leaves(node: StartNode) -> None:
    """`ottla produce t | head -1`, with more lines than a pipe holds."""
    process = start("produce", "t", "--bootstrap-server", node().address)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith(b"partition=0 offset=0")
    process.stdout.close()
    try:
        process.stdin.write(b"more\n" * 50_000)
        process.stdin.close()
    except BrokenPipeError:
        pass
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_second_ctrl_c_while_a_start_reads_its_logs(tmp_path: Path) -> None:
    """The first waits for the thread that reads; the second ends it, and says nothing either."""
    slow = (
        "import os, signal, sys, threading, time\n"
        "from ottla.log.directories import Directories\n"
        "def interrupt(): os.kill(os.getpid(), signal.SIGINT)\n"
        "Directories.open = lambda self: (interrupt(), threading.Timer(1.5, interrupt).start(), time.sleep(100))\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from ottla.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["serve", "--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{free_port()}"]
    done = subprocess.run([sys.executable, "-c", slow, *words], capture_output=True, text=True, timeout=60, cwd=TREE)
    assert done.returncode == -signal.SIGINT and "Traceback" not in done.stderr, done.stderr


def test_whoever_waits_for_records_that_are_there_is_told_why(node: StartNode) -> None:
    address = node().address
    start("produce", "t", "--bootstrap-server", address).communicate(b"there already\n", timeout=60)
    seen, terminal = os.openpty()
    command = [sys.executable, "-m", "ottla", "consume", "t", "--bootstrap-server", address]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=TREE) as process:
        os.close(terminal)
        assert os.read(seen, 1000).startswith(b"waiting for new records; --from-beginning shows the old ones")
        process.terminate()
    os.close(seen)
