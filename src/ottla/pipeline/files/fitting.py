"""Whether a number can be what a schema declares. Libraries write another one without a word where it cannot: 3,000,000,000 as
an `int` is a varint that readers elsewhere refuse, 0.5 becomes 0, and 1e300 infinity.

What a float rounds to the nearest is no other number: it is what the schema asks for. A whole number that changes is.
"""

from __future__ import annotations

import math
from decimal import Decimal
from struct import pack, unpack
from typing import Any

# From here on a number is rounded to infinity.
INFINITE = {32: 2**128 - 2**103, 64: 2**1024 - 2**970}


def is_whole(value: Any, bits: int, signed: bool = True) -> bool:
    """A decimal may be whole as well: a sum of many columns is one."""
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    first = -(1 << bits - 1) if signed else 0
    return isinstance(value, int) and not isinstance(value, bool) and first <= value < first + (1 << bits)


def is_real(value: Any, bits: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    if not math.isfinite(value):
        return True
    return -INFINITE[bits] < value < INFINITE[bits] and (not isinstance(value, int) or _kept(value, bits))


def _kept(value: int, bits: int) -> bool:
    as_float = float(value)
    if abs(as_float) >= INFINITE[bits]:
        return False
    if bits == 32:
        (as_float,) = unpack("f", pack("f", as_float))
    return int(as_float) == value


def shown(value: Any, chars: int = 60) -> str:
    text = "NULL" if value is None else str(value) if isinstance(value, int | float | Decimal) else repr(value)
    return text if len(text) <= chars else text[: chars - 3] + "..."
