"""Reading back an internal topic: batches as they stand in the log, replayed by a machine.

A node that starts may have a million records to read before its groups can be served, and most of them stand alone in their
batch: somebody committed an offset. So usual batches (not compressed, not of a transaction) are taken apart here in one
loop, and only what the machine wants to know. Their CRCs were checked when they were read.
"""

from __future__ import annotations

import struct
from typing import Any

from ottla.coordination.machine import NO_PRODUCER, Machine
from ottla.wire import records as wire
from ottla.wire.errors import Error, KafkaError

# Of a batch's header: base offset, length, attributes, last offset delta, number of records.
_HEAD = struct.Struct(">qi9xhi30xi")
_LENGTH_COUNTS_FROM = 12
_UNUSUAL = ~0b1000  # bits of the attributes; which kind of timestamp it has does not matter


def replay(machine: Machine[Any], data: bytes) -> tuple[int, int]:
    """Replay all batches in `data`; the number of their records, and the offset that follows the last one."""
    position, total, next_offset = 0, 0, -1
    while position + _HEAD.size <= len(data):
        base_offset, length, attributes, last_delta, count = _HEAD.unpack_from(data, position)
        end = position + _LENGTH_COUNTS_FROM + length
        if end > len(data):
            break
        if attributes & _UNUSUAL:
            _replay_unusual(machine, memoryview(data)[position:end])
        else:
            _replay_usual(machine, data, position + _HEAD.size, end, base_offset, count)
        position, total, next_offset = end, total + count, base_offset + last_delta + 1
    return total, next_offset


def _replay_usual(machine: Machine[Any], data: bytes, position: int, end: int, base_offset: int, count: int) -> None:
    try:
        position = _replay_records(machine, data, position, base_offset, count)
    except IndexError:
        position = -1
    if position != end:
        raise KafkaError(Error.CORRUPT_MESSAGE, f"the records of the batch at offset {base_offset} do not end with it")


def _replay_records(machine: Machine[Any], data: bytes, position: int, base_offset: int, count: int) -> int:
    """One loop with everything in it, as in `wire.records`; where the last record ends."""
    read = machine.read
    for _ in range(count):
        number, position = data[position], position + 1
        if number & 0x80:
            number, position = _wide(data, position)
        after = position + (number >> 1)
        position += 1  # attributes, of which none is in use
        while data[position] & 0x80:  # the timestamp does not matter
            position += 1
        number, position = data[position + 1], position + 2
        if number & 0x80:
            number, position = _wide(data, position)
        offset = base_offset + (number >> 1)
        number, position = data[position], position + 1
        if number & 0x80:
            number, position = _wide(data, position)
        key = data[position : position + (number >> 1)]
        number, position = data[position + len(key)], position + len(key) + 1
        if number & 0x80:
            number, position = _wide(data, position)
        value = None if number & 1 else data[position : position + (number >> 1)]  # odd numbers are below zero: null
        read(key, value, offset)
        position = after
    return position


def _wide(data: bytes, position: int) -> tuple[int, int]:
    """The whole of a varint of several bytes, of which the first has been read; and where it ends."""
    number, shift = data[position - 1] & 0x7F, 7
    while data[position] & 0x80:
        number |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return number | data[position] << shift, position + 1


def _replay_unusual(machine: Machine[Any], data: memoryview) -> None:
    """A batch of a transaction, the end of one, or one that is compressed."""
    batch = wire.look(data)
    if batch.is_control:
        for marker in wire.iterate(data):
            kind = wire.control_type(marker.key)
            if kind in (wire.ControlType.COMMIT, wire.ControlType.ABORT):
                machine.end_transaction(batch.producer_id, kind == wire.ControlType.COMMIT)
        return
    producer_id = batch.producer_id if batch.is_transactional else NO_PRODUCER
    for offset, _, key, value, _ in wire.iterate(data):
        machine.read(key, value, offset, producer_id)
