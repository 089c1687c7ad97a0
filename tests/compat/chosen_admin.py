"""Chosen requests about leaders, places, features and members of the cluster."""

from __future__ import annotations

import uuid
from typing import Any

from compat.peers import COMPACTED_TOPIC, OFFSETS_TOPIC, PLAIN_TOPIC

METADATA_TOPIC = "__cluster_metadata"
SOME_NAMES = (PLAIN_TOPIC, COMPACTED_TOPIC, OFFSETS_TOPIC, METADATA_TOPIC, "chosen-none", "", "bad/name", "z" * 300)
UPGRADE, SAFE, UNSAFE = 1, 2, 3
ANYBODY, NOBODY = uuid.UUID(int=0xABC), uuid.UUID(int=0)
SEEN = {"validate_only": True, "since": 1}


def elected(*asked: tuple[str, list[int]], kind: int = 0, timeout: int = 5000) -> dict[str, Any]:
    topics = [{"topic": topic, "partitions": indexes} for topic, indexes in asked]
    return {"election_type": kind, "topic_partitions": topics, "timeout": timeout}


def reassigned(*asked: tuple[str, int, list[int] | None], **more: Any) -> dict[str, Any]:
    topics = [{"name": t, "partitions": [{"partition_index": i, "replicas": r}]} for t, i, r in asked]
    return {"topics": topics, "timeout": 5000, **more}


def levels(*updates: tuple[str, int, int], **more: Any) -> dict[str, Any]:
    asked = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != UPGRADE}
        for name, level, kind in updates
    ]
    return {"feature_updates": asked, "timeout": 5000, **more}


def moved(path: str, *asked: tuple[str, list[int]]) -> dict[str, Any]:
    return {"dirs": [{"path": path, "topics": [{"name": name, "partitions": indexes} for name, indexes in asked]}]}


def quorum(*asked: tuple[str, list[int]]) -> dict[str, Any]:
    return {
        "topics": [
            {"topic_name": name, "partitions": [{"partition_index": index} for index in indexes]}
            for name, indexes in asked
        ]
    }


def voter(number: int, directory: uuid.UUID, cluster: str | None = None, *listeners: str) -> dict[str, Any]:
    named = [{"name": name, "host": "127.0.0.1", "port": 1} for name in listeners]
    who = {"voter_id": number, "voter_directory_id": directory}
    return {**who, "cluster_id": cluster, "listeners": named, "timeout": 1000}


ADMIN: dict[str, list[dict[str, Any]]] = {
    "elect_leaders": [
        *(elected((topic, [0, 1, 9, -1])) for topic in SOME_NAMES),
        *(elected((PLAIN_TOPIC, [0, 0]), kind=kind) for kind in (0, 1, 2, -1)),
        *(elected((PLAIN_TOPIC, [0]), timeout=timeout) for timeout in (0, -1, 60_000)),
        *({"topic_partitions": None, "election_type": kind, "timeout": 5000} for kind in (0, 1, 5)),
        *({"topic_partitions": [], "election_type": kind, "timeout": 0} for kind in (0, 5)),
        {"topic_partitions": None, "timeout": 0},
        {"topic_partitions": [], "timeout": 0},
        elected((PLAIN_TOPIC, [0]), (PLAIN_TOPIC, [1])),
        elected((PLAIN_TOPIC, [])),
        elected(),
    ],
    "alter_partition_reassignments": [
        *(reassigned((topic, 0, [1])) for topic in SOME_NAMES),
        *(
            reassigned((PLAIN_TOPIC, index, replicas), allow_replication_factor_change=may)
            for index, replicas in (
                *((0, given) for given in (None, [1], [], [2], [1, 2], [2, 1], [1, 1], [-1])),
                *((index, [1]) for index in (9, -1)),
            )
            for may in (True, False)
        ),
        *(reassigned((PLAIN_TOPIC, 0, [1])) | {"timeout": timeout} for timeout in (0, -1)),
        reassigned((PLAIN_TOPIC, 0, [1]), (PLAIN_TOPIC, 0, [1]), ("chosen-none", 0, None)),
        {"topics": [{"name": PLAIN_TOPIC, "partitions": []}]},
        {"topics": [], "allow_replication_factor_change": False},
        {"topics": [], "timeout": 0},
    ],
    "list_partition_reassignments": [
        {"topics": None},
        {"topics": []},
        {"topics": None, "timeout": 0},
        *({"topics": [{"name": name, "partition_indexes": [0, 0, 9, -1]}]} for name in SOME_NAMES),
        {"topics": [{"name": PLAIN_TOPIC, "partition_indexes": []}] * 2},
    ],
    "alter_replica_log_dirs": [
        {"dirs": []},
        *(moved(path, (PLAIN_TOPIC, [0, 0, 9]), ("chosen-none", [0])) for path in ("", "/", "chosen", "/chosen")),
        *(moved("/chosen", (name, [0])) for name in SOME_NAMES),
        moved("/chosen", (PLAIN_TOPIC, [])),
    ],
    "describe_producers": [
        {"topics": []},
        *({"topics": [{"name": name, "partition_indexes": [2, 2, 9, -1]}]} for name in SOME_NAMES),
        {"topics": [{"name": PLAIN_TOPIC, "partition_indexes": []}] * 2},
    ],
    "update_features": [
        levels(),
        *(levels((name, level, UPGRADE)) for name in ("chosen", "", "group.version") for level in (-1, 2, 99)),
        *(levels((name, 0, kind)) for name in ("chosen", "") for kind in (UPGRADE, SAFE, UNSAFE)),
        *(levels(("group.version", level, kind), **SEEN) for level in (0, 1) for kind in (-1, 0, 1, 2, 3, 4)),
        *(
            levels(("metadata.version", level, kind), **SEEN)
            for level in (-1, 0, 6, 7, 22, 29, 30, 31)
            for kind in (UPGRADE, SAFE, UNSAFE)
        ),
        *(levels(("kraft.version", level, kind), **SEEN) for level in (0, 1, 2) for kind in (UPGRADE, SAFE)),
        *(
            levels(("transaction.version", level, kind), **SEEN)
            for level in (-1, 0, 1, 2, 3)
            for kind in (UPGRADE, SAFE, UNSAFE)
        ),
        *(levels(("eligible.leader.replicas.version", level, SAFE), **SEEN) for level in (0, 1, 2)),
        levels(("group.version", 1, UPGRADE), ("chosen", 1, UPGRADE)),
        levels(("group.version", 1, UPGRADE), ("group.version", 1, UPGRADE)),
        levels(("group.version", 1, UPGRADE), ("eligible.leader.replicas.version", 1, UPGRADE)),
        levels(("group.version", 1, UPGRADE)) | {"timeout": 0},
    ],
    "describe_quorum": [
        quorum((METADATA_TOPIC, [0])),
        quorum(),
        *(quorum((METADATA_TOPIC, indexes)) for indexes in ([], [1], [-1], [0, 0], [0, 1])),
        *(quorum((name, [0])) for name in (PLAIN_TOPIC, "chosen-none", "")),
        quorum((METADATA_TOPIC, [0]), (PLAIN_TOPIC, [0])),
    ],
    "unregister_broker": [{"broker_id": number} for number in (-1, 0, 2, 2**31 - 1)],
    "list_config_resources": [
        *(
            {"resource_types": kinds}
            for kinds in ([], [2], [4], [8], [16], [32], [0], [-1], [1], [64], [2, 2], [2, 99])
        ),
    ],
    "add_raft_voter": [
        *(voter(number, ANYBODY, None, *listeners) for number in (1, -1) for listeners in ((), ("chosen",))),
        voter(1, ANYBODY, None, "CONTROLLER"),
        voter(9, NOBODY, None, "CONTROLLER"),
        voter(9, ANYBODY, "chosen", "CONTROLLER"),
        voter(9, ANYBODY, ""),
    ],
    "remove_raft_voter": [
        voter(number, directory, cluster)
        for number in (1, 9, -1)
        for directory in (ANYBODY, NOBODY)
        for cluster in (None, "", "chosen")
    ],
}
