"""Requests that make no sense, whichever group they are about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consumers_bench import Consumer, Crowd
from ottla.coordination.checks import check_consumer, check_join, check_sync
from ottla.metadata.image import Image
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import JoinGroupRequest, SyncGroupRequest


def refusal(check: Callable[[], None]) -> tuple[Error, str | None]:
    with pytest.raises(KafkaError) as refused:
        check()
    return refused.value.error, refused.value.message


def test_joins() -> None:
    config = Crowd({}).config
    for session_ms in (5999, 1_800_001):
        join = JoinGroupRequest(group_id="g", session_timeout_ms=session_ms)
        assert refusal(lambda: check_join(join, config))[0] is Error.INVALID_SESSION_TIMEOUT  # noqa: B023
        join.group_id = ""
        assert refusal(lambda: check_join(join, config))[0] is Error.INVALID_GROUP_ID  # noqa: B023
    for session_ms in (6000, 1_800_000):
        check_join(JoinGroupRequest(group_id="g", session_timeout_ms=session_ms), config)


@pytest.mark.parametrize("said", [("consumer", None), (None, "range"), (None, None)])
def test_syncs_that_do_not_say_by_which_protocol(said: tuple[str | None, str | None]) -> None:
    """KIP-559. It counts for more than that the group has no name."""
    sync = SyncGroupRequest(group_id="", protocol_type=said[0], protocol_name=said[1])
    assert refusal(lambda: check_sync(sync, 5))[0] is Error.INCONSISTENT_GROUP_PROTOCOL
    assert refusal(lambda: check_sync(sync, 4))[0] is Error.INVALID_GROUP_ID
    sync.group_id = "g"
    check_sync(sync, 4)


INVALID = Error.INVALID_REQUEST
NEITHER_NAMES_NOR_REGEX = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
OTHER_ASSIGNOR = "ServerAssignor mine is not supported. Supported assignors: uniform, range."


@pytest.mark.parametrize(
    ("said", "version", "expected"),
    [
        ({"member_id": ""}, 1, (INVALID, "MemberId can't be empty.")),
        ({"member_id": "", "member_epoch": 3}, 0, (INVALID, "MemberId can't be empty.")),
        ({"member_id": "", "member_epoch": -1}, 0, (INVALID, "MemberId can't be empty.")),
        ({"group_id": ""}, 1, (INVALID, "GroupId can't be empty.")),
        ({"instance_id": " "}, 1, (INVALID, "InstanceId can't be empty.")),
        ({"rack_id": ""}, 1, (INVALID, "RackId can't be empty.")),
        ({"rebalance_timeout_ms": -1}, 1, (INVALID, "RebalanceTimeoutMs must be provided in first request.")),
        ({"topic_partitions": None}, 1, (INVALID, "TopicPartitions must be empty when (re-)joining.")),
        ({"subscribed_topic_names": None}, 1, (INVALID, NEITHER_NAMES_NOR_REGEX)),
        ({"member_epoch": -2}, 1, (INVALID, "InstanceId can't be null.")),
        ({"member_epoch": -3}, 1, (INVALID, "MemberEpoch is invalid.")),
        ({"server_assignor": "mine"}, 1, (Error.UNSUPPORTED_ASSIGNOR, OTHER_ASSIGNOR)),
    ],
)
def test_heartbeats_are_refused_in_kafkas_words(
    said: dict[str, object], version: int, expected: tuple[Error, str]
) -> None:
    crowd = Crowd({"t": 1})
    request = Consumer(crowd, "one").full()
    check_consumer(request, version, crowd.config, crowd.image)
    for name, value in said.items():
        setattr(request, name, value)
    assert refusal(lambda: check_consumer(request, version, crowd.config, crowd.image)) == expected


def test_the_consumer_protocol_is_served_only_where_the_cluster_has_agreed_on_it() -> None:
    crowd = Crowd({"t": 1})
    request = Consumer(crowd, "one").full()
    assert refusal(lambda: check_consumer(request, 1, crowd.config, Image()))[0] is Error.UNSUPPORTED_VERSION
