"""Layout x version -> encode and decode, compiled on first use.

For each message class and version this file writes the source of one Python function and compiles it. The function is
what a patient person would write by hand for that one message in that one version: nested structs are written out in
place, arrays are loops, and nothing asks at run time which version it is. Interpreting the layout instead would cost
five to ten times as much, and the codec is on the path of every request.

Three ideas make the code fast.

*Runs.* Fields of fixed size that follow each other are read by one precompiled `struct.Struct`, straight into the
slots of the object: `o1.index, o1.error_code, n3 = U4(d, p); p += 7`. A run does not stop at the first string or
array: the length before it is of fixed size too. In flexible versions that length is a varint, and the *first byte* of
a varint is of fixed size; the rare second byte is fetched by `longer`. The count of tagged fields, nearly always one
zero byte, joins the run in the same way. A run ends where the next position depends on what was read.

*No constructors.* Objects are made by `object.__new__` and their slots assigned.

*Unwinding for free.* Reading beyond the end raises IndexError or struct.error by itself, so only slices, which Python
would quietly shorten, are checked against the end. One `try` around the function, which costs nothing when nothing is
raised, turns all of it into `Malformed`.

Nothing is allocated because a number in the frame says so. An array of n elements needs at least n times the size of
the smallest element, so n is compared with the bytes that remain; a string is compared before it is cut; the count of
tagged fields needs two bytes each. As a Python object is larger than its bytes, a well-formed frame could still claim
much memory with millions of tiny elements: `ELEMENTS_MAX` bounds all elements of all arrays in one message.

Records are not copied. Read, they are a memoryview of the frame. Written, a large piece is left out of the buffer: the
answer is a list of parts, and what has a `size` (a slice of a file) is a *hole* in it that the connection fills.

In the generated code `d` is the data, `p` the position, `end` the length of the data; `b` is the bytearray being
filled and `parts` what was finished before it; other names are a letter and a number. `source_of` shows it.

On writing: a field that does not exist in the version is left out, whatever it holds. Kafka refuses this for fields
not marked ignorable; a broker answering an old client has nobody to tell. None where the version has no null, and
numbers that do not fit, raise `Unencodable`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from ottla.wire.schema import Field, Kind, Layout, ListOf, Message

Data: TypeAlias = bytes | bytearray | memoryview


class Hole(Protocol):
    """Bytes that are not here yet; only their number is known."""

    @property
    def size(self) -> int: ...


Part: TypeAlias = bytes | bytearray | memoryview | Hole
M = TypeVar("M", bound=Message)
Decoder: TypeAlias = Callable[[Data, int], tuple[Any, int]]
Encoder: TypeAlias = Callable[[Any, bytearray, list[Part]], bytearray]

# All elements of all arrays of one message: enough for a request over every partition of a large cluster, and about
# 150 MB when each element is a small struct.
ELEMENTS_MAX = 1 << 20
# Kafka's own limit: lengths of strings were 16 bits wide before they were varints.
STRING_BYTES_MAX = 32767
# Records below this size are copied into the buffer: an extra part costs more than the copy.
INLINE_MAX = 2048


class Malformed(ValueError):
    """These bytes are not a message of that class and version."""


class Unencodable(ValueError):
    """This object cannot be written in that version."""


def decode(cls: type[M], data: Data, version: int, position: int = 0, *, trailing: bool = False) -> M:
    """Read one message; bytes left over are an error unless `trailing` allows them."""
    message, end = decoder(cls, version)(data, position)
    if end != len(data) and not trailing:
        raise Malformed(f"{cls.__name__} v{version}: {len(data) - end} bytes too many")
    return message  # type: ignore[no-any-return]


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message that has no holes."""
    parts = encode_parts(message, version)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)  # type: ignore[arg-type]


def encode_parts(message: Message, version: int, head: bytes = b"") -> list[Part]:
    """`head` and then the message, as pieces to be sent one after the other. The first is always a bytearray."""
    parts: list[Part] = []
    parts.append(encoder(type(message), version)(message, bytearray(head), parts))
    return parts


def size_of(parts: Sequence[Part]) -> int:
    """How many bytes the parts make, holes included."""
    return sum(len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size for part in parts)


def decoder(cls: Layout, version: int) -> Decoder:
    """The compiled function (data, position) -> (message, position after it)."""
    known = cls.__facts__.decoders.get(version)
    if known is None:
        known = cls.__facts__.decoders[version] = _compiled(Reading(cls, version))
    return known


def encoder(cls: Layout, version: int) -> Encoder:
    """The compiled function (message, open buffer, finished parts) -> open buffer."""
    known = cls.__facts__.encoders.get(version)
    if known is None:
        known = cls.__facts__.encoders[version] = _compiled(Writing(cls, version))
    return known


def source_of(cls: Layout, version: int, *, reading: bool) -> str:
    """The generated Python, for people and tests."""
    generator: Code = Reading(cls, version) if reading else Writing(cls, version)
    return generator.source()


def _compiled(code: Code) -> Callable[..., Any]:
    scope = code.scope
    exec(compile(code.source(), f"<{code.title}>", "exec"), scope)
    function: Callable[..., Any] = scope["run"]
    return function


# What generated code calls.


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


def skip_tags(d: Data, p: int, end: int, count: int) -> int:
    """The position after tagged fields nobody here knows. `count` is the first byte of their number."""
    if count > 127:
        count, p = longer(d, p, count)
    if count > (end - p) >> 1:
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


def varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


SHORT_VARINTS = tuple(bytes((n,)) for n in range(128))


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


# The generator.


class Code:
    """Source under construction: lines, their indentation, names for constants, and the run that is open."""

    def __init__(self, cls: Layout, version: int) -> None:
        low, high = cls.versions
        if not low <= version <= high:
            raise ValueError(f"{cls.__name__} has versions {low}-{high}, not {version}")
        self.cls, self.version = cls, version
        self.flexible = version >= cls.flexible_from
        self.title = f"{cls.__name__} v{version}"
        self.lines: list[str] = []
        self.depth = 0
        self.count = 0
        self.run: list[tuple[str, str]] = []
        self.scope: dict[str, Any] = {}

    def source(self) -> str:
        if not self.lines:
            self.function()
        return "\n".join(self.lines) + "\n"

    def function(self) -> None:
        raise NotImplementedError

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def constant(self, letter: str, value: Any) -> str:
        name = self.name(letter)
        self.scope[name] = value
        return name

    def close_run(self) -> tuple[struct.Struct, str] | None:
        """The open run as a Struct and its operands; afterwards no run is open."""
        if not self.run:
            return None
        layout = struct.Struct(">" + "".join(letter for letter, _ in self.run))
        operands = ", ".join(operand for _, operand in self.run if operand)
        self.run = []
        return layout, operands

    def sorted_fields(self, cls: Layout) -> tuple[list[Field], list[Field], list[Field]]:
        """In this version: plain fields in order, tagged ones by tag, absent ones."""
        here = [field for field in cls.fields if self.version in field.versions]
        plain = [field for field in here if self.version not in field.tagged]
        tagged = sorted((field for field in here if self.version in field.tagged), key=lambda field: field.tag or 0)
        absent = [field for field in cls.fields if self.version not in field.versions]
        if tagged and not self.flexible:
            raise TypeError(f"{self.title}: {tagged[0].name} is tagged in a version that is not flexible")
        return plain, tagged, absent

    def size_min(self, kind: Any) -> int:
        """The fewest bytes a value of this kind takes."""
        if isinstance(kind, Kind) and kind.format:
            return kind.size
        if isinstance(kind, Layout):
            return sum(self._size_min_of(field) for field in self.sorted_fields(kind)[0]) + self.flexible
        if self.flexible:
            return 1
        return 2 if isinstance(kind, Kind) and kind.name == "string" else 4

    def _size_min_of(self, field: Field) -> int:
        null_struct = isinstance(field.kind, Layout) and self.version in field.nullable
        return 1 if null_struct else self.size_min(field.kind)


class Reading(Code):
    """Writes a decoder."""

    def function(self) -> None:
        self.scope |= {
            "new": object.__new__, "Malformed": Malformed, "longer": longer, "longer_string": longer_string,
            "skip_tags": skip_tags, "read_varint": read_varint, "unpack_from": struct.unpack_from,
            "StructError": struct.error, "elements_max": ELEMENTS_MAX,
        }  # fmt: skip
        with self.block("def run(d, p):"):
            with self.block("try:"):
                self.line("end = len(d)")
                self.line("left = elements_max")
                self.struct(self.cls, "o")
                self.flush()
                self.line("return o, p")
            with self.block("except (StructError, IndexError):"):
                self.line(f"raise Malformed({self.title + ': ends too early'!r}) from None")
            with self.block("except UnicodeDecodeError:"):
                self.line(f"raise Malformed({self.title + ': text is not UTF-8'!r}) from None")

    def bad(self, condition: str, what: str) -> None:
        with self.block(f"if {condition}:"):
            self.line(f"raise Malformed({self.title + ': ' + what!r})")

    def take(self, letter: str, target: str) -> None:
        self.run.append((letter, target))

    def flush(self) -> None:
        closed = self.close_run()
        if closed is None:
            return
        layout, targets = closed
        if layout.format == ">B":
            self.line(f"{targets} = d[p]")
            self.line("p += 1")
            return
        comma = "" if "," in targets else ","
        self.line(f"{targets}{comma} = {self.constant('U', layout.unpack_from)}(d, p)")
        self.line(f"p += {layout.size}")

    def struct(self, cls: Layout, target: str) -> None:
        """Make the object at once: the open run may go on right into its slots."""
        self.line(f"{target} = new({self.constant('C', cls)})")
        plain, tagged, absent = self.sorted_fields(cls)
        for field in absent + tagged:
            self.line(f"{target}.{field.name} = {self.default(field)}")
        for field in plain:
            self.value(field.kind, f"{target}.{field.name}", field.name, self.version in field.nullable)
        if self.flexible:
            self.tags(tagged, target)

    def default(self, field: Field) -> str:
        simple = field.fresh or field.default is None or isinstance(field.default, (int, str, bytes))
        return repr(field.default) if simple else self.constant("D", field.default)

    def value(self, kind: Any, target: str, name: str, nullable: bool) -> None:
        if isinstance(kind, ListOf):
            self.array(kind, target, name, nullable)
        elif isinstance(kind, Layout):
            self.nested(kind, target, nullable)
        elif kind.format:
            self.take(kind.format, target)
        else:
            self.text_or_bytes(kind, target, name, nullable)

    def nested(self, cls: Layout, target: str, nullable: bool) -> None:
        """A struct inside a struct: just its fields, or after one byte that is negative for null."""
        held = self.name("o")
        if not nullable:
            self.struct(cls, held)
            self.line(f"{target} = {held}")
            return
        present = self.name("n")
        self.take("b", present)
        self.flush()
        with self.block(f"if {present} < 0:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            self.struct(cls, held)
            self.flush()
            self.line(f"{target} = {held}")

    def length(self, fixed: str, continued: str = "longer") -> str:
        """Read a length (or a count) and leave it in a variable: -1 for null."""
        n = self.name("n")
        self.take("B" if self.flexible else fixed, n)
        self.flush()
        if self.flexible:
            with self.block(f"if {n} > 127:"):
                self.line(f"{n}, p = {continued}(d, p, {n})")
            self.line(f"{n} -= 1")
        return n

    @contextmanager
    def present(self, n: str, target: str, name: str, nullable: bool) -> Iterator[None]:
        """Around what reads a value that is not null. A length below zero is refused by the check on the other side."""
        if not nullable:
            yield
            return
        with self.block(f"if {n} == -1:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            yield

    def text_or_bytes(self, kind: Kind, target: str, name: str, nullable: bool) -> None:
        is_string = kind.name == "string"
        n = self.length("h" if is_string else "i", "longer_string" if is_string else "longer")
        with self.present(n, target, name, nullable):
            q = self.name("q")
            self.line(f"{q} = p + {n}")
            self.bad(f"not p <= {q} <= end", f"{name} is null or beyond the end")
            self.line(f"{target} = {self.cut(kind, q)}")
            self.line(f"p = {q}")

    def cut(self, kind: Kind, q: str) -> str:
        if kind.name == "string":
            return f'str(d[p:{q}], "utf-8")'
        return f"memoryview(d)[p:{q}]" if kind.name == "records" else f"bytes(d[p:{q}])"

    def array(self, kind: ListOf, target: str, name: str, nullable: bool) -> None:
        n = self.length("i")
        with self.present(n, target, name, nullable):
            room = max(1, self.size_min(kind.element))
            self.bad(f"not 0 <= {n} * {room} <= end - p", f"{name} is null or beyond the end")
            self.line(f"left -= {n}")
            self.bad("left < 0", "too many elements")
            if isinstance(kind.element, Kind) and kind.element.format and kind.element.name != "uuid":
                letter = kind.element.format
                self.line(f'{target} = list(unpack_from(f">{{{n}}}{letter}", d, p))')
                self.line(f"p += {n} * {kind.element.size}")
            else:
                self.elements(kind.element, n, target, name)

    def elements(self, kind: Any, n: str, target: str, name: str) -> None:
        made, add, element = self.name("l"), self.name("a"), self.name("o")
        self.line(f"{made} = []")
        self.line(f"{add} = {made}.append")
        with self.block(f"for _ in range({n}):"):
            if isinstance(kind, Layout):
                self.struct(kind, element)
            else:
                self.value(kind, element, name, False)
            self.flush()
            self.line(f"{add}({element})")
        self.line(f"{target} = {made}")

    def tags(self, tagged: list[Field], target: str) -> None:
        n = self.name("n")
        self.take("B", n)
        self.flush()
        with self.block(f"if {n}:"):
            if tagged:
                self.known_tags(n, tagged, target)
            else:
                self.line(f"p = skip_tags(d, p, end, {n})")

    def known_tags(self, n: str, tagged: list[Field], target: str) -> None:
        tag, stop = self.name("t"), self.name("q")
        with self.block(f"if {n} > 127:"):
            self.line(f"{n}, p = longer(d, p, {n})")
        self.bad(f"{n} > (end - p) >> 1", "more tagged fields than bytes")
        with self.block(f"for _ in range({n}):"):
            self.line(f"{tag}, p = read_varint(d, p)")
            self.line(f"{stop}, p = read_varint(d, p)")
            self.line(f"{stop} += p")
            self.bad(f"{stop} > end", "tagged field beyond the end")
            for field in tagged:
                with self.block(f"if {tag} == {field.tag}:"):
                    self.value(field.kind, f"{target}.{field.name}", field.name, self.version in field.nullable)
                    self.flush()
                    self.bad(f"p != {stop}", f"{field.name} has another size than its tag says")
            self.line(f"p = {stop}")


class Writing(Code):
    """Writes an encoder."""

    buffer = "b"

    def function(self) -> None:
        self.scope |= {
            "Unencodable": Unencodable, "varint": varint, "varint_of_string": varint_of_string, "V": SHORT_VARINTS,
            "put_records": put_records, "pack": struct.pack, "StructError": struct.error,
        }  # fmt: skip
        with self.block("def run(o, b, parts):"):
            with self.block("try:"):
                self.struct(self.cls, "o")
                self.flush()
                self.line("return b")
            with self.block("except (StructError, TypeError, AttributeError, UnicodeEncodeError) as why:"):
                self.line(f"raise Unencodable(f{self.title + ': {why}'!r}) from why")

    def give(self, letter: str, expression: str) -> None:
        self.run.append((letter, expression))

    def flush(self) -> None:
        closed = self.close_run()
        if closed is None:
            return
        layout, values = closed
        if not values:
            self.line(f"{self.buffer} += {bytes(layout.size)!r}")
        elif layout.format == ">B":
            self.line(f"{self.buffer} += V[{values}]")
        else:
            self.line(f"{self.buffer} += {self.constant('P', layout.pack)}({values})")

    def give_varint(self, n: str, longer: str) -> None:
        """Join the open run when one byte is enough."""
        if not self.run:
            self.line(f"{self.buffer} += V[{n}] if {n} < 128 else {longer}({n})")
            return
        run = list(self.run)
        with self.block(f"if {n} < 128:"):
            self.give("B", n)
            self.flush()
        with self.block("else:"):
            self.run = run
            self.flush()
            self.line(f"{self.buffer} += {longer}({n})")

    def struct(self, cls: Layout, held: str) -> None:
        plain, tagged, _ = self.sorted_fields(cls)
        for field in plain:
            self.value(field.kind, f"{held}.{field.name}", self.version in field.nullable)
        if self.flexible and tagged:
            self.tags(tagged, held)
        elif self.flexible:
            self.give("x", "")

    def value(self, kind: Any, value: str, nullable: bool) -> None:
        if isinstance(kind, Kind) and kind.format:
            self.give(kind.format, value)
            return
        held = self.name("s")
        self.line(f"{held} = {value}")
        if not nullable:
            self.sized(kind, held)
            return
        self.flush()
        with self.block(f"if {held} is None:"):
            self.null(kind)
            self.flush()
        with self.block("else:"):
            if isinstance(kind, Layout):
                self.give("b", "1")
            self.sized(kind, held)
            self.flush()

    def null(self, kind: Any) -> None:
        """Null is a length of -1, or a struct's mark of -1; as a varint it is 0."""
        if isinstance(kind, Layout):
            self.give("b", "-1")
        elif self.flexible:
            self.give("x", "")
        else:
            self.give("h" if isinstance(kind, Kind) and kind.name == "string" else "i", "-1")

    def sized(self, kind: Any, held: str) -> None:
        """A value that is not null and whose size varies."""
        if isinstance(kind, ListOf):
            self.array(kind.element, held)
        elif isinstance(kind, Layout):
            self.struct(kind, held)
        elif kind.name == "records":
            self.flush()
            if self.buffer != "b":
                raise TypeError(f"{self.title}: records cannot be a tagged field")
            self.line(f"b = put_records(b, parts, {held}, {self.flexible})")
        else:
            if kind.name == "string":
                self.line(f"{held} = {held}.encode()")
            self.length(held, "h" if kind.name == "string" else "i")
            self.line(f"{self.buffer} += {held}")

    def length(self, held: str, fixed: str) -> None:
        if self.flexible:
            n = self.name("n")
            self.line(f"{n} = len({held}) + 1")
            self.give_varint(n, "varint_of_string" if fixed == "h" else "varint")
        else:
            self.give(fixed, f"len({held})")
            self.flush()

    def array(self, kind: Any, held: str) -> None:
        self.length(held, "i")
        if isinstance(kind, Kind) and kind.format and kind.name != "uuid":
            self.line(f'{self.buffer} += pack(f">{{len({held})}}{kind.format}", *{held})')
            return
        element = self.name("o")
        with self.block(f"for {element} in {held}:"):
            if isinstance(kind, Layout):
                self.struct(kind, element)
            else:
                self.value(kind, element, False)
            self.flush()

    def tags(self, tagged: list[Field], held: str) -> None:
        """Count those that are not at their default; then each in a buffer of its own, as its size stands before it."""
        count = self.name("n")
        values = [self.name("s") for _ in tagged]
        for field, value in zip(tagged, values, strict=True):
            self.line(f"{value} = {held}.{field.name}")
        tests = [self.differs(field, value) for field, value in zip(tagged, values, strict=True)]
        self.line(f"{count} = {' + '.join(f'({test})' for test in tests)}")
        self.give("B", count)
        self.flush()
        with self.block(f"if {count}:"):
            for field, value, test in zip(tagged, values, tests, strict=True):
                with self.block(f"if {test}:"):
                    self.tag(field, value)

    def differs(self, field: Field, value: str) -> str:
        """An expression that is True or False. Identity first: it settles the usual case without comparing structs."""
        default = self.constant("D", field.default)
        if field.default is None:
            return f"{value} is not None"
        if isinstance(field.kind, Layout):
            return f"{value} is not {default} and {value} != {default}"
        return f"{value} != {default}"

    def tag(self, field: Field, value: str) -> None:
        outer, self.buffer = self.buffer, self.name("b")
        self.line(f"{self.buffer} = bytearray()")
        self.value(field.kind, value, self.version in field.nullable)
        self.flush()
        inner, self.buffer = self.buffer, outer
        self.line(f"{outer} += {varint(field.tag or 0)!r}")
        self.line(f"{outer} += varint(len({inner}))")
        self.line(f"{outer} += {inner}")
