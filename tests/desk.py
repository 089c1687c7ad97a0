"""A desk with the real metadata log behind it, at which handlers can be tried one at a time."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ottla.config import BrokerConfig, single_node_defaults
from ottla.log.directories import Directories
from ottla.server.quorum import Quorum
from ottla.world import RealDisk, World


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Desk:
    """Quorum, settings and world of a node, without its sockets."""

    def __init__(self, path: Path, **settings: str) -> None:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        listeners = "PLAINTEXT://localhost:9092,INSIDE://inside:9094,CONTROLLER://localhost:9093"
        protocols = "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"
        base = {"log.dirs": str(path), "listeners": listeners, "listener.security.protocol.map": protocols}
        self.config = BrokerConfig({**single_node_defaults(), **base, **dotted})
        self.world = World(disk=RealDisk(threads=1), random=random.Random(7))
        disk, rng = self.world.disk, self.world.random
        self.directories = Directories(disk, self.config.log_dirs, 1, self.world.now_ms, rng)
        self.fatal: list[BaseException] = []
        self.quorum = Quorum(self.config, self.world, self.directories, self.fatal.append)

    def ctx(self, version: int = 0, listener: str = "PLAINTEXT") -> Any:
        node = SimpleNamespace(config=self.config, quorum=self.quorum, world=self.world, charging=None)
        return Seen(node, version, listener)

    async def __aenter__(self) -> Desk:
        self.directories.open()
        await self.quorum.start({})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.quorum.stop()
        await self.directories.close(self.quorum.broker_epoch)
        assert not self.fatal


class Seen:
    """What a handler sees of one request."""

    def __init__(self, node: Any, version: int, listener: str) -> None:
        self.node = node
        self.version = version
        self.listener = listener
        self.is_to_controller = listener == "CONTROLLER"

    @property
    def image(self) -> Any:
        return self.node.quorum.image
