"""What a setting is: its type, default, allowed values and scope, and how text becomes a value and back.

The tables in `ottla.config.tables` are text, so that hundreds of rows stay readable. A row is a line of columns and an
indented line that says why the setting exists:

    log.segment.bytes int 1073741824 >=1048576 cluster
        A segment is closed at this size.

The columns are name, type, default, allowed values, and then any of these words:

    default     `-` is null, `""` is empty, `required` means that there is none
    allowed     `-` anything; `>=1`; `1..9`; `1..9|-1`; `{a,b}` one of (for lists: only these); `nocase{a,b}`;
                `nonempty`, also in front of `{`; `any` a list that may repeat itself; and two of their own, `throttled`
                (pairs of partition:broker, or *) and `reset` (where a share group begins)
    =a,b        the broker settings that stand in for a topic's or group's setting, the strongest first
    cluster     can be changed while brokers run, for one or for all; `broker`: only for one; neither: needs a restart
    internal    listed only where it was set
    inert       accepted, checked and listed, but without effect here

The unit of a number is the end of its name (`.ms`, `.bytes`, `.hours`). Passwords are never shown, nor is a setting
whose type is unknown: it might be one.

Texts of errors follow Apache Kafka's, which tell the name, the value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ottla.wire.errors import Error, KafkaError

Value = bool | int | float | str | tuple[str, ...] | None

# Numbers of the types in DescribeConfigs; 0 is a type nobody knows.
KIND_CODES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
BITS = {"short": 15, "int": 31, "long": 63}

WHOLE = re.compile(r"[+-]?[0-9]+")
DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")
SPECIAL_DOUBLES = {"NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "-Infinity": "-inf"}
THROTTLED = re.compile(r"([0-9]+:[0-9]+)?")
# Lists whose values are taken as they come.
UNCHECKED_LISTS = ("any", "throttled")
DURATION = re.compile(r"by_duration:P(?=.)([0-9]+D)?(T(?=.)([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?", re.IGNORECASE)


class Setting:
    """One row of the tables."""

    __slots__ = ("allowed", "default", "effect", "internal", "kind", "name", "scope", "stand_ins", "why")

    def __init__(self, row: str, why: str) -> None:
        self.name, self.kind, default, self.allowed, *words = row.split()
        self.default: str | None = None if default in ("-", "required") else default.replace('""', "")
        self.scope = "cluster" if "cluster" in words else "broker" if "broker" in words else ""
        self.internal = "internal" in words
        self.effect = "inert" not in words
        self.stand_ins = tuple(words[0][1:].split(",")) if words and words[0][0] == "=" else ()
        self.why = why

    @property
    def sensitive(self) -> bool:
        return self.kind == "password"

    def parse(self, text: str) -> Value:
        """The value that a text stands for. Raises INVALID_CONFIG, naming what is wrong and what is allowed."""
        value = parse(self.name, self.kind, text)
        check(self.name, self.allowed, value)
        if isinstance(value, tuple) and self.allowed not in UNCHECKED_LISTS:
            return tuple(dict.fromkeys(value))  # what is named twice counts once (KIP-1161)
        return value

    def default_value(self) -> Value:
        return None if self.default is None else parse(self.name, self.kind, self.default)


def read_table(text: str) -> Iterator[Setting]:
    row = ""
    for line in text.splitlines():
        if line.startswith("    "):
            yield Setting(row, line.strip())
        elif line and not line.startswith("#"):
            row = line


def invalid(name: str, value: object, problem: str) -> KafkaError:
    return KafkaError(Error.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {problem}")


def parse(name: str, kind: str, text: str) -> Value:
    trimmed = text.strip()
    if kind == "boolean":
        return _boolean(name, trimmed)
    if kind in BITS:
        return _whole(name, kind, trimmed)
    if kind == "double":
        return _double(name, trimmed)
    if kind == "list":
        return tuple(part.strip() for part in trimmed.split(",")) if trimmed else ()
    return text if kind == "password" else trimmed


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise invalid(name, text, "Expected value to be either true or false")
    return text.lower() == "true"


def _whole(name: str, kind: str, text: str) -> int:
    # int() alone would also take underscores, and as many digits as one cares to send.
    number = int(text) if WHOLE.fullmatch(text) and len(text) <= 40 else None
    if number is None or not -(1 << BITS[kind]) <= number < 1 << BITS[kind]:
        raise invalid(name, text, f"Not a number of type {kind.upper()}")
    return number


def _double(name: str, text: str) -> float:
    if text in SPECIAL_DOUBLES:
        return float(SPECIAL_DOUBLES[text])
    match = DECIMAL.fullmatch(text)
    if not match:
        raise invalid(name, text, "Not a number of type DOUBLE")
    return float(match[1])


def check(name: str, allowed: str, value: Value) -> None:
    """Raise INVALID_CONFIG unless `value` is one that the table allows."""
    if isinstance(value, tuple):
        _check_list(name, allowed, value)
    elif isinstance(value, str):
        _check_text(name, allowed, value)
    elif value is not None and not isinstance(value, bool):
        _check_number(name, allowed, value)


def _check_number(name: str, allowed: str, value: int | float) -> None:
    if allowed == "-":
        return
    span, _, exception = allowed.partition("|")
    low, _, high = span.removeprefix(">=").partition("..")
    if exception:
        if value != int(exception) and not int(low) <= value <= int(high):
            raise invalid(name, value, f"Value must be between {low} and {high} or equal to {exception}")
    elif value < float(low):
        raise invalid(name, render(value), f"Value must be at least {low}")
    elif high and value > float(high):
        raise invalid(name, render(value), f"Value must be no more than {high}")


def _check_text(name: str, allowed: str, value: str) -> None:
    if allowed == "nonempty" and not value:
        raise invalid(name, value, "String must be non-empty")
    if allowed == "reset" and not (value in ("latest", "earliest") or DURATION.fullmatch(value)):
        raise invalid(name, value, "must be 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'")
    if allowed.endswith("}"):
        how, choices = _choices(allowed)
        known = value in choices or (how == "nocase" and value.upper() in choices)
        if not known:
            hint = " (case insensitive)" if how == "nocase" else ""
            raise invalid(name, value, f"String must be one of{hint}: {', '.join(choices)}")


def _check_list(name: str, allowed: str, values: tuple[str, ...]) -> None:
    if allowed == "any":
        return
    if allowed == "throttled":
        _check_throttled(name, values)
        return
    how, choices = _choices(allowed)
    if how == "nonempty" and not values:
        valid = f"[{', '.join(choices)}]" if choices else "any non-empty value"
        raise KafkaError(
            Error.INVALID_CONFIG, f"Configuration '{name}' must not be empty. Valid values include: {valid}"
        )
    for value in values:
        if not value:
            raise KafkaError(Error.INVALID_CONFIG, f"Configuration '{name}' values must not be empty.")
        if choices and value not in choices:
            raise invalid(name, value, f"String must be one of: {', '.join(choices)}")


def _check_throttled(name: str, values: tuple[str, ...]) -> None:
    if "".join(values) != "*" and not all(THROTTLED.fullmatch(value) for value in values):
        shape = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        problem = f"{name} must be the literal '*' or a list of replicas in the following format: {shape}"
        raise invalid(name, f"[{', '.join(values)}]", problem)


def _choices(allowed: str) -> tuple[str, list[str]]:
    how, _, choices = allowed.rstrip("}").partition("{")
    return how, choices.split(",") if choices else []


def render(value: Value) -> str | None:
    """A value as DescribeConfigs shows it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value) if isinstance(value, int) else _render_double(value)


def _render_double(value: float) -> str:
    """As Java writes it: 0.5, 1.0E7, 1.7976931348623157E308, NaN, Infinity."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{value:.1f}" if value == int(value) else repr(value)
    digits, _, exponent = f"{value:.17e}".partition("e")
    for precision in range(17):
        short = f"{value:.{precision}e}"
        if float(short) == value:
            digits, _, exponent = short.partition("e")
            break
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"
