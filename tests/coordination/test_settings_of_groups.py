"""What the settings of groups bring about, each with a value of its own."""

from __future__ import annotations

import pytest

from consumers_bench import Consumer, Crowd
from ottla.config.changes import check_group
from ottla.coordination.checks import check_consumer, check_join
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import JoinGroupRequest


def test_the_longest_session_of_a_classic_member() -> None:
    """group.max.session.timeout.ms"""
    config = Crowd({}, group_max_session_timeout_ms=20_000).config
    check_join(JoinGroupRequest(group_id="g", session_timeout_ms=20_000), config)
    with pytest.raises(KafkaError) as refused:
        check_join(JoinGroupRequest(group_id="g", session_timeout_ms=20_001), config)
    assert refused.value.error is Error.INVALID_SESSION_TIMEOUT


BOUNDS = {
    "group.consumer.max.session.timeout.ms": (50_000, "consumer.session.timeout.ms", 50_001),
    "group.consumer.max.heartbeat.interval.ms": (7_000, "consumer.heartbeat.interval.ms", 7_001),
    "group.consumer.min.assignment.interval.ms": (500, "consumer.assignment.interval.ms", 499),
    "group.consumer.max.assignment.interval.ms": (2_000, "consumer.assignment.interval.ms", 2_001),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_on_what_a_group_may_have_for_itself(bound: str) -> None:
    value, name, beyond = BOUNDS[bound]
    config = Crowd({}, **{bound.replace(".", "_"): value}).config
    check_group(config, {name: str(value)})
    with pytest.raises(KafkaError, match=bound) as refused:
        check_group(config, {name: str(beyond)})
    assert refused.value.error is Error.INVALID_CONFIG


@pytest.mark.parametrize("bound", BOUNDS)
def test_what_groups_have_by_default_must_lie_between_the_bounds(bound: str) -> None:
    value, name, beyond = BOUNDS[bound]
    assert Crowd({}, **{bound.replace(".", "_"): value}).config[bound] == value
    with pytest.raises(KafkaError, match=bound):
        Crowd({}, **{bound.replace(".", "_"): value, f"group.{name}": beyond})


@pytest.mark.parametrize(("interval_ms", "evaluations"), [(20_000, 3), (600_000, 1)])
def test_expressions_are_evaluated_anew_after_so_long_even_if_no_topic_came(interval_ms: int, evaluations: int) -> None:
    """group.consumer.regex.refresh.interval.ms"""
    crowd = Crowd({"ta": 1}, group_consumer_regex_refresh_interval_ms=interval_ms)
    one = Consumer(crowd, "one", regex="t.").join()
    crowd.settle(one, rounds=20)
    assert crowd.slices == 1
    crowd.settle(one, rounds=25)
    assert crowd.slices == evaluations
    assert one.partitions("ta") == [0] and crowd.group().epoch == 2, "nothing has changed"


def test_the_assignors_that_are_offered_and_the_first_of_them_by_default() -> None:
    """group.consumer.assignors"""
    crowd = Crowd({"t": 2, "u": 2}, group_consumer_assignors="range")
    request = Consumer(crowd, "other", assignor="uniform").full()
    with pytest.raises(KafkaError, match="Supported assignors: range") as refused:
        check_consumer(request, 1, crowd.config, crowd.image)
    assert refused.value.error is Error.UNSUPPORTED_ASSIGNOR
    consumers = [Consumer(crowd, f"c{number}", ["t", "u"]).join() for number in range(4)]
    crowd.settle(*consumers)
    assert [(c.partitions("t"), c.partitions("u")) for c in consumers] == [([0], [0]), ([1], [1]), ([], []), ([], [])]
