"""What time does to transactional ids: transactions that take too long, ids that nobody uses, and ids that are looked at."""

import pytest

from ottla.coordination.transactions import describing
from ottla.coordination.transactions.states import NAMES, Marking, State
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import DescribeTransactionsResponse, ListTransactionsRequest
from transactions_bench import BEGAN_WALL_MS, ID, P0, P1, WRITTEN, TransactionsBench, led_to

WEEK_MS = 7 * 24 * 3600 * 1000
HOUR_MS = 3600 * 1000


# --- transactions that take too long


@pytest.mark.parametrize(("level", "version"), [(1, 0), (2, 2)])
def test_an_overdue_transaction_is_aborted_and_its_producer_fenced(level, version):
    bench, (producer_id, epoch), _ = led_to(State.ONGOING, level)
    bench.pass_ms(60_000)
    assert bench.orders == []
    bench.pass_ms(1)
    assert bench.orders == [Marking(ID, producer_id, epoch + 1, False, (P0, P1), version)]
    assert bench.add((producer_id, epoch)).error is Error.PRODUCER_FENCED
    bench.mark()
    assert bench.known().state is State.COMPLETE_ABORT


def test_in_generation_2_its_producer_may_abort_it_and_go_on():
    bench, producer, _ = led_to(State.ONGOING)
    bench.pass_ms(60_001)
    bench.mark()
    assert bench.end(producer, committed=True).error is Error.INVALID_TXN_STATE
    assert bench.end(producer, committed=False).identity == (producer[0], producer[1] + 1)


def test_in_generation_1_its_producer_is_fenced():
    bench, producer, _ = led_to(State.ONGOING, level=1)
    bench.pass_ms(60_001)
    bench.mark()
    assert bench.end_1(producer, committed=False).error is Error.PRODUCER_FENCED


def test_the_time_of_a_transaction_counts_from_its_own_beginning():
    bench, producer, _ = led_to(State.ONGOING)
    bench.pass_ms(50_000)
    producer = bench.end(producer).identity
    bench.mark()
    bench.add(producer)
    bench.pass_ms(59_999)
    assert bench.known().state is State.ONGOING
    bench.pass_ms(2)
    assert bench.known().state is State.PREPARE_ABORT


@pytest.mark.parametrize("state", [each for each in WRITTEN if each is not State.ONGOING], ids=NAMES.get)
def test_nothing_else_is_overdue(state):
    bench, _, _ = led_to(state)
    bench.pass_ms(120_000)
    assert bench.known().state is state


def test_another_coordinator_gives_what_is_left_of_its_time():
    bench, _, _ = led_to(State.ONGOING)
    bench.pass_ms(50_000)
    bench.take_over()
    bench.pass_ms(10_000)
    assert bench.known().state is State.ONGOING
    bench.pass_ms(1)
    assert bench.known().state is State.PREPARE_ABORT


def test_what_was_overdue_long_ago_is_aborted_after_a_load():
    bench, _, _ = led_to(State.ONGOING)
    bench.elapsed_ms += 10 * 60_000
    bench.take_over()
    bench.pass_ms(1)
    assert bench.known().state is State.PREPARE_ABORT


def test_an_abort_that_cannot_be_written_is_tried_again():
    bench, _, _ = led_to(State.ONGOING)
    bench.is_full = True
    bench.pass_ms(65_000)
    bench.is_full = False
    assert bench.known().state is State.ONGOING
    bench.pass_ms(10_000)
    assert bench.known().state is State.PREPARE_ABORT


def test_an_overdue_transaction_in_the_last_epoch_fences_for_good():
    """There is no new producer id at hand: the producer stays at the epoch that nobody gets, and has to begin anew."""
    bench, (producer_id, _), _ = led_to(State.EMPTY)
    bench.aged(32766)
    bench.add((producer_id, 32766))
    bench.pass_ms(60_001)
    assert bench.mark()[0].epoch == 32767
    assert bench.end((producer_id, 32766), committed=False).error is Error.PRODUCER_FENCED
    assert bench.init(producer_id=producer_id, producer_epoch=32766).identity == (1002, 0)


# --- ids that nobody uses


@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_ids_at_rest_are_forgotten(state):
    bench = TransactionsBench(transactional_id_expiration_ms=HOUR_MS)
    bench.log = led_to(state)[0].log
    bench.take_over()
    bench.pass_ms(3 * HOUR_MS)
    is_at_rest = state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    assert (ID not in bench.state.by_id) == is_at_rest
    if is_at_rest:
        assert bench.log[-1][1] is None
        known = bench.state.by_id
        bench.take_over()
        assert bench.state.by_id == known


def test_an_id_that_is_used_stays():
    bench = TransactionsBench()
    bench.take_over()
    producer = bench.init().identity
    for _ in range(3):
        bench.pass_ms(WEEK_MS - 10)
        producer = bench.end(producer, committed=False).identity
    assert ID in bench.state.by_id
    bench.pass_ms(WEEK_MS + HOUR_MS)
    assert ID not in bench.state.by_id
    assert bench.end(producer).error is Error.INVALID_PRODUCER_ID_MAPPING


def test_many_ids_are_looked_at_a_few_at_a_time():
    bench = TransactionsBench()
    bench.take_over()
    for number in range(5000):
        bench.init(f"id-{number}")
    began = len(bench.log)
    bench.elapsed_ms += WEEK_MS
    for decide in bench.coordinator.ring(bench.moment):
        bench.carry_out(decide())
    assert 0 < len(bench.log) - began <= 2000
    bench.pass_ms(1)
    assert not bench.state.by_id


# --- ids that are looked at


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


@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_states_have_the_names_that_tools_know(state):
    names = {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}
    assert described(led_to(state)[0]).reply.transaction_state == NAMES[state]
    assert NAMES[state] in names


def test_describing_what_nobody_knows():
    assert described(TransactionsBench()).error is Error.TRANSACTIONAL_ID_NOT_FOUND


def listed(benches, **fields):
    wanted = describing.Filter.of(ListTransactionsRequest(**fields))
    found = describing.listed([each.state for each in benches], wanted, benches[0].moment.wall_ms)
    return {each.transactional_id: each.transaction_state for each in found}


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


def test_p0_alone_is_one_partition():
    bench, producer, _ = led_to(State.EMPTY)
    bench.add(producer, P0)
    assert [topic.partitions for topic in described(bench).reply.topics] == [[0]]
