"""A PostgreSQL of our own in a directory, for as long as a test needs it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import die_with_parent

SECONDS = 60


@contextmanager
def postgresql() -> Iterator[str]:
    """Its address: a socket in that directory. PostgreSQL does not run as root. Skips where it is not installed."""
    initdb, server = program("initdb"), program("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: postgresql)")
    user = "postgres" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pipeline-") as directory:  # pytest's own are closed to other users
        if user:
            shutil.chown(directory, user)
        data = f"{directory}/data"
        subprocess.run([initdb, "-D", data, "-U", "postgres", "-A", "trust"], user=user, check=True, stdout=-3)
        command = [server, "-D", data, "-k", directory, "-c", "listen_addresses=", "-c", "fsync=off"]
        process = subprocess.Popen(command, user=user, preexec_fn=die_with_parent, stderr=subprocess.DEVNULL)
        try:
            yield until_it_answers(f"postgresql:///postgres?host={directory}&user=postgres")
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(SECONDS)


def program(name: str) -> str | None:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name) or next((str(place / name) for place in places if (place / name).exists()), None)


def until_it_answers(address: str) -> str:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'ottla[postgres]'")
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            psycopg.connect(address).close()
            return address
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
