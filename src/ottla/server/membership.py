"""How the broker of this node belongs to the cluster: it registers, is let in, and says goodbye.

A broker that was still unfenced in the log was killed: this process holds the lock on its directory, so nobody has to
wait until its session runs out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ottla.config import BrokerConfig
from ottla.log.directories import Directories
from ottla.metadata import controller
from ottla.metadata.controller import Block, Decision, Registration
from ottla.metadata.image import Image
from ottla.replication.replicas import Places
from ottla.server.controller import Controller
from ottla.server.quorum import endpoint
from ottla.wire.errors import KafkaError
from ottla.world import World

log = logging.getLogger("ottla.membership")


class Membership:
    def __init__(self, config: BrokerConfig, world: World, directories: Directories, decider: Controller) -> None:
        self.broker_epoch = -1
        self._config = config
        self._world = world
        self._directories = directories
        self._controller = decider
        self._block: Block | None = None
        self._ids = range(0)
        self._refill: asyncio.Future[Block] | None = None

    async def join(self, ports: Mapping[str, int]) -> None:
        """Register controller and broker of this process, and take the broker off the fence."""
        me, rules, clean_epoch = self._config.node_id, self._controller.rules, self._directories.clean_epoch
        incarnation = self._world.random.randbytes(16)
        controllers = [endpoint(e, ports.get(e.name, e.port)) for e in self._config.controller_endpoints]
        submit = self._controller.submit
        submit(lambda image: controller.register_controller(image, me, incarnation, controllers))
        if me in self._controller.written.brokers:
            submit(lambda image: controller.fence(image, me, rules))
        who = Registration(
            id=me,
            incarnation=incarnation,
            endpoints=[endpoint(e, e.port or ports.get(e.name, 0)) for e in self._config.advertised],
            directories=self._directories.ids,
            rack=self._config["broker.rack"],
            previous_epoch=-1 if clean_epoch is None else clean_epoch,
        )
        submit(lambda image: controller.register_broker(image, who, rules))
        self.broker_epoch = self._controller.written.brokers[me].epoch
        submit(lambda image: controller.unfence(image, me, rules))

    async def serve(self) -> None:
        """Everything is open: we were let in already."""

    async def leave(self) -> None:
        """Hand leaderships back, and wait until that is committed. Who never joined has nothing to do."""
        if self.broker_epoch < 0:
            return
        me, rules = self._config.node_id, self._controller.rules
        if self._controller.is_active and me in self._controller.written.brokers:  # somebody may have unregistered it
            self._controller.submit(lambda image: controller.begin_shutdown(image, me, rules))
            await self._controller.propose(lambda image: controller.fence(image, me, rules))

    # --- ids of producers

    async def producer_id(self) -> int:
        """The next id of this broker's block. Whoever finds it used up waits for the next one, together."""
        while not self._ids:
            refill = self._refill = self._refill or self._controller.submit(self._next_ids)
            try:
                block = await refill
            finally:
                if self._refill is refill:
                    self._refill = None
            if block is not self._block:
                self._block, self._ids = block, range(block.first, block.first + block.size)
        taken, self._ids = self._ids[0], self._ids[1:]
        return taken

    def _next_ids(self, image: Image) -> Decision[Block]:
        return controller.next_producer_ids(image, self._config.node_id, self.broker_epoch)

    # --- places

    def tell_places(self, places: Places) -> None:
        """The controller leaves it to a broker with several directories where it puts a log, and learns it from here."""
        try:
            self._controller.submit(lambda image: controller.assign_directories(image, self._config.node_id, places))
        except KafkaError as error:  # a full disk: told again by the next start
            log.warning("the metadata does not say yet which directories hold %d logs: %s", len(places), error)
