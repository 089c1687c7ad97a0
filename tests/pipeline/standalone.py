"""Servers of Spark on loopback: a standalone cluster of two workers, whose executors can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from harness import HOST, die_with_parent, free_port

SPARK = Path(next(iter(find_spec("pyspark").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
EXECUTOR = b"CoarseGrainedExecutorBackend"


@contextmanager
def running(*commands: list[str]) -> Iterator[list[int]]:
    """Servers of Spark, by their ids, ended afterwards."""
    env = os.environ | {"SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(command, env=env, preexec_fn=die_with_parent, **quiet) for command in commands]  # type: ignore[call-overload]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Standalone:
    """A master and its workers."""

    def __init__(self, address: str, workers: list[int]) -> None:
        self.address, self.workers = address, workers

    def executors(self) -> list[int]:
        """The processes that run tasks now."""
        return [child for worker in self.workers for child in _children(worker) if EXECUTOR in _command(child)]

    def kill(self, executor: int) -> None:
        assert executor in self.executors()
        os.kill(executor, signal.SIGKILL)


@contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[Standalone]:
    port = free_port()
    address = f"spark://{HOST}:{port}"
    place = "org.apache.spark.deploy"
    master = _class(f"{place}.master.Master", "--host", HOST, "--port", port, "--webui-port", free_port())
    worker = (f"{place}.worker.Worker", "--host", HOST, "-c", 1, "-m", "600m", "--webui-port")
    others = [_class(*worker, free_port(), "-d", directory / f"worker-{n}", address) for n in range(workers)]
    with running(master, *others) as (_, *pids):
        yield Standalone(address, pids)


def _class(*words: object) -> list[str]:
    return [str(SPARK / "bin" / "spark-class"), *map(str, words)]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
