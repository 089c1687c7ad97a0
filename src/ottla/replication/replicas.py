"""All replicas on this broker: turns a change of the cluster's picture into logs and roles.

Handlers find partitions here, by topic name or topic id. A topic that is re-created under its old name has a new id and a new
log; the old one is retired first, so the two are never mixed.

A replica whose log cannot be opened or made (a full or failing disk) is *homeless*: it answers KAFKA_STORAGE_ERROR, everything
else goes on, and upkeep tries again. One that the picture has moved to other brokers is deleted here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.log.settings import LogSettings
from ottla.metadata.image import DIRECTORY_LOST, DIRECTORY_UNASSIGNED, TOPIC, Delta, Image
from ottla.metadata.image import Partition as Assignment
from ottla.metadata.records import NO_LEADER
from ottla.metadata.topics import is_internal
from ottla.replication.follower import Fetchers
from ottla.replication.in_sync import InSync
from ottla.replication.mending import Mending
from ottla.replication.moves import Moves
from ottla.replication.neighbours import ALONE, Neighbours
from ottla.replication.partition import Partition, Traffic
from ottla.replication.throttle import Throttle, names
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from ottla.log.directories import Directories
    from ottla.log.directory import DataDirectory
    from ottla.log.log import Log

log_ = logging.getLogger("ottla.replication")

HIGH_WATERMARK = -1
# Making a log means waiting for the disk several times: so many of them wait together.
HOSTED_TOGETHER = 32
# A role that changes is a matter of memory: after so many of them the loop gets a turn.
ROLES_PER_TURN = 100

Effective = Mapping[str, Any]
# Directory ids by topic id and partition.
Places = dict[tuple[bytes, int], bytes]
# Partitions that are new or changed, by topic id and index.
Changes = list[tuple[tuple[bytes, int], Assignment]]


class Hosted:
    """A topic with replicas on this broker."""

    __slots__ = (
        "id",
        "internal",
        "min_insync",
        "name",
        "partitions",
        "settings",
        "throttled",
        "throttled_at_leader",
        "traffic",
    )

    def __init__(self, topic_id: bytes, name: str, effective: Effective, traffic: Traffic) -> None:
        self.id = topic_id
        self.traffic = traffic
        self.name = name
        self.internal = is_internal(name)
        self.partitions: dict[int, Partition] = {}
        self.configure(effective)

    def configure(self, effective: Effective) -> None:
        """Take over the topic's settings, in its logs too."""
        self.settings = LogSettings.of(effective)
        self.min_insync: int = effective["min.insync.replicas"]
        # Replicas that must not be brought to their brokers faster than these, or their leaders, are told.
        self.throttled: list[str] = effective["follower.replication.throttled.replicas"]
        self.throttled_at_leader: list[str] = effective["leader.replication.throttled.replicas"]
        for partition in self.partitions.values():
            partition.configure(self.settings, self.min_insync)


class Replicas:
    def __init__(
        self,
        node_id: int,
        directories: Directories,
        effective_settings: Callable[[Mapping[str, str]], Effective],
        mark_dirty: Callable[[Partition], None],
        spawn: Callable[[Any], Any],
        traffic_of: Callable[[str], Traffic],
        write_failed: Callable[[Log, BaseException], None],
        moves: Moves,
        now_ms: Callable[[], int] = lambda: 0,
        neighbours: Neighbours = ALONE,
    ) -> None:
        self._node_id = node_id
        self._neighbours = neighbours
        self.in_sync = InSync(node_id, neighbours, lambda: self._image, spawn)
        self.throttle = Throttle(lambda: neighbours.setting("follower.replication.throttled.rate"), self._is_throttled)
        self.leader_throttle = Throttle(lambda: neighbours.setting("leader.replication.throttled.rate"))
        self.fetchers = Fetchers(node_id, neighbours, now_ms, self.throttle)
        self.mending = Mending(node_id, neighbours, spawn, write_failed)
        self._time = asyncio.get_running_loop().time
        self._looked_at = self._time()
        self.moves = moves
        self._traffic_of = traffic_of
        self._write_failed = write_failed
        self._directories = directories
        self._effective = effective_settings
        self._mark_dirty = mark_dirty
        self._spawn = spawn
        self._image = Image()
        self.by_name: dict[str, Hosted] = {}
        self.by_id: dict[bytes, Hosted] = {}
        self.looking_inside = 0
        self.homeless: dict[tuple[bytes, int], Assignment] = {}
        # Two topics of one name have one directory after the other, never together.
        self._changing = asyncio.Lock()
        # Of logs that are gone; a count that others watch must not fall.
        self.corrupt_batches_before = 0

    @property
    def image(self) -> Image:
        """The picture that was last applied here."""
        return self._image

    # --- finding

    def hosted(self, topic: str | bytes) -> Hosted | None:
        return self.by_name.get(topic) if isinstance(topic, str) else self.by_id.get(topic)

    def find(self, topic: str | bytes, index: int) -> Partition:
        hosted = self.by_name.get(topic) if isinstance(topic, str) else self.by_id.get(topic)
        if hosted is None or index not in hosted.partitions:
            raise self.why_missing(topic, index)
        return hosted.partitions[index]

    def why_missing(self, topic: str | bytes, index: int) -> KafkaError:
        """A partition that is not here may be elsewhere, or nowhere."""
        known = self._image.topic(topic) if isinstance(topic, str) else self._image.topic_by_id(topic)
        if known is None and not isinstance(topic, str):
            return KafkaError(Error.UNKNOWN_TOPIC_ID)
        if known is None or index not in known.partitions:
            return KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION)
        if (known.id, index) in self.homeless:
            return KafkaError(Error.KAFKA_STORAGE_ERROR)
        return KafkaError(Error.NOT_LEADER_OR_FOLLOWER)

    def all(self) -> list[Partition]:
        return [partition for hosted in self.by_id.values() for partition in hosted.partitions.values()]

    # --- following the picture

    async def apply(self, image: Image, delta: Delta) -> Places:
        """Make, change and drop replicas as the new picture says. Returns when all of them are usable, and says in which
        directory those are whose place the picture does not know, or gets wrong."""
        async with self._changing:
            return await self._apply(image, delta)

    async def _apply(self, image: Image, delta: Delta) -> Places:
        self._image = image
        for topic_id in delta.deleted:
            await self._retire(topic_id)
        for (topic_id, index), assignment in delta.partitions.items():
            if self._node_id not in assignment.replicas:
                await self._give_up(topic_id, index)
        mine = [(key, to) for key, to in delta.partitions.items() if self._node_id in to.replicas]
        if len(mine) > ROLES_PER_TURN:
            mine = await self._host_open_ones(image, mine)
        mine.reverse()
        await asyncio.gather(*(self._host_in_turn(image, mine) for _ in range(min(len(mine), HOSTED_TOGETHER))))
        if delta.brokers:
            self._look_for_joiners()
        for kind, name in delta.configs:
            if kind == TOPIC and name in self.by_name:
                self.reconfigure(self.by_name[name])
        return self._places(delta)

    def _places(self, delta: Delta) -> Places:
        places = {}
        for (topic_id, index), assignment in delta.partitions.items():
            hosted = self.by_id.get(topic_id)
            partition = hosted.partitions.get(index) if hosted else None
            if partition is not None:
                place = self._directories.id_of(partition.log)
                known = assignment.directory_of(self._node_id)
                if place != known and not (
                    known == DIRECTORY_LOST and self._directories.ballast_of(partition.log).released
                ):
                    places[topic_id, index] = place
        return places

    def reconfigure(self, hosted: Hosted) -> None:
        hosted.configure(self._effective(self._image.configs(TOPIC, hosted.name)))
        self._count_looking_inside()

    def reconfigure_all(self) -> None:
        """A broker-wide default changed."""
        for hosted in self.by_id.values():
            self.reconfigure(hosted)

    async def _host_open_ones(self, image: Image, changes: Changes) -> Changes:
        """Of many, first those whose logs are open, as when a broker died that led thousands: hardly any waits, so that
        the loop would not get a turn before the last of them. One that does wait, because it is being mended, holds up no
        other. Those that need the disk are left."""
        left: Changes = []
        hosting: list[asyncio.Task[None]] = []
        try:
            for (topic_id, index), assignment in changes:
                hosted = self.by_id.get(topic_id)
                if hosted is None or index not in hosted.partitions:
                    left.append(((topic_id, index), assignment))
                    continue
                hosting.append(asyncio.create_task(self._try_to_host(image, topic_id, index, assignment)))
                if len(hosting) % ROLES_PER_TURN == 0:
                    await asyncio.sleep(0)
            await asyncio.gather(*hosting)
        finally:
            for task in hosting:
                task.cancel()
        return left

    async def _host_in_turn(self, image: Image, waiting: Changes) -> None:
        while waiting:
            (topic_id, index), assignment = waiting.pop()
            await self._try_to_host(image, topic_id, index, assignment)

    async def house(self) -> None:
        """Try again to give those a home that have none."""
        for (topic_id, index), assignment in list(self.homeless.items()):
            async with self._changing:
                if self.homeless.get((topic_id, index)) is assignment:  # nobody decided otherwise meanwhile
                    await self._try_to_host(self._image, topic_id, index, assignment)

    async def _try_to_host(self, image: Image, topic_id: bytes, index: int, assignment: Assignment) -> None:
        key = topic_id, index
        try:
            try:
                await self._host(image, topic_id, index, assignment)
            except (OSError, KafkaError) as error:
                if not self._directories.relieve(error):
                    raise
                await self._host(image, topic_id, index, assignment)
        except (OSError, KafkaError) as error:
            if key not in self.homeless:
                log_.error("%s-%d cannot be opened and is tried again: %s", image.topics[topic_id].name, index, error)
            self.homeless[key] = assignment
        else:
            self.homeless.pop(key, None)

    async def _host(self, image: Image, topic_id: bytes, index: int, assignment: Assignment) -> None:
        topic = image.topics[topic_id]
        hosted = self.by_id.get(topic_id)
        if hosted is None:
            effective = self._effective(image.configs(TOPIC, topic.name))
            hosted = Hosted(topic_id, topic.name, effective, self._traffic_of(topic.name))
            self.by_id[topic_id] = self.by_name[topic.name] = hosted
            self._count_looking_inside()
        partition = hosted.partitions.get(index) or await self._open(hosted, index, assignment)
        await self._take_role(partition, assignment)
        hosted.partitions[index] = partition

    async def _take_role(self, partition: Partition, assignment: Assignment) -> None:
        """Nobody copies into a log while its role changes: a leader's log must not be cut any more."""
        if assignment.leader == self._node_id:
            await self.fetchers.leave(partition)
            partition.lead(assignment)
        elif (assignment.leader, assignment.leader_epoch) == (partition.leader, partition.leader_epoch):
            partition.follow(assignment)
        else:
            await self.fetchers.leave(partition)
            partition.follow(assignment)
            self.fetchers.join(partition)

    async def _open(self, hosted: Hosted, index: int, assignment: Assignment) -> Partition:
        wanted, is_copy = assignment.directory_of(self._node_id), self._is_only_a_copy(assignment)
        if is_copy and wanted not in self._directories.ids:
            wanted = DIRECTORY_UNASSIGNED  # that disk is gone, and others have all that was on it
        log = await self._directories.log(hosted.name, index, hosted.id, hosted.settings, wanted, is_copy)
        if log.unflushed >= hosted.settings.flush_messages:
            await log.flush()  # what a crash left must be safe before it is shown, or the watermark would seem to fall
        ballast = self._directories.ballast_of(log)
        partition = Partition(
            *(log, hosted.name, hosted.id, index, self._node_id, self._mark_dirty, self._spawn),
            *(ballast, hosted.traffic, self._write_failed, self.in_sync),
            *(self._directories.home_of(log).high_watermarks.get((hosted.name, index), 0),),
        )
        partition.configure(hosted.settings, hosted.min_insync)
        return partition

    def _is_only_a_copy(self, assignment: Assignment) -> bool:
        """Whether somebody else leads, and nobody counts on what this replica has: not now, and not if that one dies."""
        counts = self._node_id in assignment.isr or self._node_id in assignment.elr
        return assignment.leader not in (NO_LEADER, self._node_id) and not counts

    async def _retire(self, topic_id: bytes) -> None:
        hosted = self.by_id.pop(topic_id, None)
        if hosted is None:
            return
        for index in [index for of, index in self.homeless if of == topic_id]:
            del self.homeless[topic_id, index]
        if self.by_name.get(hosted.name) is hosted:
            del self.by_name[hosted.name]
        self._count_looking_inside()
        for partition in hosted.partitions.values():
            await self._drop(partition, Error.UNKNOWN_TOPIC_OR_PARTITION)

    async def _give_up(self, topic_id: bytes, index: int) -> None:
        """The picture has the replica elsewhere."""
        self.homeless.pop((topic_id, index), None)
        hosted = self.by_id.get(topic_id)
        partition = hosted.partitions.pop(index, None) if hosted is not None else None
        if partition is not None:
            await self._drop(partition, Error.NOT_LEADER_OR_FOLLOWER)

    async def _drop(self, partition: Partition, error: Error) -> None:
        await self.moves.stop(partition)
        await self.fetchers.leave(partition)
        partition.retire(error)
        self.corrupt_batches_before += partition.log.corrupt_batches
        await self._directories.delete(partition.log)

    async def evict(self, directory: DataDirectory) -> None:
        """The directory has failed: what is in it is homeless, and nobody touches its logs any more when this returns."""
        async with self._changing:
            for partition in self.all():
                if self._directories.home_of(partition.log) is directory:
                    del self.by_id[partition.topic_id].partitions[partition.index]
                    topic = self._image.topics[partition.topic_id]
                    self.homeless[partition.topic_id, partition.index] = topic.partitions[partition.index]
                    await self.moves.stop(partition)
                    await self.fetchers.leave(partition)
                    partition.retire(Error.KAFKA_STORAGE_ERROR)

    def _count_looking_inside(self) -> None:
        """While no topic of clients makes us look into batches, Produce need not ask any of them."""
        self.looking_inside = sum(
            hosted.settings.looks_inside and not hosted.internal for hosted in self.by_id.values()
        )

    # --- following and being followed

    def _is_throttled(self, partition: Partition) -> bool:
        """Whether this broker's copy is only being brought here, and not faster than it may."""
        throttled = self.by_id[partition.topic_id].throttled if partition.topic_id in self.by_id else []
        return (
            bool(throttled) and self._node_id not in partition.isr and names(throttled, partition.index, self._node_id)
        )

    def holds_back(self, partition: Partition, follower_id: int) -> bool:
        """Whether a leader gives a follower nothing for now, because it is throttled and too fast."""
        return self._is_throttled_at_leader(partition, follower_id) and self.leader_throttle.is_exceeded(self._time())

    def has_given(self, partition: Partition, follower_id: int, size: int) -> None:
        """A leader has given so much to a follower: it counts if that one is throttled."""
        if self._is_throttled_at_leader(partition, follower_id):
            self.leader_throttle.record(size, self._time())

    def _is_throttled_at_leader(self, partition: Partition, follower_id: int) -> bool:
        throttled = self.by_id[partition.topic_id].throttled_at_leader if partition.topic_id in self.by_id else []
        # The list names the leader's own replica.
        return bool(throttled) and follower_id not in partition.isr and names(throttled, partition.index, self._node_id)

    def _look_for_joiners(self) -> None:
        """A broker that was fenced may count again."""
        for partition in self.all():
            leadership = partition.leadership
            if leadership is not None and len(leadership.maximal) < len(partition.replicas):
                leadership.look_for_joiners()

    def look_for_laggards(self) -> None:
        """Called now and then. If that took too long we were held up ourselves, and accuse nobody of it."""
        now, lag_max_s = self._time(), self.in_sync.lag_max_s()
        before, self._looked_at = self._looked_at, now
        if now - before > lag_max_s:
            return
        for partition in self.all():
            if partition.leadership is not None:
                partition.leadership.look_for_laggards(now, lag_max_s)

    def watermarks(self) -> dict[tuple[str, int], int]:
        return {(partition.topic, partition.index): partition.high_watermark.value for partition in self.all()}

    async def stop(self) -> None:
        """Copy no more."""
        async with self._changing:
            await self.fetchers.stop()

    # --- moving a log's start

    def delete_records(self, topic: str, index: int, before: int) -> int:
        """Forget everything below an offset, or below the high watermark for -1; answers the new log start."""
        partition = self.find(topic, index)
        partition.open_to(-1)
        hosted = self.by_name[topic]
        if hosted.internal:
            raise KafkaError(Error.INVALID_TOPIC_EXCEPTION)
        if not hosted.settings.deletes:
            raise KafkaError(Error.POLICY_VIOLATION)
        mark = partition.high_watermark.value
        before = mark if before == HIGH_WATERMARK else before
        if not 0 <= before <= mark:
            raise KafkaError(Error.OFFSET_OUT_OF_RANGE)
        return partition.log.delete_records(before, mark)
