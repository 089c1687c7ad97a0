"""Feature levels: what a cluster has agreed on, what this release can do, and what follows for the records it writes.

A level that is finalised stands in the metadata log. A directory that Ottla begins finalises only what Ottla serves;
one that it takes over keeps its levels, and clients are shown the lower of the finalised and the served level.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.raft.quorum import KRAFT_VERSION, SUPPORTED_KRAFT_VERSIONS

METADATA_VERSION = "metadata.version"
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
# The consumer protocol of KIP-848 is served from level 1 on.
GROUP_VERSION = "group.version"
# At level 1 the state of transactions is written with room for more fields, at 2 every end brings a new epoch (KIP-890).
TRANSACTION_VERSION = "transaction.version"

# 3.3-IV3, the oldest level that Apache Kafka 4 reads, and 4.3-IV0, the newest that its 4.3 release writes.
METADATA_VERSION_MIN = 7
METADATA_VERSION_MAX = 30

# What this release serves: lowest and highest level.
SERVED: dict[str, tuple[int, int]] = {
    METADATA_VERSION: (METADATA_VERSION_MIN, METADATA_VERSION_MAX),
    KRAFT_VERSION: SUPPORTED_KRAFT_VERSIONS,
    ELIGIBLE_LEADER_REPLICAS: (0, 1),
    GROUP_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
}

# What a directory that we begin finalises, in the order in which Apache Kafka's own format writes it.
AT_FORMAT: dict[str, int] = {
    METADATA_VERSION: METADATA_VERSION_MAX,
    ELIGIBLE_LEADER_REPLICAS: 1,
    GROUP_VERSION: 1,
    TRANSACTION_VERSION: 2,
}

# The metadata.version from which on something holds.
ZOOKEEPER_MIGRATION = 8
SCRAM_CREDENTIALS = 11
SHRINK_NEEDS_NO_NEW_EPOCH = 12
METADATA_TRANSACTIONS = 13
CONTROLLER_REGISTRATION = 15
DIRECTORY_ASSIGNMENT = 17
ELIGIBLE_LEADER_REPLICAS_NEED = 23
CORDONED_DIRECTORIES = 30
# Levels that brought new records, or new fields in them: nobody who fell below could read what is written above.
WITH_NEW_RECORDS = (7, 8, 11, 13, 14, 15, 17, 23, 30)


def level(finalised: Mapping[str, int]) -> int:
    """The metadata.version of a cluster. A log from before the first FeatureLevelRecord has the oldest."""
    return finalised.get(METADATA_VERSION, METADATA_VERSION_MIN)


def register_broker_version(metadata_version: int) -> int:
    if metadata_version >= CORDONED_DIRECTORIES:
        return 4
    if metadata_version >= DIRECTORY_ASSIGNMENT:
        return 3
    return 2 if metadata_version >= ZOOKEEPER_MIGRATION else 1


def partition_version(metadata_version: int) -> int:
    """Of PartitionRecord and of PartitionChangeRecord alike."""
    if metadata_version >= ELIGIBLE_LEADER_REPLICAS_NEED:
        return 2
    return 1 if metadata_version >= DIRECTORY_ASSIGNMENT else 0
