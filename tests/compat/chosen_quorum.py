"""Requests picked by hand for controllers: what voters, brokers and administrators ask, right and wrong in one respect.

Nothing here changes a quorum. The node that is asked is NODE, `directory(0)` is its own; the next are others. Left out is what
a controller of 4.3.1 does not survive: a leader of the same epoch that is not the leader, and a FetchSnapshot without topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compat.controllers import (
    CLUSTER_ID,
    METADATA,
    METADATA_ID,
    NODE,
    QUORUM,
    UNKNOWN_ID,
    ZERO_ID,
    Door,
    compare,
    directory,
)
from compat.peers import asking

OTHER = NODE + 1
LISTENER = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}
UNNAMED = {"name": "OTHER", "host": "127.0.0.1", "port": 1}
Request = dict[str, Any]
Chosen = Mapping[int, tuple[range, list[Request]]]


def about(part: Request, name: str = METADATA, **more: Any) -> Request:
    """A message about one partition, that of the metadata if nothing else is said."""
    topic = {"topic_name": name, "topic": name, "name": name, "topic_id": METADATA_ID, "partitions": [part]}
    return {"cluster_id": CLUSTER_ID, "topics": [topic], **more}


def vote(voter: int = NODE, name: str = METADATA, **said: Any) -> Request:
    who = {"replica_id": OTHER, "replica_directory_id": directory(1), "voter_directory_id": directory(0)}
    last = {"replica_epoch": QUORUM, "last_offset_epoch": 0, "last_offset": 0, "pre_vote": True}
    part = {**who, **last, **said}
    return about(part, name, voter_id=voter)


def begin(voter: int = NODE, **said: Any) -> Request:
    part = {"voter_directory_id": directory(0), "leader_id": OTHER, "leader_epoch": QUORUM - 1, **said}
    return about(part, voter_id=voter, leader_endpoints=[LISTENER])


def end(**said: Any) -> Request:
    return about({"leader_id": OTHER, "leader_epoch": QUORUM - 1, "preferred_successors": [NODE], **said})


def fetch(**said: Any) -> Request:
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "replica_id": -1}
    part = {"partition": 0, "current_leader_epoch": QUORUM, "fetch_offset": 0, "last_fetched_epoch": 0, **said}
    return about(part, **limits, replica_state={"replica_id": -1, "replica_epoch": -1})


def update(**said: Any) -> Request:
    voter = {"voter_id": OTHER, "voter_directory_id": directory(1), "listeners": [LISTENER]}
    levels = {"min_supported_version": 0, "max_supported_version": 1}
    return {"cluster_id": CLUSTER_ID, "current_leader_epoch": QUORUM, **voter, "kraft_version_feature": levels, **said}


def voter(number: int, where: Any, *listeners: Request, cluster: str | None = CLUSTER_ID) -> Request:
    named = {"cluster_id": cluster, "voter_id": number, "voter_directory_id": where}
    return {**named, "listeners": listeners, "timeout": 1000, "timeout_ms": 1000}


def feature(name: str, level: int, kind: int = 1, only_try: bool = True) -> Request:
    update = {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind > 1}
    return {"feature_updates": [update], "validate_only": only_try}


def setting(kind: int, of: str, **values: str | None) -> Request:
    """Nothing is changed by it, but all of it is looked at."""
    configs = [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]
    return {"resources": [{"resource_type": kind, "resource_name": of, "configs": configs}], "validate_only": True}


# Of what is a node, what might be one and what is none; with one mistake more, which may be the one that is told.
SETTINGS = [
    setting(4, of, **values)
    for of in (str(NODE), str(OTHER), "50", "+50", "-1", "2147483648", "abc", "1 ")
    for values in ({"log_cleaner_threads": "2"}, {"min_insync_replicas": "2"}, {})
] + [setting(4, "50", log_cleaner_threads="x"), setting(4, "", min_insync_replicas="2"), setting(4, "")]
SETTINGS += [
    setting(2, "none", retention_ms="1"),
    setting(2, "none", retention_ms="x"),
    setting(2, "", retention_ms="1"),
]

# By key and the versions that are asked. On any controller.
OF_VOTERS: dict[int, tuple[range, list[Request]]] = {
    52: (
        range(3),
        [
            vote(),
            vote(voter=9),
            vote(voter=-1),
            vote(name="t"),
            vote(partition_index=1),
            vote(voter_directory_id=UNKNOWN_ID),
            vote(voter_directory_id=ZERO_ID),
            vote(replica_id=7),
            vote(replica_id=-1),
            vote(replica_epoch=-1),
            vote(last_offset=-1),
            vote(last_offset_epoch=-1),
            vote(pre_vote=False),
            {**vote(), "cluster_id": "other"},
            {**vote(), "topics": []},
        ],
    ),
    53: (
        range(2),
        [
            begin(),
            begin(voter=9),
            begin(voter=-1),
            begin(leader_epoch=-1),
            begin(partition_index=1),
            begin(voter_directory_id=UNKNOWN_ID),
            {**begin(), "cluster_id": "other"},
            {**begin(), "leader_endpoints": []},
            {**begin(), "topics": []},
        ],
    ),
    54: (
        range(2),
        [
            end(),
            end(partition_index=1),
            end(leader_epoch=-1),
            {**end(), "cluster_id": "other"},
            {**end(), "topics": []},
        ],
    ),
    1: (
        range(4, 19),
        [
            fetch(),
            fetch(partition=1),
            fetch(current_leader_epoch=QUORUM - 1),
            fetch(current_leader_epoch=-1),
            fetch(current_leader_epoch=-2),
            fetch(fetch_offset=-1),
            fetch(fetch_offset=10**9, last_fetched_epoch=QUORUM),
            fetch(last_fetched_epoch=-2),
            fetch(last_fetched_epoch=QUORUM + 1),
            {**fetch(), "cluster_id": "other"},
            {**fetch(), "topics": []},
        ],
    ),
    82: (
        range(1),
        [
            update(cluster_id="other"),
            update(current_leader_epoch=QUORUM - 1),
            update(current_leader_epoch=-1),
            update(voter_id=-1),
            update(voter_id=9),
            update(voter_directory_id=ZERO_ID),
            update(voter_directory_id=UNKNOWN_ID),
            update(listeners=[]),
            update(listeners=[UNNAMED]),
        ],
    ),
}

OF_BROKERS: dict[int, tuple[range, list[Request]]] = {
    56: (range(2, 4), [{"broker_id": 50, "topics": [{"topic_id": UNKNOWN_ID, "partitions": [{}]}]}, {"broker_id": 50}]),
    62: (range(5), [{"broker_id": 50, "cluster_id": CLUSTER_ID, "incarnation_id": UNKNOWN_ID}]),
    63: (range(3), [{"broker_id": 50, "broker_epoch": 1}, {"broker_id": 1, "broker_epoch": -1}]),
    67: (range(1), [{"broker_id": 50, "broker_epoch": 1}]),
    73: (range(1), [{"broker_id": 50, "broker_epoch": 1, "directories": [{"id_": UNKNOWN_ID, "topics": []}]}]),
}

# On controllers and brokers alike.
OF_ADMINISTRATORS: dict[int, tuple[range, list[Request]]] = {
    33: (range(3), SETTINGS),
    43: (range(3), [{"topic_partitions": [{"topic": "none", "partitions": [0]}]}, {"topic_partitions": []}]),
    44: (range(2), SETTINGS),
    45: (
        range(2),
        [{"topics": [{"name": "none", "partitions": [{"partition_index": 0, "replicas": [1]}]}]}, {"topics": []}],
    ),
    46: (range(1), [{"topics": [{"name": "none", "partition_indexes": [0]}]}, {"topics": None}]),
    55: (range(3), [about({}), about({}, "t"), about({"partition_index": 1}), {"topics": []}]),
    57: (
        range(3),
        [
            feature("none", 1),
            feature("none", 0),
            feature("metadata.version", 99),
            feature("group.version", 0, 1),
            feature("group.version", -1, 2),
            feature("metadata.version", 22, 2),
            feature("metadata.version", 22, 3),
            {"feature_updates": []},
        ],
    ),
    60: (range(3), [{"endpoint_type": kind} for kind in (0, 1, 2, 3)]),
    64: (range(1), [{"broker_id": 50}, {"broker_id": -1}]),
    80: (
        range(2),
        [
            voter(9, UNKNOWN_ID, cluster="other"),
            voter(9, UNKNOWN_ID),
            voter(-1, UNKNOWN_ID, LISTENER, cluster=None),
            voter(9, ZERO_ID, LISTENER),
            voter(OTHER, directory(1), LISTENER),
            voter(9, UNKNOWN_ID, UNNAMED),
        ],
    ),
    81: (range(1), [voter(9, UNKNOWN_ID), voter(-1, UNKNOWN_ID), voter(OTHER, UNKNOWN_ID), voter(OTHER, ZERO_ID)]),
}

EVERYTHING: Chosen = {**OF_VOTERS, **OF_BROKERS, **OF_ADMINISTRATORS}


def differences(chosen: Chosen, doors: tuple[Door, Door]) -> str:
    """Where answers of ours and Apache's differ, a line for each."""
    found = []
    for key, (versions, requests) in chosen.items():
        for version in versions:
            for number, said in enumerate(requests):
                request = asking(key, version, **said)
                if text := compare(request, doors)[0]:
                    found.append(f"{type(request).__name__} v{version} #{number}: {text}")
    return "\n".join(found)
