"""The bytes in `__transaction_state`: those that Apache Kafka 4.3.1 writes, at every level of `transaction.version`.

What is expected here was made by its own classes (`TransactionMetadata` and `TransactionLog.valueToBytes`), led the same way.
"""

import pytest

from ottla.coordination.records import Record
from ottla.coordination.transactions.records import TransactionLogKey, pack, unpack
from ottla.coordination.transactions.states import State, from_value, tombstone
from ottla.wire.codec import Malformed
from transactions_bench import ID, TransactionsBench

KEY = "000000087061796d656e7473"
AT_LEVEL_2 = [
    "000100000000000003e900000000ea6000000000018bcfe56800ffffffffffffffff01000800000000000003e9",
    "000100000000000003e900000000ea600102076f72646572730200000000000000018bcfe568010000018bcfe5680102000800000000000003e902020002",
    "000100000000000003e900010000ea600202076f72646572730200000000000000018bcfe568020000018bcfe5680102000800000000000003e902020002",
    "000100000000000003e900010000ea6004010000018bcfe568030000018bcfe5680102000800000000000003e902020002",
    "000100000000000003e900020000ea6003010000018bcfe568040000018bcfe5680402000800000000000003e902020002",
    "000100000000000003e900020000ea6005010000018bcfe568040000018bcfe5680402000800000000000003e902020002",
    "000100000000000003e97ffe0000ea600102076f72646572730200000000000000018bcfe568050000018bcfe5680502000800000000000003e902020002",
    "000100000000000003e97fff0000ea600202076f72646572730200000000000000018bcfe568060000018bcfe5680503000800000000000003e9010800000000000003ea02020002",
    "000100000000000003ea00000000ea6004010000018bcfe568070000018bcfe5680502000800000000000003e902020002",
]
AT_LEVEL_1 = [
    "000100000000000003e900000000ea6000000000018bcfe56800ffffffffffffffff01000800000000000003e9",
    "000100000000000003e900000000ea600102076f72646572730200000000000000018bcfe568010000018bcfe5680101000800000000000003e9",
    "000100000000000003e900000000ea600202076f72646572730200000000000000018bcfe568020000018bcfe5680101000800000000000003e9",
    "000100000000000003e900000000ea6004010000018bcfe568030000018bcfe5680101000800000000000003e9",
    "000100000000000003e900010000ea6000000000018bcfe56804ffffffffffffffff01000800000000000003e9",
]
AT_LEVEL_0 = [
    "000000000000000003e900000000ea6000ffffffff0000018bcfe56800ffffffffffffffff",
    "000000000000000003e900000000ea60010000000100066f726465727300000001000000000000018bcfe568010000018bcfe56801",
    "000000000000000003e900000000ea60020000000100066f726465727300000001000000000000018bcfe568020000018bcfe56801",
    "000000000000000003e900000000ea6004000000000000018bcfe568030000018bcfe56801",
    "000000000000000003e900010000ea6000ffffffff0000018bcfe56804ffffffffffffffff",
]


def bytes_of(bench):
    assert {key.hex() for key, _ in bench.log} == {KEY}
    return [value.hex() for _, value in bench.log]


def test_generation_2_with_a_transaction_an_empty_one_and_one_in_the_last_epoch():
    """TXN-07: two steps to every end; where epochs run out the next producer id stands beside the present one."""
    bench = TransactionsBench()
    producer = bench.init().identity
    bench.pass_ms(1)
    bench.add(producer)
    bench.pass_ms(1)
    producer = bench.end(producer).identity
    bench.pass_ms(1)
    bench.mark()
    bench.pass_ms(1)
    bench.end(producer, committed=False)
    assert bytes_of(bench) == AT_LEVEL_2[:6]


def test_the_last_epoch():
    bench = TransactionsBench()
    bench.coordinator.read(bytes.fromhex(KEY), bytes.fromhex(AT_LEVEL_2[6]), 0)
    bench.next_producer_id = 1001
    bench.pass_ms(6)
    assert bench.end((1001, 32766)).identity == (1002, 0)
    bench.pass_ms(1)
    assert bench.mark()[0].epoch == 32767
    assert bytes_of(bench) == AT_LEVEL_2[7:]


@pytest.mark.parametrize(("level", "expected"), [(0, AT_LEVEL_0), (1, AT_LEVEL_1)])
def test_generation_1(level, expected):
    """TRAP-67: version 0 until the cluster has agreed on transaction.version 1."""
    bench = TransactionsBench(transaction_version=level)
    producer = bench.init().identity
    bench.pass_ms(1)
    bench.add(producer, version=0)
    bench.pass_ms(1)
    bench.end_1(producer)
    bench.pass_ms(1)
    bench.mark()
    bench.pass_ms(1)
    bench.init()
    assert bytes_of(bench) == expected


@pytest.mark.parametrize("value", [*AT_LEVEL_0, *AT_LEVEL_1, *AT_LEVEL_2])
def test_what_was_read_is_written_again_alike(value):
    record = unpack(bytes.fromhex(KEY), bytes.fromhex(value))
    assert record.key == TransactionLogKey(transactional_id=ID)
    assert from_value(ID, record.value).state in State
    assert pack(record, int(value[:4])) == (bytes.fromhex(KEY), bytes.fromhex(value))


def test_a_tombstone_has_no_value():
    assert pack(tombstone(ID), 1) == (bytes.fromhex(KEY), None)
    assert unpack(bytes.fromhex(KEY), None) == Record(TransactionLogKey(transactional_id=ID), None)


def test_kinds_of_later_releases_are_passed_over():
    assert unpack(b"\x00\x05whatever", b"\x00\x00") is None


@pytest.mark.parametrize(("key", "value"), [(None, b""), (b"\x00", b""), (bytes.fromhex(KEY), b"\x00\x02")])
def test_what_cannot_be_read_is_malformed(key, value):
    """An unknown version, passed over, would bring an older state of the id back."""
    with pytest.raises(Malformed):
        unpack(key, value)
