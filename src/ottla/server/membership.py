"""How the broker of this node belongs to the cluster: it registers, is let in, tells that it lives, and says goodbye.

    join     register, and wait until this node has read its own registration
    serve    ask to be let in: all logs are open and the listeners accept
    leave    ask to be let go: leaderships move away first (controlled shutdown)

In between a heartbeat goes to the active controller every `broker.heartbeat.interval.ms`, and at once when there is
something new to say. It always travels on the same connection: the controller sees at once when that is reset, and need
not wait for a session to run out when nobody listens any more where the broker was.

A node that is its own quorum needs none of that: it decides all of it in one go. A broker that was still unfenced in its
log was killed, and this process holds the lock on its directory, so nobody has to wait until a session runs out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.client.connection import check
from ottla.metadata import controller
from ottla.metadata.brokers import NO_EPOCH
from ottla.metadata.controller import Registration
from ottla.metadata.features import SERVED
from ottla.metadata.image import Delta, Endpoint, Image
from ottla.replication.replicas import Places
from ottla.server.quorum import endpoint
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.messages.brokers import (
    AllocateProducerIdsRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    Feature,
    Listener,
)

if TYPE_CHECKING:
    from ottla.server.node import Node

log = logging.getLogger("ottla.membership")

# A broker that waits to be let in or let go asks this often.
IMPATIENT_S = 0.05
PAUSE_S = 0.1
ASKING_S = 30.0
# Where logs are is told again after this, unless the controller does not want to hear it from this process at all.
TOLD_AGAIN_S = 1.0
NOT_TOLD = {Error.STALE_BROKER_EPOCH, Error.UNSUPPORTED_VERSION}
# Clients wait for it, and some of them no longer than this.
IDS_S = 5.0
# So often, and each time so long, a broker that stops waits for a controller to let it go.
FAREWELLS_MAX = 2
FAREWELL_S = 1.0

TOO_NEW = (
    "the controller refuses this broker: the cluster has agreed on a level of a feature that this release does not serve."
    " `kafka-features describe` shows the levels; those of share.version and streams.version must be 0"
    " (`kafka-features downgrade --feature share.version=0 --feature streams.version=0`)"
)


class Membership:
    def __init__(self, node: Node) -> None:
        self.broker_epoch = -1
        self._node = node
        self._config = node.config
        self._incarnation = node.world.random.randbytes(16)
        self._wants_to_serve = self._wants_to_go = False
        # Unregistered by somebody while it runs: no client is sent here any more.
        self.is_disowned = False
        self._answer = BrokerHeartbeatResponse()
        self._unheard = 0
        self._heard = asyncio.Event()
        self._news = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._enrolling: asyncio.Task[None] | None = None
        self._ids = range(0)
        self._refill: asyncio.Task[None] | None = None
        self._others_wait = False
        self._untold: Places = {}
        self._is_telling = False
        node.quorum.when_voters_change(self._has_company)
        node.quorum.listen(self._follow)

    # --- coming

    async def join(self, ports: Mapping[str, int]) -> None:
        """Make this process known. Where it takes others to decide, return when this node has read that it is."""
        config = self._config
        bound = config.controller_endpoints
        controllers = [
            endpoint(e, ports.get(e.name, e.port) if e in bound else e.port) for e in config.advertised_controllers
        ]
        doors = [endpoint(e, e.port or ports.get(e.name, 0)) for e in config.advertised]
        if self._node.quorum.is_alone:
            self._join_at_once(controllers, doors)
            return
        if "controller" in config["process.roles"]:
            self._enrolling = self._node.spawn(self._enrol(controllers))
        if "broker" in config["process.roles"]:
            await self._register(doors)
            self._beating = self._node.spawn(self._beat())
            await self._node.quorum.committed_end.reaches(self.broker_epoch + 1)

    @property
    def _left_behind(self) -> int:
        """The epoch that a clean stop has left behind. It vouches for nothing if logs are shorter than it left them: this
        broker is then not to lead by what it has, where another has all of it."""
        directories = self._node.directories
        epoch = directories.clean_epoch
        return NO_EPOCH if epoch is None or directories.is_shortened else epoch

    def _join_at_once(self, controllers: list[Endpoint], doors: list[Endpoint]) -> None:
        me, active, directories = self._config.node_id, self._node.controller, self._node.directories
        rules = active.rules
        active.submit(lambda image: controller.register_controller(image, me, self._incarnation, controllers))
        if "broker" not in self._config["process.roles"]:
            return
        if me in active.written.brokers:
            active.submit(lambda image: controller.fence(image, me, rules))
        who = Registration(
            id=me,
            incarnation=self._incarnation,
            endpoints=doors,
            directories=directories.ids,
            rack=self._config["broker.rack"],
            previous_epoch=self._left_behind,
        )
        active.submit(lambda image: controller.register_broker(image, who, rules))
        self.broker_epoch = active.written.brokers[me].epoch
        active.submit(lambda image: controller.unfence(image, me, rules, directories.cordoned_ids))

    def _has_company(self) -> None:
        """Others may be the controller from now on: they want to hear from the broker that let itself in."""
        if self.broker_epoch >= 0 and self._beating is None and not self._node.quorum.is_alone:
            self._wants_to_serve = True
            self._beating = self._node.spawn(self._beat())

    async def _register(self, doors: list[Endpoint]) -> None:
        node = self._node
        request = BrokerRegistrationRequest(
            broker_id=self._config.node_id,
            cluster_id=node.directories.cluster_id,
            incarnation_id=self._incarnation,
            listeners=_listeners(doors),
            features=_features(),
            rack=self._config["broker.rack"],
            log_dirs=list(node.directories.ids),
            previous_broker_epoch=self._left_behind,
        )
        deadline = node.loop.time() + self._config["initial.broker.registration.timeout.ms"] / 1000
        while self.broker_epoch < 0:
            left_s = deadline - node.loop.time()
            answer = await node.channel.ask(request, timeout_s=max(left_s, 1))
            error = error_of(answer.error_code)
            if left_s > 0 and (error is Error.DUPLICATE_BROKER_REGISTRATION or error.retriable):
                # The session of the process before this one has not run out yet, or the controller's disk is full, say.
                await asyncio.sleep(PAUSE_S)
                continue
            if error is Error.UNSUPPORTED_VERSION:
                raise KafkaError(Error.UNSUPPORTED_VERSION, TOO_NEW)
            check(answer.error_code)
            self.broker_epoch = answer.broker_epoch
        log.info("broker %d is registered with epoch %d", self._config.node_id, self.broker_epoch)

    async def _enrol(self, controllers: list[Endpoint]) -> None:
        """A controller says where it listens, until that stands in the metadata."""
        me, node = self._config.node_id, self._node
        request = ControllerRegistrationRequest(
            controller_id=me,
            incarnation_id=self._incarnation,
            listeners=_listeners(controllers),
            features=_features(),
        )
        while True:
            known = node.quorum.image.controllers.get(me)
            if known is not None and known.incarnation == self._incarnation:
                return
            try:
                check((await node.channel.ask(request, timeout_s=5)).error_code)
            except (OSError, KafkaError) as error:
                log.debug("this controller could not register yet: %s", error)
            await asyncio.sleep(PAUSE_S)

    async def serve(self) -> None:
        """Everything is open: ask to be let in, and return when we are."""
        if self._beating is not None:
            self._wants_to_serve = True
            self._news.set()
            while self._answer.is_fenced:
                await self._next_answer()

    # --- staying

    async def _follow(self, old: Image, new: Image, delta: Delta) -> None:
        """Who stops has to wait until all others have read that it leads nothing any more: it should not wait for long."""
        self._others_wait = any(broker.in_controlled_shutdown and not broker.fenced for broker in new.brokers.values())
        if self._others_wait:
            self._news.set()

    async def _beat(self) -> None:
        """Tell the controller that we live, in the rhythm of the settings, or faster while we want something of it."""
        interval_s = self._config["broker.heartbeat.interval.ms"] / 1000
        while True:
            try:
                await self._say_we_live(interval_s)
            except (OSError, KafkaError) as error:
                log.debug("the controller does not hear us: %s", error)
                self._unheard += 1
                self._heard.set()
                await asyncio.sleep(PAUSE_S)
                continue
            patience_s = IMPATIENT_S if self._is_waiting() else interval_s
            try:
                async with asyncio.timeout(patience_s):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _say_we_live(self, interval_s: float) -> None:
        self._news.clear()
        request = BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._node.quorum.image.offset,
            want_fence=not self._wants_to_serve,
            want_shut_down=self._wants_to_go,
            offline_log_dirs=self._node.disks.offline,
            cordoned_log_dirs=self._node.directories.cordoned_ids,
        )
        answer = await self._node.channel.ask(request, timeout_s=FAREWELL_S if self._wants_to_go else interval_s)
        if answer.error_code == Error.STALE_BROKER_EPOCH.code:
            self._find_out_why_stale()
        check(answer.error_code)
        self._answer, self._unheard, self.is_disowned = answer, 0, False
        self._node.disks.heard(request.offline_log_dirs)
        self._heard.set()

    def _find_out_why_stale(self) -> None:
        """Somebody else has our place, or nobody has: then this node goes on, as Apache Kafka's does, for it may vote."""
        known = self._node.quorum.image.brokers.get(self._config.node_id)
        if known is None and not self.is_disowned:
            self.is_disowned = True
            log.error("broker %d was unregistered: it serves nobody until it is started again", self._config.node_id)
        if known is not None and known.incarnation != self._incarnation:
            self._node.fail(KafkaError(Error.STALE_BROKER_EPOCH, "another process registered as this broker"))

    def _is_waiting(self) -> bool:
        if self._wants_to_go:
            return not self._answer.should_shut_down
        return self._others_wait or (self._wants_to_serve and self._answer.is_fenced)

    def tell_failed(self) -> None:
        """A directory has failed: a heartbeat that is due now says so. Who decides alone writes it down."""
        self._news.set()
        if self._beating is None and self._node.controller.is_active:
            failed, active, me = self._node.disks.offline, self._node.controller, self._config.node_id
            active.submit(lambda image: controller.lose_directories(image, me, failed, active.rules))
            self._node.disks.heard(failed)

    def tell_cordoned(self) -> None:
        """Other directories are cordoned than before."""
        self._news.set()
        if self._beating is None and self.broker_epoch >= 0 and self._node.controller.is_active:
            cordoned, active, me = self._node.directories.cordoned_ids, self._node.controller, self._config.node_id
            active.submit(lambda image: controller.cordon_own(image, me, cordoned))

    # --- going

    async def leave(self) -> None:
        """Hand leaderships over, and wait until that is done. Who never joined has nothing to do."""
        if self.broker_epoch < 0:
            return
        if self._beating is not None:
            await self._ask_to_go()
        elif self._node.controller.is_active:
            await self._go_at_once()

    async def _ask_to_go(self) -> None:
        """If there is no controller to ask, the others may be stopping as well: they find out by themselves. A node that has
        failed does not wait for anybody."""
        self._wants_to_go, self._unheard = True, 0
        self._news.set()
        failed = self._node.failed
        failed.add_done_callback(lambda _: self._heard.set())
        while not self._answer.should_shut_down and self._unheard < FAREWELLS_MAX and not failed.done():
            await self._next_answer()
        if not self._answer.should_shut_down and not failed.done():
            log.warning("no controller answers: this broker goes without saying goodbye")
        for task in filter(None, (self._beating, self._enrolling)):
            task.cancel()

    async def _next_answer(self) -> None:
        self._heard.clear()
        await self._heard.wait()

    async def _go_at_once(self) -> None:
        me, active = self._config.node_id, self._node.controller
        if me in active.written.brokers:  # somebody may have unregistered it
            active.submit(lambda image: controller.begin_shutdown(image, me, active.rules))
            await active.propose(lambda image: controller.fence(image, me, active.rules))

    # --- ids of producers

    async def producer_id(self) -> int:
        """The next id of this broker's block. Whoever finds it used up waits for the next one, together. If there is none in
        time, they are told what makes producers ask again."""
        while not self._ids:
            if self._refill is None:
                self._refill = self._node.loop.create_task(self._fetch_ids())
            try:
                await asyncio.shield(self._refill)
            except (OSError, KafkaError) as error:
                raise KafkaError(Error.COORDINATOR_LOAD_IN_PROGRESS, f"no block of producer ids: {error}") from error
        taken, self._ids = self._ids[0], self._ids[1:]
        return taken

    async def _fetch_ids(self) -> None:
        request = AllocateProducerIdsRequest(broker_id=self._config.node_id, broker_epoch=self.broker_epoch)
        try:
            answer = await self._node.channel.ask(request, timeout_s=IDS_S)
            check(answer.error_code)
            self._ids = range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)
        finally:
            self._refill = None

    # --- places

    def tell_places(self, places: Places) -> None:
        """The controller leaves it to a broker with several directories where it puts a log, and learns it from here."""
        self._untold.update(places)
        if not self._is_telling:
            self._is_telling = True
            self._node.spawn(self._tell_all())

    async def _tell_all(self) -> None:
        """One request after the other, so that the newest place counts, until the controller knows all of them: nobody takes a
        replica for in sync whose place is wrong."""
        try:
            while self._untold:
                places, self._untold = self._untold, {}
                try:
                    await self._tell(places)
                except (OSError, KafkaError) as error:
                    log.warning("the metadata does not say yet which directories hold %d logs: %s", len(places), error)
                    if isinstance(error, KafkaError) and error.error in NOT_TOLD:
                        return
                    self._untold = {**places, **self._untold}
                    await asyncio.sleep(TOLD_AGAIN_S)
        finally:
            self._is_telling = False

    async def _tell(self, places: Places) -> None:
        kind = AssignReplicasToDirsRequest.Directory
        told: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, index), directory in places.items():
            told.setdefault(directory, {}).setdefault(topic_id, []).append(index)
        request = AssignReplicasToDirsRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.broker_epoch,
            directories=[
                kind(
                    id=directory,
                    topics=[
                        kind.Topic(topic_id=of, partitions=[kind.Topic.Partition(partition_index=i) for i in indexes])
                        for of, indexes in topics.items()
                    ],
                )
                for directory, topics in told.items()
            ],
        )
        check((await self._node.channel.ask(request, timeout_s=ASKING_S)).error_code)


def _listeners(endpoints: list[Endpoint]) -> list[Listener]:
    return [Listener(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol) for e in endpoints]


def _features() -> list[Feature]:
    return [
        Feature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in SERVED.items()
    ]
