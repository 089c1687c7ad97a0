"""EndTxn: every state and every end, in both generations; what is written, which markers are ordered, what clients hear."""

import pytest

from ottla.coordination.transactions.states import NAMES, Marking, State
from ottla.wire.errors import Error
from transactions_bench import ID, P0, P1, WRITTEN, TransactionsBench, led_to

COMMIT, ABORT = True, False
OK, ILLEGAL, FENCED = Error.NONE, Error.INVALID_TXN_STATE, Error.PRODUCER_FENCED
WAITS = None


# State -> what becomes of a commit and of an abort.
GENERATION_1 = {
    State.EMPTY: (ILLEGAL, ILLEGAL),
    State.ONGOING: (OK, OK),
    State.PREPARE_COMMIT: (WAITS, ILLEGAL),
    State.PREPARE_ABORT: (ILLEGAL, WAITS),
    State.COMPLETE_COMMIT: (OK, ILLEGAL),
    State.COMPLETE_ABORT: (ILLEGAL, OK),
}
# State -> the same for the present epoch, and for the one before it.
GENERATION_2 = {
    State.EMPTY: (ILLEGAL, OK, None, None),
    State.ONGOING: (OK, OK, None, None),
    State.PREPARE_COMMIT: (ILLEGAL, WAITS, WAITS, ILLEGAL),
    State.PREPARE_ABORT: (ILLEGAL, WAITS, ILLEGAL, WAITS),
    State.COMPLETE_COMMIT: (ILLEGAL, OK, OK, ILLEGAL),
    State.COMPLETE_ABORT: (ILLEGAL, OK, ILLEGAL, OK),
}


def fares(asked, expected):
    assert asked.is_waiting if expected is WAITS else asked.error is expected


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_each_end_in_each_state_in_generation_1(state, committed):
    """TRAP-64: an end that is being carried out is waited for; one that is done is told so again."""
    bench, producer, _ = led_to(state, level=1)
    written = len(bench.log)
    asked = bench.end_1(producer, committed)
    fares(asked, GENERATION_1[state][0 if committed else 1])
    assert len(bench.log) == written + (state is State.ONGOING)
    assert bench.known().epoch == 0


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_each_end_in_each_state_in_generation_2(state, committed):
    """TRAP-65: abort is legal where nothing was added, commit is not."""
    bench, producer, _ = led_to(state)
    fares(bench.end(producer, committed), GENERATION_2[state][0 if committed else 1])


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
@pytest.mark.parametrize("state", WRITTEN[2:], ids=NAMES.get)
def test_each_end_said_again_in_generation_2(state, committed):
    """TRAP-65: who comes with the epoch before the present one repeats its end, and hears its new epoch."""
    bench, producer, before = led_to(state)
    written = len(bench.log)
    asked = bench.end(before, committed)
    fares(asked, GENERATION_2[state][2 if committed else 3])
    assert len(bench.log) == written
    bench.mark()
    if asked.error is OK:
        assert asked.identity == producer


@pytest.mark.parametrize("version", [0, 1, 4, 5])
@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_who_is_somebody_else_is_refused_in_every_state(state, version):
    """TXN-08, TRAP-63: another epoch is fenced, another producer id does not belong here; nothing is written."""
    bench, (producer_id, epoch), _ = led_to(state, level=2 if version == 5 else 1)
    written = list(bench.log)
    fenced = Error.INVALID_PRODUCER_EPOCH if version < 2 else Error.PRODUCER_FENCED
    for committed in (COMMIT, ABORT):
        assert bench.end((producer_id, epoch + 1), committed, version).error is fenced
        assert bench.end((producer_id, epoch - 2), committed, version).error is fenced
        assert bench.end((producer_id + 1, epoch), committed, version).error is Error.INVALID_PRODUCER_ID_MAPPING
    assert bench.log == written


@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_who_was_replaced_by_a_client_of_generation_1_does_not_become_it(committed, is_marked):
    """TXN-08, TRAP-65: its epoch is the one before the present one, and no end of its own has begun that."""
    bench = TransactionsBench()
    before = bench.init().identity
    now = bench.init().identity
    bench.add(now, P0, version=0)
    bench.end_1(now, committed)
    if is_marked:
        bench.mark()
    written = list(bench.log)
    for said in (COMMIT, ABORT):
        assert bench.end(before, said).error is FENCED
    assert bench.log == written
    bench.mark()
    assert bench.add(now, P1, version=0).error is OK


@pytest.mark.parametrize("version", [4, 5])
def test_an_id_that_nobody_knows_is_refused(version):
    assert TransactionsBench().end((1, 0), COMMIT, version).error is Error.INVALID_PRODUCER_ID_MAPPING


def test_markers_of_generation_1_carry_the_epoch():
    """TRAP-62."""
    bench, (producer_id, epoch), _ = led_to(State.PREPARE_ABORT, level=1)
    assert bench.orders == [Marking(ID, producer_id, epoch, False, (P0, P1), 0)]


def test_markers_of_generation_2_carry_the_next_epoch():
    """TRAP-62."""
    bench, producer, before = led_to(State.PREPARE_COMMIT)
    assert producer == (before[0], before[1] + 1)
    assert bench.orders == [Marking(ID, *producer, True, (P0, P1), 2)]


def test_an_end_of_nothing_needs_no_markers():
    bench, producer, _ = led_to(State.EMPTY)
    assert bench.end(producer, ABORT).identity == (producer[0], producer[1] + 1)
    assert bench.orders == [] and bench.known().state is State.COMPLETE_ABORT
    assert [value.transaction_status for value in bench.written()] == [
        State.EMPTY,
        State.PREPARE_ABORT,
        State.COMPLETE_ABORT,
    ]


def test_markers_that_were_written_twice_complete_an_end_once():
    bench, _, _ = led_to(State.PREPARE_COMMIT)
    bench.orders *= 2
    bench.mark()
    assert bench.known().state is State.COMPLETE_COMMIT
    assert len(bench.log) == 4


def test_late_news_of_markers_do_not_complete_the_next_end():
    bench, producer, _ = led_to(State.PREPARE_COMMIT)
    (late,) = bench.mark()
    bench.add(producer)
    bench.end(producer)
    bench.orders = [late]
    bench.mark()
    assert bench.known().state is State.PREPARE_COMMIT


def test_the_epochs_of_a_producer_run_out():
    """At 32766 the next end brings a new producer id; the markers still carry the old one, and the epoch that nobody gets."""
    bench = TransactionsBench()
    bench.init()
    producer = bench.aged(32760)
    while producer[1] < 32766:
        bench.add(producer)
        producer = bench.end(producer).identity
        bench.mark()
    before = producer
    bench.add(before)
    producer = bench.end(before).identity
    assert producer[0] != before[0] and producer[1] == 0
    assert bench.orders[0][1:3] == (before[0], 32767)
    again, adds = bench.end(before), bench.add(producer)
    assert again.is_waiting and adds.is_waiting
    bench.mark()
    assert again.identity == producer and adds.error is OK
    assert bench.end(before).error is Error.INVALID_PRODUCER_ID_MAPPING


def test_generation_2_is_told_its_new_producer_id_again():
    bench, producer, _ = led_to(State.COMPLETE_COMMIT)
    bench.aged(32766)
    bench.add((producer[0], 32766))
    now = bench.end((producer[0], 32766)).identity
    bench.mark()
    assert bench.end((producer[0], 32766)).identity == now
    assert bench.end((producer[0], 32766), ABORT).error is ILLEGAL
    assert bench.end((producer[0], 32765)).error is Error.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
@pytest.mark.parametrize("level", [1, 2])
def test_another_coordinator_reads_the_same_state(state, level):
    """TXN-07: everything but who waits is in the records; ends that were prepared go on there."""
    bench, _, _ = led_to(state, level)
    known, orders = bench.known(), bench.orders
    bench.take_over()
    assert bench.known() == known
    assert bench.orders == orders


def test_the_flaw_of_generation_1_a_late_abort_ends_the_next_transaction():
    """The reason for generation 2: the same request, delayed, meets the next transaction in the same epoch."""
    bench, producer, _ = led_to(State.COMPLETE_ABORT, level=1)
    bench.add(producer, version=0)
    assert bench.end_1(producer, ABORT).error is OK
    assert bench.known().state is State.PREPARE_ABORT


def test_in_generation_2_a_late_abort_is_fenced():
    bench, producer, before = led_to(State.COMPLETE_ABORT)
    bench.add(producer)
    assert bench.end(before, ABORT).error is FENCED
    assert bench.known().state is State.ONGOING


def test_a_client_of_generation_1_is_served_at_level_2_as_well():
    bench = TransactionsBench()
    producer = bench.init().identity
    for committed in (COMMIT, ABORT):
        bench.add(producer, version=0)
        assert bench.end_1(producer, committed).error is OK
        assert bench.mark() == [Marking(ID, *producer, committed, (P0,), 0)]
