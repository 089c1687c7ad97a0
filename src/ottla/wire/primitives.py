"""What the compiled codecs call at run time: varints, tagged fields nobody knows, records; and how both sides fail."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview


class Hole(Protocol):
    """Bytes that are not here yet; only their number is known."""

    @property
    def size(self) -> int: ...


Part: TypeAlias = bytes | bytearray | memoryview | Hole

# Kafka's own limit: lengths of strings were 16 bits wide before they were varints.
STRING_BYTES_MAX = 32767
# Records below this size are copied into the buffer: an extra part costs more than the copy.
INLINE_MAX = 2048


class Malformed(ValueError):
    """These bytes are not a message of that class and version."""


class Unencodable(ValueError):
    """This object cannot be written in that version."""


def longer(d: Data, p: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte announced more, and the position after it."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = d[p]
        p += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 32:
                break
            return value, p
    raise Malformed("varint of more than 32 bits")


def longer_string(d: Data, p: int, first: int) -> tuple[int, int]:
    """As `longer`, for the length of a string plus one."""
    value, p = longer(d, p, first)
    if value > STRING_BYTES_MAX + 1:
        raise Malformed(f"string of {value - 1} bytes")
    return value, p


# Far more than any version of any message has; a frame full of empty ones would take seconds to walk over.
TAGS_MAX = 1024


def skip_tags(d: Data, p: int, end: int, count: int) -> int:
    """The position after tagged fields nobody here knows. `count` is the first byte of their number."""
    if count > 127:
        count, p = longer(d, p, count)
    if count > (end - p) >> 1 or count > TAGS_MAX:
        raise Malformed(f"{count} tagged fields in {end - p} bytes")
    for _ in range(count):
        _, p = read_varint(d, p)
        size, p = read_varint(d, p)
        p += size
        if p > end:
            raise Malformed("tagged field beyond the end")
    return p


def read_varint(d: Data, p: int) -> tuple[int, int]:
    first = d[p]
    return (first, p + 1) if first < 128 else longer(d, p + 1, first)


SHORT_VARINTS = tuple(bytes((n,)) for n in range(128))


def varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 1 << 14:
        return SHORT_VARINTS[value] if value < 128 else bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_of_string(value: int) -> bytes:
    """The length of a string plus one, when one byte is not enough."""
    if value > STRING_BYTES_MAX + 1:
        raise Unencodable(f"string of {value - 1} bytes")
    return varint(value)


def put_records(b: bytearray, parts: list[Part], value: Any, flexible: bool) -> bytearray:
    """Write record data: small ones into the buffer, large ones and holes as parts of their own."""
    here = isinstance(value, (bytes, bytearray, memoryview))
    size = len(value) if here else value.size
    b += varint(size + 1) if flexible else size.to_bytes(4, "big")
    if here and size <= INLINE_MAX:
        b += value
        return b
    parts += (b, value)
    return bytearray()
