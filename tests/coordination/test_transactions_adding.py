"""Partitions that are added, and verified."""

import pytest

from ottla.coordination.machine import Decision
from ottla.coordination.transactions.adding import Admission, is_admitted
from ottla.coordination.transactions.states import NAMES, State, tombstone
from ottla.wire.errors import Error
from transactions_bench import ID, P0, P1, WRITTEN, TransactionsBench, led_to

BUSY = Error.CONCURRENT_TRANSACTIONS


def test_the_first_partition_begins_the_transaction():
    bench, producer, _ = led_to(State.EMPTY)
    bench.pass_ms(5)
    assert bench.add(producer, P0).error is Error.NONE
    began_ms = bench.moment.wall_ms
    bench.pass_ms(5)
    assert bench.add(producer, P1).error is Error.NONE
    known = bench.known()
    assert (known.state, known.partitions, known.started_ms) == (State.ONGOING, {P0, P1}, began_ms)
    assert known.updated_ms == began_ms + 5


def test_what_is_in_there_already_is_not_written_again():
    bench, producer, _ = led_to(State.ONGOING)
    written = len(bench.log)
    assert bench.add(producer, P1).error is Error.NONE
    assert len(bench.log) == written


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_adding_in_each_state(state, level):
    """TRAP-64: between PREPARE and COMPLETE it waits, and begins the next transaction when that is over."""
    bench, producer, _ = led_to(state, level)
    asked = bench.add(producer, P0)
    assert asked.is_waiting == (state in (State.PREPARE_COMMIT, State.PREPARE_ABORT))
    bench.mark()
    assert asked.error is Error.NONE
    assert bench.known().state is State.ONGOING and P0 in bench.known().partitions


@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_adding_as_somebody_else_in_each_state(state):
    """TRAP-63: a stale epoch is fenced by the coordinator; nothing of a refused request is applied."""
    bench, (producer_id, epoch), _ = led_to(state)
    written = list(bench.log)
    for ask in (bench.add, bench.verify):
        assert ask((producer_id, epoch - 1)).error is Error.PRODUCER_FENCED
        assert ask((producer_id, epoch + 1)).error is Error.PRODUCER_FENCED
        assert ask((producer_id - 1, epoch)).error is Error.INVALID_PRODUCER_ID_MAPPING
    assert bench.log == written


def test_an_id_that_nobody_knows():
    bench = TransactionsBench()
    assert bench.add((1, 0)).error is Error.INVALID_PRODUCER_ID_MAPPING
    assert bench.verify((1, 0)).error is Error.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_verifying_in_each_state(state):
    """TRAP-67: a partition that is not in the transaction is TRANSACTION_ABORTABLE; nothing is written in any state."""
    bench, producer, _ = led_to(state)
    written = list(bench.log)
    asked = bench.verify(producer, P0, ("orders", 7))
    if state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert asked.error is BUSY
    else:
        first = Error.NONE if state is State.ONGOING else Error.TRANSACTION_ABORTABLE
        assert asked.reply == {P0: first, ("orders", 7): Error.TRANSACTION_ABORTABLE}
    assert bench.log == written


@pytest.mark.parametrize("verify_only", [True, False])
@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_what_needs_no_wait_in_each_state(state, verify_only):
    """KIP-890: let in at once is only who would be let in without a record: all of it added, and that committed."""
    bench, (producer_id, epoch), _ = led_to(state)
    committed = len(bench.log)

    def admitted(*partitions, producer=(producer_id, epoch), end=committed):
        return is_admitted(bench.state, Admission(ID, *producer, partitions, verify_only), end)

    assert admitted(P0) == (state is State.ONGOING)
    assert not admitted(P0, end=bench.state.written_at[ID]), "its last record may yet be lost"
    assert not admitted(P0, ("orders", 7))
    for other in ((producer_id, epoch - 1), (producer_id, epoch + 1), (producer_id - 1, epoch)):
        assert not admitted(P0, producer=other)


def test_another_ids_records_hold_nobody_up():
    bench, producer, _ = led_to(State.ONGOING)
    committed = len(bench.log)
    bench.init("another")
    assert is_admitted(bench.state, Admission(ID, *producer, (P0,)), committed)


def test_who_came_back_to_a_transaction_is_not_let_in():
    """KIP-939: it may only end what its earlier self left."""
    bench = TransactionsBench(transaction_two_phase_commit_enable=True)
    before = bench.init(enable_2pc=True, transaction_timeout_ms=0).identity
    bench.add(before, P0)
    assert is_admitted(bench.state, Admission(ID, *before, (P0,)), len(bench.log))
    again = bench.init(enable_2pc=True, keep_prepared_txn=True)
    for producer in (before, again.identity):
        assert not is_admitted(bench.state, Admission(ID, *producer, (P0,)), len(bench.log))


def test_where_the_last_record_lies_is_known_after_a_load_and_forgotten_with_the_id():
    bench, _, _ = led_to(State.ONGOING)
    before = dict(bench.state.written_at)
    bench.take_over()
    assert bench.state.written_at == before
    bench.carry_out(Decision(records=[tombstone(ID)]))
    assert not bench.state.written_at


def test_the_record_names_the_generation_that_added():
    bench, producer, _ = led_to(State.EMPTY)
    bench.add(producer, P0, version=0)
    assert bench.known(ID).client_version == 0
    bench.add(producer, P1)
    assert bench.known(ID).client_version == 2
