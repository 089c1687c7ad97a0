"""What is known of a run: a directory beside the pipeline, with a file that is locked for as long as somebody runs it.

The lock, not the number of a process, says whether it runs: it goes away with the process, however that ends, and another
process that is given the same number later is not taken for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ottla.pipeline.files.progress import State

LOCK, STATUS = "lock", "status.json"
PAUSE_S = 0.05
NOTE_S = 1.0


class Runs(Exception):
    """Somebody runs this pipeline already."""


@contextmanager
def running(directory: Path) -> Iterator[None]:
    """Held while it runs; two of them would fence each other off."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = _pid_in(directory)
            raise Runs(f"this pipeline runs already, as process {pid}: `ottla pipeline stop` ends it")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def pid(directory: Path) -> int | None:
    """The process that runs it now."""
    try:
        with (directory / LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except OSError:
        return _pid_in(directory)
    return None


def _pid_in(directory: Path) -> int | None:
    text = (directory / LOCK).read_text().strip()
    return int(text) if text.isdigit() else None


def write(directory: Path, status: dict[str, Any]) -> None:
    """Whole or not at all, for whoever reads it meanwhile."""
    part = directory / f"{STATUS}.part"
    part.write_text(json.dumps(status, indent=1) + "\n")
    part.replace(directory / STATUS)


class Notes:
    """How a run goes, written down once in a while for whoever asks."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._began, self._next = time.time(), 0.0

    def looked(self, states: Sequence[State]) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + NOTE_S
            self._note(states, running=True)

    def ended(self, states: Sequence[State]) -> None:
        self._note(states, running=False)

    def _note(self, states: Sequence[State], running: bool) -> None:
        told = {
            "name": self._name,
            "pid": os.getpid(),
            "running": running,
            "began": self._began,
            "at": time.time(),
            "queries": [asdict(state) for state in states],
        }
        write(self._directory, told)


def read(directory: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((directory / STATUS).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def read_now(directory: Path) -> dict[str, Any]:
    """Of the run that holds the lock: nothing while it starts, and only the one before has told of itself."""
    found = read(directory)
    return found if found.get("at", 0) >= (directory / LOCK).stat().st_mtime else {}


def stop(directory: Path, timeout_s: float, force: bool = False) -> int | None:
    """Ask it to end, and wait until it did; the number of the process, or None if nobody runs it."""
    found = pid(directory)
    if found is None:
        return None
    os.kill(found, signal.SIGKILL if force else signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while pid(directory) == found:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"process {found} did not end in {timeout_s:g} s: `--force` ends it at once, and loses nothing"
            )
        time.sleep(PAUSE_S)
    return found
