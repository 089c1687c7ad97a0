"""Transactions that begin in a log only with the guard that their coordinator's answer was about (KIP-890)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.log.log import Appended, Log
from ottla.log.producers import Guard, Marker, Origin, Producers
from ottla.wire.errors import Error
from ottla.wire.records import end_marker

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, make_log, read_batches, refusal, reopen

ID = 5


def guard(log: Log, sequence: int = 0, *, epoch: int = 0, generation: int = 1) -> Guard | None:
    return log.producers.guard(ID, epoch, sequence, generation == 2, NOW_MS)


def send(log: Log, sequence: int, given: Guard | None, *, epoch: int = 0, version: int = 0) -> Appended:
    data = batch(producer_id=ID, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    appended = log.append(data, Origin.CLIENT, 0, NOW_MS, transaction_version=version, guard=given)
    log.publish()
    return appended


def end(log: Log, *, epoch: int = 0, committed: bool = True, version: int = 0, coordinator: int = 0) -> Appended:
    appended = log.append_marker(Marker(ID, epoch, coordinator, committed, version), 0, NOW_MS)
    log.publish()
    return appended


def test_a_transaction_begins_only_with_its_guard_and_goes_on_without() -> None:
    """KIP-890: the first batch needs what its coordinator's answer was about; later ones need nothing."""
    log = make_log()
    assert refusal(send, log, 0, None) is Error.INVALID_TXN_STATE
    given = guard(log)
    assert given is not None and guard(log) is given
    assert refusal(send, log, 0, Guard(0, 0, False, NOW_MS)) is Error.INVALID_TXN_STATE
    send(log, 0, given)
    assert guard(log, 1) is None and not log.producers.guards
    assert send(log, 1, None).first_offset == 1


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_takes_the_guard_away(committed: bool) -> None:
    """KIP-890: the answer of the coordinator was about the transaction that has ended since."""
    log = make_log()
    given = guard(log)
    end(log, committed=committed)
    assert refusal(send, log, 0, given) is Error.INVALID_TXN_STATE
    assert log.last_stable_offset(log.end_offset) == log.end_offset
    fresh = guard(log)
    assert fresh is not given
    send(log, 0, fresh)


def test_a_batch_that_was_to_go_on_finds_its_transaction_ended() -> None:
    log = make_log()
    send(log, 0, guard(log))
    assert guard(log, 1) is None
    end(log)
    assert refusal(send, log, 1, None) is Error.INVALID_TXN_STATE
    send(log, 1, guard(log, 1))


def test_the_marker_of_the_transaction_before_leaves_the_guard_of_the_next() -> None:
    """TRAP-62: in generation 2 it carries the epoch with which the next one writes; one epoch more ends that one too."""
    log = make_log()
    send(log, 0, guard(log, generation=2), version=2)
    end(log, epoch=1, version=2)
    given = guard(log, epoch=1, generation=2)
    end(log, epoch=1, version=2)
    assert log.producers.guards == {ID: given}
    end(log, epoch=2, version=2, committed=False)
    assert not log.producers.guards
    assert refusal(send, log, 0, given, epoch=1, version=2) is Error.INVALID_PRODUCER_EPOCH


def test_a_higher_sequence_waits_for_the_lowest_that_asked() -> None:
    """Both were refused with an error to be tried again: if the second got in first, the first would never get in."""
    log = make_log()
    send(log, 0, guard(log))
    end(log)
    later = guard(log, 2)
    assert guard(log, 1) is later
    assert refusal(send, log, 2, later) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 1, later)
    send(log, 2, None)


def test_a_batch_outside_of_transactions_waits_for_it_as_well() -> None:
    log = make_log()
    plain = batch(producer_id=ID, producer_epoch=0, base_sequence=1)
    guard(log, 0)
    assert refusal(log.append, plain, Origin.CLIENT, 0, NOW_MS) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(batch(producer_id=ID, producer_epoch=0, base_sequence=0), Origin.CLIENT, 0, NOW_MS)
    log.publish()
    assert refusal(send, log, 1, guard(log, 1)) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER, "0 has not come in a transaction"
    log.producers.expire(NOW_MS + 1, 1)
    assert log.append(plain, Origin.CLIENT, 0, NOW_MS).first_offset == 1


def test_a_new_epoch_forgets_which_sequence_was_lowest() -> None:
    log = make_log()
    given = guard(log, 7)
    assert given is not None and guard(log, 9, epoch=1) is given
    assert (given.epoch, given.lowest_sequence) == (1, 9)
    guard(log, 3, epoch=0)
    assert (given.epoch, given.lowest_sequence) == (1, 9)


def test_a_new_epoch_may_be_of_the_other_generation() -> None:
    """KIP-890: what a refused batch of generation 2 left behind must not outlive a marker of generation 1, which carries the
    epoch of the transaction it ends: a batch that was admitted before would begin one that nobody ends."""
    log = make_log()
    guard(log, epoch=0, generation=2)
    given = guard(log, epoch=1, generation=1)
    end(log, epoch=1, committed=False)
    assert refusal(send, log, 0, given, epoch=1, version=1) is Error.INVALID_TXN_STATE
    assert log.last_stable_offset(log.end_offset) == log.end_offset


def test_an_older_epoch_gets_no_guard() -> None:
    """TRAP-63: at a partition a stale epoch is INVALID_PRODUCER_EPOCH."""
    log = make_log()
    send(log, 0, guard(log, epoch=3), epoch=3)
    assert refusal(guard, log, epoch=2) is Error.INVALID_PRODUCER_EPOCH
    assert guard(log, 1, epoch=3) is None
    assert guard(log, 0, epoch=4) is not None, "the open transaction is of another epoch"


def test_a_repeated_batch_needs_no_guard() -> None:
    """TRAP-20: it is answered with where it went, also after its transaction ended."""
    log = make_log()
    first = send(log, 0, guard(log))
    end(log)
    again = send(log, 0, None)
    assert again.duplicate and again.first_offset == first.first_offset


def test_generation_2_begins_with_sequence_0() -> None:
    """TRAP-09: of a producer that is not known here; in generation 1 any sequence will do."""
    log = make_log()
    assert refusal(send, log, 3, guard(log, 3, generation=2), version=2) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    log = make_log()
    assert send(log, 3, guard(log, 3), version=1).first_offset == 0


def test_offsets_of_a_group_need_a_guard_too() -> None:
    """What the coordinator of a group writes in a transaction has no sequence, but could be left open as well."""
    log = make_log()

    def commit(given: Guard | None, epoch: int = 0) -> Appended:
        data = batch(producer_id=ID, producer_epoch=epoch, transactional=True)
        return log.append(data, Origin.COORDINATOR, 0, NOW_MS, guard=given)

    assert refusal(commit, None) is Error.INVALID_TXN_STATE
    commit(guard(log, -1))
    commit(None)
    end(log, epoch=1)
    assert refusal(commit, None, 1) is Error.INVALID_TXN_STATE
    assert refusal(commit, None, 0) is Error.INVALID_PRODUCER_EPOCH


def test_guards_that_nobody_comes_back_with_are_forgotten() -> None:
    """TRAP-10: with the producers that are silent, after producer.id.expiration.ms."""
    producers = Producers()
    producers.guard(ID, 0, 0, True, NOW_MS)
    producers.expire(NOW_MS + 999, 1000)
    assert producers.guards
    producers.expire(NOW_MS + 1000, 1000)
    assert not producers.guards


# -- markers


def test_a_repeated_marker_of_generation_2_is_taken_unless_a_later_transaction_is_open() -> None:
    """TRAP-62: a coordinator that starts again repeats its markers; one that was delayed must not end what came later."""
    log = make_log()
    send(log, 0, guard(log, generation=2), version=2)
    end(log, epoch=1, version=2)
    end(log, epoch=1, version=2)
    send(log, 0, guard(log, epoch=1, generation=2), epoch=1, version=2)
    assert refusal(end, log, epoch=1, version=2) is Error.INVALID_PRODUCER_EPOCH
    assert refusal(end, log, epoch=0, version=2) is Error.INVALID_PRODUCER_EPOCH
    end(log, epoch=2, version=2)
    assert log.last_stable_offset(log.end_offset) == log.end_offset


def test_the_last_epoch_of_a_producer_ends_its_transaction_itself() -> None:
    """There is no epoch after 32767: in generation 2 the producer gets another id."""
    log = make_log()
    send(log, 0, guard(log, epoch=32767, generation=2), epoch=32767, version=2)
    end(log, epoch=32767, version=2)
    assert log.last_stable_offset(log.end_offset) == log.end_offset


def test_an_older_coordinator_is_fenced() -> None:
    """TRAP-62: whose marker comes after one of a later coordinator."""
    log = make_log()
    end(log, coordinator=4)
    send(log, 0, guard(log))
    assert refusal(end, log, coordinator=3) is Error.TRANSACTION_COORDINATOR_FENCED
    assert log.last_stable_offset(log.end_offset) == 1
    end(log, coordinator=4)


def test_a_marker_by_itself_is_the_same_as_one_in_a_batch() -> None:
    """Bytes, offsets, the aborted list and what a restart makes of it."""
    logs = make_log(), make_log()
    for number, log in enumerate(logs):
        send(log, 0, guard(log))
        if number:
            end(log, committed=False, coordinator=7)
        else:
            data = end_marker(False, NOW_MS, producer_id=ID, producer_epoch=0, coordinator_epoch=7)
            log.append(memoryview(data), Origin.COORDINATOR, 0, NOW_MS)
            log.publish()
    assert read_batches(logs[0], 0) == read_batches(logs[1], 0)
    assert logs[0].producers.entries == logs[1].producers.entries
    aborted = [log.aborted_transactions(0, 9) for log in (*logs, reopen(logs[1], clean=False))]
    assert aborted[0] == aborted[1] == aborted[2] != []
