"""A cluster of real processes on free ports: started, asked, killed, paused, cut off, wiped and started again.

A member is a `Server` of the harness with a server.properties of its own, so that nodes of ours and of Apache Kafka stand in
one cluster in the same way. `Cluster` is all of them; questions go to whichever answers. When a test fails, the end of each
member's log is shown; whatever happens, no process is left.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apache import kafka
from harness import HOST, Server, answers_api_versions, free_port, stop_all
from operations.speaking import Line
from ottla.cli.kafka import storage
from ottla.wire.errors import Error
from ottla.wire.ids import random_id, uuid_text
from ottla.wire.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.messages.voters import DescribeQuorumRequest, DescribeQuorumResponse

SECONDS = 60.0
STATIC, DYNAMIC = "static", "dynamic"

# As a cluster of three is run: three copies, two of which must have a record before it is acknowledged.
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
}


def eventually(is_so: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """What `is_so` answers once that is true. A question that cannot be asked at the moment is asked again."""
    deadline, problem = time.monotonic() + seconds, None
    while True:
        try:
            if answer := is_so():
                return answer
        except OSError as error:
            problem = error
        assert time.monotonic() < deadline, f"{what}: still not so after {seconds} s {problem or ''}"
        time.sleep(0.05)


class Member(Server):
    """One node of a cluster. `reach` and `controller_reach` are the ports where others find it, if not its own."""

    name = "ottla"

    def __init__(self, directory: Path, node_id: int, roles: str, ports: tuple[int, int]) -> None:
        super().__init__(directory, ports[0])
        self.node_id = node_id
        self.roles = roles
        self.controller_port = ports[1]
        self.reach, self.controller_reach = ports
        self.properties = directory.with_name(f"{directory.name}.properties")
        self.is_paused = False
        self.log_dirs = [directory]

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "ottla", "serve", str(self.properties)]

    def format(self, *options: str) -> None:
        """kafka-storage format, as an operator runs it on each host."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = storage.main(["format", "--config", str(self.properties), *options])
        assert code == 0, said.getvalue()

    def write_properties(self, settings: Mapping[str, str]) -> None:
        own = {"node.id": str(self.node_id), "process.roles": self.roles, "log.dirs": ",".join(map(str, self.log_dirs))}
        own["listeners"] = self._listeners(self.port, self.controller_port)
        own["advertised.listeners"] = self._listeners(self.reach, self.controller_reach)
        self.properties.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={value}" for name, value in {**settings, **own}.items()]
        self.properties.write_text("\n".join(lines) + "\n")

    def _listeners(self, broker: int, controller: int) -> str:
        doors = [f"PLAINTEXT://{HOST}:{broker}"] * self.is_broker
        return ",".join(doors + [f"CONTROLLER://{HOST}:{controller}"] * ("controller" in self.roles))

    def wait_ready(self, seconds: float = SECONDS) -> None:
        if self.is_broker:
            super().wait_ready(seconds)
            return
        there = f"{HOST}:{self.controller_port}"
        eventually(lambda: answers_api_versions(there) or self.must_live(), f"{there} answers", seconds)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self.is_paused = False
        super().kill()


class ApacheMember(Member):
    """A node of Apache Kafka 4.3.1. `flags` of its JVM: light ones, or those of its own start script."""

    name = "apache"
    flags: Sequence[str] = kafka.LIGHT

    def command(self) -> Sequence[str]:
        logging = kafka.logging_file("WARN")
        return kafka.java("kafka.Kafka", str(self.properties), flags=self.flags, logging=logging)

    def format(self, *options: str) -> None:
        kafka.run_tool("kafka.tools.StorageTool", "format", "--config", str(self.properties), *options)


class Cluster:
    """Nodes 1 to N, all brokers and controllers unless `roles` says otherwise, as a context that ends them all."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        quorum: str = DYNAMIC,
        settings: Mapping[str, str] | None = None,
        roles: Mapping[int, str] | None = None,
        kinds: Mapping[int, type[Member]] | None = None,
    ) -> None:
        self.directory = directory
        self.id = uuid_text(random_id(random.Random()))
        self.settings = {**SETTINGS, **(settings or {})}
        self.quorum = quorum
        ports = _ports(2 * nodes)
        self.members = {
            n: (kinds or {}).get(n, Member)(
                *(directory / f"node-{n}", n, (roles or {}).get(n, "broker,controller")),
                (ports[2 * n - 2], ports[2 * n - 1]),
            )
            for n in range(1, nodes + 1)
        }

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for member in self.members.values():
                print(f"--- log of node {member.node_id}\n{member.log_tail(40)}", file=sys.stderr)
        for member in self.members.values():
            member.kill()

    # --- starting and stopping

    def start(self) -> Cluster:
        self.format()
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        for member in self.members.values():
            member.launch()

    def wait_ready(self) -> None:
        for member in self.members.values():
            member.wait_ready()
        wanted = {member.node_id for member in self.members.values() if member.is_broker}
        self.wait_brokers(wanted)

    def mend(self) -> None:
        """Whoever was left dead or paused runs again."""
        for member in self.members.values():
            if member.is_paused:
                member.resume()
            if not member.is_running():
                member.process = None
                member.launch()
        self.wait_ready()

    def stop(self) -> None:
        """All of them, told at once."""
        for member in self.members.values():
            if member.process is not None:
                member.process.terminate()
        stop_all(list(self.members.values()))

    def format(self) -> None:
        for member in self.members.values():
            member.write_properties(self.settings | self._quorum_settings())
        directories = {member.node_id: uuid_text(random_id(random.Random())) for member in self.controllers}
        voters = ",".join(
            f"{member.node_id}@{HOST}:{member.controller_reach}:{directories[member.node_id]}"
            for member in self.controllers
        )
        for member in self.members.values():
            if (member.directory / "meta.properties").exists():
                continue
            first = self.quorum == DYNAMIC and member in self.controllers
            member.format("--cluster-id", self.id, *(["--initial-controllers", voters] if first else []))

    def _quorum_settings(self) -> dict[str, str]:
        if self.quorum == STATIC:
            voters = (f"{member.node_id}@{HOST}:{member.controller_reach}" for member in self.controllers)
            return {"controller.quorum.voters": ",".join(voters)}
        servers = (f"{HOST}:{member.controller_reach}" for member in self.controllers)
        return {"controller.quorum.bootstrap.servers": ",".join(servers)}

    @property
    def controllers(self) -> list[Member]:
        return [member for member in self.members.values() if "controller" in member.roles]

    def wipe(self, node_id: int) -> None:
        """A new disk in the place of the old. A voter of a dynamic quorum comes back as one that only listens."""
        member = self.members[node_id]
        assert member.process is None, "a running node has its files open"
        shutil.rmtree(member.directory)
        no_voters = ["--no-initial-controllers"] if self.quorum == DYNAMIC and "controller" in member.roles else []
        member.format("--cluster-id", self.id, *no_voters)

    # --- questions

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_running() and not member.is_paused]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{member.reach}" for member in self.members.values() if member.is_broker)

    def ask(self, question: Callable[[Line], Any], of: int | None = None) -> Any:
        """The answer of one node, or of the first that has one."""
        asked = [self.members[of]] if of else [member for member in self.running if member.is_broker]
        problem: OSError = ConnectionError("no node runs")
        for member in asked:
            try:
                with Line(member.address) as line:
                    return question(line)
            except OSError as error:
                problem = error
        raise problem

    def create(
        self, topic: str, partitions: int = 1, copies: int = 3, configs: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic, and wait until every running broker knows leaders for it."""
        asked = CreateTopicsRequest.Topic(name=topic, num_partitions=partitions, replication_factor=copies)
        asked.configs = [CreateTopicsRequest.Topic.Config(name=n, value=v) for n, v in (configs or {}).items()]
        request = CreateTopicsRequest(topics=[asked], timeout_ms=20_000)
        done = (0, Error.TOPIC_ALREADY_EXISTS.code)

        def create() -> bool:
            answer = self.ask(lambda line: line.ask(request, CreateTopicsResponse, 5)).topics[0]
            assert answer.error_code in (*done, Error.REQUEST_TIMED_OUT.code), answer
            return answer.error_code in done

        eventually(create, f"{topic} is made")
        for member in [member for member in self.running if member.is_broker]:
            eventually(
                lambda of=member.node_id: (
                    len(self.partitions(topic, of)) == partitions
                    and all(part.leader_id >= 0 for part in self.partitions(topic, of))
                ),
                f"node {member.node_id} knows who leads {topic}",
            )

    def partitions(self, topic: str, of: int | None = None) -> list[Any]:
        """Partitions with leader_id, replica_nodes and isr_nodes, in order."""
        answer = self.ask(lambda line: line.metadata(topic), of)
        return sorted(answer.topics[0].partitions, key=lambda part: int(part.partition_index))

    def leader(self, topic: str, partition: int = 0) -> int:
        return int(eventually(lambda: self._leader(topic, partition), f"{topic}-{partition} is led"))

    def _leader(self, topic: str, partition: int) -> int:
        found = self.partitions(topic)
        led_by = int(found[partition].leader_id) if len(found) > partition else -1
        return led_by if led_by in {member.node_id for member in self.running} else 0

    def wait_in_sync(self, topic: str, nodes: Iterable[int] | None = None, seconds: float = SECONDS) -> None:
        """Until every running broker knows it: whoever is asked next says the same. One that has not heard of the topic yet
        knows no partitions of it."""
        wanted = set(self.members if nodes is None else nodes)

        def is_known(of: int) -> bool:
            found = self.partitions(topic, of)
            return bool(found) and all({int(n) for n in part.isr_nodes} == wanted for part in found)

        for member in [member for member in self.running if member.is_broker]:
            eventually(
                lambda of=member.node_id: is_known(of),
                f"node {member.node_id} knows that {topic} is in sync on {sorted(wanted)}",
                seconds,
            )

    def brokers(self, of: int | None = None) -> set[int]:
        """Those that are there and not fenced. A process that has ended by itself is an error."""
        for member in self.members.values():
            member.must_live()
        return {int(broker.node_id) for broker in self.ask(lambda line: line.metadata(), of).brokers}

    def wait_brokers(self, wanted: set[int], seconds: float = SECONDS) -> None:
        for member in [member for member in self.running if member.is_broker]:
            eventually(
                lambda of=member.node_id: self.brokers(of) == wanted, f"node {member.node_id} knows {wanted}", seconds
            )

    def quorum_state(self, of: int | None = None) -> Any:
        """leader_id, leader_epoch, high_watermark, current_voters, observers, as soon as somebody leads."""
        return eventually(lambda: self._quorum_state(of), "somebody leads the metadata")

    def _quorum_state(self, of: int | None) -> Any:
        part = DescribeQuorumRequest.Topic.Partition()
        asked = DescribeQuorumRequest.Topic(topic_name="__cluster_metadata", partitions=[part])
        request = DescribeQuorumRequest(topics=[asked])
        answer = self.ask(lambda line: line.ask(request, DescribeQuorumResponse, 2), of)
        if answer.error_code or answer.topics[0].partitions[0].error_code:
            return None
        return answer.topics[0].partitions[0]

    def active_controller(self) -> int:
        """Who leads the metadata, among those that run."""
        running = {member.node_id for member in self.running}

        def leader() -> int:
            state = self._quorum_state(None)
            return int(state.leader_id) if state is not None and int(state.leader_id) in running else 0

        return int(eventually(leader, "somebody leads the metadata"))


def _ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        if (port := free_port()) not in found:
            found.append(port)
    return found
