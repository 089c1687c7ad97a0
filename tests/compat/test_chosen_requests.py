"""Requests picked by hand where brokers tend to differ, to our node and to Apache Kafka 4.3.1: in the lowest, a middle and the
highest version of each API. Unlike the odd requests of a seed these stay the same, so that what was once put right stays so.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from apache import kafka
from compat.chosen_admin import ADMIN
from compat.chosen_commits import COMMITS
from compat.chosen_transactions import COORDINATED_KINDS, NUMBERS, TRANSACTIONS
from compat.chosen_transactions import RANGES as OF_TRANSACTIONS
from compat.members_commits import with_members
from compat.peers import (
    COMPACTED_ID,
    COMPACTED_TOPIC,
    OFFSETS_TOPIC,
    PLAIN_ID,
    PLAIN_TOPIC,
    SERVED,
    SETTLING_S,
    TRANSACTIONS_TOPIC,
    UNKNOWN_ID,
    Peer,
    asking,
    compare,
    difference,
    make_batch,
    two_brokers,
)

pytestmark = pytest.mark.apache

UNKNOWN_TOPIC = "chosen-none"
EVERY_NAME = [PLAIN_TOPIC, COMPACTED_TOPIC, OFFSETS_TOPIC, UNKNOWN_TOPIC, "", "..", "bad/name", "x" * 250]
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
ZERO_ID = uuid.UUID(int=0)
IDS = {PLAIN_TOPIC: PLAIN_ID, COMPACTED_TOPIC: COMPACTED_ID}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
GOOD = make_batch()
NUMBERED = make_batch(producer=(77_000, 0, 0))


def offsets(timestamp: int, epoch: int = -1, topic: str = PLAIN_TOPIC, index: int = 0, **more: Any) -> dict[str, Any]:
    asked = {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}], **more}


def produced(records: bytes | None, topic: str = PLAIN_TOPIC, index: int = 1, **more: Any) -> dict[str, Any]:
    part = {"index": index, "records": records}
    named_by = {"name": topic, "topic_id": IDS.get(topic, UNKNOWN_ID)}
    return {"acks": -1, "topic_data": [{**named_by, "partition_data": [part]}], **more}


def of_length(length: int) -> bytes:
    """A batch that says another length than it has."""
    return GOOD[:8] + length.to_bytes(4, "big", signed=True) + GOOD[12:]


def fetched(*asked: tuple[uuid.UUID, int, int], **more: Any) -> dict[str, Any]:
    """Of a topic that both know by its stand-in, one partition from an offset."""
    part = {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 10**6}
    topics = [
        {"topic": NAMES.get(topic, UNKNOWN_TOPIC), "topic_id": topic}
        | {"partitions": [{**part, "partition": index, "fetch_offset": offset}]}
        for topic, index, offset in asked
    ]
    state = {"replica_id": -1, "replica_epoch": -1}
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 10**6, "session_epoch": -1}
    return {"replica_id": -1, "replica_state": state, **limits, "topics": topics, **more}


def epoch_end(epoch: int, current: int, topic: str = PLAIN_TOPIC) -> dict[str, Any]:
    asked = [{"partition": index, "leader_epoch": epoch, "current_leader_epoch": current} for index in (0, 2, 9, -1)]
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": asked}]}


def named(*names: str | None, **more: Any) -> dict[str, Any]:
    return {"topics": [{"name": name} for name in names], "topic_names": names, **more}


def new(
    name: str, count: int = 1, factor: int = 1, more: dict[str, Any] | None = None, **configs: Any
) -> dict[str, Any]:
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "num_partitions": count, "replication_factor": factor, "configs": settings, **(more or {})}


def placed(*replicas: list[int], first: int = 0) -> dict[str, Any]:
    return {"assignments": [{"partition_index": n, "broker_ids": ids} for n, ids in enumerate(replicas, first)]}


def page(*names: str, limit: int = 2000, start: tuple[str, int] | None = None) -> dict[str, Any]:
    cursor = None if start is None else {"topic_name": start[0], "partition_index": start[1]}
    return named(*names, response_partition_limit=limit, cursor=cursor)


def described(kind: int, name: str, *keys: str) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    return {"resources": [resource], "include_synonyms": True}


def changed(kind: int, name: str, *changes: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": configs}]}


Named = tuple[str, str | None]
USER, CLIENT, ADDRESS = ("user", "chosen"), ("client-id", "chosen"), ("ip", "127.0.0.1")
RATES = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
HUGE = 1e12


def limited(*named: Named, more: dict[str, Any] | None = None, **limits: float | None) -> dict[str, Any]:
    """One entity, and limits to set, or to remove where there is None."""
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in named]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in limits.items()]
    return {"entries": [{"entity": entity, "ops": ops}], **(more or {})}


def matching(*components: tuple[str, int, str | None], strict: bool = False) -> dict[str, Any]:
    asked = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    return {"components": asked, "strict": strict}


def passwords(*changes: tuple[str, int, int | None]) -> dict[str, Any]:
    """Users and mechanisms, with iterations for one that is set and None for one that is removed."""
    removed = [{"name": name, "mechanism": kind} for name, kind, iterations in changes if iterations is None]
    added = [
        {"name": name, "mechanism": kind, "iterations": iterations, "salt": b"salt", "salted_password": b"salted"}
        for name, kind, iterations in changes
        if iterations is not None
    ]
    return {"deletions": removed, "upsertions": added}


CHOSEN: dict[str, list[dict[str, Any]]] = {
    "produce": [
        *(produced(GOOD, topic) for topic in EVERY_NAME),
        *(produced(GOOD, index=index) for index in (-1, 9)),
        *(produced(GOOD, acks=acks) for acks in (1, 5, -2)),
        *(produced(make_batch(attributes=bits), topic) for bits in (5, 7, 16, 32, 48) for topic in EVERY_NAME[:4]),
        *(
            produced(of_length(length), topic)
            for length in (-1, 0, 13, 14, 48, 49, 2**31 - 1)
            for topic in EVERY_NAME[:4]
        ),
        *(produced(records) for records in (b"", GOOD[:11], GOOD[:30], GOOD + bytes(3), GOOD + GOOD[:30], GOOD + GOOD)),
        produced(NUMBERED),
        produced(make_batch(keys=False), COMPACTED_TOPIC, 0),
    ],
    "fetch": [
        *(fetched((PLAIN_ID, 1, offset)) for offset in (-(2**63), -2, -1, 0, 1, 2, 99_999)),
        *(fetched((PLAIN_ID, 1, 0), isolation_level=level) for level in (0, 1, 2, -1)),
        *(fetched((PLAIN_ID, 1, 0), session_id=99, session_epoch=epoch) for epoch in (-1, 0, 1)),
        *(fetched((first, 9, 0), (second, 1, 0)) for first in NAMES for second in (UNKNOWN_ID, ZERO_ID)),
        fetched((ZERO_ID, 0, 0), (PLAIN_ID, 1, 0)),
        fetched(),
    ],
    "list_offsets": [
        *(offsets(mark, topic=topic) for mark in (-1, -2, -3, -4, -5, -6, -7, -100, 0, 2**62) for topic in EVERY_NAME),
        *(offsets(-1, epoch) for epoch in (0, 1, -2, -7)),
        *(offsets(-1, isolation_level=level) for level in (0, 1, 2, -1, 127)),
        *(offsets(-1, index=index) for index in (-1, 3, 99)),
    ],
    "offset_for_leader_epoch": [
        epoch_end(epoch, current, topic)
        for epoch in (-2, -1, 0, 1, 5)
        for current in (-7, -1, 0, 1)
        for topic in (PLAIN_TOPIC, COMPACTED_TOPIC, UNKNOWN_TOPIC)
    ],
    "metadata": [
        # Before version 4 to name a topic is to create it, at a moment of the broker's choice.
        named(*EVERY_NAME, "__cluster_metadata", allow_auto_topic_creation=False) | {"since": 4},
        named(*(name for name in EVERY_NAME if name != UNKNOWN_TOPIC), allow_auto_topic_creation=False),
        named(PLAIN_TOPIC, PLAIN_TOPIC, allow_auto_topic_creation=False),
        named(OFFSETS_TOPIC, include_topic_authorized_operations=True),
        {
            "topics": [{"name": COMPACTED_TOPIC, "topic_id": PLAIN_ID}, {"name": None, "topic_id": UNKNOWN_ID}],
            "since": 10,
        },
        {"topics": [{"name": PLAIN_TOPIC}, {"name": None, "topic_id": PLAIN_ID}], "since": 10},
    ],
    "describe_topic_partitions": [
        page(*EVERY_NAME[:4]),
        *(page(PLAIN_TOPIC, COMPACTED_TOPIC, limit=limit) for limit in (-5, 0, 1, 2, 3, 4)),
        *(page(PLAIN_TOPIC, COMPACTED_TOPIC, start=(PLAIN_TOPIC, index)) for index in (-1, 0, 1, 3, 99)),
        page(PLAIN_TOPIC, start=("zzz", 0)),
        page(start=("odd-d", 0)),
    ],
    "create_topics": [
        {"topics": [new(name) for name in EVERY_NAME]},
        {"topics": [new(PLAIN_TOPIC), new("chosen-twice"), new("chosen-twice")]},
        {"topics": [new("odd.plain")]},
        {"topics": [new("odd_plain"), new("odd-plain.")], "validate_only": True},
        {"topics": [new("__cluster_metadata")]},
        *(
            {"topics": [new("chosen-bad", count, factor)]}
            for count, factor in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 2))
        ),
        {"topics": [new("chosen-many", 10_001)]},
        {"topics": [new("chosen-late")], "timeout": 0},
        *(
            {"topics": [new("chosen-placed", -1, -1, placed(*replicas, first=first))], "validate_only": True}
            for replicas, first in (([[1], [1]], 0), ([[2]], 0), ([[1, 1]], 0), ([[]], 0), ([[1]], 1), ([[1]], -1))
        ),
        {"topics": [new("chosen-placed", 2, -1, placed([1], [1]))]},
        *(
            {"topics": [new("chosen-set", **{key: value})], "validate_only": True}
            for key, value in (
                ("retention_ms", None),
                ("retention_ms", ""),
                ("retention_ms", " 5 "),
                ("cleanup_policy", ""),
                ("cleanup_policy", " compact , delete "),
                ("compression_type", "GZIP"),
                ("preallocate", "TRUE"),
                ("min_cleanable_dirty_ratio", "0.5d"),
                ("index_interval_bytes", "99999999999"),
                ("chosen", "1"),
            )
        ),
    ],
    "delete_topics": [
        named(),
        named(UNKNOWN_TOPIC, "", "bad/name", UNKNOWN_TOPIC),
        named(UNKNOWN_TOPIC, timeout=0),
        {"topics": [{"name": None, "topic_id": UNKNOWN_ID}, {"name": None, "topic_id": ZERO_ID}]},
        {"topics": [{"name": PLAIN_TOPIC, "topic_id": PLAIN_ID}]},
        {"topics": [{"name": None, "topic_id": UNKNOWN_ID}] * 2},
    ],
    "create_partitions": [
        *(
            {"topics": [{"name": PLAIN_TOPIC, "count": count, "assignments": given}], "validate_only": True}
            for count, given in (
                (4, None),
                (3, None),
                (2, None),
                (0, None),
                (-1, None),
                (4, []),
                (4, [{"broker_ids": [1]}]),
                (4, [{"broker_ids": [2]}]),
                (4, [{"broker_ids": []}]),
                (4, [{"broker_ids": [1, 1]}]),
                (5, [{"broker_ids": [1]}]),
            )
        ),
        {"topics": [{"name": name, "count": 60} for name in EVERY_NAME], "validate_only": True},
        {"topics": [{"name": PLAIN_TOPIC, "count": 9}] * 2},
        {"topics": [{"name": PLAIN_TOPIC, "count": 9}], "timeout": -1},
    ],
    "delete_records": [
        {"topics": [{"name": topic, "partitions": [{"partition_index": index, "offset": offset}]}]}
        for topic in (PLAIN_TOPIC, COMPACTED_TOPIC, OFFSETS_TOPIC, UNKNOWN_TOPIC, "__cluster_metadata")
        for index, offset in ((0, 0), (0, 1), (0, 99), (0, -2), (9, 0), (-1, 0), (1, -1))
    ],
    "describe_configs": [
        *(described(TOPIC, name, "retention.ms", "chosen", "cleanup.policy") for name in EVERY_NAME),
        *(described(BROKER, name, "num.partitions", "chosen") for name in ("", "1", "01", "+1", " 1", "2", "one")),
        *(described(kind, name) for kind in (METRICS, GROUP) for name in ("", "chosen")),
        *(described(LOGGER, name) for name in ("", "2", "one")),
        *(described(kind, PLAIN_TOPIC) for kind in (-1, 0, 1, 3, 64)),
    ],
    "incremental_alter_configs": [
        *(changed(TOPIC, name, ("flush.ms", SET, "9")) for name in (PLAIN_TOPIC, UNKNOWN_TOPIC, "", "bad/name")),
        *(
            changed(TOPIC, PLAIN_TOPIC, ("flush.ms", how, value))
            for how in (SET, APPEND, 4)
            for value in (None, "-1", "x")
        ),
        *(
            changed(TOPIC, COMPACTED_TOPIC, ("cleanup.policy", how, value))
            for how in (APPEND, SUBTRACT)
            for value in ("delete", "chosen", "", None)
        ),
        changed(TOPIC, PLAIN_TOPIC, ("flush.ms", SET, "1"), ("flush.ms", SET, "2")),
        changed(TOPIC, PLAIN_TOPIC, ("flush.ms", DELETE, None)),
        *(changed(BROKER, name, ("num.partitions", SET, "9")) for name in ("", "1", "2", "one")),
        *(changed(BROKER, "1", ("num.io.threads", SET, value)) for value in ("0", "1", "x", "1000")),
        *(changed(LOGGER, "1", ("root", how, value)) for how in (APPEND, SET) for value in ("chosen", None)),
        *(changed(METRICS, "chosen", ("interval.ms", SET, value)) for value in ("5", "5000", "x")),
        *(changed(GROUP, "chosen", ("consumer.session.timeout.ms", SET, value)) for value in ("1", "50000")),
        *(changed(kind, "chosen") for kind in (-1, 0, 1, 3, 64)),
    ],
    "alter_client_quotas": [
        *(limited(USER, **{rate: value}) for rate in RATES for value in (HUGE, 0.0, -1.0, 1e12 + 0.5, 1e30, None)),
        *(limited(ADDRESS, connection_creation_rate=value) for value in (1e9, 0.0, 1e9 + 0.5, 1e10, None)),
        *(limited(USER, request_percentage=value) for value in (float("inf"), 1e12, None)),
        *(limited(named, producer_byte_rate=HUGE) for named in (("client-id", None), ("user", ""), ("chosen", "x"))),
        *(limited(("ip", name), connection_creation_rate=1e9) for name in ("::1", "localhost", "no such host", "")),
        limited(USER, CLIENT, producer_byte_rate=HUGE, consumer_byte_rate=HUGE),
        limited(("user", None), ("client-id", None), request_percentage=1e9),
        limited(ADDRESS, USER, connection_creation_rate=1e9),
        limited(ADDRESS, producer_byte_rate=HUGE),
        limited(USER, connection_creation_rate=1e9),
        limited(USER, chosen=1.0),
        limited(USER, chosen=None),
        limited(USER),
        limited(producer_byte_rate=HUGE),
        limited(("user", "first"), ("user", "second"), producer_byte_rate=HUGE),
        limited(("user", "unwritten"), producer_byte_rate=HUGE, more={"validate_only": True}),
        {"entries": limited(CLIENT, producer_byte_rate=HUGE)["entries"] * 2},
        {
            "entries": [
                {**limited(CLIENT)["entries"][0], "ops": limited(producer_byte_rate=HUGE)["entries"][0]["ops"] * 2}
            ]
        },
        {"entries": []},
    ],
    "describe_client_quotas": [
        *(matching(strict=strict) for strict in (False, True)),
        *(
            matching((kind, how, name), strict=strict)
            for kind in ("user", "client-id", "ip", "", "chosen")
            for how in (0, 1, 2, 3, -1)
            for name in (None, "chosen", "127.0.0.1", "")
            for strict in (False, True)
        ),
        matching(("user", 2, None), ("client-id", 2, None)),
        matching(("user", 0, "chosen"), ("client-id", 0, "chosen"), strict=True),
        matching(("user", 2, None), ("user", 1, None)),
        matching(("user", 2, None), ("ip", 1, None)),
    ],
    "alter_user_scram_credentials": [
        passwords(),
        *(passwords(("chosen", kind, count)) for kind in (1, 2) for count in (4095, 4096, 16384, 16385, -1)),
        *(passwords(("chosen", kind, 4096)) for kind in (-1, 0, 3)),
        *(passwords(("", 1, count)) for count in (4096, 1, None)),
        *(passwords(("gone", kind, None)) for kind in (0, 1, 2, 3)),
        passwords(("both", 1, 4096), ("both", 2, 4096)),
        passwords(("both", 1, None), ("both", 1, 4096)),
        passwords(("chosen", 1, None), ("chosen", 2, None)),
        passwords(("chosen", 1, None), ("chosen", 2, 8192)),
        passwords(("one", 1, 4096), ("two", 2, 4097), ("gone", 1, None), ("two", 1, 4096)),
        passwords(("chosen", 1, None)),
        {"upsertions": [{"name": "x", "mechanism": 1, "iterations": 4096, "salt": b"", "salted_password": b""}]},
    ],
    "describe_user_scram_credentials": [
        {"users": None},
        {"users": []},
        *({"users": [{"name": name} for name in names]} for names in (["chosen"], ["gone"], [""], ["one", "one"])),
        {"users": [{"name": name} for name in ("chosen", "one", "two", "gone", "gone")]},
    ],
    "describe_cluster": [{"endpoint_type": kind, "include_fenced_brokers": True} for kind in (-1, 0, 1, 2, 3)],
    "init_producer_id": [
        {"transactional_id": name, "transaction_timeout": timeout, "producer_id": given[0], "producer_epoch": given[1]}
        for name in (None, "")
        for timeout in (-1, 0, 900_001)
        for given in ((-1, -1), (5, -1), (-1, 3), (5, 3))
    ],
    "describe_log_dirs": [
        {"topics": None},
        {"topics": []},
        {"topics": [{"topic": PLAIN_TOPIC, "partitions": [0, 9, 0]}, {"topic": UNKNOWN_TOPIC, "partitions": [0]}]},
    ],
    "api_versions": [
        {"client_software_name": name, "client_software_version": version}
        for name, version in (
            ("", ""),
            ("x", "1"),
            ("x", "-1"),
            ("x-", "1"),
            ("x.y", "1.0-rc1"),
            ("é", "1"),
            ("x\n", "1"),
        )
    ],
}


# Share partitions are not coordinated yet: of those, only what cannot be one is the same.
SHARED_KEYS = [
    "g",
    "g:x:1",
    "g:AAAAAAAAAAAAAAAAAAAAAQ:x",
    ":AAAAAAAAAAAAAAAAAAAAAQ:1",
    "g:AAAAAAAAAAAAAAAAAAAAAQ:",
    "g:0:1:",
]
COORDINATED: dict[str, list[dict[str, Any]]] = {
    "find_coordinator": [
        {"key": "g", "coordinator_keys": ["g", "", "g", "x" * 300], "key_type": 0},
        {"key": "", "coordinator_keys": [], "key_type": 0},
        {"key": "g", "coordinator_keys": ["g", ""], "key_type": 9},
        *({"key": key, "coordinator_keys": [key], "key_type": 2, "since": 1} for key in SHARED_KEYS),
        *COORDINATED_KINDS,
    ]
}
IN_TRANSACTIONS: dict[str, list[dict[str, Any]]] = {
    "produce": [
        produced(make_batch(attributes=16, producer=(*identity, 0)), transactional_id=name)
        for name in ("chosen", "")
        for identity in NUMBERS
    ]
}
RANGES = SERVED | {"find_coordinator": (10, 0, 6)} | OF_TRANSACTIONS

CHOSEN |= COMMITS | ADMIN | COORDINATED | TRANSACTIONS
# Apache's broker tells what it has read so far of what the requests before these have changed.
SEEN_LATER = {"describe_client_quotas", "describe_user_scram_credentials"}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Peer]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    with two_brokers(tmp_path_factory.mktemp("chosen")) as pair:
        yield pair


@pytest.mark.parametrize("api", CHOSEN)
def test_same_answers_to_chosen_requests(api: str, peers: tuple[Peer, Peer]) -> None:
    """PRT-03, PRT-17: names, numbers, nulls and repetitions that a broker has to have an opinion about."""
    key, low, high = RANGES[api]
    found = []
    for values in CHOSEN[api]:
        for version in range(low, high + 1) if api in TRANSACTIONS else sorted({low, (low + high) // 2, high}):
            if version < values.get("since", 0):
                continue  # it cannot be written before
            text = compare(asking(key, version, **values), peers, settle=api == "create_topics")
            deadline = time.monotonic() + SETTLING_S
            while text and api in SEEN_LATER and time.monotonic() < deadline:
                time.sleep(0.1)
                text = compare(asking(key, version, **values), peers, settle=False)
            if text:
                found.append(f"{api} v{version}: {text}\n    {values}")
    assert not found, f"{len(found)} answers differ:\n" + "\n".join(found)


def test_same_answers_about_groups_with_members(peers: tuple[Peer, Peer]) -> None:
    """OFF-10: who may commit and read what, and what administrators may do while members are there and afterwards."""
    ours, theirs = (with_members(peer) for peer in peers)
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    answers = enumerate(zip(ours, theirs, strict=True))
    found = [f"{n}: api {a[0]} v{a[1]}: {text}" for n, (a, b) in answers if (text := difference(a[2], b[2]))]
    assert not found, f"{len(found)} answers differ:\n" + "\n".join(found)


def test_same_answers_where_no_transaction_is_coordinated(peers: tuple[Peer, Peer]) -> None:
    """TXN-03, PRT-03: the last one about transactions, because it deletes their topic. Who is no producer hears that even so,
    but from a coordinator: until there is one, an empty id and identities of -1 are as good as others."""
    for peer in peers:
        peer.ask(asking(20, 5, topic_names=[TRANSACTIONS_TOPIC]))
        while peer.ask(asking(26, 4, transactional_id="chosen")).error_code.name != "not_coordinator":
            time.sleep(0.05)
    asked = [(RANGES[api], values) for api, some in {**TRANSACTIONS, **IN_TRANSACTIONS}.items() for values in some]
    found = [
        f"api {key} v{version}: {text}\n    {values}"
        for (key, low, high), values in asked
        for version in range(low, high + 1)
        if (text := compare(asking(key, version, **values), peers, settle=False))
    ]
    assert not found, f"{len(found)} answers differ:\n" + "\n".join(found)


def test_same_answers_where_nothing_is_coordinated(peers: tuple[Peer, Peer]) -> None:
    """The last one of all: it deletes the offsets topic. What makes no sense is said even so."""
    for peer in peers:
        peer.ask(asking(20, 5, topic_names=[OFFSETS_TOPIC]))
        while peer.ask(asking(12, 4, group_id="g", member_id="m")).error_code.name != "not_coordinator":
            time.sleep(0.05)
    join = {"group_id": "g", "protocol_type": "consumer", "member_id": "me"}
    beat = {"group_id": "g", "member_id": "me", "rebalance_timeout": 1000, "subscribed_topic_names": ["t"]}
    asked = [
        *((11, {**join, "session_timeout": session}) for session in (1, 10_000)),
        (11, {**join, "session_timeout": 1, "group_id": ""}),
        *((14, {"group_id": group, "protocol_type": kind}) for group in ("g", "") for kind in ("consumer", None)),
        (14, {"group_id": "g", "protocol_type": "consumer", "protocol_name": "range"}),
        *((key, {"group_id": group}) for key in (12, 13, 47) for group in ("g", "")),
        *((68, {**beat, "member_epoch": epoch, "topic_partitions": []}) for epoch in (0, 1, -1, -2, -3)),
        *((68, {**beat, "topic_partitions": [], **wrong}) for wrong in ({"group_id": ""}, {"server_assignor": "x"})),
        (68, {**beat, "topic_partitions": None}),
        *((key, {"groups": ["g", ""], "group_ids": ["g", ""], "groups_names": ["g", ""]}) for key in (15, 16, 42, 69)),
    ]
    newest = {11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5, 42: 2, 47: 0, 68: 1, 69: 1}
    found = [compare(asking(key, newest[key], **values), peers, settle=False) for key, values in asked]
    assert not any(found), [row for row in zip(asked, found, strict=True) if row[1]]
