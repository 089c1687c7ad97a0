"""InitProducerId with a transactional id: beginning, taking over, going on after an error, and epochs that run out."""

import pytest

from ottla.coordination.transactions import init
from ottla.coordination.transactions.states import NAMES, Marking, State
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import NO_TIMEOUT_MS, InitProducerIdRequest
from transactions_bench import ID, P0, P1, WRITTEN, TransactionsBench, led_to

FENCED = Error.PRODUCER_FENCED


def going_on(bench, identity, **fields):
    """As a client that brings its identity along (KIP-360)."""
    return bench.init(producer_id=identity[0], producer_epoch=identity[1], **fields)


def at_epoch(epoch, level=2, state=State.EMPTY):
    bench, (producer_id, _), _ = led_to(State.EMPTY, level)
    bench.aged(epoch)
    if state is State.ONGOING:
        bench.add((producer_id, epoch))
    return bench, (producer_id, epoch)


def test_the_first_producer():
    bench = TransactionsBench()
    assert bench.init(transaction_timeout_ms=7).identity == (1001, 0)
    known = bench.known()
    assert (known.state, known.timeout_ms, known.partitions) == (State.EMPTY, 7, frozenset())


def test_who_brings_an_identity_that_is_forgotten_gets_a_new_one():
    assert going_on(TransactionsBench(), (5, 3)).identity == (1001, 0)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("state", WRITTEN, ids=NAMES.get)
def test_taking_over_in_each_state(state, level):
    """TXN-08: the one before is fenced, whatever it was about to do."""
    bench, (producer_id, epoch), _ = led_to(state, level)
    asked = bench.init()
    assert asked.is_waiting == (state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT))
    bench.mark()
    assert bench.known().state is State.EMPTY
    bumps = 2 if state is State.ONGOING else 1
    assert asked.identity == (producer_id, epoch + bumps)
    for ask in (bench.add, bench.verify, bench.end if level == 2 else bench.end_1):
        assert ask((producer_id, epoch)).error is FENCED


@pytest.mark.parametrize(("level", "version"), [(1, 0), (2, 2)])
def test_what_was_open_is_aborted_in_an_epoch_that_nobody_gets(level, version):
    """TRAP-66."""
    bench, (producer_id, epoch), _ = led_to(State.ONGOING, level)
    asked = bench.init()
    assert bench.orders == [Marking(ID, producer_id, epoch + 1, False, (P0, P1), version)]
    bench.pass_ms(100)
    assert asked.error is Error.CONCURRENT_TRANSACTIONS
    bench.mark()
    assert bench.init().identity == (producer_id, epoch + 2)


def test_old_versions_hear_of_an_old_epoch():
    """TRAP-63: PRODUCER_FENCED came with version 4."""
    bench, (producer_id, _), _ = led_to(State.EMPTY)
    assert going_on(bench, (producer_id, 9), version=3).error is Error.INVALID_PRODUCER_EPOCH
    assert going_on(bench, (producer_id, 9), version=4).error is FENCED


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT], ids=NAMES.get)
def test_going_on_after_an_error_and_again_when_no_answer_came(state):
    bench, producer, _ = led_to(state, level=1)
    now = going_on(bench, producer).identity
    assert now == (producer[0], producer[1] + 1)
    assert going_on(bench, producer).identity == now
    assert going_on(bench, now).identity == (now[0], now[1] + 1)
    assert going_on(bench, producer).error is FENCED


def test_who_was_replaced_may_not_go_on():
    bench, producer, _ = led_to(State.EMPTY)
    bench.init()
    assert going_on(bench, producer).error is FENCED
    assert going_on(bench, (producer[0] + 7, producer[1])).error is FENCED


@pytest.mark.parametrize("level", [1, 2])
def test_who_was_replaced_does_not_end_the_transaction_of_its_successor(level):
    """TXN-08: also not by a request to go on that comes late, when the answer to its repetition was long heard."""
    bench, producer, _ = led_to(State.EMPTY, level)
    now = going_on(bench, producer).identity
    bench.add(now)
    assert going_on(bench, producer).error is FENCED
    assert bench.known().state is State.ONGOING and not bench.orders
    assert (bench.end if level == 2 else bench.end_1)(now).error is Error.NONE


def test_in_generation_2_who_did_not_hear_of_its_end_may_go_on():
    bench, producer, before = led_to(State.COMPLETE_COMMIT)
    assert going_on(bench, before).identity == producer


def test_after_a_takeover_of_the_coordinator_the_epoch_before_is_forgotten():
    bench, producer, before = led_to(State.COMPLETE_COMMIT)
    bench.take_over()
    assert going_on(bench, before).error is FENCED
    assert going_on(bench, producer).identity == (producer[0], producer[1] + 1)


@pytest.mark.parametrize("brings", [False, True])
def test_a_new_producer_id_when_epochs_run_out(brings):
    bench, producer = at_epoch(32766)
    now = (going_on(bench, producer) if brings else bench.init()).identity
    assert now == (1002, 0)
    assert bench.known().previous_producer_id == producer[0]
    again = going_on(bench, producer)
    if brings:  # its answer was lost
        assert again.identity == now
    else:
        assert again.error is FENCED


def test_only_the_last_epoch_of_a_producer_id_stands_for_the_one_after_it():
    """Who was in an earlier epoch of it was replaced before; the new producer id may be in that epoch by now."""
    bench, producer = at_epoch(32766)
    assert going_on(bench, producer).identity == (1002, 0)
    assert going_on(bench, (producer[0], 0)).error is FENCED


@pytest.mark.parametrize("level", [1, 2])
def test_taking_over_from_a_producer_in_its_last_epoch(level):
    """Generation 1 has to come back: only then is it known that a new producer id is needed."""
    bench, (producer_id, _) = at_epoch(32766, level, State.ONGOING)
    asked = bench.init()
    assert bench.orders[0][1:3] == (producer_id, 32767)
    bench.mark()
    if level == 1:
        assert asked.error is Error.CONCURRENT_TRANSACTIONS
        asked = bench.init()
    assert asked.identity[0] != producer_id and asked.identity[1] <= 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, Error.INVALID_REQUEST),
        ({"producer_id": 5}, Error.INVALID_REQUEST),
        ({"producer_epoch": 5}, Error.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, Error.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, Error.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, Error.INVALID_TRANSACTION_TIMEOUT),
        ({"enable_2pc": True}, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared_txn": True}, Error.UNSUPPORTED_VERSION),
    ],
)
def test_what_makes_no_sense_is_refused(fields, error):
    """TRAP-68 for two-phase commit, which has to be allowed first."""
    request = InitProducerIdRequest(**{"transactional_id": ID, "transaction_timeout_ms": 1000, **fields})
    with pytest.raises(KafkaError) as caught:
        init.check(request, TransactionsBench().config)
    assert caught.value.error is error


def test_the_timeout_does_not_matter_without_a_transactional_id():
    init.check(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1), TransactionsBench().config
    )


# --- two-phase commit (KIP-939)


def two_phase(**settings):
    bench = TransactionsBench(transaction_two_phase_commit_enable=True, **settings)
    producer = bench.init(enable_2pc=True, transaction_timeout_ms=0).identity
    bench.add(producer, P0, P1)
    return bench, producer


def back(bench):
    return bench.init(enable_2pc=True, keep_prepared_txn=True)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_outlives_its_client_and_its_coordinator(committed):
    bench, left = two_phase()
    bench.pass_ms(30 * 24 * 3600 * 1000)
    assert bench.known().state is State.ONGOING and bench.known().timeout_ms == NO_TIMEOUT_MS
    bench.take_over()
    asked = back(bench)
    assert asked.identity == (left[0], left[1] + 1)
    assert (asked.reply.ongoing_txn_producer_id, asked.reply.ongoing_txn_producer_epoch) == left
    bench.take_over()
    ended = bench.end(asked.identity, committed)
    assert ended.identity == (left[0], left[1] + 2)
    assert bench.orders == [Marking(ID, left[0], left[1] + 1, committed, (P0, P1), 2)]
    bench.take_over()
    again = bench.end(asked.identity, committed)
    bench.mark()
    assert again.identity == ended.identity
    assert bench.add(ended.identity).error is Error.NONE


def test_only_the_last_that_came_back_may_end_it_and_do_nothing_else():
    bench, left = two_phase()
    first, second = back(bench), back(bench)
    assert second.identity == (left[0], left[1] + 2)
    assert (second.reply.ongoing_txn_producer_id, second.reply.ongoing_txn_producer_epoch) == left
    for stale in (left, first.identity):
        assert bench.end(stale).error is FENCED
        assert bench.add(stale, ("orders", 9)).error is FENCED
    assert bench.add(second.identity, ("orders", 9)).error is Error.INVALID_TXN_STATE
    assert bench.end(second.identity).identity == (left[0], left[1] + 3)
    assert bench.orders[0].epoch == left[1] + 2


def test_who_comes_back_to_nothing_just_begins():
    bench = TransactionsBench(transaction_two_phase_commit_enable=True)
    asked = back(bench)
    assert asked.identity == (1001, 0) and asked.reply.ongoing_txn_producer_id == -1
    assert back(bench).identity == (1001, 1)


def test_who_does_not_want_it_kept_aborts_it():
    bench, left = two_phase()
    back(bench)
    asked = bench.init(enable_2pc=True)
    assert bench.mark() == [Marking(ID, left[0], left[1] + 1, False, (P0, P1), 2)]
    assert asked.identity == (left[0], left[1] + 3)


def test_what_is_prepared_is_not_ended_by_who_was_replaced():
    """Another system may have committed its part already."""
    bench, left = two_phase()
    kept = back(bench).identity
    assert going_on(bench, left, enable_2pc=True).error is FENCED
    assert bench.known().state is State.ONGOING and not bench.orders
    assert bench.end(kept).error is Error.NONE


def test_coming_back_while_the_end_goes_on_waits_for_it():
    bench, left = two_phase()
    bench.end(left)
    asked = back(bench)
    assert asked.is_waiting
    bench.mark()
    assert asked.identity == (left[0], left[1] + 2) and asked.reply.ongoing_txn_producer_id == -1


def test_coming_back_again_and_again_runs_out_of_epochs():
    bench, left = two_phase()
    bench.state.by_id[ID] = bench.known().moved(State.ONGOING, bench.moment, epoch=32765)
    assert back(bench).identity == (left[0], 32766)
    asked = back(bench)
    assert asked.identity == (1002, 0)
    bench.take_over()
    assert bench.end(asked.identity).identity == (1002, 1)
    assert bench.orders[0][1:3] == (left[0], 32766)
    bench.mark()
    assert bench.add((1002, 1)).error is Error.NONE


def test_ending_what_was_kept_in_the_last_epoch():
    bench, left = two_phase()
    bench.state.by_id[ID] = bench.known().moved(State.ONGOING, bench.moment, epoch=32765)
    assert bench.end(back(bench).identity).identity == (1002, 0)
    assert bench.orders[0][1:3] == (left[0], 32766)


def test_without_a_place_in_the_records_nothing_is_kept():
    bench, left = two_phase(transaction_version=1)
    assert back(bench).error is Error.UNSUPPORTED_VERSION
    assert bench.known().identity == left
