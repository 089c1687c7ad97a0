"""Chosen requests about transactions, in the order in which they are sent: later ones see what earlier ones did.

Nobody here knows a producer id that a broker gave out: these are strangers' words. What producers are told that do know
theirs is in the scripts (`test_transaction_scripts.py`). Transactional ids begin with "chosen".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from compat.peers import COMPACTED_TOPIC, OFFSETS_TOPIC, PLAIN_TOPIC

IDS = ("chosen", "chosen-none", "", "x" * 300)
# Producer id and epoch.
NUMBERS = ((77, 0), (-1, -1), (77, -1), (-1, 0), (2**63 - 1, 2**15 - 1))
MANY: tuple[tuple[str, Iterable[int]], ...] = (
    (PLAIN_TOPIC, (0, 1)),
    (PLAIN_TOPIC, (9, -1, 0, 0)),
    (COMPACTED_TOPIC, ()),
    ("chosen-none", (0,)),
    (OFFSETS_TOPIC, (0,)),
    ("", (0,)),
    ("bad/name", (0,)),
)
COORDINATED_KINDS = [
    {"key": key, "coordinator_keys": [key, "", key], "key_type": 1, "since": 1} for key in ("chosen", "", "x" * 300)
]


def strangers() -> Iterator[dict[str, Any]]:
    for name in IDS:
        for producer_id, epoch in NUMBERS[: 2 if name else None]:
            yield {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}


def added(
    topics: Iterable[tuple[str, Iterable[int]]], who: dict[str, Any], verify_only: bool = False
) -> dict[str, Any]:
    """In the words of clients and in those of brokers."""
    named = [{"name": name, "partitions": list(indexes)} for name, indexes in topics]
    old = {f"v3_and_below_{name}": value for name, value in {**who, "topics": named}.items()}
    one = {**who, "topics": named, "verify_only": verify_only}
    return {**old, "transactions": [one, {**one, "transactional_id": "chosen-other"}, one]}


def offsets(*asked: tuple[str, Iterable[int]], note: str | None = "note", **more: Any) -> dict[str, Any]:
    one = {"committed_offset": 5, "committed_leader_epoch": 3, "committed_metadata": note}
    topics = [{"name": name, "partitions": [{**one, "partition_index": i} for i in indexes]} for name, indexes in asked]
    who = {"transactional_id": "chosen", "producer_id": 77, "producer_epoch": 0, "group_id": "chosen-group"}
    return {**who, "topics": topics, **more}


def marked(*asked: tuple[str, Iterable[int]], **more: Any) -> dict[str, Any]:
    topics = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in asked]
    one = {"producer_id": 77, "producer_epoch": 0, "transaction_result": True, "topics": topics, "coordinator_epoch": 0}
    return {"markers": [{**one, **more}]}


ONE = {"transactional_id": "chosen", "producer_id": 77, "producer_epoch": 0}

TRANSACTIONS: dict[str, list[dict[str, Any]]] = {
    "init_transactions": [
        {"transactional_id": name, "transaction_timeout": timeout, "producer_id": given[0], "producer_epoch": given[1]}
        for name in ("chosen", "")
        for timeout in (-1, 0, 900_001, 1, 60_000)
        for given in ((-1, -1), (5, -1), (-1, 3), (5, 3), (-2, -2))
    ],
    "add_partitions_to_txn": [
        *(added([(PLAIN_TOPIC, [0])], who) for who in strangers()),
        *(added(MANY[:count], ONE, verify) for count in range(len(MANY) + 1) for verify in (False, True)),
        *(added([MANY[n]], ONE) for n in range(len(MANY))),
    ],
    "add_offsets_to_txn": [{**who, "group_id": group} for who in strangers() for group in ("chosen-group", "")],
    "end_txn": [{**who, "committed": committed} for who in strangers() for committed in (True, False)],
    "txn_offset_commit": [
        *(offsets((PLAIN_TOPIC, [0]), **who) for who in strangers()),
        *(offsets(*MANY[:count]) for count in range(len(MANY) + 1)),
        *(offsets(MANY[n]) for n in range(len(MANY))),
        offsets((PLAIN_TOPIC, [0]), group_id=""),
        offsets(MANY[3], group_id=""),
        offsets((PLAIN_TOPIC, [0]), note="x" * 5000),
        offsets((PLAIN_TOPIC, [0]), generation_id=5, member_id="m", group_instance_id="i"),
    ],
    "write_txn_markers": [
        marked(MANY[0], (COMPACTED_TOPIC, (9, -1)), MANY[2], coordinator_epoch=-1),
        marked((PLAIN_TOPIC, [9])),
        *(marked(MANY[n]) for n in (3, 5, 6)),
        marked((PLAIN_TOPIC, [2])),
        marked((PLAIN_TOPIC, [2]), producer_epoch=-1),
        marked((PLAIN_TOPIC, [2]), transaction_result=False, coordinator_epoch=-1),
        *(marked((PLAIN_TOPIC, [2, 9]), transaction_version=level) for level in (-1, 0, 3)),
        marked(),
        {"markers": []},
    ],
    "describe_transactions": [{"transactional_ids": ids} for ids in (IDS, (), ("chosen", "chosen"), ("chosen-none",))],
    "list_transactions": [
        {
            "state_filters": states,
            "producer_id_filters": [],
            "duration_filter": duration,
            "transactional_id_pattern": like,
        }
        for states in ((), ("Empty",), ("Ongoing", "Nonsense", ""), ("empty",))
        for duration in (-1, 0, 3_600_000)
        for like in (None, "", "chosen", "chosen.*", "(", "nothing")
    ],
}
RANGES = {
    "init_transactions": (22, 0, 5),
    "add_partitions_to_txn": (24, 0, 5),
    "add_offsets_to_txn": (25, 0, 4),
    "end_txn": (26, 0, 5),
    "write_txn_markers": (27, 1, 2),
    "txn_offset_commit": (28, 0, 5),
    "describe_transactions": (65, 0, 0),
    "list_transactions": (66, 0, 2),
}
