"""Where the node of a test runs, and who carries out what the test orders: start it, stop it, make things go wrong.

The node is the production one. It differs in three places that a node offers anyway: its connections look up the rules
before a request is dispatched, its disk can be full, its wall clock can be moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from ottla.config import BrokerConfig, single_node_defaults
from ottla.log.identity import MetaProperties, write_meta_properties
from ottla.metadata.image import Partition
from ottla.server.connection import Connection
from ottla.server.dispatch import HANDLERS, Exchange, dispatch
from ottla.server.node import Node
from ottla.server.refusals import refusal
from ottla.testing.faults import Rule
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.frames import read_request_header
from ottla.wire.ids import random_id
from ottla.wire.messages.topics import CreateTopicsRequest
from ottla.world import Bytes, RealDisk, RealFile, Workshop, World, wall_clock_ms

T = TypeVar("T")

CREATE_MS = 30_000

# A node for one test: it keeps few files, waits for nobody, and lets clients make topics by using them.
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class FaultyFile(RealFile):
    __slots__ = ("disk",)

    def __init__(self, path: str, flags: int, disk: FaultyDisk) -> None:
        self.disk = disk
        super().__init__(path, flags, disk.watch)

    def write_at(self, position: int, parts: Sequence[Bytes]) -> None:
        if self.disk.is_full and self.path.endswith(".log"):
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        super().write_at(position, parts)


class FaultyDisk(RealDisk):
    """The real disk, except that it may be full."""

    is_full = False

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        return FaultyFile(path, os.O_RDWR | (os.O_CREAT if create else 0), self)


class Threads(Workshop):
    """Heavy work of a node that shares the test's process: on a thread, because a child would run the test's main module."""

    async def work(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(call, *args)

    toil = work


class FaultyConnection(Connection):
    """Looks up the rules first."""

    __slots__ = ("_losing",)

    def dispatch(self, frame: memoryview) -> None:
        node = self.node
        assert isinstance(node, FaultyNode)
        rule = node.rule_for(int.from_bytes(frame[:2], "big", signed=True))
        if rule is None:
            dispatch(self, frame)
        elif rule.kind == "drop":
            self.abort("the test wants it")
        elif rule.kind == "refuse":
            self._refuse(frame, Error[rule.error])
        elif rule.kind == "delay":
            self.hold(rule)
            self.listener.loop.call_later(rule.seconds, self._dispatch_late, bytes(frame), rule)
        else:
            self._losing = True
            dispatch(self, frame)

    def _dispatch_late(self, frame: bytes, rule: Rule) -> None:
        if self.transport is not None:
            dispatch(self, memoryview(frame))
            self.release(rule)

    def _refuse(self, frame: memoryview, error: Error) -> None:
        key, version, correlation_id, client_id, position = read_request_header(frame)
        handler = HANDLERS[key]
        request = (handler.decoders.get(version) or handler.learn(version))(frame, position)[0]
        exchange = Exchange(self, handler, version, correlation_id, client_id, len(frame) + 4)
        self.exchanges.append(exchange)
        exchange.response = None if getattr(request, "acks", None) == 0 else refusal(request, KafkaError(error))
        exchange.ready = True
        self.answered(exchange)

    def flush(self) -> None:
        if getattr(self, "_losing", False) and self.exchanges and self.exchanges[0].ready:
            self.abort("the test wants it")
        else:
            super().flush()


class FaultyNode(Node):
    connection_kind = FaultyConnection

    def __init__(self, config: BrokerConfig, world: World, rules: list[Rule]) -> None:
        super().__init__(config, world)
        self._rules = rules

    def rule_for(self, key: int) -> Rule | None:
        for rule in self._rules:
            if key in HANDLERS and HANDLERS[key].name == rule.api:
                if rule.left is not None:
                    rule.left -= 1
                    if rule.left == 0:
                        self._rules.remove(rule)
                return rule
        return None


class Stage:
    """One node at a time, in a temporary directory. `apart`: in a process of its own."""

    def __init__(self, settings: Mapping[str, str], *, apart: bool) -> None:
        self._settings = {**single_node_defaults(), **SETTINGS, **settings}
        self._apart = apart
        self._rules: list[Rule] = []
        self._numbers = 0
        self._clock_moved_ms = 0
        self._disk = FaultyDisk()
        self._node: Node | None = None
        self._directory = ""

    async def obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Do it; what went wrong is told in words, because it has to travel."""
        try:
            done = getattr(self, f"do_{order['do']}")({name: value for name, value in order.items() if name != "do"})
            return {"done": await done if isinstance(done, Awaitable) else done}
        except (KafkaError, OSError, ValueError) as error:
            return {"failed": str(error) or type(error).__name__}

    async def close(self) -> None:
        await self._stop()
        self._remove()

    # --- the orders

    async def do_start(self, order: Mapping[str, Any]) -> str:
        """With a `cluster_id` the node belongs to a cluster that others make up with it."""
        self._directory = tempfile.mkdtemp(prefix="ottla-test-")
        if "cluster_id" in order:
            chance = random.SystemRandom()
            meta = MetaProperties(order["cluster_id"], int(self._settings["node.id"]), random_id(chance))
            write_meta_properties(self._disk, self._directory, meta, self._now_ms())
        return await self._start()

    async def do_stop(self, _: Mapping[str, Any]) -> None:
        await self._stop()

    async def do_take_over(self, order: Mapping[str, Any]) -> None:
        """What a process that was killed has left."""
        self._directory = order["directory"]
        if "port" in order:
            self._listen_on(order["port"])
        await self._start()

    def do_adopt(self, order: Mapping[str, Any]) -> None:
        """Look after a directory that nobody serves from, so that it goes with us."""
        self._directory = order["directory"]

    def do_directory(self, _: Mapping[str, Any]) -> str:
        return self._directory

    async def do_create(self, order: Mapping[str, Any]) -> None:
        kind = CreateTopicsRequest.Topic
        wanted = kind(
            name=order["name"],
            num_partitions=order["partitions"],
            replication_factor=order.get("copies", 1),
            configs=[kind.Config(name=name, value=value) for name, value in order["configs"].items()],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=CREATE_MS)
        answer = await self._running.channel.ask(request, CREATE_MS / 1000)
        for topic in answer.topics:
            if topic.error_code:
                raise KafkaError(error_of(topic.error_code), topic.error_message)

    # --- what a cluster knows

    def do_topic(self, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Its partitions, as this node knows them; nothing if it knows none."""
        topic = self._running.quorum.image.topic(order["name"])
        return [] if topic is None else [_told(partition) for _, partition in sorted(topic.partitions.items())]

    def do_partition(self, order: Mapping[str, Any]) -> dict[str, Any]:
        topic = self._running.quorum.image.topic(order["topic"])
        if topic is None or order["index"] not in topic.partitions:
            raise ValueError(f"there is no partition {order['topic']}-{order['index']}")
        return _told(topic.partitions[order["index"]])

    def do_controller(self, _: Mapping[str, Any]) -> int:
        return self._running.quorum.leader_id

    async def do_renew(self, _: Mapping[str, Any]) -> None:
        self.do_clear({})
        self._clock_moved_ms = 0
        await self._stop()
        self._remove()
        self._directory = tempfile.mkdtemp(prefix="ottla-test-")
        await self._start()

    async def do_restart(self, _: Mapping[str, Any]) -> None:
        await self._stop()
        await self._start()

    def do_move_clock(self, order: Mapping[str, Any]) -> None:
        self._clock_moved_ms += int(order["seconds"] * 1000)

    async def do_upkeep(self, _: Mapping[str, Any]) -> None:
        upkeep = self._running.upkeep
        await upkeep.retain()
        await upkeep.compactions.run()

    def do_rule(self, order: Mapping[str, Any]) -> int:
        names = {handler.name for handler in HANDLERS.values()}
        if order["api"] not in names:
            raise ValueError(f"there is no API {order['api']!r}: the broker serves {', '.join(sorted(names))}")
        if order["kind"] == "refuse" and order["error"] not in Error.__members__:
            raise ValueError(f"there is no error {order['error']!r}: Kafka has {', '.join(sorted(Error.__members__))}")
        self._numbers += 1
        self._rules.append(Rule(self._numbers, **order))
        return self._numbers

    def do_take_back(self, order: Mapping[str, Any]) -> None:
        self._rules[:] = [rule for rule in self._rules if rule.number != order["number"]]

    def do_left(self, order: Mapping[str, Any]) -> int | None:
        return next((rule.left for rule in self._rules if rule.number == order["number"]), 0)

    def do_fill_disk(self, order: Mapping[str, Any]) -> None:
        self._disk.is_full = order["full"]

    def do_clear(self, _: Mapping[str, Any]) -> None:
        self._rules.clear()
        self._disk.is_full = False

    # --- the node

    @property
    def _running(self) -> Node:
        if self._node is None:
            raise ValueError("the broker does not run")
        return self._node

    async def _start(self) -> str:
        config = BrokerConfig({**self._settings, "log.dirs": self._directory})
        world = World(self._disk, self._now_ms)
        if not self._apart:
            world.workshop = Threads()
        node = FaultyNode(config, world, self._rules)
        try:
            await node.start()
        except BaseException:
            node.directories.release()
            raise
        self._node = node
        if "PLAINTEXT" in (ports := {listener.name: listener.port for listener in node.listeners}):
            self._listen_on(ports["PLAINTEXT"])
        return node.addresses

    def _listen_on(self, port: int) -> None:
        """The next one listens where clients already know it."""
        if self._settings["listeners"] == SETTINGS["listeners"]:
            self._settings["listeners"] = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:0"

    def _now_ms(self) -> int:
        return wall_clock_ms() + self._clock_moved_ms

    async def _stop(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.stop()

    def _remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._directory)


def _told(partition: Partition) -> dict[str, Any]:
    return {"leader": partition.leader, "isr": list(partition.isr), "replicas": list(partition.replicas)}
