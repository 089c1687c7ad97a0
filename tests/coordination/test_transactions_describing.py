"""Transactional ids that are looked at: described one by one, and listed with filters."""

import pytest

from machine_bench import BEGAN_WALL_MS
from ottla.coordination.transactions import describing, ending
from ottla.coordination.transactions.states import State
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import DescribeTransactionsResponse, ListTransactionsRequest
from transactions_bench import ID, P0, P1, WRITTEN, TransactionsBench, led_to


def described(bench, transactional_id=ID):
    return bench.ask(describing.describe, transactional_id, 0)


def test_describing_an_open_transaction():
    bench, (producer_id, epoch), _ = led_to(State.ONGOING)
    told = described(bench).reply
    topic = DescribeTransactionsResponse.TransactionState.TopicData(topic="orders", partitions=[0, 1])
    assert told == DescribeTransactionsResponse.TransactionState(
        transactional_id=ID,
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=BEGAN_WALL_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[topic],
    )


def test_states_have_the_names_that_tools_know():
    assert [described(led_to(state)[0]).reply.transaction_state for state in WRITTEN] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
    ]


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_describing_an_end_names_what_still_lacks_its_marker(state):
    """KIP-664, as Apache 4.3.1; who takes over writes all markers again."""
    bench, producer, _ = led_to(state)
    (order,) = bench.orders

    def partitions():
        return [index for topic in described(bench).reply.topics for index in topic.partitions]

    assert partitions() == [0, 1]
    ending.still_unmarked(bench.state, order, [P1])
    assert partitions() == [1]
    bench.take_over()
    assert partitions() == [0, 1]
    ending.still_unmarked(bench.state, order, [P1])
    bench.mark()
    assert partitions() == []
    bench.add(producer, P0)
    ending.still_unmarked(bench.state, order, [P1])  # late news of an end that is over
    assert partitions() == [0] and not bench.state.unmarked


def test_describing_what_nobody_knows():
    assert described(TransactionsBench()).error is Error.TRANSACTIONAL_ID_NOT_FOUND


def listed(benches, **fields):
    wanted = describing.Filter.of(ListTransactionsRequest(**fields))
    known = describing.passing([each.state for each in benches], wanted, benches[0].moment.wall_ms)
    matched = describing.matching(known, wanted)
    assert matched.go_on()
    return {each.transactional_id: each.transaction_state for each in describing.listed(known, matched)}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"payments", "other", "orders-1"}),
        ({"state_filters": ["Ongoing"]}, {"payments"}),
        ({"state_filters": ["Ongoing", "Empty", "Nonsense"]}, {"payments", "other", "orders-1"}),
        ({"state_filters": ["Nonsense"]}, set()),
        ({"producer_id_filters": [1002, 7]}, {"other"}),
        ({"duration_filter": -1}, {"payments", "other", "orders-1"}),
        ({"duration_filter": 0, "state_filters": ["Ongoing"]}, {"payments"}),
        ({"duration_filter": 10, "state_filters": ["Ongoing"]}, set()),
        ({"transactional_id_pattern": ""}, {"payments", "other", "orders-1"}),
        ({"transactional_id_pattern": "o.*"}, {"other", "orders-1"}),
        ({"transactional_id_pattern": "o.*", "producer_id_filters": [1002]}, {"other"}),
        ({"transactional_id_pattern": "ther"}, set()),
    ],
)
def test_listing_with_filters(fields, expected):
    bench, other = TransactionsBench(), TransactionsBench()
    producer = bench.init().identity
    bench.init("other")
    bench.add(producer)
    bench.pass_ms(10)
    other.init("orders-1")
    assert set(listed([bench, other], **fields)) == expected


def test_states_that_do_not_exist_are_named():
    wanted = describing.Filter.of(ListTransactionsRequest(state_filters=["Dead", "Open", "Ongoing", "Closed"]))
    assert wanted.unknown_states == ["Closed", "Open"]


def test_a_pattern_that_is_none():
    with pytest.raises(KafkaError) as caught:
        describing.Filter.of(ListTransactionsRequest(transactional_id_pattern="(("))
    assert caught.value.error is Error.INVALID_REGULAR_EXPRESSION


def test_only_the_partitions_that_were_added_are_named():
    bench, producer, _ = led_to(State.EMPTY)
    bench.add(producer, P0)
    assert [topic.partitions for topic in described(bench).reply.topics] == [[0]]
