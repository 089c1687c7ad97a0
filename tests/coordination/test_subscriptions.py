"""Expressions instead of topic names: evaluated by the broker, in linear time."""

from __future__ import annotations

import time

from consumers_bench import Consumer, Crowd
from ottla.coordination import subscriptions
from ottla.coordination.records import ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue
from ottla.wire.errors import Error
from ottla.wire.messages.groups import ConsumerGroupHeartbeatResponse


def matched(crowd: Crowd) -> dict[str, set[str]]:
    return {regex: set(resolved.topics) for regex, resolved in crowd.group().regexes.items()}


def test_the_whole_name_has_to_match_and_internal_topics_are_no_exception() -> None:
    names = ["orders", "orders-2", "my-orders", "__consumer_offsets"]
    assert subscriptions.matching("orders.*", names) == {"orders", "orders-2"}
    assert subscriptions.matching("order", names) == frozenset()
    assert subscriptions.matching(".*", names) == frozenset(names)
    assert subscriptions.matching("[", names) == frozenset(), "as another release may have accepted it"


def test_an_expression_that_stalls_python_is_evaluated_at_once() -> None:
    began = time.monotonic()
    assert subscriptions.matching("(a*)*b", ["a" * 200] * 1000) == frozenset()
    assert time.monotonic() - began < 5


def test_expressions_that_cannot_be_are_refused_and_nothing_changes() -> None:
    crowd = Crowd({"t": 1})
    one = Consumer(crowd, "one", regex="[a")
    said = "SubscribedTopicRegex `[a` is not a valid regular expression: missing closing ]."
    assert one.refused(one.full()) == (Error.INVALID_REGULAR_EXPRESSION, said)
    assert crowd.groups.by_id == {} and crowd.log == []


def test_the_first_answer_is_empty_and_a_later_one_has_the_topics() -> None:
    crowd = Crowd({"ta": 2, "tb": 1, "x": 1})
    one = Consumer(crowd, "one", regex="t.").join()
    assert one.uses == set() and crowd.group().epoch == 1
    crowd.pass_ms(0)  # the alarm that rings at once
    assert matched(crowd) == {"t.": {"ta", "tb"}} and crowd.group().epoch == 2
    one.beat()
    assert (one.partitions("ta"), one.partitions("tb"), one.partitions("x")) == ([0, 1], [0], [])
    record = next(r for r in crowd.written() if isinstance(r.key, ConsumerGroupRegularExpressionKey))
    assert isinstance(record.value, ConsumerGroupRegularExpressionValue)
    assert (record.value.topics, record.value.version) == (["ta", "tb"], crowd.image.offset)


def test_new_topics_are_noticed_at_a_heartbeat_but_not_more_often_than_every_ten_seconds() -> None:
    crowd = Crowd({"ta": 1})
    one = Consumer(crowd, "one", regex="t.").join()
    crowd.settle(one, rounds=2)
    crowd.make("tb", 1)
    crowd.settle(one, rounds=7)
    assert one.partitions("tb") == []
    crowd.settle(one, rounds=4)
    assert one.partitions("tb") == [0]


def test_members_with_one_expression_share_its_topics_and_the_last_one_takes_it_away() -> None:
    crowd = Crowd({"ta": 2})
    one, other = Consumer(crowd, "one", regex="t.").join(), Consumer(crowd, "other", regex="t.")
    crowd.pass_ms(2000)
    one.beat()
    other.join()
    crowd.settle(one, other)
    assert len(one.uses) == len(other.uses) == 1
    one.leave()
    assert matched(crowd) == {"t.": {"ta"}}
    other.leave()
    assert matched(crowd) == {} and crowd.group().metadata_hash == 0


def test_a_member_that_goes_back_to_plain_names_gives_up_what_only_its_expression_brought() -> None:
    """TRAP-77"""
    crowd = Crowd({"ta": 2, "u": 1})
    one = Consumer(crowd, "one", ["u"], regex="t.").join()
    crowd.settle(one, rounds=3)
    assert (one.partitions("ta"), one.partitions("u")) == ([0, 1], [0])
    one.regex = ""
    one._heed(one.send(one.full()))
    crowd.settle(one, rounds=3)
    assert (one.partitions("ta"), one.partitions("u")) == ([], [0])
    assert matched(crowd) == {} and crowd.group().state == "Stable"


def test_another_expression_takes_the_place_of_the_first() -> None:
    crowd = Crowd({"ta": 1, "ub": 1})
    one = Consumer(crowd, "one", regex="t.").join()
    crowd.settle(one, rounds=11)
    one.regex = "u."
    reply = one.send(one.full())
    assert isinstance(reply, ConsumerGroupHeartbeatResponse)
    one._heed(reply)
    crowd.settle(one, rounds=3)
    assert (one.partitions("ta"), one.partitions("ub")) == ([], [0])
    assert matched(crowd) == {"u.": {"ub"}}


def test_what_expressions_stand_for_survives_a_takeover() -> None:
    crowd = Crowd({"ta": 1})
    one = Consumer(crowd, "one", regex="t.").join()
    crowd.settle(one, rounds=2)
    before = matched(crowd)
    crowd.take_over()
    assert matched(crowd) == before == {"t.": {"ta"}}
    one.beat()
    assert one.partitions("ta") == [0] and crowd.group().state == "Stable"
