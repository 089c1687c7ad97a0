"""ottla doctor: look at everything that usually goes wrong between a machine and a broker, and say what to do about it."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.colour import coloured
from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_bootstrap, add_json, cluster_of
from ottla.cli.text import compact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from ottla.client.cluster import Cluster
    from ottla.wire.messages.voters import DescribeQuorumResponse

EXAMPLES = """examples:
  ottla doctor                                     the broker at localhost:9092, and this machine
  ottla doctor -b broker.example:9092 --json       another one, for programs
  ottla doctor --data /var/lib/ottla               also the directory in which a node keeps its data

Exit codes: 0 nothing is wrong (there may be warnings), 1 something is."""

OK, WARNING, WRONG = "ok", "warning", "wrong"
MARKS = {OK: ("ok", "green"), WARNING: ("warning", "yellow"), WRONG: ("WRONG", "red")}
CONNECT_SECONDS = 3.0
# A broker asks for the leader of the quorum for longer; one that is there answers at once.
QUORUM_S = 10.0
# Two files per segment and index, a socket per client: a busy node has thousands of each.
FILES_WANTED, FILES_NEEDED = 65536, 1024
FREE_SHARE_WANTED, FREE_BYTES_NEEDED = 0.10, 1 << 30
# Clients stamp records; beyond an hour into the future they are refused (message.timestamp.after.max.ms).
SKEW_MS_WANTED, SKEW_MS_MAX = 1_000, 60_000
DATA = "ottla-data"
# Topics that a cluster makes for itself: the settings of their copies, and what cannot begin without them.
INTERNAL = {
    "__consumer_offsets": ("offsets.topic.replication.factor", None, "group"),
    "__transaction_state": (
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "transaction",
    ),
}


class Finding(NamedTuple):
    about: str
    state: str
    found: str
    advice: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    add_bootstrap(parser)
    add_json(parser)
    parser.add_argument(
        "-d", "--data", metavar="DIR", help=f"a node's data directory (default ./{DATA}, if there is one)"
    )


def run(args: argparse.Namespace) -> int:
    import asyncio

    findings = [*_machine(args.data), *_addresses(args.bootstrap_server)]
    findings += asyncio.run(_broker(args))
    if args.json:
        print(compact([finding._asdict() for finding in findings]).decode())
    else:
        print("\n".join(_shown(finding) for finding in findings))
    return 1 if any(finding.state == WRONG for finding in findings) else 0


def _shown(finding: Finding) -> str:
    mark, colour = MARKS[finding.state]
    line = f"{coloured(f'{mark:8}', colour)}{finding.about}: {finding.found}"
    return f"{line}\n{'':8}-> {finding.advice}" if finding.advice else line


# This machine.


def _machine(data: str | None) -> Iterator[Finding]:
    yield _file_limit()
    chosen = data or (DATA if os.path.isdir(DATA) else None)
    if chosen is not None:
        yield from _directory(chosen)
    yield from _codecs()


def _file_limit() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES_WANTED:
        return Finding("open files", OK, f"up to {soft}")
    state = WARNING if soft >= FILES_NEEDED else WRONG
    how = f"ulimit -n {min(hard, FILES_WANTED)}" if hard > soft else f"LimitNOFILE={FILES_WANTED} in the service's unit"
    advice = f"before a node is started here: {how}; a node with many partitions and clients needs {FILES_WANTED}"
    return Finding("open files", state, f"at most {soft} per process", advice)


def _directory(path: str) -> Iterator[Finding]:
    about = f"data directory {path}"
    if not os.path.isdir(path):
        yield Finding(
            about, WARNING, "does not exist", "ottla serve --data makes it; check the spelling if it should be there"
        )
        return
    if not os.access(path, os.W_OK | os.X_OK):
        yield Finding(
            about, WRONG, "cannot be written to", f"chown it to the user that runs the node: sudo chown $USER {path}"
        )
    from ottla.log.identity import BadIdentity, read_meta_properties
    from ottla.world import RealDisk

    try:
        meta = read_meta_properties(RealDisk(), path)
    except (BadIdentity, OSError) as error:
        yield Finding(
            about, WRONG, str(error), "meta.properties is damaged: restore it from a copy, or from another directory"
        )
    else:
        told = (
            f"node {meta.node_id} of cluster {meta.cluster_id}"
            if meta
            else "empty, it will be made ready by the first start"
        )
        yield Finding(about, OK, told)
    usage = shutil.disk_usage(path)
    yield _space(about, usage.free, usage.total)


def _space(about: str, free: int, total: int) -> Finding:
    from ottla.cli.cluster import shown_bytes

    told = f"{shown_bytes(free)} free of {shown_bytes(total)}"
    advice = "make room, or shorten retention: ottla config set topic NAME retention.bytes=..."
    if free < FREE_BYTES_NEEDED:
        return Finding(about, WRONG, f"{told}: a full disk ends writing", advice)
    if total > 0 and free < FREE_SHARE_WANTED * total:
        return Finding(about, WARNING, told, advice)
    return Finding(about, OK, told)


def _codecs() -> Iterator[Finding]:
    from importlib.util import find_spec

    missing = [name for name in ("cramjam", "lz4", "zstandard", "crc32c") if find_spec(name) is None]
    if missing:
        yield Finding("compression", WRONG, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")


# The way to the broker.


def _addresses(bootstrap: str) -> Iterator[Finding]:
    from ottla.client.cluster import addresses

    try:
        wanted = addresses(bootstrap)
    except ValueError as error:
        raise Mistake(f"--bootstrap-server: {error}")
    for host, port in wanted:
        yield _port(f"{host}:{port}", host, port)


def _port(about: str, host: str, port: int) -> Finding:
    """Whether somebody listens there."""
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return Finding(
            about, WRONG, f"the name {host} is not known here", "check the spelling, /etc/hosts and the name server"
        )
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS):
            return Finding(about, OK, f"somebody listens at {resolved[0][4][0]}")
    except ConnectionRefusedError:
        advice = f"start one: ottla serve --listen {host}:{port}; or name another with --bootstrap-server"
        return Finding(about, WRONG, "nobody listens there", advice)
    except OSError as error:
        advice = (
            "a firewall, a wrong address or a machine that is off; from inside a container, localhost is the container"
        )
        return Finding(about, WRONG, f"cannot be reached ({error.strerror or 'no answer'})", advice)


async def _broker(args: argparse.Namespace) -> list[Finding]:
    """What can only be asked of a broker; nothing if there is none."""
    from ottla.wire.errors import KafkaError

    found: list[Finding] = []
    try:
        async with cluster_of(args) as cluster:
            checks: list[Callable[[Cluster], Awaitable[list[Finding]]]] = [
                _protocol,
                _advertised,
                _metadata_quorum,
                _internal_topics,
                _partitions,
                _disks,
            ]
            for check in checks:
                try:
                    found += await check(cluster)
                except (KafkaError, OSError) as error:
                    found.append(_untold(check.__name__.strip("_").replace("_", " "), error))
    except OSError as error:  # nobody could be asked anything
        if not any(_answers(host, port) for host, port in _wanted(args)):
            return found  # the ports were told about already
        advice = "another program has this port, or it speaks TLS or SASL: look at `listeners` of the broker"
        found.append(Finding("protocol", WRONG, f"whoever listens does not speak Kafka ({error})", advice))
    return found


def _untold(about: str, error: Exception) -> Finding:
    """One thing that could not be asked leaves the others to be told."""
    from ottla.client.cluster import reason

    return Finding(about, WARNING, f"cannot be told: {reason(error) if isinstance(error, OSError) else error}")


def _wanted(args: argparse.Namespace) -> list[tuple[str, int]]:
    from ottla.client.cluster import addresses

    return addresses(args.bootstrap_server)


def _answers(host: str, port: int) -> bool:
    return _port("", host, port).state == OK


async def _protocol(cluster: Cluster) -> list[Finding]:
    connection = await cluster.any()
    before = time.monotonic()
    await cluster.metadata([])
    milliseconds = (time.monotonic() - before) * 1000
    told = f"{len(connection.served)} APIs at {connection.address}, an answer takes {milliseconds:.1f} ms"
    return [Finding("protocol", OK, told)]


async def _advertised(cluster: Cluster) -> list[Finding]:
    """Clients connect to what the broker tells them, not to what they began with: the most frequent trouble of all."""
    found = []
    for broker in (await cluster.metadata([])).brokers:
        about = f"advertised listener of broker {broker.node_id}"
        probe = _port(about, broker.host, broker.port)
        if probe.state == OK:
            found.append(Finding(about, OK, f"{broker.host}:{broker.port} can be reached from here"))
            continue
        advice = (
            f"clients here are sent to {broker.host}:{broker.port}; start that broker if it does not run, else set its "
            "advertised.listeners=PLAINTEXT://HOST:PORT to an address that this machine can reach, and start it again"
        )
        found.append(Finding(about, WRONG, f"{broker.host}:{broker.port}: {probe.found}", advice))
    return found


async def _metadata_quorum(cluster: Cluster) -> list[Finding]:
    """Without most of its voters nothing can be decided, and whoever asks waits in vain."""
    import asyncio

    from ottla.cli.kafka.metadata_quorum import quorum_of

    before = time.time() * 1000
    try:
        quorum = await asyncio.wait_for(quorum_of(cluster), QUORUM_S)
    except TimeoutError:
        advice = (
            "start the nodes that are controllers, until most of them run: before that nothing can be decided, and there are "
            "no new topics and no new leaders"
        )
        return [Finding("metadata quorum", WRONG, f"nobody who leads it answers within {QUORUM_S:g} s", advice)]
    after = time.time() * 1000
    return [_clock(quorum, before, after), *await _controllers(cluster, quorum)]


def _clock(quorum: DescribeQuorumResponse, before: float, after: float) -> Finding:
    """The leader of the quorum tells its own time as the moment at which it last caught up with itself."""
    partition = quorum.topics[0].partitions[0]
    leader = next((v for v in partition.current_voters if v.replica_id == partition.leader_id), None)
    if leader is None or leader.last_caught_up_timestamp < 0:
        return Finding("clock", WARNING, "the broker does not tell its time")
    skew = max(0.0, before - leader.last_caught_up_timestamp, leader.last_caught_up_timestamp - after)
    if skew <= SKEW_MS_WANTED:
        return Finding("clock", OK, "this machine and the broker agree")
    state = WARNING if skew <= SKEW_MS_MAX else WRONG
    advice = "run a time service (chrony, systemd-timesyncd) on both: retention and look-ups by time go by these clocks"
    return Finding("clock", state, f"this machine and the broker are {skew / 1000:.1f} s apart", advice)


async def _controllers(cluster: Cluster, quorum: DescribeQuorumResponse) -> list[Finding]:
    """A controller whose port was taken may have gone to another one, where nobody who knows its settings looks for it."""
    found = []
    brokers = await _brokers(cluster)
    for node in quorum.nodes:
        if node.node_id not in brokers:
            continue
        try:
            wanted = _listeners((await _settings(cluster, node.node_id, brokers)).get("listeners"))
        except OSError as error:
            found.append(_untold(f"controller {node.node_id}", error))
            continue
        for listener in node.listeners:
            port = wanted.get(listener.name) or listener.port
            if port != listener.port:
                advice = (
                    f"another program has port {port}: end it and start the node again, or write another port into "
                    f"`listeners`; until then --bootstrap-controller needs {listener.host}:{listener.port}"
                )
                told = f"listens on port {listener.port} instead of {port}"
                found.append(Finding(f"controller {node.node_id}", WARNING, told, advice))
    return found


def _listeners(text: str | None) -> dict[str, int]:
    """`CONTROLLER://localhost:9093,...` as ports by name."""
    ports = {}
    for part in (text or "").split(","):
        name, _, address = part.strip().partition("://")
        port = address.rpartition(":")[2]
        if port.isdigit():
            ports[name] = int(port)
    return ports


async def _brokers(cluster: Cluster) -> list[int]:
    return sorted(broker.node_id for broker in (await cluster.metadata([])).brokers)


def _asked(broker: int, brokers: list[int]) -> int | None:
    """Where a broker is asked: the only one there is where it was found, as what it advertises may lead nowhere."""
    return None if brokers == [broker] else broker


async def _settings(cluster: Cluster, broker: int, brokers: list[int]) -> dict[str, str | None]:
    from ottla.cli.kafka.asking import BROKER, configs

    found = await configs(cluster, BROKER, [str(broker)], node_id=_asked(broker, brokers))
    return {config.name: config.value for config in found[str(broker)]}


async def _settings_of_any(cluster: Cluster, brokers: list[int]) -> dict[str, str | None]:
    """Those of the first broker that can be reached; the last one's failure is everybody's."""
    for broker in brokers[:-1]:
        try:
            return await _settings(cluster, broker, brokers)
        except OSError:
            continue
    return await _settings(cluster, brokers[-1], brokers)


async def _internal_topics(cluster: Cluster) -> list[Finding]:
    """A cluster that is smaller than the number of copies it was told to keep cannot make these topics."""
    response = await cluster.metadata(None)
    brokers, topics = sorted(broker.node_id for broker in response.brokers), {t.name for t in response.topics}
    settings = await _settings_of_any(cluster, brokers)
    found = []
    for topic, (copies_setting, in_sync_setting, what) in INTERNAL.items():
        copies = int(settings.get(copies_setting) or 0)
        in_sync = int(settings.get(in_sync_setting) or 0) if in_sync_setting else 0
        if topic not in topics and copies > len(brokers):
            found.append(_too_many(f"{copies_setting}={copies}", copies_setting, what, len(brokers)))
        elif topic not in topics and in_sync_setting and in_sync > copies > 0:
            told = f"{in_sync_setting}={in_sync}: {topic} will have {copies} of these copies, no {what} can begin"
            found.append(Finding(topic, WRONG, told, f"set {in_sync_setting}={copies} and start the brokers again"))
    return found


def _counted(brokers: int) -> str:
    return "there is one broker" if brokers == 1 else f"there are {brokers} brokers"


def _too_many(told: str, setting: str, what: str, brokers: int) -> Finding:
    advice = f"start more brokers, or set {setting}={brokers} in the settings of those there are and start them again"
    return Finding(f"{what}s", WRONG, f"{told}, and {_counted(brokers)}: no {what} can begin", advice)


async def _partitions(cluster: Cluster) -> list[Finding]:
    response = await cluster.metadata(None)
    partitions = [(topic.name, p) for topic in response.topics for p in topic.partitions]
    headless = [f"{name}-{p.partition_index}" for name, p in partitions if p.leader_id < 0]
    if headless:
        advice = "a broker or one of its directories is gone: bring it back; ottla topic describe shows who held them"
        return [Finding("partitions", WRONG, f"without a leader: {', '.join(headless[:5])}", advice)]
    behind = sum(len(p.isr_nodes) < len(p.replica_nodes) for _, p in partitions)
    if behind:
        return [Finding("partitions", WARNING, f"{behind} of {len(partitions)} have copies that are not in sync")]
    return [Finding("partitions", OK, f"{len(partitions)} in {len(response.topics)} topics, all with a leader")]


async def _disks(cluster: Cluster) -> list[Finding]:
    from ottla.cli.cluster import disks_of_broker

    found: list[Finding] = []
    brokers = await _brokers(cluster)
    for broker in brokers:
        try:
            disks = await disks_of_broker(cluster, broker, _asked(broker, brokers))
        except OSError as error:
            found.append(_untold(f"disks of broker {broker}", error))
        else:
            found += [_disk(disk) for disk in disks if disk["error"] or disk["free"] >= 0]
    return found


def _disk(disk: Mapping[str, Any]) -> Finding:
    about = f"disk of broker {disk['broker']}, {disk['directory']}"
    if disk["error"]:
        advice = "the broker has given this directory up: look at its log and the disk"
        return Finding(about, WRONG, disk["error"], advice)
    return _space(about, disk["free"], disk["total"])
