"""Those who wait for a transaction to end."""

from ottla.coordination.transactions import ending, waiting
from ottla.coordination.transactions.states import State
from ottla.wire.errors import Error
from transactions_bench import ID, TransactionsBench, led_to

BUSY = Error.CONCURRENT_TRANSACTIONS


def test_nobody_is_kept_waiting_for_long():
    """TRAP-64: after 100 ms it is told to come back, and has changed nothing."""
    bench, producer, before = led_to(State.PREPARE_COMMIT)
    asked = [bench.add(producer), bench.end(before), bench.init()]
    bench.pass_ms(99)
    assert all(each.is_waiting for each in asked)
    written = list(bench.log)
    bench.pass_ms(1)
    assert [each.error for each in asked] == [BUSY] * 3
    assert bench.log == written and not bench.state.waiting
    bench.mark()
    assert bench.known().state is State.COMPLETE_COMMIT


def test_how_long_is_a_setting():
    """TRAP-64: `add.partitions.to.txn.retry.backoff.max.ms`; with 0 nobody waits."""
    bench = TransactionsBench(add_partitions_to_txn_retry_backoff_max_ms=300)
    producer = bench.init().identity
    bench.add(producer)
    producer = bench.end(producer).identity
    patient = bench.add(producer)
    bench.pass_ms(299)
    assert patient.is_waiting
    bench.pass_ms(1)
    assert patient.error is BUSY

    bench = TransactionsBench(add_partitions_to_txn_retry_backoff_max_ms=0)
    producer = bench.init().identity
    bench.add(producer)
    producer = bench.end(producer).identity
    assert bench.add(producer).error is BUSY and not bench.state.waiting
    assert bench.init().error is BUSY, "its predecessor's end was on the way already"
    bench.mark()
    assert bench.add(producer).error is Error.NONE


def test_who_waits_is_decided_in_the_state_that_is_then():
    """Two producers wait to take over, and one to go on: each sees what the one before it changed."""
    bench, producer, _ = led_to(State.PREPARE_COMMIT)
    first, second, third = bench.init(), bench.add(producer), bench.init()
    bench.mark()
    assert first.identity == (producer[0], producer[1] + 1)
    assert second.error is Error.PRODUCER_FENCED
    assert third.identity == (producer[0], producer[1] + 2)


def test_who_cannot_be_served_after_its_wait_is_told_to_come_back():
    bench, producer, _ = led_to(State.PREPARE_COMMIT)
    asked = bench.add(producer)
    bench.carry_out(ending.marked(bench.state, bench.orders.pop(), bench.moment))
    bench.is_full = True
    bench.pass_ms(0)
    assert asked.error is BUSY
    assert bench.known().state is State.COMPLETE_COMMIT


def test_alarms_of_those_who_waited_are_gone():
    bench, producer, _ = led_to(State.PREPARE_COMMIT)
    asked = bench.add(producer)
    alarm = (waiting.GIVE_UP, ID, str(bench.state.waited))
    assert alarm in bench.state.timers
    bench.mark()
    assert asked.error is Error.NONE
    assert alarm not in bench.state.timers and not bench.state.waiting
