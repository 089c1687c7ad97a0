"""Chosen requests about committed offsets and groups, in the order in which they are sent: later ones see what
earlier ones did.

Group names begin with "chosen", and none is used by other comparisons.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from compat.peers import COMPACTED_ID, COMPACTED_TOPIC, OFFSETS_TOPIC, PLAIN_ID, PLAIN_TOPIC, UNKNOWN_ID

ZERO_ID = uuid.UUID(int=0)
IDS = {PLAIN_TOPIC: PLAIN_ID, COMPACTED_TOPIC: COMPACTED_ID}
# Name or stand-in, and partitions.
Asked = tuple[str, Iterable[int]]
PLAIN: Asked = (PLAIN_TOPIC, (0, 1))
ODD: tuple[Asked, ...] = (
    (PLAIN_TOPIC, (9, -1, 0)),
    (COMPACTED_TOPIC, (0,)),
    ("chosen-none", (0, 1)),
    (OFFSETS_TOPIC, (0,)),
    ("", (0,)),
    ("bad/name", (0,)),
)


def _topic(name: str, **partitions: Any) -> dict[str, Any]:
    return {"name": name, "topic_id": IDS.get(name, UNKNOWN_ID), **partitions}


def committed(
    *asked: Asked, group: str = "chosen-simple", offset: int = 7, note: str | None = "note", **more: Any
) -> dict[str, Any]:
    one = {"committed_offset": offset, "committed_leader_epoch": 3, "committed_metadata": note}
    topics = [_topic(name, partitions=[{**one, "partition_index": i} for i in indexes]) for name, indexes in asked]
    return {"group_id": group, "topics": topics, **more}


def in_generation(generation: int, member: str = "", instance: str | None = None, **more: Any) -> dict[str, Any]:
    said = {"generation_id_or_member_epoch": generation, "member_id": member, "group_instance_id": instance}
    return committed(PLAIN, **said, **more)


def wanted(*asked: Asked, all_topics: bool = False) -> dict[str, Any]:
    return {"topics": None if all_topics else [_topic(name, partition_indexes=indexes) for name, indexes in asked]}


def fetched(*groups: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The first group for versions that know one, all of them for others."""
    first, topics = groups[0]
    many = [{"group_id": group, **said} for group, said in groups]
    old = {"since": 2} if topics["topics"] is None else {}
    return {"group_id": first, **topics, "groups": many, **old, **more}


def forgotten(group: str, *asked: Asked) -> dict[str, Any]:
    topics = [{"name": name, "partitions": [{"partition_index": i} for i in indexes]} for name, indexes in asked]
    return {"group_id": group, "topics": topics}


GROUPS = ("chosen-simple", "chosen-none", "", "chosen-refused", "chosen-expiring")
EVERYTHING = wanted(all_topics=True)

COMMITS: dict[str, list[dict[str, Any]]] = {
    "offset_commit": [
        committed(PLAIN),
        committed(*ODD),
        committed(*ODD[2:]),
        committed(),
        committed((PLAIN_TOPIC, ())),
        committed(PLAIN, PLAIN),
        committed((PLAIN_TOPIC, (0, 0))),
        *(committed(PLAIN, offset=offset) for offset in (0, -1, -2, -(2**63), 2**63 - 1, 7)),
        *(committed((PLAIN_TOPIC, (2,)), note=note) for note in (None, "", "x" * 4096, "x" * 4097, "é" * 4096)),
        committed((PLAIN_TOPIC, (2,)), note="\U0001f40d" * 2049),
        committed((PLAIN_TOPIC, (2,)), note="\U0001f40d" * 2048),
        committed(PLAIN, group=""),
        committed(PLAIN, group="chosen-refused", note="x" * 4097),
        *(committed(PLAIN, group="chosen-expiring", retention_time=ms) for ms in (-1, 3_600_000, -2)),
        *(in_generation(number, group="chosen-none") for number in (0, 1, 2**31 - 1)),
        in_generation(0, "m", group="chosen-none"),
        *(in_generation(number) for number in (-1, -2, 0, 1)),
        *(in_generation(number, "m") for number in (-1, 0)),
        *(in_generation(number, "", "i") for number in (-1, 0)),
        *(committed(*odd, group="chosen-none", generation_id_or_member_epoch=5) for odd in (ODD, ODD[2:], ODD[4:])),
    ],
    "offset_fetch": [
        fetched(("chosen-simple", wanted(PLAIN))),
        fetched(("chosen-simple", wanted(*ODD))),
        fetched(("chosen-simple", wanted())),
        fetched(("chosen-simple", EVERYTHING)),
        fetched(("chosen-simple", wanted(PLAIN, PLAIN))),
        fetched(("chosen-simple", wanted((PLAIN_TOPIC, (0, 0))))),
        fetched(("chosen-simple", wanted((PLAIN_TOPIC, (0, 1, 2)))), require_stable=True),
        *(fetched((group, wanted(PLAIN, *ODD))) for group in GROUPS),
        *(fetched((group, EVERYTHING)) for group in GROUPS),
        fetched(*((group, wanted(PLAIN)) for group in GROUPS)),
        fetched(*(("chosen-simple", wanted(PLAIN)) for _ in "ab")),
        {"groups": [], "since": 8},
        *(
            {"since": 9, "groups": [{"group_id": group, "member_id": member, "member_epoch": epoch, **wanted(PLAIN)}]}
            for group in ("chosen-simple", "chosen-none")
            for member in (None, "", "m")
            for epoch in (-1, 0, 3)
        ),
    ],
    "offset_delete": [
        forgotten("chosen-simple", (PLAIN_TOPIC, (2,))),
        forgotten("chosen-simple", (PLAIN_TOPIC, (2,)), (PLAIN_TOPIC, (1,))),
        forgotten("chosen-simple", (PLAIN_TOPIC, (2, 9, -1)), *ODD[1:]),
        forgotten("chosen-simple", *ODD[2:]),
        forgotten("chosen-simple"),
        forgotten("chosen-simple", (PLAIN_TOPIC, ())),
        forgotten("chosen-none", PLAIN),
        forgotten("chosen-none", *ODD[2:]),
        forgotten("", PLAIN),
        forgotten("chosen-expiring", PLAIN),
    ],
    "list_groups": [
        {},
        *(
            {"states_filter": states}
            for states in (["Empty"], ["empty "], ["EMPTY", "Stable"], ["Stable"], ["x"], [""])
        ),
        *(
            {"types_filter": kinds}
            for kinds in (["classic"], ["Classic", "consumer"], ["CONSUMER"], ["x"], [""], [" classic"])
        ),
        {"states_filter": ["empty"], "types_filter": ["share"]},
        {"types_filter": ["streams"]},
    ],
    "describe_groups": [
        {"groups": list(GROUPS)},
        {"groups": ["chosen-simple", "chosen-simple"]},
        {"groups": []},
        {"groups": ["chosen-simple", "chosen-none"], "include_authorized_operations": True},
    ],
    "consumer_group_describe": [
        {"group_ids": list(GROUPS)},
        {"group_ids": ["chosen-none", "chosen-none"], "include_authorized_operations": True},
        {"group_ids": []},
    ],
    "delete_groups": [
        {"groups_names": ["chosen-none", "chosen-none"]},
        {"groups_names": []},
        {"groups_names": ["chosen-expiring", ""]},
        {"groups_names": ["", "chosen-simple", "chosen-none"]},
    ],
}
