"""The broker as a test sees it: an address, topics, faults on request, and an end that leaves nothing behind.

The node runs in a child process, or, with `in_process=True`, on a thread of the test's own process: that starts faster, and a
debugger can walk into it, but a busy test and a busy broker then share one interpreter. Either is told what to do by orders
(`stage.py`), so both can do the same. The child ends and cleans up when its standard input closes, however the test ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

from ottla.testing.faults import Faults

START_SECONDS = 30.0
STOP_SECONDS = 20.0


class BrokerFailed(RuntimeError):
    """The broker could not start, or could not do what it was told."""


class Runner(Protocol):
    """Where the node runs."""

    def order(self, order: Mapping[str, Any]) -> Any: ...
    def kill(self) -> None:
        """End at once, and be ready for orders again."""

    def close(self) -> None: ...


class Broker:
    """A running node. `bootstrap` is what clients want as `bootstrap.servers`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.bootstrap: str = runner.order({"do": "start"})
        self.faults = Faults(runner.order)

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the node and remove its files. Closing twice is fine."""
        self._runner.close()

    @property
    def directory(self) -> str:
        """Where its data lies, in Apache Kafka's own files."""
        return str(self._runner.order({"do": "directory"}))

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Make a topic; when this returns it can be used. The answer is its name."""
        self._runner.order({"do": "create", "name": name, "partitions": partitions, "configs": dict(configs or {})})
        return name

    def renew(self) -> None:
        """Begin anew with an empty directory, on the same port: nothing is left of what happened before, no fault either."""
        self._runner.order({"do": "renew"})

    def restart(self, *, kill: bool = False) -> None:
        """Stop and start on the same data; with `kill` the process ends as by kill -9, and faults are forgotten."""
        if not kill:
            self._runner.order({"do": "restart"})
            return
        directory = self.directory
        self._runner.kill()
        self._runner.order({"do": "take_over", "directory": directory, "port": int(self.bootstrap.rpartition(":")[2])})

    def move_clock(self, seconds: float) -> None:
        """Let the broker's wall clock jump: retention, expiry and timestamps follow it."""
        self._runner.order({"do": "move_clock", "seconds": seconds})

    def run_upkeep(self) -> None:
        """Do now what the broker does every few minutes: retention, compaction, forgetting what expired."""
        self._runner.order({"do": "upkeep"})


@contextmanager
def broker(settings: Mapping[str, str] | None = None, *, in_process: bool = False) -> Iterator[Broker]:
    """A real node on a free port of this machine, in a temporary directory, for the length of a `with` block.

    `settings` have Kafka's names: {"num.partitions": "3"}.
    """
    with open_broker(settings, in_process=in_process) as running:
        yield running


def open_broker(settings: Mapping[str, str] | None = None, *, in_process: bool = False) -> Broker:
    """The same without a `with` block: whoever calls this calls `close`."""
    runner: Runner = Here(settings or {}) if in_process else Child(settings or {})
    try:
        return Broker(runner)
    except BaseException:
        runner.close()
        raise


class Child:
    """The node in a process of its own; orders go in and answers come out as lines of JSON."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._settings = dict(settings)
        self._begin()

    def _begin(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla.testing.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.order({"settings": self._settings})

    def kill(self) -> None:
        self._process.kill()
        self.close()
        self._begin()

    def order(self, order: Mapping[str, Any]) -> Any:
        with self._lock:
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None and stdout is not None
            try:
                stdin.write(json.dumps(order).encode() + b"\n")
                stdin.flush()
                line = stdout.readline()
            except (OSError, ValueError) as error:
                raise BrokerFailed(f"the broker's process is gone: {error}") from error
        if not line:
            raise BrokerFailed("the broker's process has ended; what it said stands on standard error")
        answer = json.loads(line)
        if "failed" in answer:
            raise BrokerFailed(answer["failed"])
        return answer["done"]

    def close(self) -> None:
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Here:
    """The node on a thread of this process."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        from ottla.server.loop import Loop
        from ottla.testing.stage import Stage

        self._loop = Loop()
        self._thread = threading.Thread(target=self._run, name="ottla-broker", daemon=True)
        self._thread.start()
        self._pid = os.getpid()
        self._stage: Stage | None = self._call(self._make_stage(settings))

    @staticmethod
    async def _make_stage(settings: Mapping[str, str]) -> Any:
        from ottla.testing.stage import Stage

        return Stage(settings, apart=False)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    def order(self, order: Mapping[str, Any]) -> Any:
        if self._stage is None:
            raise BrokerFailed("the broker was closed")
        answer = self._call(self._stage.obey(order))
        if "failed" in answer:
            raise BrokerFailed(answer["failed"])
        return answer["done"]

    def kill(self) -> None:
        raise BrokerFailed("a broker in the test's own process cannot be killed: leave out in_process")

    def close(self) -> None:
        stage, self._stage = self._stage, None
        if stage is None or os.getpid() != self._pid:
            return
        try:
            self._call(stage.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_SECONDS)
