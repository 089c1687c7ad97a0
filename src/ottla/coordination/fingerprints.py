"""What a group's topics look like, in 64 bits: the metadata hash that Apache Kafka 4.1 and later write beside a group's epoch.

When the hash of the topics that a group subscribes to changes (one came, went or grew, or its replicas moved to other racks),
the group gets a new epoch. It is the same number that Apache computes (XXH3 of a fixed layout), so a group that is handed over
to or from Apache does not begin with a rebalance.

XXH3 is Yann Collet's hash, in its 64 bit form, with its own secret and seed 0. It is written out here because a few hundred
bytes are hashed when a topic changes: no dependency is worth that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ottla.metadata.image import Image, Topic

LAYOUT = 0  # the first byte that is hashed: which layout follows

_MASK = 0xFFFFFFFFFFFFFFFF
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MIX_1, _MIX_2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE, _SECRET_STEP = 64, 8
_STRIPES_OF_BLOCK = (len(_SECRET) - _STRIPE) // _SECRET_STEP
_BLOCK = _STRIPE * _STRIPES_OF_BLOCK
_SHORT_MAX, _MIDDLE_MAX = 128, 240


def group_hash(image: Image, topics: Iterable[str], known: dict[str, tuple[Topic, int]]) -> int:
    """Of those among these topics that exist; 0 for none. `known` keeps what was computed for a topic as it is now."""
    existing = [topic for name in sorted(set(topics)) if (topic := image.topic(name)) is not None]
    if not existing:
        return 0
    return signed(xxh3(b"".join(_topic_hash(image, topic, known).to_bytes(8, "little") for topic in existing)))


def _topic_hash(image: Image, topic: Topic, known: dict[str, tuple[Topic, int]]) -> int:
    before = known.get(topic.name)
    if before is not None and before[0] is topic:
        return before[1]
    number = xxh3(_layout(image, topic))
    known[topic.name] = topic, number
    return number


def _layout(image: Image, topic: Topic) -> bytes:
    most, least = struct.unpack(">QQ", topic.id)
    parts = [struct.pack("<BQQ", LAYOUT, most, least), _text(topic.name), struct.pack("<i", len(topic.partitions))]
    for index in range(len(topic.partitions)):
        parts.append(struct.pack("<i", index))
        brokers = (image.broker(replica) for replica in topic.partitions[index].replicas)
        for rack in sorted(broker.rack for broker in brokers if broker is not None and broker.rack is not None):
            parts.append(struct.pack("<i", len(rack)) + _text(rack))
    return b"".join(parts)


def _text(text: str) -> bytes:
    """As hash4j feeds it: UTF-16, and then how many units that was."""
    units = text.encode("utf-16-le")
    return units + struct.pack("<i", len(units) // 2)


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def xxh3(data: bytes) -> int:
    """XXH3_64bits of the data."""
    size = len(data)
    if size <= 16:
        return _tiny(data, size)
    if size <= _SHORT_MAX:
        return _short(data, size)
    return _middle(data, size) if size <= _MIDDLE_MAX else _long(data, size)


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _fold(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK) ^ (product >> 64)


def _avalanche(number: int) -> int:
    number ^= number >> 37
    number = number * _MIX_1 & _MASK
    return number ^ (number >> 32)


def _avalanche_of_old(number: int) -> int:
    """The last step of XXH64, which the shortest inputs use."""
    number = (number ^ (number >> 33)) * _P64_2 & _MASK
    number = (number ^ (number >> 29)) * _P64_3 & _MASK
    return number ^ (number >> 32)


def _tiny(data: bytes, size: int) -> int:
    if size > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high) & _MASK)
    if size >= 4:
        return _four_to_eight(data, size)
    if size:
        combined = data[0] << 16 | data[size >> 1] << 24 | data[size - 1] | size << 8
        return _avalanche_of_old(combined ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _avalanche_of_old(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _four_to_eight(data: bytes, size: int) -> int:
    number = _u32(data, size - 4) + (_u32(data, 0) << 32) & _MASK
    number ^= _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
    number ^= (number << 49 | number >> 15) & _MASK ^ (number << 24 | number >> 40) & _MASK
    number = number * _MIX_2 & _MASK
    number ^= (number >> 35) + size & _MASK
    number = number * _MIX_2 & _MASK
    return number ^ (number >> 28)


def _mix16(data: bytes, at: int, secret_at: int) -> int:
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8))


def _short(data: bytes, size: int) -> int:
    total = size * _P64_1
    for pair in range((size - 1) // 32 + 1):
        total += _mix16(data, 16 * pair, 32 * pair) + _mix16(data, size - 16 * (pair + 1), 32 * pair + 16)
    return _avalanche(total & _MASK)


def _middle(data: bytes, size: int) -> int:
    total = size * _P64_1 + sum(_mix16(data, 16 * i, 16 * i) for i in range(8))
    total = _avalanche(total & _MASK)
    total += sum(_mix16(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, size // 16))
    total += _mix16(data, size - 16, 136 - 17)
    return _avalanche(total & _MASK)


def _long(data: bytes, size: int) -> int:
    lanes = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    last_block = (size - 1) // _BLOCK * _BLOCK
    for block in range(0, last_block, _BLOCK):
        for stripe in range(_STRIPES_OF_BLOCK):
            _accumulate(lanes, data, block + stripe * _STRIPE, stripe * _SECRET_STEP)
        _scramble(lanes)
    for stripe in range((size - 1 - last_block) // _STRIPE):
        _accumulate(lanes, data, last_block + stripe * _STRIPE, stripe * _SECRET_STEP)
    _accumulate(lanes, data, size - _STRIPE, len(_SECRET) - _STRIPE - 7)
    total = size * _P64_1
    for lane in range(0, 8, 2):
        left, right = lanes[lane] ^ _u64(_SECRET, 11 + 8 * lane), lanes[lane + 1] ^ _u64(_SECRET, 19 + 8 * lane)
        total += _fold(left, right)
    return _avalanche(total & _MASK)


def _accumulate(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    values = struct.unpack_from("<8Q", data, at)
    keys = struct.unpack_from("<8Q", _SECRET, secret_at)
    for lane in range(8):
        keyed = values[lane] ^ keys[lane]
        lanes[lane ^ 1] = lanes[lane ^ 1] + values[lane] & _MASK
        lanes[lane] = lanes[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & _MASK


def _scramble(lanes: list[int]) -> None:
    keys = struct.unpack_from("<8Q", _SECRET, len(_SECRET) - _STRIPE)
    for lane in range(8):
        number = lanes[lane] ^ lanes[lane] >> 47 ^ keys[lane]
        lanes[lane] = number * _P32_1 & _MASK
