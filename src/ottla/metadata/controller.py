"""One door to all decisions about the cluster: `decide(written picture, request, ...) -> records and reply`.

The rooms behind it: `topics` (create, add partitions, delete), `placement` (of new replicas), `leaders` (elections),
`reassignments`, `in_sync` (who is), `brokers` (registration, fencing, shutdown), `heartbeats` and `sessions` (who lives),
`directories` (what is where), `periodic` (what a controller does by itself), `settings`, `upgrades` (feature levels),
`producer_ids`, `quotas`, `credentials`.
All of them are plain functions of a picture; see `decisions.py` for the shape. Questions that change nothing are asked of the
rooms themselves.
"""

from __future__ import annotations

from ottla.metadata.brokers import (
    Registration,
    begin_shutdown,
    cordon_own,
    fence,
    register_broker,
    register_controller,
    unfence,
    unregister,
)
from ottla.metadata.credentials import alter_scram_credentials
from ottla.metadata.decisions import MIN_INSYNC_REPLICAS, Decision, Rules, Versioned
from ottla.metadata.directories import assign_replicas, lose_directories
from ottla.metadata.features import AT_FORMAT, ELIGIBLE_LEADER_REPLICAS, METADATA_TRANSACTIONS, level
from ottla.metadata.heartbeats import heartbeat
from ottla.metadata.image import BROKER, Image
from ottla.metadata.in_sync import alter_partition
from ottla.metadata.leaders import elect_leaders
from ottla.metadata.periodic import elect_uncleanly, fence_silent, return_leaderships
from ottla.metadata.producer_ids import Block, next_producer_ids
from ottla.metadata.quotas import alter_client_quotas
from ottla.metadata.reassignments import reassign
from ottla.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from ottla.metadata.settings import incremental_alter_configs
from ottla.metadata.topics import MorePartitions, NewTopic, add_partitions, create_topics, delete_topics
from ottla.metadata.upgrades import update_features

__all__ = [
    "Block",
    "Decision",
    "MorePartitions",
    "NewTopic",
    "Registration",
    "Rules",
    "add_partitions",
    "alter_client_quotas",
    "alter_partition",
    "alter_scram_credentials",
    "assign_replicas",
    "begin_shutdown",
    "bootstrap",
    "cordon_own",
    "create_topics",
    "delete_topics",
    "elect_leaders",
    "elect_uncleanly",
    "fence",
    "fence_silent",
    "format_records",
    "heartbeat",
    "incremental_alter_configs",
    "lose_directories",
    "next_producer_ids",
    "reassign",
    "register_broker",
    "register_controller",
    "return_leaderships",
    "unfence",
    "unregister",
    "update_features",
]


def format_records() -> list[Versioned]:
    """What `bootstrap.checkpoint` of a directory that we begin says: the features it finalises."""
    return [(FeatureLevelRecord(name=name, feature_level=value), 0) for name, value in AT_FORMAT.items()]


def bootstrap(image: Image, formatted: list[Versioned], rules: Rules) -> Decision[None]:
    """The first leader of an empty log writes down what the directory was formatted with, all of it or nothing.

    A transaction that its leader did not live to end is undone first.
    """
    undone: list[Versioned] = (
        [(AbortTransactionRecord(reason="the controller failed"), 0)] if image.in_transaction else []
    )
    if image.features:
        return Decision(undone, None)
    records = list(formatted) or format_records()
    levels = {r.name: r.feature_level for r, _ in records if isinstance(r, FeatureLevelRecord)}
    if levels.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1:
        records.append((_minimum_for_all(rules), 0))
    if level(levels) < METADATA_TRANSACTIONS:
        return Decision(undone + records, None)
    begin, end = BeginTransactionRecord(name="Bootstrap records"), EndTransactionRecord()
    return Decision([*undone, (begin, 0), *records, (end, 0)], None)


def _minimum_for_all(rules: Rules) -> ConfigRecord:
    """With eligible leader replicas the minimum in sync must be the same for all brokers, so it is written down."""
    value = str(rules.min_insync_replicas)
    return ConfigRecord(resource_type=BROKER, resource_name="", name=MIN_INSYNC_REPLICAS, value=value)
