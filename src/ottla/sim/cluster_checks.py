"""The oracle of a cluster: what its nodes hold, compared with each other while they run.

Clients write down what they were told (checks.py). This looks inside: every few milliseconds of simulated time at every node
that runs, and once more at each that is about to fall. It never changes anything, not even what is cached.

    two-leaders       one epoch, of a partition or of the quorum, has two leaders
    committed-differs below the watermarks of two replicas stand different batches, or the same in different epochs
    committed-lost    a leader has less than what was once below a watermark; or a log lost what it had below its own
    in-sync-behind    an in-sync replica has less than its leader's watermark, in the same life in which it got in sync; or has
                      had less for a long time
    too-few           a leader with fewer in sync than the topic wants took records, though all who write want them all
    word-not-kept     a voter told its leader that it has more of the metadata than is synced on its disk
    hole              a batch does not begin where the one before it ends
    duplicate-batch   a producer's batch stands twice in one log
    not-settled       long after the last fault the cluster is not whole again

What is below a watermark is written down once, as the first replica shows it, and every other one is compared with that. Each
log is walked only as far as it has grown since the last look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ottla.log.directory import METADATA_LOG
from ottla.log.log import Log
from ottla.metadata.image import Image
from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.raft.quorum import Key
from ottla.raft.roles import Leader
from ottla.replication.partition import Partition
from ottla.server.node import Node
from ottla.sim.checks import Anomaly
from ottla.sim.cluster import Machine, SimCluster
from ottla.sim.disk import SimDisk
from ottla.wire.records import HEADER_BYTES, Batch, look_ahead
from ottla.wire.schema import ZERO_UUID

QUORUM = METADATA_LOG
# An in-sync replica may be behind for as long as it takes everybody to notice that it came back with less.
BEHIND_S = 4.0

Stamp = tuple[int, int, int]


@dataclass(slots=True)
class Walk:
    """How far one log of one process was looked at: up to `position` in the segment that begins at `base`."""

    base: int = -1
    position: int = 0
    offset: int = -1

    def on(self, disk: SimDisk, log: Log, bound: int) -> Iterator[tuple[int, Batch, bytearray, int]]:
        """Batches that were not seen before, up to `bound`: the offset that was due, -1 if any may come; and where each is."""
        segments = list(log.segments)
        bases = [segment.base for segment in segments]
        if self.base not in bases or log.end_offset < self.offset:
            self.base, self.position, self.offset = bases[0], 0, -1
        for segment in segments[bases.index(self.base) :]:
            if segment.base != self.base:
                self.base, self.position = segment.base, 0
            data = disk.peek(segment.at(".log")) or bytearray()
            while self.position + HEADER_BYTES <= min(segment.size, len(data)):
                batch = look_ahead(data, self.position)
                if batch.next_offset > bound:
                    return
                due, self.offset = self.offset, batch.next_offset
                self.position += batch.size
                yield due, batch, data, self.position - batch.size


@dataclass(slots=True)
class Truth:
    """What was ever below a watermark of one log."""

    name: str
    stamps: dict[int, Stamp] = field(default_factory=dict)
    sequences: dict[tuple[int, int, int], int] = field(default_factory=dict)
    end: int = 0
    ends: dict[int, int] = field(default_factory=dict)  # where what was committed in each epoch ends
    leaders: dict[int, int] = field(default_factory=dict)
    behind_since: dict[int, float] = field(default_factory=dict)
    short: tuple[int, int, int] | None = None  # epoch, partition epoch and end of a leader with too few in sync

    def end_for(self, epoch: int) -> int:
        """What a leader of this epoch must have. It may be deposed without knowing: then more was committed in later epochs,
        also of what was written before it and nobody was told of, if those lead who still have it (seed m20261208)."""
        return max((end for committed_in, end in self.ends.items() if committed_in <= epoch), default=0)


class Watch:
    """Looks at all nodes of a cluster."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.found: list[Anomaly] = []
        self.looks = self.batches = 0
        self._truths: dict[tuple[bytes, int] | str, Truth] = {}
        self._walks: dict[Log, Walk] = {}  # each process has logs of its own
        self._pictures: dict[str, Image] = {}
        self._reported: set[tuple[str, str]] = set()

    def report(self, kind: str, where: str, detail: str) -> None:
        """Once for each place: what is wrong stays wrong."""
        if (kind, where) not in self._reported:
            self._reported.add((kind, where))
            moment = f"{self.cluster.loop.time():.3f} s: "
            self.found.append(Anomaly(kind, where, moment + detail))

    # -- looking

    def look(self) -> None:
        self.looks += 1
        for machine in self.cluster.machines.values():
            if self.cluster.is_up(machine.name):
                self.look_at(machine)

    def look_at(self, machine: Machine) -> None:
        node = machine.node
        if node is None or getattr(node.quorum, "store", None) is None:
            return
        number = int(machine.settings["node.id"])
        self._look_at_quorum(machine, node, number)
        self._look_at_picture(machine.name, node.quorum.image)
        for partition in node.replicas.all():
            self._look_at_partition(machine, node, partition, number)

    def _truth(self, key: tuple[bytes, int] | str, name: str) -> Truth:
        truth = self._truths.get(key)
        if truth is None:
            truth = self._truths[key] = Truth(name)
        return truth

    def _look_at_quorum(self, machine: Machine, node: Node, number: int) -> None:
        quorum: Any = node.quorum
        truth = self._truth(QUORUM, QUORUM)
        epoch = getattr(quorum, "epoch", -1)
        if quorum.leader_id >= 0 and epoch >= 0:
            self._leads(truth, epoch, quorum.leader_id, machine.name)
        log: Log | None = getattr(quorum.store, "log", None)
        if log is not None:
            self._compare(truth, machine, log, quorum.committed_end.value, epoch)
            # Its role, because a node may fall in the middle of becoming a follower.
            leads = quorum.is_started and isinstance(quorum.consensus.replica.role, Leader)
            if leads and log.end_offset < truth.end_for(epoch):
                self.report("committed-lost", QUORUM, f"{machine.name} leads with an end of {log.end_offset}")
            self._look_at_words(node)

    def _look_at_words(self, leader: Node) -> None:
        """What a follower of the quorum says it has is what it has synced (TRAP-33)."""
        if not leader.quorum.is_started or not isinstance(role := leader.quorum.consensus.replica.role, Leader):
            return
        for machine in self.cluster.machines.values():
            node = machine.node if machine.is_ready else None
            if node is None or node is leader or node.quorum.epoch != leader.quorum.epoch:
                continue
            store = node.quorum.store
            progress = role.replicas.get(Key(node.config.node_id, store.directory_id))
            if progress is not None and progress.end > store.synced_end:
                said = f"{machine.name} said {progress.end}, and has synced {store.synced_end}"
                self.report("word-not-kept", QUORUM, said)

    def _look_at_picture(self, name: str, image: Image) -> None:
        before = self._pictures.get(name)
        if image is before:
            return
        self._pictures[name] = image
        for topic_id, topic in image.topics.items():
            if before is not None and before.topics.get(topic_id) is topic:
                continue
            for index, partition in topic.partitions.items():
                if partition.leader >= 0:
                    truth = self._truth((topic_id, index), f"{topic.name}-{index}")
                    self._leads(truth, partition.leader_epoch, partition.leader, f"the picture of {name}")

    def _look_at_partition(self, machine: Machine, node: Node, partition: Partition, number: int) -> None:
        truth = self._truth((partition.topic_id, partition.index), f"{partition.topic}-{partition.index}")
        self._compare(truth, machine, partition.log, partition.high_watermark.value, partition.leader_epoch)
        if partition.leader == number:
            self._leads(truth, partition.leader_epoch, number, machine.name)
            if partition.log.end_offset < (committed := truth.end_for(partition.leader_epoch)):
                self.report(
                    "committed-lost",
                    truth.name,
                    f"{machine.name} leads epoch {partition.leader_epoch} and ends at {partition.log.end_offset}, "
                    f"but offsets up to {committed} were committed",
                )
            self._look_for_laggards(truth, partition, node.quorum.image)
            self._look_at_numbers(truth, machine.name, partition)

    def _leads(self, truth: Truth, epoch: int, leader: int, who: str) -> None:
        before = truth.leaders.setdefault(epoch, leader)
        if before != leader:
            self.report("two-leaders", truth.name, f"epoch {epoch} is led by {before}, and for {who} by {leader}")

    def _compare(self, truth: Truth, machine: Machine, log: Log, bound: int, epoch: int) -> None:
        walk = self._walks.get(log)
        if walk is None:
            walk = self._walks[log] = Walk()
        bound = min(bound, log.end_offset)
        if walk.offset >= bound and log.end_offset >= walk.offset:
            return
        for due, batch, data, at in walk.on(machine.disk, log, bound):
            self.batches += 1
            if truth.name == QUORUM and batch.is_control:
                self._read_notes(batch, data[at : at + batch.size])
            if due >= 0 and batch.base_offset != due:
                self.report("hole", truth.name, f"on {machine.name} {due} was due and {batch.base_offset} came")
            self._compare_batch(truth, machine.name, batch, epoch)
        truth.end = max(truth.end, walk.offset)

    def _read_notes(self, batch: Batch, data: bytearray) -> None:
        """What the quorum says about itself has been committed."""

    def _compare_batch(self, truth: Truth, name: str, batch: Batch, epoch: int) -> None:
        stamp = (batch.next_offset, batch.leader_epoch, batch.crc)
        if batch.base_offset not in truth.stamps:  # who shows it first knows best in which epoch that came about
            committed_in = max(epoch, batch.leader_epoch)
            truth.ends[committed_in] = max(truth.ends.get(committed_in, 0), batch.next_offset)
        before = truth.stamps.setdefault(batch.base_offset, stamp)
        if before != stamp:
            self.report("committed-differs", truth.name, f"{batch.base_offset} was {before}, and is {stamp} on {name}")
        # Offsets of a transaction are all numbered 0, as in Kafka: they may be said twice.
        is_numbered = batch.base_sequence >= 0 and not truth.name.startswith(f"{CONSUMER_OFFSETS}-")
        if batch.producer_id >= 0 and not batch.is_control and is_numbered:
            sequence = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
            place = truth.sequences.setdefault(sequence, batch.base_offset)
            if place != batch.base_offset:
                self.report("duplicate-batch", truth.name, f"{sequence} at {place} and {batch.base_offset}")

    def _look_at_numbers(self, truth: Truth, name: str, partition: Partition) -> None:
        """From one look to the next with too few in sync nothing may come in: everybody here wants all to have it. By the
        partition epoch nobody else was in sync between the looks: somebody can be, for two milliseconds."""
        is_short = len(partition.isr) < min(partition.min_insync, len(partition.replicas))
        now = (partition.leader_epoch, partition.partition_epoch, partition.log.end_offset) if is_short else None
        before, truth.short = truth.short, now
        if now is not None and before is not None and now[:2] == before[:2] and now[2] > before[2]:
            self.report("too-few", truth.name, f"{name} took records up to {now[2]} with {partition.isr} in sync")

    def _look_for_laggards(self, truth: Truth, partition: Partition, picture: Image) -> None:
        """In sync means: has all that is below the watermark."""
        now = self.cluster.loop.time()
        for machine in self.cluster.machines.values():
            number = int(machine.settings["node.id"])
            other = self._replica(machine, partition) if number in partition.isr else None
            if other is None or other.log.end_offset >= partition.high_watermark.value:
                truth.behind_since.pop(number, None)
            elif self._is_in_the_life(machine, picture) or (
                now - truth.behind_since.setdefault(number, now) > BEHIND_S
            ):
                self.report("in-sync-behind", truth.name, f"{machine.name} ends at {other.log.end_offset}")

    def _is_in_the_life(self, machine: Machine, picture: Image) -> bool:
        """Whether the process is the one that the leader knows. From then on who came back with less is not in sync."""
        node = machine.node
        known = picture.broker(int(machine.settings["node.id"]))
        return node is not None and known is not None and known.epoch == node.membership.broker_epoch

    def _replica(self, machine: Machine, partition: Partition) -> Partition | None:
        if not machine.is_ready or machine.node is None:
            return None
        for other in machine.node.replicas.all():
            if (other.topic_id, other.index) == (partition.topic_id, partition.index):
                return other
        return None

    def has_deposed(self, topic: str) -> bool:
        """Whether some node leads a partition in an epoch that is over, and does not know it: what it tells may be old."""
        for machine in self.cluster.machines.values():
            if machine.node is None or not self.cluster.is_up(machine.name):
                continue
            for partition in machine.node.replicas.all():
                leaders = self._truth((partition.topic_id, partition.index), f"{topic}-{partition.index}").leaders
                leads = partition.leader == machine.node.config.node_id
                if partition.topic == topic and leads and partition.leader_epoch < max(leaders, default=-1):
                    return True
        return False

    # -- is everything as it should be when nothing is wrong?

    def not_whole(self) -> str | None:
        """What is still missing for a cluster in which every machine runs and every replica is in sync."""
        nodes: dict[str, Node] = {}
        for machine in self.cluster.machines.values():
            if not machine.is_ready or machine.node is None:
                return f"{machine.name} does not serve"
            nodes[machine.name] = machine.node
        leaders = {(node.quorum.leader_id, getattr(node.quorum, "epoch", 0)) for node in nodes.values()}
        if len(leaders) > 1 or leaders.pop()[0] < 0:
            return "the controllers do not agree who leads"
        for name, node in nodes.items():
            why = self._not_voting(name, nodes) or self._not_in_sync(name, node.quorum.image)
            if why is not None:
                return why
        return self._not_equal(nodes)

    def _not_voting(self, name: str, nodes: dict[str, Node]) -> str | None:
        """A machine whose disk was wiped votes again under its new directory."""
        voters = nodes[name].quorum.voters.voters
        now = {(node.config.node_id, node.quorum.store.directory_id) for node in nodes.values()}
        known = {(voter.id, voter.directory) for voter in voters if voter.directory != ZERO_UUID}
        if len(voters) == len(nodes) and known <= now:
            return None
        return f"the voters are {[voter.id for voter in voters]}, and not all under their new directories (as {name} sees it)"

    def _not_in_sync(self, name: str, image: Image) -> str | None:
        for topic in image.topics.values():
            for index, partition in topic.partitions.items():
                if partition.leader < 0 or set(partition.isr) != set(partition.replicas):
                    return f"{topic.name}-{index} is led by {partition.leader}, in sync {partition.isr} (as {name} sees it)"
        return None

    def _not_equal(self, nodes: dict[str, Node]) -> str | None:
        for name, node in nodes.items():
            for partition in node.replicas.all():
                truth = self._truth((partition.topic_id, partition.index), f"{partition.topic}-{partition.index}")
                if partition.high_watermark.value != partition.log.end_offset or partition.log.end_offset < truth.end:
                    mark, end = partition.high_watermark.value, partition.log.end_offset
                    return f"{truth.name} on {name}: the watermark is {mark}, the end {end}"
        return None

    def look_from_the_beginning(self) -> None:
        """Every log once more from its start, in case that something changed behind our back."""
        self._walks.clear()
        self.look()


class WatchOfMoves(Watch):
    """The same for a cluster in which somebody moves replicas: what a node holds goes by the metadata."""

    def not_whole(self) -> str | None:
        return super().not_whole() or self._not_held()

    def _not_held(self) -> str | None:
        """Who got a replica has it, and who lost one has it no more."""
        for machine in self.cluster.machines.values():
            if machine.node is None:
                return f"{machine.name} does not serve"
            number, image = machine.node.config.node_id, machine.node.quorum.image
            wanted = {
                (topic.name, index)
                for topic in image.topics.values()
                for index, partition in topic.partitions.items()
                if number in partition.replicas
            }
            held = {(partition.topic, partition.index) for partition in machine.node.replicas.all()}
            if held != wanted:
                return f"{machine.name} holds {sorted(held - wanted)} for nothing, and lacks {sorted(wanted - held)}"
        return None

    def _look_for_laggards(self, truth: Truth, partition: Partition, picture: Image) -> None:
        """A leader that was deposed without knowing may count on a replica that was taken away since and begins anew. Taking
        one away is a new epoch."""
        if partition.leader_epoch >= max(truth.leaders, default=-1):
            super()._look_for_laggards(truth, partition, picture)

    def logs_for_nothing(self) -> list[str]:
        """Directories of partitions that are somewhere else."""
        found = []
        for machine in self.cluster.machines.values():
            if machine.node is not None:
                held = {f"{partition.topic}-{partition.index}" for partition in machine.node.replicas.all()}
                logs = machine.disk.peek_at_names(machine.settings["log.dirs"])
                found += [f"{machine.name}:{name}" for name in logs if _is_log(name) and name not in held]
        return found


def _is_log(name: str) -> bool:
    """The name of a log's directory, neither on its way out nor set aside."""
    return name != QUORUM and name.rpartition("-")[2].isdecimal()
