"""A node as a process: settings in, signals obeyed, and for each way it can fail to start one clear line and an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from ottla.config import BrokerConfig
from ottla.log.directories import WrongDirectory
from ottla.log.identity import BadIdentity, read_meta_properties
from ottla.raft.quorum import NOBODY, VoterSet
from ottla.raft.snapshots import Damaged
from ottla.server.disks import DiskFailed
from ottla.server.exposition import LoopProbe, node_routes, start_http
from ottla.server.journal import set_up
from ottla.server.loop import Loop
from ottla.server.node import Node
from ottla.wire.errors import KafkaError
from ottla.world import RealDisk, World

log = logging.getLogger("ottla.node")

# Collections of the youngest objects are rare enough not to be felt; requests leave no cycles behind.
YOUNG_OBJECTS = 50_000
# A node that is not ready after this long says what it waits for, and again after twice as long each time.
SILENT_S = 3.0
SILENT_S_MAX = 60.0
# Threads that wait for the disk. They are made when needed; file systems serve many syncs that wait together at once.
DISK_THREADS = 8


@dataclass(frozen=True)
class Options:
    """What is about the process rather than the node."""

    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    log_json: bool = False
    log_level: str = "info"


# Entered when the node serves, and left before it stops.
Beside = Callable[[Node], AbstractAsyncContextManager[None]]


class CannotStart(Exception):
    """Why the node does not run, in words for whoever started it."""


def serve_forever(properties: Mapping[str, str], options: Options, beside: Beside | None = None) -> int:
    """Run a node until it is told to stop, and `beside` it what else there is; the answer is the exit code of the process."""
    set_up(json=options.log_json, level=options.log_level)
    gc.freeze()  # modules stay
    gc.enable()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
    try:
        with asyncio.Runner(loop_factory=Loop) as runner:
            return runner.run(_serve(properties, options, beside or _nothing))
    except CannotStart as problem:
        print(f"ottla: {problem}", file=sys.stderr)
        return 1


def _nothing(node: Node) -> AbstractAsyncContextManager[None]:
    return contextlib.nullcontext()


async def _serve(properties: Mapping[str, str], options: Options, beside: Beside) -> int:
    disk = RealDisk(DISK_THREADS)
    try:
        node = Node(BrokerConfig(properties), World(disk))
    except KafkaError as error:
        raise CannotStart(_one_line(error.message)) from error
    _check_formatted(node)
    disk.watch = node.measures.synced
    if options.metrics_port is not None:
        await _expose(node, options)
    try:
        await _start(node)
    except (OSError, KafkaError, WrongDirectory, BadIdentity, Damaged) as error:
        node.directories.release()
        raise CannotStart(_one_line(_explained(error, node))) from error
    told = _told_to_end(node)
    gc.collect()
    gc.freeze()  # what was loaded stays: a collection over half a million live objects would pause for 100 ms
    probe = LoopProbe(node.measures.loop_stalls)
    probe.start()
    return await _until_the_end(node, told, beside)


def _check_formatted(node: Node) -> None:
    """A node by itself makes its directories ready; those of a cluster must be given the same id of the cluster first."""
    paths = node.config.log_dirs
    if node.config.is_one_of_several and not any(_has_identity(node, path) for path in paths):
        raise CannotStart(
            f"{paths[0]} is not formatted: a node of a cluster must be told which one. {_how_to_format(node.config)}; "
            "the ID is the same on every node, `kafka-storage random-uuid` makes one"
        )


def _how_to_format(config: BrokerConfig) -> str:
    """Voters that the file names are fixed, and brokers have no vote; else somebody must say who the first voters are."""
    command = "kafka-storage format --cluster-id ID --config server.properties"
    if config["controller.quorum.voters"] or "controller" not in config["process.roles"]:
        return f"Say `{command}`"
    return (
        f"If it joins a cluster that is there, or its disk was lost: `{command} --no-initial-controllers`. If it is one of "
        f"the first controllers of a new cluster: `{command} --initial-controllers NODE@HOST:PORT:DIRECTORY,...`, the same "
        "on each of them, with ids of directories that you make up like that of the cluster"
    )


async def _start(node: Node) -> None:
    """Nobody should have to guess from a silent log what a node waits for."""
    starting, patience_s = asyncio.create_task(node.start()), SILENT_S
    try:
        while not (await asyncio.wait([starting], timeout=patience_s))[0]:
            log.warning("not ready yet: %s", _waits_for(node))
            patience_s = min(2 * patience_s, SILENT_S_MAX)
    finally:
        starting.cancel()
    await starting


def _waits_for(node: Node) -> str:
    quorum = node.quorum
    if not quorum.is_started:
        return "the directories are being opened"
    if quorum.leader_id != NOBODY:
        return f"node {quorum.leader_id} leads the metadata quorum, and this node takes over what it knows"
    if quorum.voters.voters:
        return f"the metadata quorum has no leader; most of its voters must run: {_where(quorum.voters)}"
    servers = ", ".join(node.config["controller.quorum.bootstrap.servers"])
    return (
        f"nobody at {servers} (controller.quorum.bootstrap.servers) knows a leader of the metadata quorum; "
        "the first controllers of a new cluster are formatted with --initial-controllers"
    )


def _where(voters: VoterSet) -> str:
    return ", ".join(
        " ".join([f"node {voter.id}", *(f"at {address.host}:{address.port}" for address in voter.addresses[:1])])
        for voter in voters.voters
    )


def _has_identity(node: Node, path: str) -> bool:
    try:
        return read_meta_properties(node.world.disk, path) is not None
    except OSError:
        return False  # one of several may be out of order


async def _until_the_end(node: Node, told: asyncio.Event, beside: Beside) -> int:
    async with beside(node):
        await told.wait()
    failed = node.failed.result() if node.failed.done() else None
    if failed is None:
        try:
            await node.stop()
            failed = node.failed.result() if node.failed.done() else None
        except (OSError, KafkaError) as error:
            failed = error
    if failed is not None:
        why = "" if isinstance(failed, DiskFailed) else "because its metadata cannot be kept: "
        log.critical("the node ends, %s%s", why, failed)
        return 1
    log.info("stopped")
    return 0


def _why_not_ready(node: Node) -> str | None:
    if not node.is_ready:
        return "the node is starting or stopping"
    return "the broker was unregistered, and must be started again" if node.membership.is_disowned else None


async def _expose(node: Node, options: Options) -> None:
    """Before anything is loaded: whoever supervises the node sees that it lives and is not ready yet."""
    assert options.metrics_port is not None
    routes = node_routes(node.measures.render, lambda: _why_not_ready(node))
    try:
        await start_http(options.metrics_host, options.metrics_port, routes)
    except OSError as error:
        raise CannotStart(f"the metrics port {options.metrics_port} cannot be used: {error.strerror}") from error


def _told_to_end(node: Node) -> asyncio.Event:
    """Set by Ctrl-C or a polite kill; or by the node's own word that it cannot go on."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, told.set)
    node.failed.add_done_callback(lambda _: told.set())
    return told


def _explained(error: Exception, node: Node) -> str:
    """What went wrong and what to do about it."""
    if isinstance(error, KafkaError):
        return error.message
    if isinstance(error, BlockingIOError):
        return f"{error.filename} is held by another process: is a node already running on this directory?"
    if isinstance(error, socket.gaierror):
        hosts = ", ".join(endpoint.host for endpoint in node.config.endpoints)
        return f"one of the addresses to listen on is not known ({hosts}): {error.strerror}"
    if isinstance(error, PermissionError) and error.filename is None:
        return (
            f"no permission to listen there ({error.strerror}): ports below 1024 need it, choose another with --listen"
        )
    if isinstance(error, PermissionError):
        return f"no permission for {error.filename}: choose another directory with --data"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} cannot be a directory, because a file is in its way: choose another with --data"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{error.strerror}: is a broker already running there? Choose another address with --listen"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{error.strerror}: this machine has no such address. Choose one of its own with --listen, 0.0.0.0 for all of "
            "them; where clients reach it from elsewhere is told them by --set advertised.listeners=PLAINTEXT://HOST:PORT"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left for {error.filename or node.config.log_dirs[0]}: make room or choose another --data"
    return str(error)


def _one_line(text: str) -> str:
    return " ".join(text.split())
