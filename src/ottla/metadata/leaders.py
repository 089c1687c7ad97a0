"""Who leads a partition, and what that does to its in-sync replicas.

A leader is looked for in this order: the current leader; the first replica in the order of assignment that is in sync;
with an empty in-sync set, an eligible leader replica (KIP-966: it was in sync until fewer than `min.insync.replicas`
were left, so it has everything that was ever committed); the last known leader, if nobody is eligible; and, where the
topic allows unclean elections, any replica that lives. The last two may lose data: the new leader is then the whole
in-sync set and the partition is marked as recovering.

Without eligible leader replicas the in-sync set never becomes empty: the last one stays in it when it goes, and leads
again when it comes back. With them the set may be empty, and the ones who left are kept as eligible.

Naming a leader begins a new leader epoch, also when nobody leads any more. So does taking a replica away.

A reassignment is over as soon as everybody who came is in sync; if more go than came, everybody who stays must be.
Whatever changes a partition also looks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.metadata.decisions import RECORDS_PER_REQUEST_MAX, Decision, Rules, Terms, Versioned
from ottla.metadata.features import DIRECTORY_ASSIGNMENT, SHRINK_NEEDS_NO_NEW_EPOCH, partition_version
from ottla.metadata.image import Image, Partition, Topic
from ottla.metadata.records import LEADER_UNCHANGED, NO_LEADER, PartitionChangeRecord
from ottla.wire.errors import Error, KafkaError

# Kinds of elections that somebody asks for.
PREFERRED = 0
UNCLEAN = 1

RECOVERING = 1
RECOVERY_UNCHANGED = -1


@dataclass(slots=True)
class Change:
    """One partition on its way to a new state. `isr` and `elr` begin as what the caller aims at."""

    partition: Partition
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    acceptable: Callable[[int], bool]
    elr_enabled: bool
    min_isr: int
    unclean: bool
    died_uncleanly: int = NO_LEADER
    leader: int = LEADER_UNCHANGED
    recovery: int = RECOVERY_UNCHANGED
    forced: bool = False
    prefers_first: bool = False
    # What a reassignment aims at; empty replicas: what there is.
    replicas: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    # Replicas that are somewhere else than before, by broker.
    placed: Mapping[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.replicas:
            before = self.partition
            self.replicas, self.adding, self.removing = before.replicas, before.adding, before.removing

    def elect(self) -> None:
        """Fill in the leader, and the sets that follow from it."""
        self._complete_reassignment()
        self._keep_eligible()
        leader, self.forced = self._find_leader()
        if leader != self.partition.leader:
            self.leader = leader
            if leader in self.elr:
                self.isr, self.elr = (leader,), tuple(replica for replica in self.elr if replica != leader)
            if self.forced:
                self.isr = (leader,)
                self.recovery = RECOVERY_UNCHANGED if self.partition.recovering else RECOVERING
        if self.forced or not self.elr_enabled:
            self.elr = ()
        if not self.isr and not self.elr_enabled:
            self.isr = self.partition.isr

    def _complete_reassignment(self) -> None:
        if not self.adding and not self.removing:
            return
        isr = tuple(replica for replica in self.isr if replica not in self.removing)
        replicas = tuple(replica for replica in self.replicas if replica not in self.removing)
        # Where more go than come, those that stay must make up for them.
        needed = replicas if len(self.removing) > len(self.adding) else self.adding
        if isr and replicas and set(needed) <= set(isr):
            self.isr, self.replicas, self.adding, self.removing = isr, replicas, (), ()

    def _keep_eligible(self) -> None:
        """Whoever leaves a set that falls below the minimum stays eligible, unless it may have lost what it had."""
        if not self.elr_enabled:
            return
        if len(self.isr) >= self.min_isr:
            self.elr = ()
            return
        candidates = ({*self.elr, *self.partition.isr} & set(self.replicas)) - {*self.isr, self.died_uncleanly}
        self.elr = tuple(sorted(candidates))

    def _find_leader(self) -> tuple[int, bool]:
        """The leader, and whether it had to be forced."""
        replicas = self.replicas
        first = replicas[:1] if self.prefers_first else ()
        for replica in (*first, self.partition.leader, *replicas):
            if self._valid(replica):
                return replica, False
        if self._last_known_leads():
            return self.partition.last_known_elr[0], True
        if self.unclean:
            for replica in replicas:
                if self.acceptable(replica):
                    return replica, True
        return NO_LEADER, False

    def _valid(self, replica: int) -> bool:
        eligible = replica in self.isr or (not self.isr and replica in self.elr)
        return eligible and self.acceptable(replica)

    def _last_known_leads(self) -> bool:
        known = self.partition.last_known_elr
        nobody_left = self.elr_enabled and not self.elr and not self.isr
        # It may have led in a reassignment that was stopped, and hold no replica any more.
        return nobody_left and len(known) == 1 and known[0] in self.replicas and self.acceptable(known[0])

    def last_known(self) -> list[int] | None:
        """What to note about the last leader: who it was when nobody follows it, nothing once somebody leads."""
        partition = self.partition
        if not self.elr_enabled:
            return None
        if self.leader == NO_LEADER and partition.leader != NO_LEADER and not partition.last_known_elr:
            return [partition.leader]
        return [] if self.leader >= 0 and partition.last_known_elr else None


def record_of(change: Change, topic_id: bytes, index: int, image: Image) -> Versioned | None:
    """The record that says what `change` came to, or None if nothing differs."""
    partition, metadata_version = change.partition, image.metadata_version
    shrunk = not set(partition.isr) <= set(change.isr) and metadata_version < SHRINK_NEEDS_NO_NEW_EPOCH
    if change.leader == LEADER_UNCHANGED and (shrunk or not set(partition.replicas) <= set(change.replicas)):
        change.leader = partition.leader
    changed = _differences(change, image)
    if not changed:
        return None
    return PartitionChangeRecord(partition_id=index, topic_id=topic_id, **changed), partition_version(metadata_version)


def _differences(change: Change, image: Image) -> dict[str, Any]:
    """The fields that say something new. Most changes are few of many, so the others are not even looked at twice."""
    before = change.partition
    changed: dict[str, Any] = {}
    if change.forced or change.isr != before.isr:
        changed["isr"] = list(change.isr)
    if change.leader != LEADER_UNCHANGED:
        changed["leader"] = change.leader
    if change.recovery != RECOVERY_UNCHANGED:
        changed["leader_recovery_state"] = change.recovery
    if change.elr != before.elr:
        changed["eligible_leader_replicas"] = list(change.elr)
    if (last_known := change.last_known()) is not None:
        changed["last_known_elr"] = last_known
    if change.replicas != before.replicas:
        changed["replicas"], changed["directories"] = list(change.replicas), _directories(change, image)
    elif change.placed and (directories := _directories(change, image)) != list(before.directories):
        changed["directories"] = directories
    if change.adding != before.adding:
        changed["adding_replicas"] = list(change.adding)
    if change.removing != before.removing:
        changed["removing_replicas"] = list(change.removing)
    return changed


def _directories(change: Change, image: Image) -> list[bytes] | None:
    """Replicas that stay are where they were, but for those that were just placed."""
    if image.metadata_version < DIRECTORY_ASSIGNMENT:
        return None
    return [change.placed.get(replica) or _directory(change.partition, replica, image) for replica in change.replicas]


def _directory(before: Partition, replica: int, image: Image) -> bytes:
    return before.directory_of(replica) if replica in before.replicas else image.brokers[replica].default_directory


def change_of(
    image: Image, topic: Topic, partition: Partition, rules: Rules, acceptable: Callable[[int], bool] | None = None
) -> Change:
    """A change that aims at nothing yet: the leader may turn out to be another, and a reassignment to be over."""
    return change_on(rules.terms(image, topic), image, partition, acceptable)


def change_on(
    terms: Terms, image: Image, partition: Partition, acceptable: Callable[[int], bool] | None = None
) -> Change:
    """The same for one of many partitions of a topic, whose terms are known."""
    return Change(
        partition=partition,
        isr=partition.isr,
        elr=partition.elr,
        acceptable=acceptable or acceptable_leaders(image, partition),
        elr_enabled=image.elr_enabled,
        min_isr=terms.min_isr,
        unclean=terms.unclean,
    )


def changes_for_broker(
    image: Image,
    rules: Rules,
    *,
    gone: int = NO_LEADER,
    back: int = NO_LEADER,
    died_uncleanly: int = NO_LEADER,
    for_good: bool = False,
) -> list[Versioned]:
    """What happens to partitions when a broker leaves (`gone`), may lead again (`back`), or lost its memory. Where it is
    eligible is looked at if it leaves for good: it stays so, unless enough others are in sync by now.

    While these are decided the picture still shows the broker as it was before, hence the three names.
    """
    records = []
    terms: dict[bytes, Terms] = {}
    for topic, index, partition in _touched(image, gone, back, died_uncleanly, gone if for_good else NO_LEADER):
        if topic.id not in terms:
            terms[topic.id] = rules.terms(image, topic)
        acceptable = acceptable_leaders(image, partition, (gone, died_uncleanly), back)
        change = change_on(terms[topic.id], image, partition, acceptable)
        change.isr = tuple(replica for replica in partition.isr if replica not in (gone, died_uncleanly))
        change.died_uncleanly = died_uncleanly
        change.elect()
        record = record_of(change, topic.id, index, image)
        if record is not None:
            records.append(record)
    return records


def _touched(
    image: Image, gone: int, back: int, died_uncleanly: int, unregistered: int
) -> Iterator[tuple[Topic, int, Partition]]:
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            if (
                gone in partition.isr
                or died_uncleanly in partition.isr
                or died_uncleanly in partition.elr
                or unregistered in partition.elr
                or (back != NO_LEADER and partition.leader == NO_LEADER)
            ):
                yield topic, index, partition


def acceptable_leaders(
    image: Image, partition: Partition, never: Iterable[int] = (), back: int = NO_LEADER
) -> Callable[[int], bool]:
    def acceptable(replica: int) -> bool:
        broker = image.brokers.get(replica)
        if broker is None or replica in never or not (replica == back or broker.active):
            return False
        return broker.has_online(partition.directory_of(replica))

    return acceptable


# --- elections that somebody asks for

Asked = Iterable[tuple[str, Iterable[int]]]
# Topics in the order of the request, and what became of each of their partitions.
Elected = list[tuple[str, list[tuple[int, KafkaError | None]]]]


def elect_leaders(image: Image, asked: Asked | None, kind: int, rules: Rules) -> Decision[Elected]:
    """Give leaderships to those who come first in the assignment (KIP-460), or to anybody who lives.

    Where all partitions are meant, those are not mentioned that have the right leader already."""
    if kind not in (PREFERRED, UNCLEAN):
        raise KafkaError(Error.INVALID_REQUEST, f"Unknown election type {kind}")
    everything = [(topic.name, topic.partitions) for topic in image.topics.values()]
    records: list[Versioned] = []
    elected: Elected = []
    for topic, indexes in everything if asked is None else asked:
        outcomes = [(index, _elected(image, topic, index, kind, rules, records)) for index in indexes]
        if asked is None:
            outcomes = [(i, e) for i, e in outcomes if e is None or e.error is not Error.ELECTION_NOT_NEEDED]
        elected.append((topic, outcomes))
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise KafkaError(Error.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    return Decision(records, elected)


def _elected(
    image: Image, name: str, index: int, kind: int, rules: Rules, records: list[Versioned]
) -> KafkaError | None:
    topic = image.topic(name)
    if topic is None:
        return KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = topic.partitions.get(index)
    if partition is None:
        return KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    led = partition.leader == partition.replicas[0] if kind == PREFERRED else partition.leader != NO_LEADER
    if led:
        return KafkaError(Error.ELECTION_NOT_NEEDED)
    change = change_of(image, topic, partition, rules)
    change.unclean, change.prefers_first = kind == UNCLEAN, kind == PREFERRED
    change.elect()
    record = record_of(change, topic.id, index, image)
    if record is None:
        nobody = Error.PREFERRED_LEADER_NOT_AVAILABLE if kind == PREFERRED else Error.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return KafkaError(nobody)
    records.append(record)
    return None
