"""Loops of consume, transform, produce that are killed and come back, and the check that nothing is missing or there twice.

A `Loop` is one library at work: an input topic that a writer fills, one or more copiers, an output topic. Whoever dies is
started again at once by `tend`. Each input partition is copied to the output partition of the same number, so the strongest
claim is also the simplest one: what is read there at read_committed is the input, in the same order.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from compat.copier import STEPS, transformed
from compat.transacting import Confluent, Found, committed_offsets
from harness import die_with_parent

COPIER = Path(__file__).resolve().parent / "copier.py"
JAVA_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
# So long no progress, with a broker that answers: the library hangs, and somebody would restart it.
HANGING_SECONDS = 30.0
KEYS = 10
RECONNECT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20, "log_level": 0}

SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
}


class Copier:
    """One process of a loop."""

    def __init__(self, command: Sequence[str]) -> None:
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            preexec_fn=die_with_parent,
        )
        self.heard = time.monotonic()
        self.said = 0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.heard = time.monotonic()
            self.said += 1

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def complaint(self) -> str:
        self.complaints.seek(0)
        return self.complaints.read().decode(errors="replace")[-1500:]


class Loop:
    """One library's copying of one topic to another. `deaths` are the steps at which its copiers kill themselves in turn."""

    def __init__(
        self, address: str, library: str, partitions: int = 2, mode: str = "assigned", copiers: int = 1
    ) -> None:
        self.address, self.library, self.partitions, self.mode = address, library, partitions, mode
        self.name = f"{library}-{mode}"
        self.input, self.output, self.group = f"{self.name}-in", f"{self.name}-out", f"{self.name}-group"
        self.deaths: list[str] = []
        self.ends: list[str] = []
        self._copiers: list[Copier | None] = [None] * copiers

    def job(self, number: int) -> dict[str, object]:
        return {
            "library": self.library,
            "bootstrap": self.address,
            "input": self.input,
            "output": self.output,
            "partitions": self.partitions,
            "group": self.group,
            "id": f"{self.name}-{number}",
            "size": 20,
            "mode": self.mode,
            "dies_after": self.deaths.pop(0) if self.deaths else None,
        }

    def command(self, number: int) -> list[str]:
        return [sys.executable, str(COPIER), json.dumps(self.job(number))]

    def tend(self) -> None:
        """Starts whoever is dead, and ends whoever has not been heard of for long."""
        for number, copier in enumerate(self._copiers):
            if copier is not None and copier.process.poll() is None:
                if time.monotonic() - copier.heard < HANGING_SECONDS:
                    continue
                self.ends.append(f"hung after {copier.said} lines")
                copier.kill()
            elif copier is not None:
                self.ends.append(f"{copier.process.returncode} {copier.complaint()}")
                copier.kill()
            self._copiers[number] = Copier(self.command(number))

    def kill(self, rng: random.Random) -> None:
        victim = rng.choice(self._copiers)
        if victim is not None:
            victim.kill()

    def stop(self) -> None:
        for copier in self._copiers:
            if copier is not None:
                copier.kill()


class JavaLoop(Loop):
    """Apache Kafka's TransactionalMessageCopier: a process for each partition, or members of a group."""

    def __init__(self, address: str, partitions: int = 1, mode: str = "assigned") -> None:
        super().__init__(address, "java", partitions, mode, copiers=partitions)

    def command(self, number: int) -> list[str]:
        words = {
            "--broker-list": self.address,
            "--input-topic": self.input,
            "--input-partition": number,
            "--output-topic": self.output,
            "--consumer-group": self.group,
            "--transactional-id": f"{self.name}-{number}",
            "--transaction-size": 20,
            "--transaction-timeout": 3000,
        }
        modes = ["--group-mode", "--use-group-metadata"] if self.mode == "group" else []
        pairs = [part for name, value in words.items() for part in (name, str(value))]
        return kafka.java(JAVA_COPIER, *pairs, "--enable-random-aborts", *modes, logging=kafka.logging_file("ERROR"))


class Writer:
    """Fills the inputs, each record once whatever happens to the broker."""

    def __init__(self, address: str, loops: Sequence[Loop], per_second: int) -> None:
        self._loops, self._pause = loops, 1 / per_second
        idempotent = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000}
        self._producer = Producer({"bootstrap.servers": address, **idempotent, **RECONNECT})
        self._failures: list[object] = []
        self._over = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._pause):
            number = self.count % KEYS
            for loop in self._loops:
                value, partition = f"{self.count}", number % loop.partitions
                self._producer.produce(loop.input, value, f"key {number}", partition, on_delivery=self._delivered)
            self.count += 1
            self._producer.poll(0)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self._failures.append(error)

    def finish(self) -> None:
        self._over.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        assert not self._failures


class Killed(Protocol):
    """A broker, or several of them: somebody is killed, and back again after `start`."""

    @property
    def address(self) -> str: ...

    def kill(self) -> None: ...

    def start(self) -> object: ...


class Trial:
    """A broker, the loops on it, and a writer. Tests do something to them now and then; `check` tells the truth."""

    def __init__(self, server: Killed, loops: Sequence[Loop], per_second: int) -> None:
        self.server, self.loops = server, loops
        admin = AdminClient({"bootstrap.servers": server.address, **RECONNECT})
        topics = [NewTopic(name, loop.partitions) for loop in loops for name in (loop.input, loop.output)]
        for made in admin.create_topics(topics, request_timeout=15).values():
            made.result()
        self.writer = Writer(server.address, loops, per_second)

    def tend(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Keeps the loops alive for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not is_over():
            for loop in self.loops:
                loop.tend()
            time.sleep(0.1)

    def kill_broker(self) -> None:
        self.server.kill()
        self.server.start()

    def kill_somebody(self, seconds: float, rng: random.Random, pause_max_s: float, brokers: float) -> None:
        """For so long, again and again: of the killed this share are brokers, the others are clients."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.tend(rng.uniform(0.5, pause_max_s))
            if rng.random() < brokers:
                self.kill_broker()
            else:
                rng.choice(self.loops).kill(rng)

    def die_at_every_step(self) -> None:
        for loop in self.loops:
            if not isinstance(loop, JavaLoop):
                loop.deaths = list(STEPS)

    def steps_left(self) -> bool:
        return any(loop.deaths for loop in self.loops)

    def check(self, seconds: float) -> None:
        """Once all is copied: equal, in order, nothing twice."""
        self.writer.finish()
        self.tend(seconds, lambda: all(map(self._is_copied, self.loops)))
        for loop in self.loops:
            given, copied = self._values(loop.input), self._values(loop.output)
            wanted = {
                partition: [transformed(value.encode()).decode() for value in each] for partition, each in given.items()
            }
            if loop.library == "java":
                wanted = given
            assert sum(map(len, given.values())) == self.writer.count
            assert copied == wanted, f"{loop.name}: {difference(copied, wanted)}; {loop.ends}"

    def _is_copied(self, loop: Loop) -> bool:
        return self._offsets(loop) >= self.writer.count and len(self._read(loop.output)) >= self.writer.count

    def _offsets(self, loop: Loop) -> int:
        """How many records the group is past, in all partitions."""
        found = committed_offsets(self.server.address, loop.group, loop.input, loop.partitions)
        return sum(max(0, offset) for offset in found)

    def _values(self, topic: str) -> dict[int, list[str]]:
        values: dict[int, list[str]] = {}
        for found in self._read(topic):
            values.setdefault(found.partition, []).append(found.value)
        return values

    def _read(self, topic: str) -> list[Found]:
        partitions = next(loop.partitions for loop in self.loops if topic in (loop.input, loop.output))
        return Confluent().read(self.server.address, topic, partitions, "read_committed")

    def stop(self) -> None:
        for loop in self.loops:
            loop.stop()

    def tell(self, capsys: pytest.CaptureFixture[str]) -> None:
        began = ", ".join(f"{loop.name} began {len(loop.ends) + 1} times" for loop in self.loops)
        with capsys.disabled():
            print(f" [{self.writer.count} records each, {began}]", end="")


Begin = Callable[..., Trial]


@contextlib.contextmanager
def trials(server: Killed, kind: type[Trial] = Trial) -> Iterator[Begin]:
    """`begin(make, per_second)` starts the server and a trial with the loops that `make` has for its address."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    begun: list[Trial] = []

    def begin(make: Callable[[str], list[Loop]], per_second: int) -> Trial:
        server.start()
        begun.append(kind(server, make(server.address), per_second))
        return begun[-1]

    try:
        yield begin
    finally:
        for each in begun:
            each.stop()


def difference(copied: dict[int, list[str]], wanted: dict[int, list[str]]) -> str:
    """The first place where they part, with what is around it."""
    for partition, values in wanted.items():
        there = copied.get(partition, [])
        for at, (one, other) in enumerate(zip(there, values, strict=False)):
            if one != other:
                return f"partition {partition} at {at}: {there[at - 2 : at + 5]} instead of {values[at - 2 : at + 5]}"
        if len(there) != len(values):
            return f"partition {partition}: {len(there)} instead of {len(values)}; {there[-3:]}, {values[-3:]}"
    return "none"
