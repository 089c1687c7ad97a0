"""Several brokers as a test sees them: a real cluster on this machine, whose nodes can be killed and started again.

    with cluster(3) as c:
        c.create_topic("orders", partitions=6)
        producer = Producer({"bootstrap.servers": c.bootstrap, "acks": "all"})
        ...
        c.kill(c.leader_of("orders", 0))

Every node is a process of its own, a voter of the metadata quorum and a broker. Topics are made with as many copies as there
are nodes, up to three, and writes with acks=all need two of them.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from ottla.testing.broker import BrokerFailed, Child
from ottla.wire.ids import random_id, uuid_text

COPIES_MAX = 3
# Ports are free when they are chosen; somebody else may be faster.
ATTEMPTS = 3
PATIENCE_S = 30.0
LOOK_S = 0.02


class Cluster:
    """Running nodes by their ids, from 1 on. `bootstrap` names all of them, whether they run or not."""

    def __init__(self, runners: Mapping[int, Child], bootstrap: str) -> None:
        self._runners = runners
        self.bootstrap = bootstrap
        self._directories: dict[int, str] = {}
        self._down: set[int] = set()

    @property
    def nodes(self) -> list[int]:
        """Those that run."""
        return [node_id for node_id in self._runners if node_id not in self._down]

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        copies: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Make a topic; when this returns every running node knows it and all copies are in sync."""
        copies = min(COPIES_MAX, len(self._runners)) if copies is None else copies
        order = {"name": name, "partitions": partitions, "copies": copies, "configs": dict(configs or {})}
        self._ask_any({"do": "create", **order})
        self.wait_until_in_sync(name)
        return name

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition; -1 if nobody does."""
        return int(self._ask_any({"do": "partition", "topic": topic, "index": partition})["leader"])

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        return list(self._ask_any({"do": "partition", "topic": topic, "index": partition})["isr"])

    def controller(self) -> int:
        """The node that leads the metadata quorum; -1 while there is none."""
        return int(self._ask_any({"do": "controller"}))

    def wait_until_in_sync(self, topic: str) -> None:
        """Return when all copies on running nodes are in sync, everywhere one asks."""

        def is_so() -> bool:
            pictures = [self._runners[node_id].order({"do": "topic", "name": topic}) for node_id in self.nodes]
            return all(picture and all(self._is_whole(each) for each in picture) for picture in pictures)

        _wait(is_so, f"the copies of {topic} did not get in sync")

    def _is_whole(self, partition: Mapping[str, Any]) -> bool:
        running = {replica for replica in partition["replicas"] if replica not in self._down}
        return partition["leader"] in running and running <= set(partition["isr"])

    # --- what happens to nodes

    def kill(self, node_id: int) -> None:
        """As kill -9 would. Its data stays."""
        self._runners[node_id].kill()
        self._down.add(node_id)

    def stop(self, node_id: int) -> None:
        """As SIGTERM would: leaderships are handed over first. Its data stays."""
        self._runners[node_id].order({"do": "stop"})
        self._down.add(node_id)

    def start(self, node_id: int) -> None:
        """Start a node again, where it was and with what it has. Returns when it serves."""
        self._runners[node_id].order({"do": "take_over", "directory": self._directories[node_id]})
        self._down.discard(node_id)

    def restart(self, node_id: int, *, kill: bool = False) -> None:
        if kill:
            self.kill(node_id)
        else:
            self.stop(node_id)
        self.start(node_id)

    def begin(self, cluster_id: str) -> None:
        """Start all nodes together: none is ready before a majority is."""
        with ThreadPoolExecutor(len(self._runners)) as side_by_side:
            started = side_by_side.map(
                lambda runner: runner.order({"do": "start", "cluster_id": cluster_id}), self._runners.values()
            )
            list(started)
        self._directories = {node_id: runner.order({"do": "directory"}) for node_id, runner in self._runners.items()}

    def close(self) -> None:
        """Stop everything and remove all files. A node that does not run leaves its directory to its process."""
        with ThreadPoolExecutor(len(self._runners)) as side_by_side:
            list(side_by_side.map(self._close, self._runners))

    def _close(self, node_id: int) -> None:
        runner = self._runners[node_id]
        if node_id in self._down and node_id in self._directories:
            runner.order({"do": "adopt", "directory": self._directories[node_id]})
        runner.close()

    def _ask_any(self, order: Mapping[str, Any]) -> Any:
        if not self.nodes:
            raise BrokerFailed("no node of the cluster runs")
        return self._runners[self.nodes[0]].order(order)


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise BrokerFailed(f"{otherwise} within {PATIENCE_S:g} s")
        time.sleep(LOOK_S)


@contextmanager
def cluster(brokers: int = 3, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Real nodes on free ports of this machine, in temporary directories, for the length of a `with` block.

    `settings` have Kafka's names and are for all nodes.
    """
    running = open_cluster(brokers, settings)
    try:
        yield running
    finally:
        running.close()


def open_cluster(brokers: int = 3, settings: Mapping[str, str] | None = None) -> Cluster:
    """The same without a `with` block: whoever calls this calls `close`."""
    for attempt in range(ATTEMPTS):
        made = _make(brokers, settings or {})
        try:
            made.begin(uuid_text(random_id(random.SystemRandom())))
            return made
        except BaseException as error:
            made.close()
            if not isinstance(error, BrokerFailed) or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("not reached")


def _make(brokers: int, settings: Mapping[str, str]) -> Cluster:
    ports = _free_ports(2 * brokers)
    doors = {node_id: (ports[2 * node_id - 2], ports[2 * node_id - 1]) for node_id in range(1, brokers + 1)}
    voters = ",".join(f"{node_id}@127.0.0.1:{controller}" for node_id, (_, controller) in doors.items())
    runners = {
        node_id: Child({**_settings(node_id, client, controller, voters, brokers), **settings})
        for node_id, (client, controller) in doors.items()
    }
    return Cluster(runners, ",".join(f"127.0.0.1:{client}" for client, _ in doors.values()))


def _settings(node_id: int, client: int, controller: int, voters: str, brokers: int) -> dict[str, str]:
    copies = str(min(COPIES_MAX, brokers))
    needed = "2" if brokers >= COPIES_MAX else "1"
    return {
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.voters": voters,
        "ottla.controller.port.fallback": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": needed,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": needed,
    }


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        doors = [held.enter_context(socket.socket()) for _ in range(count)]
        for door in doors:
            door.bind(("127.0.0.1", 0))
        return [int(door.getsockname()[1]) for door in doors]
