"""Two-phase commit with a real second participant: payments in PostgreSQL and in topics, with kill -9 at every step.

It needs PostgreSQL's server (a Debian package) and psycopg: `make two-phase` says what is missing; elsewhere it is left out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from conftest import StartNode
from harness import TREE, Node, die_with_parent

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.slow  # `make two-phase`
EXAMPLE = TREE / "examples" / "two_phase_commit"
STEPS = ("insert", "post", "prepare", "vote", "decide", "row", "records")
DECIDED = STEPS[STEPS.index("decide") :]
SETTINGS = {"transaction.two.phase.commit.enable": "true"}

# The example, but at each step it says where it is and waits to be let go.
HALTING = """
import asyncio, sys
import payments
def reached(number, step):
    print("at", number, step, flush=True)
    sys.stdin.readline()
broker, where, path, count = sys.argv[1:]
asyncio.run(payments.make_payments(broker, where, path, int(count), reached))
"""


def _server_program(name: str) -> str | None:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name) or next((str(place / name) for place in places if (place / name).exists()), None)


class Postgres:
    """A server of our own in a directory, reached by a socket there. PostgreSQL does not run as root."""

    def __init__(self, directory: Path) -> None:
        self.where = f"host={directory} dbname=postgres user=postgres"
        self._user = "postgres" if os.getuid() == 0 else None
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        data, initdb, server = self._directory / "data", _server_program("initdb"), _server_program("postgres")
        assert initdb and server
        if self._user:
            shutil.chown(self._directory, self._user)
        subprocess.run([initdb, "-D", data, "-U", "postgres", "-A", "trust"], user=self._user, check=True, stdout=-3)
        options = ["-k", str(self._directory), "-c", "listen_addresses=", "-c", "max_prepared_transactions=10"]
        command = [server, "-D", str(data), *options]
        self._process = subprocess.Popen(
            command, user=self._user, preexec_fn=die_with_parent, stderr=subprocess.DEVNULL
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)


@pytest.fixture
def database() -> Iterator[str]:
    if _server_program("postgres") is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: postgresql)")
    with tempfile.TemporaryDirectory(prefix="two-phase-") as directory:  # pytest's own are closed to other users
        server = Postgres(Path(directory))
        try:
            server.start()
            _until_it_answers(server.where)
            yield server.where
        finally:
            server.stop()


def _until_it_answers(where: str) -> None:
    for _ in range(600):
        try:
            psycopg.connect(where).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    raise AssertionError("PostgreSQL does not answer")


class Program:
    """The example as a process that is let go from step to step."""

    def __init__(self, node: Node, where: str, decisions: Path, count: int) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{EXAMPLE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        command = [sys.executable, "-c", HALTING, node.address, where, str(decisions), str(count)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, preexec_fn=die_with_parent, **pipes)  # type: ignore[call-overload]
        self.left_behind = self._line().removeprefix("left behind: ")

    def _line(self) -> str:
        return str(self.process.stdout.readline()).strip()

    def go_to(self, step: str) -> int:
        """Let it go on up to this step; the number of the payment that is there."""
        while True:
            said = self._line().split()
            assert said, "the program has ended"
            if said[2] == step:
                return int(said[1])
            self.go()

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        while self._line():
            self.go()
        assert self.process.wait(60) == 0


def rows(where: str) -> list[int]:
    with psycopg.connect(where) as connection:
        assert connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone() == (0,)
        return sorted(number for (number,) in connection.execute("SELECT number FROM payments").fetchall())


def records(address: str, topic: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "look",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (message := consumer.poll(30)) is not None:
            if message.error() is None:
                found.append(int(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return sorted(found)
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()
    raise AssertionError("the end was not reached: a transaction hangs")


@pytest.mark.parametrize("victim", ["program", "broker", "both"])
def test_never_one_without_the_other(victim: str, database: str, node: StartNode, tmp_path: Path) -> None:
    """TXN-03, TXN-07, KIP-939: program, broker or both are killed at each step; after that both sides have the same."""
    broker, decisions = node(settings=SETTINGS), tmp_path / "decisions"
    expected: set[int] = set()
    for step in STEPS:
        program = Program(broker, database, decisions, 2)
        number = program.go_to(step)
        if victim != "broker":
            program.kill()
        if victim != "program":
            broker.kill()
            broker.start()
        if victim == "broker":
            program.go()
            program.finish()
            expected |= {number, number + 1}
        else:
            again = Program(broker, database, decisions, 1)
            should = {"insert": "there was no transaction", "records": "there was no transaction", "post": None}
            if (what := should.get(step, "committed" if step in DECIDED else "aborted")) is not None:
                assert again.left_behind == what, f"{victim} killed at {step}"
            again.finish()
            expected |= {number, number + 1} if step in DECIDED else {number}
        assert rows(database) == sorted(expected), f"{victim} killed at {step}"
        for topic in ("debits", "credits"):
            assert records(broker.address, topic) == sorted(expected), f"{victim} killed at {step}: {topic}"
