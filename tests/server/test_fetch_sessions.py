"""Fetch sessions (KIP-227): what a session remembers, what it mentions again, and when it is refused."""

from __future__ import annotations

import random

import pytest

from ottla.server.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchSessions
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchRequest, FetchResponse

Asked = FetchRequest.Topic.Partition
Answer = FetchResponse.Topic.Partition


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def table(slots: int = 10, clock: Clock | None = None) -> FetchSessions:
    return FetchSessions(slots, 120.0, random.Random(1), clock or Clock())


def asks(session_id: int, epoch: int, offsets: dict[int, int], forget: tuple[int, ...] = ()) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.Topic(topic="t", partitions=[Asked(partition=p, fetch_offset=o) for p, o in offsets.items()])
        ]
        if offsets
        else [],
        forgotten_topics_data=[FetchRequest.ForgottenTopic(topic="t", partitions=list(forget))] if forget else [],
    )


def refused(sessions: FetchSessions, request: FetchRequest, version: int = 12) -> Error:
    with pytest.raises(KafkaError) as caught:
        sessions.plan(request, version)
    return caught.value.error


def test_a_full_fetch_begins_a_session_and_an_incremental_one_goes_on() -> None:
    sessions = table()
    first = sessions.plan(asks(0, INITIAL_EPOCH, {0: 5, 1: 6}), 12)
    assert first.session is not None and not first.incremental
    second = sessions.plan(asks(first.session.id, 1, {1: 9, 2: 1}, forget=(0,)), 12)
    assert second.incremental
    assert {key: wanted.offset for key, wanted in second.wanted.items()} == {("t", 1): 9, ("t", 2): 1}
    third = sessions.plan(asks(first.session.id, 2, {}), 12)
    assert list(third.wanted) == [("t", 1), ("t", 2)]


def test_a_final_epoch_has_no_session_and_ends_the_old_one() -> None:
    sessions = table()
    begun = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session
    assert begun is not None
    assert sessions.plan(asks(begun.id, FINAL_EPOCH, {0: 0}), 12).session is None
    assert len(sessions) == 0


def test_wrong_ids_and_epochs_are_refused() -> None:
    sessions = table()
    begun = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session
    assert begun is not None
    assert refused(sessions, asks(begun.id + 1, 1, {})) is Error.FETCH_SESSION_ID_NOT_FOUND
    assert refused(sessions, asks(begun.id, 7, {})) is Error.INVALID_FETCH_SESSION_EPOCH
    assert refused(sessions, asks(begun.id, 1, {}), version=13) is Error.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_epoch_is_looked_at_again_when_the_reply_is_made() -> None:
    """TRAP-23: a duplicate that came while the first waited gets INVALID_FETCH_SESSION_EPOCH."""
    sessions = table()
    begun = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session
    assert begun is not None
    parked = sessions.plan(asks(begun.id, 1, {}), 12)
    sessions.plan(asks(begun.id, 2, {}), 12)
    with pytest.raises(KafkaError) as caught:
        parked.check_epoch()
    assert caught.value.error is Error.INVALID_FETCH_SESSION_EPOCH


def test_an_incremental_answer_mentions_only_news() -> None:
    """TRAP-22"""
    sessions = table()
    begun = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12)
    assert begun.session is not None
    key = ("t", 0)
    assert begun.session_mentions(key, Answer(high_watermark=3, log_start_offset=0), has_records=False)
    later = sessions.plan(asks(begun.session.id, 1, {}), 12)
    same = Answer(high_watermark=3, log_start_offset=0)
    assert not later.session_mentions(key, same, has_records=False)
    assert later.session_mentions(key, same, has_records=True)
    assert later.session_mentions(key, Answer(high_watermark=4, log_start_offset=0), has_records=False)
    assert later.session_mentions(key, Answer(high_watermark=4, log_start_offset=1), has_records=False)
    assert later.session_mentions(key, Answer(error_code=3, high_watermark=-1), has_records=False)
    assert later.session_mentions(key, Answer(high_watermark=4, log_start_offset=1), has_records=False), "well again"
    cut_back = Answer(
        high_watermark=5, log_start_offset=1, diverging_epoch=Answer.EpochEndOffset(epoch=2, end_offset=3)
    )
    assert later.session_mentions(key, cut_back, has_records=False)
    assert later.session_mentions(key, Answer(high_watermark=5, log_start_offset=1), has_records=False), (
        "not heard before"
    )


def test_partitions_that_gave_data_move_last() -> None:
    """TRAP-22"""
    sessions = table()
    begun = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0}), 12).session
    assert begun is not None
    begun.move_last([("t", 0)])
    assert [index for _, index in begun.partitions] == [1, 2, 0]


def test_a_session_without_partitions_is_over() -> None:
    sessions = table()
    begun = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session
    assert begun is not None
    assert sessions.plan(asks(begun.id, 1, {}, forget=(0,)), 12).session is None
    assert len(sessions) == 0


def test_a_full_table_makes_room_only_for_good_reasons() -> None:
    clock = Clock()
    sessions = table(slots=2, clock=clock)
    small = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session
    sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0}), 12)
    assert sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session is None
    clock.now = 121.0
    assert sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session is not None
    assert small is not None and refused(sessions, asks(small.id, 1, {})) is Error.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 2


def test_a_larger_session_takes_the_place_of_a_smaller_one_that_had_its_time() -> None:
    clock = Clock()
    sessions = table(slots=2, clock=clock)
    small = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session
    large = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0}), 12).session
    assert small is not None and large is not None
    clock.now = 100.0
    for session in (small, large):
        sessions.plan(asks(session.id, 1, {}), 12)
    assert sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0}), 12).session is None, "they are too young to give way"
    clock.now = 121.0
    assert sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session is None, "no larger than the smallest"
    assert sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0}), 12).session is not None
    assert refused(sessions, asks(small.id, 2, {})) is Error.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.plan(asks(large.id, 2, {}), 12).session is large


def test_followers_come_before_consumers() -> None:
    """However small a follower's session is, none of a consumer takes its place; it takes theirs, however young they are."""
    clock = Clock()
    sessions = table(slots=2, clock=clock)
    large = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0}), 12).session
    small = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0}), 12).session
    request = asks(0, INITIAL_EPOCH, {0: 0})
    request.replica_id = 2
    follower = sessions.plan(request, 12).session
    assert small is not None and large is not None and follower is not None
    assert refused(sessions, asks(small.id, 1, {})) is Error.FETCH_SESSION_ID_NOT_FOUND
    clock.now = 121.0
    for session in (follower, large):
        sessions.plan(asks(session.id, 1, {}), 12)
    assert sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0}), 12).session is None
    assert sessions.plan(asks(0, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0, 3: 0}), 12).session is not None
    assert refused(sessions, asks(large.id, 2, {})) is Error.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.plan(asks(follower.id, 2, {}), 12).session is follower


def test_the_epoch_wraps_to_one() -> None:
    sessions = table()
    begun = sessions.plan(asks(0, INITIAL_EPOCH, {0: 0}), 12).session
    assert begun is not None
    begun.epoch = 2**31 - 1
    sessions.plan(asks(begun.id, 2**31 - 1, {}), 12)
    assert begun.epoch == 1
