"""The nodes behind `ottla serve --brokers N`: their settings, and directories that know of each other from the start.

Client ports go up in steps of two from the first, and the controller of a node is one above: 9092 and 9093, 9094 and 9095,
9096 and 9097. The first three nodes hold the metadata; with one or two nodes it is the first alone, because two that both
have to agree fail more often than one. The rest are brokers only, so a host can have as many nodes as it has cores.

    <data>/cluster.properties     the cluster's id and where its controllers listen: written last, it says that all is ready
    <data>/node-1.properties      what node 1 runs with, as a server.properties; written anew at each start
    <data>/node-1/                its data

The voters are written into the first snapshot of each directory, as `kafka-storage format --initial-controllers` does it, and
with them the addresses of the controllers: these stay, whatever is said about the ports of clients later.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ottla.cli.mistakes import Mistake
from ottla.config import BrokerConfig, single_node_defaults
from ottla.properties import escaped, read_properties
from ottla.world import RealDisk

CLUSTER_FILE = "cluster.properties"
PORT_MAX = 65535
COPIES_MAX = 3
VOTERS = 3
PORT_STEP = 2
# What the nodes must differ in, or agree about, is not for a flag to say.
OURS = ("node.id", "broker.id", "process.roles", "listeners", "log.dir", "log.dirs", "metadata.log.dir")


@dataclass(frozen=True)
class Wish:
    """What the command line says about all nodes together."""

    data: Path
    brokers: int
    host: str
    port: int
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Cluster:
    """What was settled when the directories were made: who keeps the metadata, and where they listen."""

    id: str
    controllers: dict[int, int]

    @property
    def addresses(self) -> str:
        return ",".join(f"localhost:{port}" for port in self.controllers.values())


@dataclass(frozen=True)
class Member:
    """One node that is ready to be started."""

    node_id: int
    address: str
    file: Path
    is_controller: bool


def is_several(data: str | Path) -> bool:
    """Whether a directory holds the nodes of a cluster rather than the data of one."""
    return (Path(data) / CLUSTER_FILE).exists()


def prepare(wish: Wish) -> list[Member]:
    """Settle who the nodes are and make their directories ready. What is there already stays as it is."""
    _check(wish)
    found = _read(wish.data)
    cluster = found or _invented(wish)
    configs = {n: _settings(wish, cluster, n) for n in range(1, wish.brokers + 1)}
    checked = {n: BrokerConfig(settings) for n, settings in configs.items()}
    wish.data.mkdir(parents=True, exist_ok=True)
    if found is None:
        _clear_half_made(wish.data)
    _format(cluster, checked, with_voters=found is None)
    if found is None:
        _write(wish.data / CLUSTER_FILE, _described(cluster))
    for n, settings in configs.items():
        _write(_file(wish, n), settings)
    return [Member(n, _address(wish, n), _file(wish, n), n in cluster.controllers) for n in configs]


def mend(wish: Wish, node_id: int) -> bool:
    """A node is started again beside the others. Whether its disk was wiped: then it gets a directory to begin anew in."""
    cluster = _read(wish.data)
    if cluster is None:
        return False
    return _format(cluster, {node_id: BrokerConfig(_settings(wish, cluster, node_id))}, with_voters=False)


def check_free(wish: Wish) -> None:
    """Nobody runs these nodes, and nobody has their ports. To be asked before anything is written: the ports of controllers
    cannot be changed afterwards, and nodes that run read their settings again."""
    _check(wish)
    for n in sorted(_node_ids(wish.data)):
        try:
            RealDisk().lock(str(wish.data / f"node-{n}" / ".lock"))()
        except BlockingIOError:
            raise Mistake(f"{wish.data} is in use: its node {n} runs. Stop it first, or choose another --data")
    found = _read(wish.data)
    last = wish.port + PORT_STEP * (wish.brokers - 1) + 1
    for n in range(1, wish.brokers + 1):
        if _is_taken(wish.host, port := wish.port + PORT_STEP * (n - 1)):
            raise Mistake(
                f"port {port} of {wish.host} is taken: choose others with --listen HOST:PORT. {wish.brokers} nodes use those "
                f"from PORT to PORT + {last - wish.port}"
            )
    for port in (found or _invented(wish)).controllers.values():
        if not _is_taken("localhost", port):
            continue
        if found is None:
            raise Mistake(f"port {port} is taken, and a controller needs it: choose others with --listen HOST:PORT")
        raise Mistake(
            f"port {port} is taken, and a controller of the cluster in {wish.data} listens there since it was made: end "
            "the program that has it, or begin another cluster with another --data"
        )


def _is_taken(host: str, port: int) -> bool:
    for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind(address)
            except OSError as error:
                return error.errno == errno.EADDRINUSE
    return False


def _check(wish: Wish) -> None:
    if wish.brokers < 1:
        raise Mistake(f"--brokers {wish.brokers}: at least one")
    last = wish.port + PORT_STEP * (wish.brokers - 1) + 1
    if not 0 < wish.port <= last <= PORT_MAX:
        raise Mistake(f"--listen: {wish.brokers} nodes need the ports from {wish.port} to {last}, up to {PORT_MAX}")
    for name in wish.settings:
        if name in OURS or name.startswith("controller."):
            raise Mistake(f"--set {name}: with --brokers each node gets its own; a node by itself: ottla serve FILE")
    if (wish.data / "meta.properties").exists():
        raise Mistake(f"{wish.data} holds the data of a single node: choose another directory with --data")
    more = [n for n in _node_ids(wish.data) if n > wish.brokers]
    if is_several(wish.data) and more:
        raise Mistake(f"{wish.data} has {max(more)} nodes: start them all with --brokers {max(more)}")


def _node_ids(data: Path) -> Iterator[int]:
    for path in data.glob("node-*/meta.properties"):
        number = path.parent.name.removeprefix("node-")
        if number.isdigit():
            yield int(number)


# --- what was settled


def _invented(wish: Wish) -> Cluster:
    from ottla.wire.ids import random_id, uuid_text

    voters = VOTERS if wish.brokers >= VOTERS else 1
    return Cluster(
        uuid_text(random_id(random.SystemRandom())),
        {n: wish.port + PORT_STEP * (n - 1) + 1 for n in range(1, voters + 1)},
    )


def _described(cluster: Cluster) -> dict[str, str]:
    controllers = ",".join(f"{n}@localhost:{port}" for n, port in cluster.controllers.items())
    return {"cluster.id": cluster.id, "controllers": controllers}


def _read(data: Path) -> Cluster | None:
    if not is_several(data):
        return None
    path = data / CLUSTER_FILE
    try:
        values = read_properties(path.read_text("utf-8"))
        controllers = (entry.partition("@localhost:") for entry in values["controllers"].split(","))
        return Cluster(values["cluster.id"], {int(n): int(port) for n, _, port in controllers})
    except (KeyError, ValueError) as error:
        raise Mistake(f"{path} does not say where the controllers are: {error}")


def _clear_half_made(data: Path) -> None:
    """A first start that was cut off has left directories whose voters nobody else knows. No node has run on them."""
    for n in sorted(_node_ids(data)):
        directory = data / f"node-{n}"
        if any(directory.glob("__cluster_metadata-0/*.log")):
            raise Mistake(f"{directory} has been in use, but {data / CLUSTER_FILE} is missing: choose another --data")
        shutil.rmtree(directory)


# --- settings


def _settings(wish: Wish, cluster: Cluster, node_id: int) -> dict[str, str]:
    copies = min(COPIES_MAX, wish.brokers)
    in_sync = max(1, copies - 1)
    settings = single_node_defaults() | {
        "node.id": str(node_id),
        "process.roles": "broker,controller" if node_id in cluster.controllers else "broker",
        "listeners": _listeners(wish, cluster, node_id),
        "controller.quorum.bootstrap.servers": cluster.addresses,
        "log.dirs": str(wish.data.absolute() / f"node-{node_id}"),
        # Copies go to other hosts first, where there are any.
        "broker.rack": socket.gethostname(),
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
    }
    if node_id in cluster.controllers:
        settings["controller.quorum.auto.join.enable"] = "true"  # a node whose disk was wiped votes again by itself
    del settings["ottla.controller.port.fallback"]
    settings |= wish.settings
    if "advertised.listeners" in wish.settings:
        settings["advertised.listeners"] = _stepped(wish.settings["advertised.listeners"], node_id)
    return settings


def _listeners(wish: Wish, cluster: Cluster, node_id: int) -> str:
    listeners = f"PLAINTEXT://{_address(wish, node_id)}"
    if node_id in cluster.controllers:
        listeners += f",CONTROLLER://localhost:{cluster.controllers[node_id]}"
    return listeners


def _address(wish: Wish, node_id: int) -> str:
    return f"{wish.host}:{wish.port + PORT_STEP * (node_id - 1)}"


def _stepped(advertised: str, node_id: int) -> str:
    """What is advertised for the first node, moved to the port of another."""
    host, colon, port = advertised.rpartition(":")
    if "," in advertised or not colon or not port.isdigit():
        raise Mistake(f"--set advertised.listeners={advertised}: write PLAINTEXT://HOST:PORT of the first node")
    return f"{host}:{int(port) + PORT_STEP * (node_id - 1)}"


# --- directories


def _format(cluster: Cluster, configs: Mapping[int, BrokerConfig], *, with_voters: bool) -> bool:
    """Directories that are not formatted yet: with the voters at the very first, and later (another broker, or a disk that
    was wiped) without, because a node that has lost its memory must not vote as if it had not: it joins anew. Whether
    there were any."""
    empty = {n: config for n, config in configs.items() if not os.path.exists(f"{config.log_dirs[0]}/meta.properties")}
    if not empty:
        return False
    from ottla.cli.kafka import formatting, releases
    from ottla.raft.quorum import Address, Voter, VoterSet
    from ottla.wire.ids import random_id

    chance = random.SystemRandom()
    voters = VoterSet(
        tuple(
            Voter(n, random_id(chance), (Address("CONTROLLER", "localhost", port),))
            for n, port in cluster.controllers.items()
        )
    )
    levels = formatting.levels_of(releases.stable_level_of(releases.LATEST), [], dynamic=True)
    plan = formatting.Plan(cluster.id, voters if with_voters else None, levels, [])
    for config in empty.values():
        for _ in formatting.perform(config, plan, ignore_formatted=True):
            pass
    return True


def _file(wish: Wish, node_id: int) -> Path:
    return wish.data / f"node-{node_id}.properties"


def _write(path: Path, values: Mapping[str, str]) -> None:
    lines = (f"{name}={escaped(value)}".replace("\n", "\\n") for name, value in values.items())
    text = "".join(f"{line}\n" for line in lines)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
