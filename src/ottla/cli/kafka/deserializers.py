"""Bytes as text, by the class names of Kafka's own deserialisers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Deserializer = Callable[[bytes], bytes]

PACKAGE = "org.apache.kafka.common.serialization."
# Java writes numbers between these without an exponent.
PLAIN_MIN, PLAIN_MAX = 1e-3, 1e7


class Undecodable(ValueError):
    """The bytes are not what they were said to be."""


def deserializer(name: str) -> Deserializer | None:
    """The one with that name, with its package or without; None when there is none."""
    return KNOWN.get(name.removeprefix(PACKAGE).removesuffix("Deserializer"))


def _string(data: bytes) -> bytes:
    """As Java reads UTF-8 and writes it again: what cannot be read becomes a replacement character."""
    return data.decode("utf-8", "replace").encode()


def _raw(data: bytes) -> bytes:
    """Java prints the address of an array; the bytes themselves are of more use."""
    return data


def _bytes(data: bytes) -> bytes:
    shown = (chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02X}" for byte in data)
    return "".join(shown).encode()


def _number(kind: str, format_: str, size: int) -> Deserializer:
    def read(data: bytes) -> bytes:
        if len(data) != size:
            raise Undecodable(f"Size of data received by {kind}Deserializer is not {size}")
        value = struct.unpack(format_, data)[0]
        return (java_float(value, is_single=size == 4) if isinstance(value, float) else str(value)).encode()

    return read


def java_float(value: float, *, is_single: bool = False) -> str:
    """A number as Java's Float.toString and Double.toString write it."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
    shortest = _shortest_single(value) if is_single else repr(value)
    if value == 0 or PLAIN_MIN <= abs(value) < PLAIN_MAX:
        plain = f"{float(shortest):f}" if "e" in shortest else shortest
        return plain if "." in plain else f"{plain}.0"
    digits, power = _digits(shortest)
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{power}"


def _digits(text: str) -> tuple[str, int]:
    """The digits that count, and the power of ten of the first."""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    power = int(exponent or 0) + len(whole) - 1 - leading
    return digits.rstrip("0") or "0", power


def _shortest_single(value: float) -> str:
    """The fewest digits that stand for the same number of 32 bits."""
    for precision in range(1, 10):
        text = f"{value:.{precision}g}"
        if struct.pack(">f", float(text)) == struct.pack(">f", value):
            return repr(float(text))
    return repr(value)


def _boolean(data: bytes) -> bytes:
    if data not in (b"\x00", b"\x01"):
        raise Undecodable("Unexpected byte received by BooleanDeserializer: " + data.hex())
    return b"true" if data == b"\x01" else b"false"


KNOWN: dict[str, Deserializer] = {
    "String": _string,
    "UUID": _string,
    "ByteArray": _raw,
    "ByteBuffer": _raw,
    "Bytes": _bytes,
    "Short": _number("Short", ">h", 2),
    "Integer": _number("Integer", ">i", 4),
    "Long": _number("Long", ">q", 8),
    "Float": _number("Float", ">f", 4),
    "Double": _number("Double", ">d", 8),
    "Boolean": _boolean,
}
