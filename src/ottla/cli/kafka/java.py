"""Values as Java prints them."""

from __future__ import annotations

import math
from decimal import Decimal

# Java writes a double without an exponent between these.
PLAIN_FROM, PLAIN_BELOW = 1e-3, 1e7


def double_text(value: float) -> str:
    """`1024.0`, `1.0E7`, `NaN`: Double.toString."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or PLAIN_FROM <= abs(value) < PLAIN_BELOW:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


def boolean_text(value: bool) -> str:
    return "true" if value else "false"
