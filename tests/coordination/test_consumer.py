"""Heartbeats of consumer groups (KIP-848): joining, reconciling, leaving, and what is refused."""

from __future__ import annotations

from consumers_bench import GROUP, REBALANCE_TIMEOUT_MS, Consumer, Crowd, Request, topic_id
from machine_bench import Asked
from ottla.coordination import commits
from ottla.coordination.consumer_member import AWAY_EPOCH, STABLE, UNRELEASED, UNREVOKED
from ottla.coordination.machine import Decision
from ottla.metadata.records import ConfigRecord
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.commits import OffsetCommitRequest
from ottla.wire.messages.groups import ConsumerGroupHeartbeatResponse

SESSION_MS = 45_000


def two(crowd: Crowd) -> tuple[Consumer, Consumer]:
    """Two members, settled."""
    one, other = Consumer(crowd, "one").join(), Consumer(crowd, "other")
    crowd.pass_ms(2000)
    other.join()
    crowd.settle(one, other)
    return one, other


# --- joining and sharing


def test_the_first_member_gets_everything_and_the_records_are_apaches() -> None:
    crowd = Crowd({"t": 4})
    one = Consumer(crowd, "one").join()
    assert one.partitions() == [0, 1, 2, 3] and one.epoch == 2
    assert crowd.group().state == "Stable"
    assert [type(record.key).key for record in crowd.written()] == [5, 3, 7, 6, 8]


def test_a_second_member_waits_until_the_first_has_given_up_its_part() -> None:
    """TRAP-56, GRP-14: one is told to give up, says so later, and only then the other gets it."""
    crowd = Crowd({"t": 4})
    one, other = Consumer(crowd, "one").join(), Consumer(crowd, "other")
    crowd.pass_ms(2000)
    other.join()
    group = crowd.group()
    assert (other.epoch, other.partitions(), group.members["other"].state) == (3, [], UNRELEASED)
    one.beat()
    assert (one.epoch, one.partitions(), group.members["one"].state) == (2, [0, 1], UNREVOKED)
    other.beat()
    assert other.partitions() == [] and group.state == "Reconciling"
    one.send(one.request())  # does not say what it owns: it may own everything
    assert group.members["one"].state == UNREVOKED
    one.beat()
    assert (one.epoch, group.members["one"].state) == (3, STABLE)
    other.beat()
    assert other.partitions() == [2, 3] and group.state == "Stable"


def test_two_and_three_and_five_share_evenly() -> None:
    """GRP-04, GRP-05, GRP-10, GRP-14"""
    crowd, consumers = Crowd({"t": 4}), []
    for expected in ([4], [2, 2], [2, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1, 0]):
        crowd.pass_ms(2000)
        consumers.append(Consumer(crowd, f"c{len(consumers)}").join())
        crowd.settle(*consumers)
        assert sorted((len(c.uses) for c in consumers), reverse=True) == expected
        assert crowd.group().state == "Stable"


def test_targets_are_not_made_more_often_than_the_interval_says() -> None:
    """Members that come at once wait for one target; a group may have an interval of its own."""
    crowd = Crowd({"t": 4})
    Consumer(crowd, "one").join()
    other = Consumer(crowd, "other").join()
    group = crowd.group()
    assert (group.epoch, group.assignment_epoch, group.state) == (3, 2, "Assigning")
    assert other.epoch == 2 and other.partitions() == []
    crowd.pass_ms(1000)
    other.beat()
    assert (group.epoch, group.assignment_epoch) == (3, 3)
    crowd._change(
        ConfigRecord(resource_type=32, resource_name=GROUP, name="consumer.assignment.interval.ms", value="0")
    )
    Consumer(crowd, "third").join()
    assert (group.epoch, group.assignment_epoch) == (4, 4)


def test_members_choose_the_assignor_by_majority() -> None:
    crowd = Crowd({"t": 4, "u": 4})
    consumers = [Consumer(crowd, f"c{i}", ["t", "u"], assignor="range") for i in range(2)]
    for consumer in consumers:
        crowd.pass_ms(2000)
        consumer.join()
    crowd.settle(*consumers)
    assert [(c.partitions("t"), c.partitions("u")) for c in consumers] == [([0, 1], [0, 1]), ([2, 3], [2, 3])]


def test_intervals_are_the_groups_own_where_it_has_some() -> None:
    crowd = Crowd({"t": 1})
    names = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "50000"}
    crowd._change(*(ConfigRecord(resource_type=32, resource_name=GROUP, name=n, value=v) for n, v in names.items()))
    reply = Consumer(crowd, "one").send(Consumer(crowd, "one").full())
    assert isinstance(reply, ConsumerGroupHeartbeatResponse) and reply.heartbeat_interval_ms == 7000
    crowd.pass_ms(49_999)
    assert crowd.group().members
    crowd.pass_ms(1)
    assert not crowd.group().members


def test_the_assignment_is_told_when_it_changed_or_the_member_asks_in_full() -> None:
    crowd = Crowd({"t": 2})
    one = Consumer(crowd, "one").join()
    for request, is_told in ((one.request(), False), (one.full(), True)):
        reply = one.send(request)
        assert isinstance(reply, ConsumerGroupHeartbeatResponse) and (reply.assignment is not None) == is_told
    assert len(crowd.written()) == 5, "nothing changed, so nothing was written"


# --- topics


def test_a_topic_that_grows_is_shared_anew_at_the_next_heartbeat() -> None:
    crowd = Crowd({"t": 2})
    one = Consumer(crowd, "one").join()
    crowd.pass_ms(2000)
    crowd.grow("t", 4)
    assert one.partitions() == [0, 1]
    one.beat()
    assert (one.partitions(), one.epoch) == ([0, 1, 2, 3], 3)


def test_a_topic_that_comes_later_is_read_and_one_that_goes_is_not() -> None:
    crowd = Crowd({"t": 1})
    one = Consumer(crowd, "one", ["t", "u"]).join()
    crowd.pass_ms(2000)
    crowd.make("u", 2)
    one.beat()
    assert (one.partitions("t"), one.partitions("u")) == ([0], [0, 1])
    crowd.pass_ms(2000)
    crowd.delete("t")
    one.beat()
    crowd.settle(one, rounds=2)
    assert (one.partitions("t"), one.partitions("u")) == ([], [0, 1])
    assert crowd.group().state == "Stable"


def test_a_change_of_leaders_is_no_change_for_a_group() -> None:
    crowd = Crowd({"t": 1})
    one = Consumer(crowd, "one").join()
    crowd._change(*crowd._partitions("t", range(1)))
    one.beat()
    assert one.epoch == 2 and len(crowd.written()) == 5


def test_a_member_that_subscribes_to_something_else_gives_up_the_old_topic_at_once() -> None:
    crowd = Crowd({"t": 2, "u": 2})
    one = Consumer(crowd, "one").join()
    one.topics = ["u"]
    one._heed(one.send(one.full()))  # no new target within the interval
    assert one.uses == set() and crowd.group().members["one"].state == UNREVOKED
    crowd.settle(one, rounds=2)
    assert one.partitions("u") == [0, 1] and crowd.group().state == "Stable"


# --- going


def test_a_member_that_leaves_is_followed_by_the_others_and_its_tombstones() -> None:
    crowd = Crowd({"t": 4})
    one, other = two(crowd)
    before = len(crowd.log)
    other.leave()
    assert [(type(r.key).key, r.value is None) for r in crowd.written(before)] == [
        (8, True),
        (7, True),
        (5, True),
        (3, False),
    ]
    crowd.pass_ms(1000)
    one.beat()
    assert one.partitions() == [0, 1, 2, 3]
    one.leave()
    group = crowd.group()
    assert (group.state, group.metadata_hash) == ("Empty", 0)


def test_a_silent_member_is_out_after_its_session() -> None:
    """GRP-12, GRP-15"""
    crowd = Crowd({"t": 4})
    one, other = two(crowd)
    for _ in range(SESSION_MS // 5000):
        crowd.pass_ms(5000)
        one.beat()
    assert list(crowd.group().members) == ["one"]
    crowd.settle(one, rounds=2)
    assert one.partitions() == [0, 1, 2, 3]
    assert other.refused(other.request())[0] == Error.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_give_up_partitions_is_out_after_its_rebalance_timeout() -> None:
    crowd = Crowd({"t": 4})
    one, other = Consumer(crowd, "one").join(), Consumer(crowd, "other")
    crowd.pass_ms(2000)
    other.join()
    one.send(one.request())
    for _ in range(REBALANCE_TIMEOUT_MS // 5000):
        assert "one" in crowd.group().members
        crowd.pass_ms(5000)
        one.send(one.request())
        other.beat()
    assert list(crowd.group().members) == ["other"]
    crowd.settle(other, rounds=2)
    assert other.partitions() == [0, 1, 2, 3]


def test_after_a_takeover_everybody_has_a_full_session_and_revocations_a_full_timeout() -> None:
    """TRAP-54"""
    crowd = Crowd({"t": 4})
    one, other = Consumer(crowd, "one").join(), Consumer(crowd, "other")
    crowd.pass_ms(2000)
    other.join()
    one.send(one.request())
    crowd.pass_ms(REBALANCE_TIMEOUT_MS - 1)
    before = crowd.group()
    crowd.take_over()
    after = crowd.group()
    assert (after.members, after.targets, after.state) == (before.members, before.targets, before.state)
    crowd.pass_ms(REBALANCE_TIMEOUT_MS - 1)
    assert list(crowd.group().members) == ["one", "other"]
    crowd.pass_ms(1)
    assert list(crowd.group().members) == ["other"]
    crowd.pass_ms(SESSION_MS - REBALANCE_TIMEOUT_MS - 1)
    assert list(crowd.group().members) == ["other"]
    crowd.pass_ms(1)
    assert crowd.group().state == "Empty"


# --- static members


def test_a_static_member_that_is_away_keeps_its_partitions_and_gets_them_back_under_another_id() -> None:
    crowd = Crowd({"t": 4})
    one = Consumer(crowd, "one", instance_id="i1").join()
    other = Consumer(crowd, "other", instance_id="i2")
    crowd.pass_ms(2000)
    other.join()
    crowd.settle(one, other)
    had, epoch = other.partitions(), crowd.group().epoch
    other.leave()
    assert crowd.group().members["other"].epoch == AWAY_EPOCH
    crowd.pass_ms(5000)
    one.beat()
    again = Consumer(crowd, "other-2", instance_id="i2").join()
    assert (again.partitions(), crowd.group().epoch, list(crowd.group().members)) == (had, epoch, ["one", "other-2"])
    assert crowd.group().state == "Stable"
    error, said = other.refused(other.request(topic_partitions=[]))
    assert error == Error.FENCED_INSTANCE_ID
    assert said == "Static member other with instance id i2 was fenced by member other-2."


def test_what_a_static_member_holds_while_it_is_away_was_given_to_it_in_no_epoch() -> None:
    """As Apache Kafka writes it: whoever comes back commits for what it has from the first epoch it is in."""
    crowd = Crowd({"t": 1})
    one = Consumer(crowd, "one", instance_id="i1").join()
    assert crowd.group().members["one"].assigned == {topic_id("t"): {0: one.epoch}}
    one.leave()
    assert crowd.group().members["one"].assigned == {topic_id("t"): {0: 0}}


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    crowd = Crowd({"t": 1})
    one = Consumer(crowd, "one", instance_id="i1").join()
    one.leave()
    crowd.pass_ms(SESSION_MS)
    assert crowd.group().state == "Empty" and not crowd.group().instances


def test_an_instance_belongs_to_one_member_at_a_time() -> None:
    crowd = Crowd({"t": 1})
    Consumer(crowd, "one", instance_id="i1").join()
    twin = Consumer(crowd, "twin", instance_id="i1")
    said = (
        "Static member twin with instance id i1 cannot join the group because the instance id is owned by one member."
    )
    assert twin.refused(twin.full()) == (Error.UNRELEASED_INSTANCE_ID, said)
    stranger = Consumer(crowd, "x", instance_id="i9")
    assert stranger.refused(stranger.request(member_epoch=1)) == (Error.UNKNOWN_MEMBER_ID, "Instance id i9 is unknown.")
    assert stranger.refused(stranger.request(member_epoch=-2))[0] == Error.UNKNOWN_MEMBER_ID


def test_a_static_member_may_come_back_with_other_topics() -> None:
    crowd = Crowd({"t": 2, "u": 2})
    one = Consumer(crowd, "one", instance_id="i1").join()
    one.leave()
    crowd.pass_ms(2000)
    again = Consumer(crowd, "again", ["u"], instance_id="i1").join()
    crowd.settle(again, rounds=2)
    assert (again.partitions("t"), again.partitions("u")) == ([], [0, 1])
    assert crowd.group().topics() == {"u"}


# --- epochs


def test_the_epoch_before_is_accepted_from_one_that_owns_no_more_than_it_may() -> None:
    """TRAP-55: the answer that raised the epoch was lost."""
    crowd = Crowd({"t": 4})
    one = Consumer(crowd, "one").join()
    crowd.pass_ms(2000)
    crowd.grow("t", 5)
    one.beat(is_lost=True)
    assert (one.epoch, crowd.group().members["one"].epoch) == (2, 3)
    reply = one.send(one.request(topic_partitions=one.owned()))
    assert isinstance(reply, ConsumerGroupHeartbeatResponse) and reply.member_epoch == 3
    more = [Request.TopicPartitions(topic_id=topic_id("t"), partitions=[0, 9])]
    for owned in (None, more):
        error, said = one.refused(one.request(topic_partitions=owned))
        assert error == Error.FENCED_MEMBER_EPOCH and said is not None
        assert said.startswith(
            "The consumer group member has a smaller member epoch (2) than the one known by the group"
        )


def test_an_epoch_that_never_was_is_fenced() -> None:
    crowd = Crowd({"t": 1})
    one = Consumer(crowd, "one").join()
    error, said = one.refused(one.request(member_epoch=7))
    assert error == Error.FENCED_MEMBER_EPOCH
    assert said == (
        "The consumer group member has a greater member epoch (7) than the one known by the group coordinator (2). "
        "The member must abandon all its partitions and rejoin."
    )


# --- what is refused


def test_version_0_makes_an_id_for_a_member_that_has_none() -> None:
    crowd = Crowd({"t": 1})
    one = Consumer(crowd, "")
    reply = one.send(one.full(), version=0)
    assert isinstance(reply, ConsumerGroupHeartbeatResponse) and reply.member_id
    assert list(crowd.group().members) == [reply.member_id]


def test_groups_and_members_that_do_not_exist() -> None:
    crowd = Crowd({"t": 1})
    ghost = Consumer(crowd, "ghost")
    not_found = (Error.GROUP_ID_NOT_FOUND, f"Consumer group {GROUP} not found.")
    assert ghost.refused(ghost.request(member_epoch=1)) == not_found
    assert ghost.refused(ghost.request(member_epoch=-1)) == (Error.GROUP_ID_NOT_FOUND, f"Group {GROUP} not found.")
    Consumer(crowd, "one").join()
    unknown = (Error.UNKNOWN_MEMBER_ID, f"Member ghost is not a member of group {GROUP}.")
    assert ghost.refused(ghost.request(member_epoch=1)) == ghost.refused(ghost.request(member_epoch=-1)) == unknown


def test_a_tie_between_assignors() -> None:
    """Whoever came first: neither order counts."""
    for names in (("uniform", "range"), ("range", "uniform")):
        crowd = Crowd({"t": 1})
        for name in names:
            member = Consumer(crowd, name)
            request = member.full()
            request.server_assignor = name
            member.send(request)
        assert crowd.group().preferred_assignor() == "uniform"


def test_a_full_group_takes_no_more_members() -> None:
    crowd = Crowd({"t": 1}, group_consumer_max_size=1)
    one = Consumer(crowd, "one").join()
    other = Consumer(crowd, "other")
    said = "The consumer group has reached its maximum capacity of 1 members."
    assert other.refused(other.full()) == (Error.GROUP_MAX_SIZE_REACHED, said)
    one.join()
    assert one.partitions() == [0]


# --- what is asked of groups of either kind


def test_commits_need_the_epoch_of_the_member_or_one_since_which_it_holds_the_partition() -> None:
    """KIP-1251"""
    crowd = Crowd({"t": 2})
    one = Consumer(crowd, "one").join()
    crowd.pass_ms(2000)
    crowd.grow("t", 3)
    one.beat()
    group = crowd.group()
    assert group.check_commit("one", None, 3, 9, False) is None
    check = group.check_commit("one", None, 2, 9, False)
    assert check is not None
    check("t", topic_id("t"), 1)
    for partition in (2, 3):
        assert _error(lambda p=partition: check("t", topic_id("t"), p)) == Error.STALE_MEMBER_EPOCH
    assert _error(lambda: group.check_commit("one", None, 4, 9, False)) == Error.STALE_MEMBER_EPOCH
    assert _error(lambda: group.check_commit("two", None, 2, 9, False)) == Error.UNKNOWN_MEMBER_ID
    assert _error(lambda: group.check_commit("one", None, 2, 8, False)) == Error.UNSUPPORTED_VERSION
    assert _error(lambda: group.check_commit("", None, -1, 9, False)) == Error.UNKNOWN_MEMBER_ID
    assert group.check_commit("", None, -1, 9, True) is None
    assert _commit(crowd, 1).reply.topics[0].partitions[0].error_code == 0
    assert _commit(crowd, 2).error is Error.STALE_MEMBER_EPOCH, "the whole request"
    one.leave()
    assert crowd.group().check_commit("", None, -1, 9, False) is None


def _commit(crowd: Crowd, *partitions: int) -> Asked:
    """Member `one` commits in the epoch before its own."""
    asked = [OffsetCommitRequest.Topic.Partition(partition_index=index, committed_offset=1) for index in partitions]
    topics = [OffsetCommitRequest.Topic(name="t", topic_id=topic_id("t"), partitions=asked)]
    epoch = crowd.group().members["one"].epoch - 1
    commit = OffsetCommitRequest(group_id=GROUP, member_id="one", generation_id_or_member_epoch=epoch, topics=topics)
    return crowd.ask(commits.commit, commit, 9)


def test_offsets_are_fetched_by_members_at_their_epoch_and_by_anybody_who_is_none() -> None:
    crowd = Crowd({"t": 2})
    Consumer(crowd, "one").join()
    group = crowd.group()
    group.check_fetch(None, -1)
    group.check_fetch("one", 2)
    assert _error(lambda: group.check_fetch("one", 3)) == Error.STALE_MEMBER_EPOCH
    assert _error(lambda: group.check_fetch("two", 1)) == Error.UNKNOWN_MEMBER_ID
    assert _error(group.check_deletable) == Error.NON_EMPTY_GROUP


def test_the_end_of_a_group_is_written_in_an_order_that_can_be_replayed() -> None:
    crowd = Crowd({"t": 2})
    one = Consumer(crowd, "one", regex="t.*").join()
    crowd.settle(one, rounds=2)
    keys = [type(record.key).key for record in crowd.group().tombstones()]
    assert keys == [8, 7, 6, 5, 16, 4, 3]
    crowd.carry_out(Decision(records=crowd.group().tombstones()))
    assert crowd.groups.by_id == {}
    crowd.take_over()
    assert crowd.groups.by_id == {}


def _error(call: object) -> Error:
    assert callable(call)
    try:
        call()
    except KafkaError as error:
        return error.error
    raise AssertionError("it was allowed")
