"""What time does to transactional ids: transactions that take too long, and ids that nobody uses."""

import pytest

from ottla.coordination.machine import Decision
from ottla.coordination.transactions.states import NAMES, Marking, State, to_record
from ottla.wire.errors import Error
from transactions_bench import ID, P0, P1, WRITTEN, TransactionsBench, led_to

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


def test_a_clock_that_was_set_back_gives_no_transaction_more_time_than_it_ever_had():
    bench, _, _ = led_to(State.ONGOING)
    later = bench.known()._replace(started_ms=bench.moment.wall_ms + 3_600_000)
    bench.carry_out(Decision(records=[to_record(later)]))
    bench.take_over()
    bench.pass_ms(60_000)
    assert bench.known().state is State.ONGOING
    bench.pass_ms(1)
    assert bench.known().state is State.PREPARE_ABORT


def test_a_transaction_that_another_system_decides_about_is_never_overdue():
    """KIP-939: also if the one before it, under the same id, had a time limit whose alarm is still set."""
    bench = TransactionsBench(transaction_two_phase_commit_enable=True)
    bench.add(bench.init().identity)
    bench.init()
    bench.mark()
    bench.add(bench.init(enable_2pc=True).identity)
    bench.pass_ms(120_000)
    assert bench.known().state is State.ONGOING


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
