"""What a decision is: records and a reply.

A decide function looks at the written picture, changes nothing, and answers which records to append and what to tell
whoever asked. The records are appended and replayed at once, so the next decision sees them; the reply goes out when
they are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from ottla.metadata.image import BROKER, TOPIC, Image, Topic
from ottla.wire.schema import Message

T = TypeVar("T")

# A record and the version it is to be written in.
Versioned = tuple[Message, int]

# What one request may ask for, and what one batch may hold (as in Apache Kafka).
RECORDS_PER_REQUEST_MAX = 10_000


class Chance(Protocol):
    """Where randomness comes from; it is handed in."""

    def randrange(self, stop: int, /) -> int: ...
    def randbytes(self, n: int, /) -> bytes: ...


class Decision(NamedTuple, Generic[T]):
    records: list[Versioned]
    reply: T


MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION = "min.insync.replicas", "unclean.leader.election.enable"


class Terms(NamedTuple):
    """What the partitions of a topic need to be led: how many in sync for a write, and whether anybody may lead."""

    min_isr: int
    unclean: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """What this node's own settings say where a request or a topic says nothing."""

    partitions: int = 1
    replication_factor: int = 1
    min_insync_replicas: int = 1
    unclean_election: bool = False
    check_topic_configs: Callable[[Mapping[str, str]], None] = lambda _configs: None

    def terms(self, image: Image, topic: Topic) -> Terms:
        """A topic's own values, or else those set for all brokers, or else this node's.

        A topic with fewer replicas than are to be in sync is asked for all of them."""
        own, common = image.configs(TOPIC, topic.name), image.configs(BROKER, "")
        minimum = own.get(MIN_INSYNC_REPLICAS) or common.get(MIN_INSYNC_REPLICAS)
        unclean = own.get(UNCLEAN_ELECTION) or common.get(UNCLEAN_ELECTION)
        return Terms(
            min(self.min_insync_replicas if minimum is None else int(minimum), len(topic.partitions[0].replicas)),
            self.unclean_election if unclean is None else unclean.strip().lower() == "true",
        )
