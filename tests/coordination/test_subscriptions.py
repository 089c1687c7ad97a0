"""Expressions instead of topic names: evaluated by the broker, in linear time, and never for long at a time."""

from __future__ import annotations

import time
from random import Random

import pytest

from consumers_bench import GROUP, Consumer, Crowd
from ottla.coordination import consumer, subscriptions
from ottla.coordination.machine import Decision
from ottla.coordination.records import ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue
from ottla.coordination.subscriptions import Evaluation
from ottla.wire.errors import Error, KafkaError
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
    began = time.process_time()
    assert subscriptions.matching("(a*)*b", ["a" * 200] * 1000) == frozenset()
    assert time.process_time() - began < 5


def names(count: int, chars: int, letters: str = "ab") -> list[str]:
    chance = Random(3)
    return ["".join(chance.choices(letters, k=chars)) for _ in range(count)]


def test_a_thousand_captures_cost_nothing() -> None:
    """RE2 would work out each of them for each topic: seconds."""
    began = time.process_time()
    assert len(subscriptions.matching("(x?)" * 1000 + ".*", names(1000, 30))) == 1000
    assert time.process_time() - began < 2


# The worst that is accepted: RE2 cannot remember what it has worked out, and looks at its whole program again and again.
SLOW = "(a|b|ab)*" * 1100 + "c"


def test_a_long_evaluation_has_many_slices() -> None:
    evaluation, slices = Evaluation([SLOW], names(200, 30)), 1
    while not evaluation.go_on():
        assert evaluation.found == {}
        slices += 1
    assert evaluation.found == {SLOW: frozenset()} and slices > 8
    short = Evaluation(["t.*", "u.*"], ["ta", "tb", "ua"])
    assert short.go_on() and short.found == {"t.*": {"ta", "tb"}, "u.*": {"ua"}}


def test_many_expressions_do_not_go_into_one_slice_either() -> None:
    evaluation, slices = Evaluation([f"{'a|' * 4000}{n}" for n in range(20)], []), 1
    while not evaluation.go_on():
        slices += 1
    assert slices > 10


def test_an_ordinary_group_with_many_topics_is_evaluated_in_few_slices() -> None:
    crowd = Crowd(dict.fromkeys(names(1000, 16, "abcdefgh"), 1))
    Consumer(crowd, "one", regex="[a-d].*").join()
    crowd.pass_ms(0)
    assert len(matched(crowd)["[a-d].*"]) > 400 and crowd.slices < 10


@pytest.mark.parametrize(
    "regex",
    [
        "(a|b|ab)*" * 5000 + "c",
        "(x?)" * 2501,
        "(a|(b|ab)*c){900}" * 9,
        "(a{1000}){30}",
        "a{1000}" * 100,
        r"\pL" * 51,
        r"[^\PN]" * 51,
        r"\pL{1000}",
    ],
    ids=lambda regex: regex[:12],
)
def test_expressions_that_would_take_too_long_are_refused_and_nothing_changes(regex: str) -> None:
    crowd = Crowd({"t": 1})
    error, said = Consumer(crowd, "one", regex=regex).refused(Consumer(crowd, "one", regex=regex).full())
    assert error is Error.INVALID_REGULAR_EXPRESSION and said is not None
    assert crowd.groups.by_id == {} and crowd.log == []


@pytest.mark.parametrize("wild", ["", ".*"])
def test_long_alternations_of_topic_names_are_accepted(wild: str) -> None:
    topics = names(200, 40, "abcdefghijklmnopqrstuvwxyz-_.")
    assert subscriptions.matching("|".join(topic + wild for topic in topics), [*topics, "t"]) == frozenset(topics)


def test_a_name_that_would_take_too_long_alone() -> None:
    """Ids of transactions, unlike names of topics, may be as long as a string."""
    with pytest.raises(KafkaError) as caught:
        subscriptions.matching(SLOW, ["a" * 30_000])
    assert caught.value.error is Error.INVALID_REGULAR_EXPRESSION
    assert subscriptions.matching("a*", ["a" * 30_000]) == {"a" * 30_000}


def test_members_that_come_and_go_during_an_evaluation() -> None:
    """What nobody has any more is not written down; what came meanwhile waits for its turn."""
    crowd = Crowd({"ta": 1, "ub": 1})
    one, other = Consumer(crowd, "one", regex="t.").join(), Consumer(crowd, "other", regex="u.").join()
    assert crowd.groups.timers.take_due(crowd.moment.elapsed_ms)
    (order,) = consumer.evaluate(crowd.groups, GROUP, "", crowd.moment).orders
    assert isinstance(order, consumer.Evaluating) and order.evaluation.go_on()
    one.leave()
    Consumer(crowd, "late", regex="x.").join()
    crowd.pass_ms(0)
    assert matched(crowd) == {}, "not evaluated twice at a time"
    crowd.carry_out(consumer.resolve(crowd.groups, order, crowd.moment))
    assert matched(crowd) == {"u.": {"ub"}}
    crowd.settle(other, rounds=12)
    assert matched(crowd) == {"u.": {"ub"}, "x.": set()}


def test_a_group_that_is_gone_when_its_evaluation_ends() -> None:
    crowd = Crowd({"ta": 1})
    Consumer(crowd, "one", regex="t.").join()
    (order,) = consumer.evaluate(crowd.groups, GROUP, "", crowd.moment).orders
    assert isinstance(order, consumer.Evaluating) and order.evaluation.go_on()
    del crowd.groups.by_id[GROUP]
    assert consumer.resolve(crowd.groups, order, crowd.moment).records == []


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


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_group_that_ends_while_its_expressions_are_evaluated(comes_again: bool) -> None:
    """Records about it would bring it back, or be of another one of its name."""
    crowd = Crowd({"ta": 1})
    Consumer(crowd, "one", regex="t.").join()
    (order,) = consumer.evaluate(crowd.groups, GROUP, "", crowd.moment).orders
    assert isinstance(order, consumer.Evaluating) and order.evaluation.go_on()
    crowd.carry_out(Decision(records=crowd.group().tombstones()))
    if comes_again:
        Consumer(crowd, "other", regex="t.").join()
    assert consumer.resolve(crowd.groups, order, crowd.moment).records == []


def test_what_expressions_stand_for_survives_a_takeover() -> None:
    crowd = Crowd({"ta": 1})
    one = Consumer(crowd, "one", regex="t.").join()
    crowd.settle(one, rounds=2)
    before = matched(crowd)
    crowd.take_over()
    assert matched(crowd) == before == {"t.": {"ta"}}
    one.beat()
    assert one.partitions("ta") == [0] and crowd.group().state == "Stable"
