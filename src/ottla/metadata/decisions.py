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


@dataclass(frozen=True, slots=True)
class Rules:
    """What this node's own settings say where a request or a topic says nothing."""

    partitions: int = 1
    replication_factor: int = 1
    min_insync_replicas: int = 1
    unclean_election: bool = False
    check_topic_configs: Callable[[Mapping[str, str]], None] = lambda _configs: None

    def min_isr(self, image: Image, topic: Topic) -> int:
        """How many must be in sync for a write; a topic with fewer replicas than that is asked for all of them."""
        value = _topic_setting(image, topic.name, "min.insync.replicas")
        wanted = self.min_insync_replicas if value is None else int(value)
        return min(wanted, len(topic.partitions[0].replicas))

    def may_elect_uncleanly(self, image: Image, topic: str) -> bool:
        value = _topic_setting(image, topic, "unclean.leader.election.enable")
        return self.unclean_election if value is None else value.strip().lower() == "true"


def _topic_setting(image: Image, topic: str, name: str) -> str | None:
    """A topic's own value, or else the one set for all brokers."""
    own = image.configs(TOPIC, topic).get(name)
    return image.configs(BROKER, "").get(name) if own is None else own
