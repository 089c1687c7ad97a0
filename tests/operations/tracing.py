"""System calls of a running node, watched or made to fail by strace."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Server, die_with_parent
from operations.speaking import eventually


def needs_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")


@contextlib.contextmanager
def traced(server: Server, *options: str) -> Iterator[list[str]]:
    """strace on all threads of the server for as long as the block lasts; after it the list holds the calls it saw."""
    needs_strace()
    calls: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        found, said = Path(place) / "calls", Path(place) / "said"
        with said.open("wb") as errors:
            command = ["strace", "-f", "-p", str(server.pid), "-o", str(found), *options]
            process = subprocess.Popen(command, stderr=errors, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        try:
            eventually(lambda: b"attached" in said.read_bytes() or process.poll() is not None)
            if process.poll() is not None and "attached" not in said.read_text():
                pytest.skip(f"strace may not look at other processes here: {said.read_text().strip()}")
            yield calls
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            calls += found.read_text().splitlines() if found.exists() else []


@contextlib.contextmanager
def failing_syncs(server: Server, path: Path) -> Iterator[None]:
    """Every fsync of this file fails with an I/O error."""
    with traced(server, "-P", str(path), "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO"):
        yield
