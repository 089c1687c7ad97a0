"""Disks that fail or fill up while other brokers have copies of what is on them.

A directory *fails* when something in it could not be synced, or not be written for another reason than want of room. Whether
its other files are in order nobody can tell, so it is given up as a whole, as in Apache Kafka (KIP-112, KIP-858): its replicas
answer KAFKA_STORAGE_ERROR, the heartbeats name it, and the controller gives its leaderships to others. If it was the last one,
or holds the metadata, or no controller can be told, the node ends: then the others notice that. The next start looks at what
the disk holds. A broker without others is not like this: nobody could take over, so only the log that failed takes no more
writes, and all else goes on.

A directory that is *full* (see `log/ballast.py`) takes records again when there is room, and can be read meanwhile. Where
others are in sync, this broker says for each of those partitions that its replica is lost: that is how the protocol lets a
broker step back from single partitions. It is neither a leader nor in sync then, and says where the replica is when there is
room. Brokers step back one after the other: they may have filled one disk together, and the last one in sync stays, so that
consumers can read.

A directory that is *cordoned* (KIP-1066) serves what it has and gets nothing new, so that it can be emptied.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.log.directory import DataDirectory
from ottla.metadata.features import DIRECTORY_ASSIGNMENT
from ottla.metadata.image import DIRECTORY_LOST, Image
from ottla.metadata.image import Partition as Assignment
from ottla.replication.partition import Partition
from ottla.replication.replicas import Places

if TYPE_CHECKING:
    from ottla.server.node import Node

log = logging.getLogger("ottla.disks")

# Those who fill up together step back this long after one another, by their ids; not more than so many steps.
STEP_S = 2.0
STEPS_MAX = 5


class DiskFailed(Exception):
    """The node has no disk any more that it could go on with."""


class Disks:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._told: set[bytes] = set()
        # When each full directory steps back; and the picture in which nobody was missed any more who had stepped back.
        self._due: dict[str, float] = {}
        self._complete: dict[str, Image] = {}

    @property
    def offline(self) -> list[bytes]:
        """The ids of directories that have failed: every heartbeat tells all of them."""
        return [each.meta.directory_id for each in self._node.directories.all if each.failed and each.meta]

    async def look(self) -> None:
        """Called about once a second: see to what has failed, is full or has room again."""
        if not self._has_others():
            return
        for directory in self._node.directories.whole:
            error = self._what_failed(directory)
            if error is not None:
                await self._give_up(directory, error)
            elif self._node.quorum.image.metadata_version >= DIRECTORY_ASSIGNMENT:
                self._look_for_room(directory)

    def _has_others(self) -> bool:
        return any(broker_id != self._node.config.node_id for broker_id in self._node.quorum.image.brokers)

    # --- failed

    def _what_failed(self, directory: DataDirectory) -> BaseException | None:
        failed = (each.failed for each in directory.logs.values() if each.failed is not None)
        return next(failed, self._node.directories.suspects.get(directory.path))

    async def _give_up(self, directory: DataDirectory, error: BaseException) -> None:
        node = self._node
        log.error("%s has failed, and what is in it is left to other brokers: %s", directory.path, error)
        directory.fail(error)
        if not node.directories.whole:
            node.fail(DiskFailed(f"all of log.dirs have failed, the last was {directory.path}: {error}"))
        elif directory.path == node.config.metadata_log_dir:
            node.fail(DiskFailed(f"the directory of the metadata has failed, {directory.path}: {error}"))
        else:
            await node.replicas.evict(directory)
            node.membership.tell_failed()
            node.loop.call_later(node.config["log.dir.failure.timeout.ms"] / 1000, self._must_be_told, directory)

    def heard(self, directories: list[bytes]) -> None:
        """A controller knows that these have failed."""
        self._told.update(directories)

    def _must_be_told(self, directory: DataDirectory) -> None:
        if directory.meta is not None and directory.meta.directory_id not in self._told:
            self._node.fail(DiskFailed(f"no controller could be told that {directory.path} has failed"))

    # --- cordoned

    def obey(self) -> None:
        """`cordoned.log.dirs` may say something else than before: the controller places replicas by it."""
        wanted, directories = self._node.config["cordoned.log.dirs"], self._node.directories
        cordoned = frozenset(each.path for each in directories.all if "*" in wanted or each.path in wanted)
        if cordoned != directories.cordoned:
            directories.cordoned = cordoned
            self._node.membership.tell_cordoned()

    # --- full

    def _look_for_room(self, directory: DataDirectory) -> None:
        """Step back, or come back. Whoever stepped back may have been another process: the picture tells, not our memory."""
        node, path = self._node, directory.path
        if node.directories.ballasts[path].released:
            self._complete.pop(path, None)
            if node.loop.time() >= self._due.setdefault(path, self._turn()):
                self._tell({p.key: DIRECTORY_LOST for p, known in self._in(directory) if self._may_step_back(known)})
        elif self._complete.get(path) is not (image := node.quorum.image):
            self._due.pop(path, None)
            self._complete[path] = image
            if self._anything_lost(image):
                self._tell(
                    {p.key: node.directories.id_of(p.log) for p, known in self._in(directory) if self._is_lost(known)}
                )

    def _turn(self) -> float:
        me = self._node.config.node_id  # which need not be a broker, or not any more
        place = sorted({*self._node.quorum.image.brokers, me}).index(me)
        return self._node.loop.time() + STEP_S * (place % STEPS_MAX)

    def _in(self, directory: DataDirectory) -> Iterator[tuple[Partition, Assignment]]:
        """The partitions of a directory, and what the cluster knows of them."""
        topics = self._node.quorum.image.topics
        for partition in self._node.replicas.all():
            if self._node.directories.home_of(partition.log) is directory and partition.topic_id in topics:
                yield partition, topics[partition.topic_id].partitions[partition.index]

    def _anything_lost(self, image: Image) -> bool:
        """Hardly ever, but every new picture is asked, and may have ten thousand partitions."""
        topics = image.topics.values()
        return any(DIRECTORY_LOST in known.directories for topic in topics for known in topic.partitions.values())

    def _is_lost(self, known: Assignment) -> bool:
        return known.directory_of(self._node.config.node_id) == DIRECTORY_LOST

    def _may_step_back(self, known: Assignment) -> bool:
        return self._node.config.node_id in known.isr and len(known.isr) > 1 and not self._is_lost(known)

    def _tell(self, places: Places) -> None:
        if places:
            self._node.membership.tell_places(places)
