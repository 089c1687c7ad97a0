"""`ottla serve --brokers 3`, as a user starts it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cluster.loads import read_all
from cluster.nodes import eventually
from harness import HOST, TREE, die_with_parent, free_port
from operations.speaking import Line
from ottla.log.identity import read_meta_properties
from ottla.wire.messages.voters import DescribeQuorumRequest, DescribeQuorumResponse
from ottla.world import RealDisk

WELCOME = "cluster .* 3 nodes serve"


class Command:
    """The command, and what it has said so far."""

    def __init__(self, data: Path, port: int) -> None:
        words = ["serve", "--brokers", "3", "--data", str(data), "--listen", f"{HOST}:{port}"]
        self.data = data
        self.addresses = [f"{HOST}:{port + step}" for step in (0, 2, 4)]
        self.bootstrap = ",".join(self.addresses)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ottla", *words],
            stderr=subprocess.PIPE,
            text=True,
            cwd=TREE,
            preexec_fn=die_with_parent,
        )
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(iter(self.process.stderr.readline, ""))

    def wait_for(self, pattern: str, times: int = 1) -> None:
        eventually(
            lambda: sum(bool(re.search(pattern, line)) for line in list(self.said)) >= times, f"it says {pattern}"
        )

    def children(self) -> dict[int, int]:
        """The pid of each node."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = {}
        for pid in map(int, task.read_text().split()):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            names = [match for word in words if (match := re.search(rb"node-(\d+)\.properties", word))]
            found.update({int(match[1]): pid for match in names})
        return found

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(90)


Start = Callable[[], Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command, each time on the same data."""
    port, made = free_ports(6), list[Command]()

    def run() -> Command:
        made.append(Command(tmp_path / "data", port))
        return made[-1]

    yield run
    for command in made:
        command.process.kill()
        command.process.wait()
        print("".join(command.said))


def free_ports(count: int) -> int:
    """The first of so many in a row that nobody has: the nodes take those that follow the one that is named."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind((HOST, port))
            return first


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def write(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    problems: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: problems.append(error) if error else None)
    assert producer.flush(60) == 0 and not problems, problems


def voters(command: Command) -> list[int]:
    """Who votes, if nobody only listens."""
    part = DescribeQuorumRequest.Topic.Partition()
    asked = DescribeQuorumRequest.Topic(topic_name="__cluster_metadata", partitions=[part])
    with Line(command.addresses[0]) as line:
        answer = line.ask(DescribeQuorumRequest(topics=[asked]), DescribeQuorumResponse, 2).topics[0].partitions[0]
    return [] if answer.observers else sorted(int(voter.replica_id) for voter in answer.current_voters)


def votes_with_its_new_disk(command: Command, node_id: int) -> bool:
    """The leader remembers for a while that somebody listened from the old one."""
    part = DescribeQuorumRequest.Topic.Partition()
    asked = DescribeQuorumRequest.Topic(topic_name="__cluster_metadata", partitions=[part])
    with Line(command.addresses[0]) as line:
        answer = line.ask(DescribeQuorumRequest(topics=[asked]), DescribeQuorumResponse, 2).topics[0].partitions[0]
    meta = read_meta_properties(RealDisk(), str(command.data / f"node-{node_id}"))
    known = {voter.replica_id: voter.replica_directory_id for voter in answer.current_voters}
    return meta is not None and known.get(node_id) == meta.directory_id


def test_one_command_for_three_nodes(start: Start) -> None:
    """FTM-07, OPS-07, REP-20, REP-21, REP-25: made, written to, not made a second time, a node that lost its disk and crashed
    started again, all stopped, and started again on what is there, without one of the disks."""
    command = start()
    command.wait_for(WELCOME)
    write(command.bootstrap, "first", "one")
    with Line(command.addresses[0]) as line:
        part = line.metadata("first").topics[0].partitions[0]
    assert len(part.replica_nodes) == 3
    refused = start()
    refused.wait_for(r"is in use: its node 1 runs")
    assert refused.process.wait(60) == 2
    crashed = command.children()[2]
    shutil.rmtree(command.data / "node-2")
    os.kill(crashed, signal.SIGKILL)
    command.wait_for(r"cluster .* node 2 ended \(SIGKILL\): it is started again")
    command.wait_for(r"node 2  \| .* serves", times=2)
    pids = command.children()
    assert pids[2] != crashed
    eventually(lambda: votes_with_its_new_disk(command, 2), "the node whose disk was wiped votes again")
    write(command.bootstrap, "first", "two")
    assert command.end(signal.SIGINT) == 0
    assert not any(map(lives, pids.values()))
    shutil.rmtree(command.data / "node-2")
    again = start()
    again.wait_for(WELCOME)
    assert list(read_all(again.bootstrap, "first", 0)) == [b"one", b"two"]
    eventually(lambda: voters(again) == [1, 2, 3], "the node with the new disk votes again")
    pids = again.children()
    again.process.kill()
    eventually(lambda: not any(map(lives, pids.values())), "the nodes have ended with their supervisor")
