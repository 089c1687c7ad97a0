"""Builds one node from settings and a world, starts it and stops it: the only constructor of parts.

Start: lock the data directories and settle who we are (or format new ones), replay the metadata log, bind the listeners so
that their ports are known, register, open the logs, take up leaderships, then accept. Stop: hand leaderships back, stop
accepting, answer what is under way, close the logs, leave the mark of a clean stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ottla import __version__
from ottla.config import BrokerConfig
from ottla.log.directories import Directories
from ottla.log.files import FILES_MAX
from ottla.log.log import Log
from ottla.log.settings import LogSettings
from ottla.metadata.features import SERVED
from ottla.metadata.image import BROKER, TOPIC, Delta, Image
from ottla.metadata.image import Partition as Assignment
from ottla.replication.moves import Moves
from ottla.replication.neighbours import Neighbours
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.server import limits
from ottla.server.channel import ControllerChannel
from ottla.server.cluster_readings import declare_cluster_readings
from ottla.server.connection import Connection
from ottla.server.controller import Controller
from ottla.server.coordinators import group_coordinators, transaction_coordinators
from ottla.server.creation import Creation
from ottla.server.disks import Disks
from ottla.server.dispatch import HANDLERS, ON_CONTROLLER
from ottla.server.fetch_sessions import FetchSessions
from ottla.server.group_readings import declare_group_readings
from ottla.server.handlers import (
    api_versions,
    brokers,
    cluster,
    commits,
    credentials,
    elections,
    envelope,
    features,
    fetch,
    finding,
    group_admin,
    groups,
    log_dirs,
    markers,
    metadata,
    offsets,
    produce,
    producer_ids,
    quorum,
    quotas,
    reassignments,
    settings,
    topics,
    transactions,
    voters,
)
from ottla.server.limits import Limits
from ottla.server.listener import Listener
from ottla.server.markers import Markers
from ottla.server.measures import NodeMetrics
from ottla.server.membership import Membership
from ottla.server.peers import Peers
from ottla.server.quorum import Quorum
from ottla.server.quotas import Quotas
from ottla.server.tick import Tick
from ottla.server.upkeep import Upkeep
from ottla.server.watch import Watch
from ottla.wire.errors import KafkaError
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.produce import ProduceRequest
from ottla.world import World

log = logging.getLogger("ottla.node")

# So much later than its timeout a transaction may be aborted without being called late.
LATE_MS = 5 * 60 * 1000
# Of many logs that are not as they should be, so many are named.
NAMED_MAX = 10
# How long the controller may take to change who is in sync before it is asked again.
ALTERING_S = 10.0

# Importing a family of handlers enters it into the table that everybody reads.
FAMILIES = (
    *(api_versions, cluster, fetch, log_dirs, metadata, offsets, produce, producer_ids, settings, topics),
    *(quotas, credentials),
    *(brokers, elections, envelope, features, quorum, reassignments, voters),
    *(finding, groups, commits, group_admin),
    *(transactions, markers),
)


class Node:
    connection_kind: type[Connection] = Connection

    def __init__(self, config: BrokerConfig, world: World) -> None:
        self.config = config
        self.world = world
        self.loop = asyncio.get_running_loop()
        served = {**ON_CONTROLLER, **HANDLERS}
        self.measures = NodeMetrics({key: handler.name for key, handler in served.items()}, version=__version__)
        self.features = SERVED
        self.tick = Tick(self.loop, self.fail)
        self.fetch_bytes_max: int = config["fetch.max.bytes"]
        self.fetch_sessions = FetchSessions(
            slots=config["max.incremental.fetch.session.cache.slots"],
            eviction_s=config["min.incremental.fetch.session.eviction.ms"] / 1000,
            rng=world.random,
            clock=self.loop.time,
        )
        limit, places = limits.raise_file_limit(), len(config.log_dirs)
        files_max = limits.segment_files(limit, places, FILES_MAX)
        self._connection_files = limits.connection_files(limit, files_max * places)
        self.limits = Limits(config, self._connection_files)
        self.quotas = Quotas(config, self.loop.time, self.measures)
        # The same while any user or client has a quota: most nodes have none, and then requests look no further than here.
        self.charging: Quotas | None = None
        self.directories = Directories(
            *(world.disk, config.log_dirs, config.node_id, world.now_ms, world.random), files_max=files_max
        )
        self.replicas = Replicas(
            *(config.node_id, self.directories, config.topic_settings, self.tick.dirty, self.spawn),
            *(self.measures.topic, self._write_failed, self._moves(), world.now_ms, self._neighbours()),
        )
        self.quorum = Quorum(config, world, self.directories, self.fail)
        self.quorum.meters = self.measures.quorum
        self.controller = Controller(config, world, self.quorum)
        self.peers = Peers(config, world, self.quorum)
        self.channel = ControllerChannel(self)
        self.creation = Creation(self)
        self.watch = Watch(self)
        self.disks = Disks(self)
        self.membership = Membership(self)
        self.groups = group_coordinators(self)
        self.markers = Markers(self)
        self.transactions = transaction_coordinators(self)
        self.upkeep = Upkeep(self)
        self.listeners: list[Listener] = []
        self.failed: asyncio.Future[BaseException] = self.loop.create_future()
        self.is_ready = False
        self._logs_loaded = False
        self._background: dict[asyncio.Task[Any], None] = {}

    def _moves(self) -> Moves:
        config = self.config
        together = config["num.replica.alter.log.dirs.threads"] or len(config.log_dirs)
        limit = "replica.alter.log.dirs.io.max.bytes.per.second"
        return Moves(
            *(self.directories, self.world.random, together, lambda: int(config[limit])),
            lambda places: self.membership.tell_places(places),
        )

    def _neighbours(self) -> Neighbours:
        return Neighbours(
            open_line=lambda purpose, broker_id: self.peers.line(purpose, broker_id),
            ask_controller=lambda request: self.channel.ask(request, ALTERING_S),
            broker_epoch=lambda: self.membership.broker_epoch,
            setting=self.config.__getitem__,
        )

    # --- what parts may ask of the node

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside everything else; an error in it is a defect and is told."""
        task = self.loop.create_task(work)
        self._background[task] = None
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._background.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    def _write_failed(self, where: Log, error: BaseException) -> None:
        """Records could not be written. If that is for want of room, the last of it is kept for upkeep and metadata."""
        self.measures.write_failures.value += 1
        self.directories.suspect(self.directories.home_of(where).path, error)
        if self.directories.relieve(error):
            log.error("the disk is full: records are refused until there is room, everything else goes on")

    def fail(self, error: BaseException) -> None:
        """The node cannot go on: its metadata log could not be written, or nobody knows what a log holds."""
        if not self.failed.done():
            self.failed.set_result(error)

    def finalised_features(self) -> dict[str, int]:
        """What is finalised, but never more than this release serves."""
        finalised = self.quorum.image.finalised
        return {name: min(level, SERVED[name][1]) for name, level in finalised.items() if name in SERVED}

    # --- starting and stopping

    async def start(self) -> None:
        """Return when this node serves. If it fails meanwhile, because of its disk say, it waits for nobody any longer."""
        starting = self.loop.create_task(self._start())
        either: list[asyncio.Future[Any]] = [starting, self.failed]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            starting.cancel()
        if not starting.done():
            raise self.failed.result()
        await starting

    async def _start(self) -> None:
        began = time.perf_counter()
        for warning in self.config.warnings:
            log.warning("%s", warning)
        await self.world.disk.away(self.directories.open)
        await self.directories.look_at_tails()
        self.disks.obey()
        self.quorum.listen(self._follow)
        self.config.listen(self._settings_changed)
        for endpoint in (*self.config.broker_endpoints, *self.config.controller_endpoints):
            listener = Listener(self, endpoint, self.loop, endpoint in self.config.controller_endpoints)
            await listener.bind()
            self.listeners.append(listener)
        ports = {listener.name: listener.port for listener in self.listeners}
        await self.quorum.start(ports)
        await self._serve(is_controller=True)  # others may need our vote before anybody can register
        await self.membership.join(ports)
        await self.quorum.show()
        await self._serve(is_controller=False)
        await self.membership.serve()
        self.replicas.moves.resume(self.replicas.find)
        self.upkeep.start()
        self._declare_readings()
        self._warn()
        self.is_ready = True
        role = "serves" if "broker" in self.config["process.roles"] else "is a controller at"
        seconds = time.perf_counter() - began
        log.info("node %d %s %s after %.2f s", self.config.node_id, role, self.addresses, seconds)

    async def _serve(self, *, is_controller: bool) -> None:
        for listener in self.listeners:
            if listener.is_controller == is_controller:
                await listener.serve()

    async def _end_background(self) -> None:
        """Whatever still waits for something waits in vain."""
        left = list(self._background)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _stop_accepting(self, *, is_controller: bool) -> None:
        for listener in self.listeners:
            if listener.is_controller == is_controller:
                listener.stop_accepting()

    def _warn(self) -> None:
        """Say now what will hurt later."""
        if warning := limits.file_warning(self._connection_files):
            log.warning("%s", warning)
        for path, error in self.directories.unopened.items():
            log.error("%s cannot be used, and what is in it is left to other brokers: %s", path, error)
        for path in [path for path, ballast in self.directories.ballasts.items() if ballast.released]:
            log.warning("%s: the disk is full, records are refused until there is room", path)

    @property
    def addresses(self) -> str:
        """Where clients find this node; a mere controller has nothing for them, and is found by other nodes."""
        doors = [door for door in self.listeners if not door.is_controller] or self.listeners
        return ", ".join(f"{listener.host or '*'}:{listener.port}" for listener in doors)

    async def stop(self) -> None:
        self.is_ready = False
        await self.upkeep.stop()
        await self.replicas.moves.stop_all()
        try:
            # Until the others have taken over, clients are served, and until the end this node has its vote.
            await self.membership.leave()
            self._stop_accepting(is_controller=False)
            self.transactions.stop()
            self.groups.stop()
            await self.quorum.stop()
        except (OSError, KafkaError) as error:  # a full disk: what is not written down is found out at the next start
            log.error("the controller could not say goodbye: %s", error)
        for is_controller in (False, True):
            self._stop_accepting(is_controller=is_controller)
        await self.replicas.stop()
        self.peers.close()
        for listener in self.listeners:
            await listener.close()
        await self._end_background()
        self.world.workshop.close()  # a child that compacts must not write into directories that are let go
        self.directories.note(self.replicas.watermarks())
        await self.directories.close(self.membership.broker_epoch)

    async def _follow(self, old: Image, new: Image, delta: Delta) -> None:
        """The committed picture changed: settings first, because new logs obey them."""
        mine = (BROKER, str(self.config.node_id))
        if (BROKER, "") in delta.configs or mine in delta.configs:
            self.config.set_dynamic(new.configs(BROKER, ""), new.configs(*mine))
            self.replicas.reconfigure_all()
        if delta.quotas:
            self.charging = self.quotas.obey(new.quotas)
            if unresolved := self.quotas.unresolved():
                self.spawn(self.quotas.resolve(unresolved))
        if not self._logs_loaded:
            self._logs_loaded = True
            await self._load_logs(new)
        for topic_id in delta.deleted:
            if topic_id in old.topics:
                self.measures.forget_topic(old.topics[topic_id].name)
        if places := await self.replicas.apply(new, delta):
            self.membership.tell_places(places)
        self.groups.follow(new, delta)
        self.transactions.follow(new, delta)
        self.peers.follow(old, delta)
        self.markers.follow(new, delta)

    def _settings_changed(self, names: frozenset[str]) -> None:
        """Those that a part keeps for itself instead of asking; logs have theirs from `reconfigure_all`."""
        self.limits.obey(self.config)
        self.disks.obey()
        for listener in self.listeners:
            listener.obey()
        connections = [connection for listener in self.listeners for connection in listener.connections]
        connections.sort(key=lambda connection: connection.last_active)
        for connection in connections[: self.limits.excess]:
            connection.abort("max.connections was lowered")

    async def _load_logs(self, image: Image) -> None:
        def settings_of(topic: str) -> LogSettings:
            return LogSettings.of(self.config.topic_settings(image.configs(TOPIC, topic)))

        def claimed_by(name: str, index: int) -> bytes | None:
            topic = image.topic(name)
            partition = topic.partitions.get(index) if topic is not None else None
            return topic.id if topic and partition and self.config.node_id in partition.replicas else None

        for loading in await self.directories.load(settings_of):
            if not loading.logs:
                continue
            log.info(
                "opened %d logs in %.2f s, after %s stop: %d MB scanned, %d bytes cut",
                *(loading.logs, loading.took_ms / 1000, "a clean" if loading.clean else "an unclean"),
                *(loading.scanned_bytes >> 20, loading.truncated_bytes),
            )
            if loading.shortened:
                told = ", ".join(
                    f"{name} at {end} instead of {known}" for name, end, known in loading.shortened[:NAMED_MAX]
                )
                log.error("%d logs end before what was known to be in them: %s", len(loading.shortened), told)
            self.measures.recovery.value += loading.took_ms / 1000
            self.measures.recovered_bytes.value += loading.scanned_bytes
            self.measures.truncated_bytes.value += loading.truncated_bytes
        for path in self.directories.set_strays_aside(claimed_by):
            log.warning("no topic claims this log; it was renamed and is kept: %s", path)

    def _declare_readings(self) -> None:
        """Numbers that somebody knows already are read when they are asked for."""
        measures, quorum = self.measures, self.quorum
        measures.topics.read = lambda: len(quorum.image.topics)
        measures.fetch_sessions.read = lambda: len(self.fetch_sessions)
        measures.metadata_offset.read = lambda: quorum.image.offset
        measures.metadata_epoch.read = lambda: quorum.epoch
        measures.metadata_end.read = lambda: quorum.store.end_offset
        measures.metadata_snapshot.read = lambda: quorum.store.snapshot_end
        measures.active_controller.read = lambda: int(quorum.leads)
        measures.connections.read = lambda: (((each.name,), len(each.connections)) for each in self.listeners)
        measures.muted.read = lambda: sum(c.is_muted for each in self.listeners for c in each.connections)
        measures.waiting_produces.read = lambda: self._unanswered(ProduceRequest.key)
        measures.waiting_fetches.read = lambda: self._unanswered(FetchRequest.key)
        declare_group_readings(self)
        declare_cluster_readings(self)
        self._declare_partition_readings()
        self._declare_disk_readings()

    def _declare_partition_readings(self) -> None:
        measures, replicas = self.measures, self.replicas

        def count(is_so: Callable[[Partition], bool]) -> Callable[[], int]:
            return lambda: sum(is_so(partition) for partition in replicas.all())

        def is_led(partition: Partition) -> bool:
            return partition.leader == self.config.node_id

        measures.partitions.read = lambda: len(replicas.all())
        measures.leaders.read = count(is_led)
        measures.under_min_isr.read = count(lambda p: is_led(p) and len(p.isr) < p.min_insync)
        measures.under_replicated.read = lambda: self._count_assigned(
            lambda p: p.leader == self.config.node_id and len(p.isr) < len(p.replicas)
        )
        measures.at_min_isr.read = count(lambda p: is_led(p) and len(p.isr) == min(p.min_insync, len(p.replicas)))
        measures.cluster_partitions.read = lambda: self._count_assigned(lambda p: True)
        measures.not_preferred.read = lambda: self._count_assigned(lambda p: p.leader != p.replicas[0])
        measures.reassigning.read = lambda: self._count_assigned(
            lambda p: p.leader == self.config.node_id and bool(p.adding or p.removing)
        )
        measures.offline.read = lambda: self._count_assigned(lambda p: p.leader < 0)
        measures.producer_ids.read = lambda: sum(len(p.log.producers.entries) for p in replicas.all())
        measures.late_transactions.read = count(lambda p: is_led(p) and self._is_late(p))

    def _is_late(self, partition: Partition) -> bool:
        """A transaction is open that its coordinator should have aborted long ago: perhaps it knows nothing of it."""
        longest_ms = self.config["transaction.max.timeout.ms"] + LATE_MS
        last_ms = partition.log.producers.last_sign_of_oldest()
        return last_ms > 0 and self.world.now_ms() - last_ms > longest_ms

    def _count_assigned(self, is_so: Callable[[Assignment], bool]) -> int:
        """Partitions of the cluster, wherever they are, of which something is so."""
        topics = self.quorum.image.topics.values()
        return sum(is_so(partition) for topic in topics for partition in topic.partitions.values())

    def _declare_disk_readings(self) -> None:
        measures, replicas, directories = self.measures, self.replicas, self.directories
        measures.log_bytes.read = lambda: (
            ((hosted.name,), sum(p.log.size for p in hosted.partitions.values())) for hosted in replicas.by_id.values()
        )
        measures.log_segments.read = lambda: sum(len(p.log.segments) for p in replicas.all())
        measures.corrupt_batches.read = lambda: (
            replicas.corrupt_batches_before + sum(p.log.corrupt_batches for p in replicas.all())
        )
        measures.mended_gaps.read = lambda: replicas.mending.mended
        measures.directory_free.read = lambda: (
            ((each.path,), self.world.disk.space(each.path)[1]) for each in directories.whole
        )
        measures.directories_full.read = lambda: sum(each.released for each in directories.ballasts.values())
        measures.directories_failed.read = lambda: len(self.config.log_dirs) - len(directories.whole)
        measures.failed_partitions.read = lambda: (
            len(replicas.homeless) + sum(p.log.failed is not None for p in replicas.all())
        )

    def _unanswered(self, key: int) -> int:
        """Requests of one API that wait for something."""
        connections = (connection for listener in self.listeners for connection in listener.connections)
        return sum(e.handler.key == key and not e.ready for each in connections for e in each.exchanges)
