"""Writes the source of codecs: one Python function for each message class, version and direction.

Such a function is what a patient person would write by hand for that one message in that one version: nested structs
are written out in place, arrays are loops, and nothing asks at run time which version it is. Interpreting the layout
instead would cost five to ten times as much, and the codec is on the path of every request.

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
tagged fields needs two bytes each. But a Python object is larger than its bytes, and a well-formed frame full of tiny
elements could still claim a hundred times its size. So there is one account of memory for each message: `MEMORY_FREE`,
and `MEMORY_PER_BYTE` of the frame, and never more than `MEMORY_MAX`. An array is charged for its elements before the
first of them is made, each with what its objects take at most, and a long text with its widest form. The densest thing
that clients send, a partition in an old Fetch, takes 13 times its bytes; a hundred thousand of them pass.

Records are not copied. Read, they are a memoryview of the frame. Written, a large piece is left out of the buffer: the
answer is a list of parts, and what has a `size` (a slice of a file) is a *hole* in it that the connection fills.

In the generated code `d` is the data, `m` a view of it, `p` the position, `end` the length of the data and `left` the
account above; `b` is the bytearray being filled and `parts` what was finished before it; other names are a letter and a
number.
`codec.source_of` shows it.

On writing: a field that does not exist in the version is left out, whatever it holds. Kafka refuses this for fields
not marked ignorable; a broker answering an old client has nobody to tell. None where the version has no null, and
numbers that do not fit, raise `Unencodable`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ottla.wire.primitives import (
    SHORT_VARINTS,
    Malformed,
    Unencodable,
    longer,
    longer_string,
    put_records,
    skip_tags,
    varint,
    varint_of_string,
)
from ottla.wire.schema import Field, Kind, Layout, ListOf

# What the objects of one request may take, in bytes; and how many times as much an answer may, which we asked for, or a
# record of our own: a picture of the whole cluster is larger than any question about it.
MEMORY_MAX = 32 << 20
MEMORY_FREE = 1 << 20
MEMORY_PER_BYTE = 14
TRUST = 16

# What an object takes in CPython, rounded up as its allocator does; text and bytes without what they hold.
MEMORY_OF = {"boolean": 0, "uuid": 64, "string": 64, "byte_string": 48, "records": 208}
MEMORY_OF_NUMBER = 32
MEMORY_OF_LIST = 64
# A place in a list, which grows ahead of what it holds; and what the garbage collector keeps in front of an object.
MEMORY_OF_PLACE = 16


def _is_number(kind: Any) -> bool:
    """Whether an array of it is one call of `struct`."""
    return isinstance(kind, Kind) and len(kind.format) == 1


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

    def has_records(self, kind: Any) -> bool:
        if isinstance(kind, Layout):
            return any(self.has_records(field.kind) for field in kind.fields)
        return self.has_records(kind.element) if isinstance(kind, ListOf) else kind.name == "records"

    def memory_of(self, kind: Any) -> int:
        """What the objects of a value take. The elements of an array are left out: they are charged when counted."""
        if isinstance(kind, ListOf):
            return MEMORY_OF_LIST
        if not isinstance(kind, Layout):
            return MEMORY_OF.get(kind.name, MEMORY_OF_NUMBER)
        plain, tagged, absent = self.sorted_fields(kind)
        lists = sum(field.fresh for field in tagged + absent) * MEMORY_OF_LIST
        return kind.__basicsize__ + MEMORY_OF_PLACE + lists + sum(self.memory_of(field.kind) for field in plain)

    def _size_min_of(self, field: Field) -> int:
        null_struct = isinstance(field.kind, Layout) and self.version in field.nullable
        return 1 if null_struct else self.size_min(field.kind)


class Reading(Code):
    """Writes a decoder."""

    def function(self) -> None:
        self.scope |= {
            "new": object.__new__, "Malformed": Malformed, "longer": longer, "longer_string": longer_string,
            "skip_tags": skip_tags, "unpack_from": struct.unpack_from,
            "StructError": struct.error,
        }  # fmt: skip
        with self.block("def run(d, p):"):
            with self.block("try:"):
                self.line("end = len(d)")
                self.open_account(1 if self.cls.__name__.endswith("Request") else TRUST)
                if self.has_records(self.cls):
                    self.line("m = memoryview(d)")
                self.struct(self.cls, "o")
                self.flush()
                self.line("return o, p")
            with self.block("except (StructError, IndexError):"):
                self.line(f"raise Malformed({self.title + ': ends too early'!r}) from None")
            with self.block("except UnicodeDecodeError:"):
                self.line(f"raise Malformed({self.title + ': text is not UTF-8'!r}) from None")

    def open_account(self, trust: int) -> None:
        self.line(f"left = (end - p) * {MEMORY_PER_BYTE * trust} + {MEMORY_FREE * trust}")
        with self.block(f"if left > {MEMORY_MAX * trust}:"):
            self.line(f"left = {MEMORY_MAX * trust}")

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

    def nested(self, cls: Layout, target: str, nullable: bool, null: str = "< 0") -> None:
        """A struct inside a struct: just its fields, or after one byte that is negative for null."""
        held = self.name("o")
        if not nullable:
            self.struct(cls, held)
            self.line(f"{target} = {held}")
            return
        present = self.name("n")
        self.take("b", present)
        self.flush()
        with self.block(f"if {present} {null}:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            self.struct(cls, held)
            self.flush()
            self.line(f"{target} = {held}")

    def length(self, fixed: str) -> str:
        """Read a length (or a count) and leave it in a variable: -1 for null. Only strings have one of 16 bits."""
        n, is_string = self.name("n"), fixed == "h"
        self.take("B" if self.flexible else fixed, n)
        self.flush()
        if self.flexible or is_string:
            with self.block(f"if {n} > 127:"):
                if self.flexible:
                    self.line(f"{n}, p = {'longer_string' if is_string else 'longer'}(d, p, {n})")
                if is_string:
                    self.charge(f"{n} << 2", "too much text")
        if self.flexible:
            self.line(f"{n} -= 1")
        return n

    def length_of_records(self) -> str:
        """Records of a single batch have a length of two bytes more often than not."""
        if not self.flexible:
            return self.length("i")
        n, second = self.name("n"), self.name("n")
        self.take("B", n)
        self.flush()
        with self.block(f"if {n} > 127:"):
            self.line(f"{second} = d[p]")
            with self.block(f"if {second} < 128:"):
                self.line(f"{n} += ({second} << 7) - 128")
                self.line("p += 1")
            with self.block("else:"):
                self.line(f"{n}, p = longer(d, p, {n})")
        self.line(f"{n} -= 1")
        return n

    def charge(self, memory: str, refusal: str) -> None:
        self.line(f"left -= {memory}")
        self.bad("left < 0", refusal)

    @contextmanager
    def present(self, n: str, target: str, nullable: bool) -> Iterator[None]:
        """Around what reads a value that is not null. A length below zero is refused by the check on the other side."""
        if not nullable:
            yield
            return
        with self.block(f"if {n} == -1:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            yield

    def text_or_bytes(self, kind: Kind, target: str, name: str, nullable: bool) -> None:
        n = self.length_of_records() if kind.name == "records" else self.length("h" if kind.name == "string" else "i")
        with self.present(n, target, nullable):
            q = self.name("q")
            self.line(f"{q} = p + {n}")
            self.bad(f"not p <= {q} <= end", f"{name} is null or beyond the end")
            self.line(f"{target} = {self.cut(kind, n, q)}")
            self.line(f"p = {q}")

    def cut(self, kind: Kind, n: str, q: str) -> str:
        if kind.name == "string":
            return f'str(d[p:{q}], "utf-8") if {n} else ""'
        return f"m[p:{q}]" if kind.name == "records" else f"bytes(d[p:{q}])"

    def array(self, kind: ListOf, target: str, name: str, nullable: bool) -> None:
        n, made = self.length("i"), self.name("l")
        with self.present(n, target, nullable):
            self.line(f"{target} = {made} = []")
            with self.block(f"if {n}:"):
                room = max(1, self.size_min(kind.element))
                self.bad(f"not 0 <= {n} * {room} <= end - p", f"{name} is null or beyond the end")
                self.charge(f"{n} * {self.memory_of(kind.element) + MEMORY_OF_PLACE}", "too many elements")
                if _is_number(kind.element):
                    self.line(f'{made} += unpack_from(f">{{{n}}}{kind.element.format}", d, p)')
                    self.line(f"p += {n} * {kind.element.size}")
                else:
                    self.elements(kind.element, n, made, name)

    def elements(self, kind: Any, n: str, made: str, name: str) -> None:
        """Most arrays have one element: then counting down costs a third of what making a range to go through does."""
        element = self.name("o")
        with self.block(f"while {n}:"):
            self.line(f"{n} -= 1")
            if isinstance(kind, Layout):
                self.struct(kind, element)
            else:
                self.value(kind, element, name, False)
            self.flush()
            self.line(f"{made}.append({element})")

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
            for number in (tag, stop):
                self.line(f"{number} = d[p]")
                self.line("p += 1")
                with self.block(f"if {number} > 127:"):
                    self.line(f"{number}, p = longer(d, p, {number})")
            self.line(f"{stop} += p")
            self.bad(f"{stop} > end", "tagged field beyond the end")
            for field in tagged:
                with self.block(f"if {tag} == {field.tag}:"):
                    self.tagged(field, f"{target}.{field.name}")
                    self.flush()
                    self.bad(f"p != {stop}", f"{field.name} has another size than its tag says")
            self.line(f"p = {stop}")

    def tagged(self, field: Field, target: str) -> None:
        nullable = self.version in field.nullable
        if isinstance(field.kind, Layout):
            self.nested(field.kind, target, nullable, null="<= 0")  # here the mark is a varint: 0 for null
        else:
            self.value(field.kind, target, field.name, nullable)


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

    def value(self, kind: Any, value: str, nullable: bool, null_struct: str = "-1") -> None:
        if isinstance(kind, Kind) and kind.format:
            self.give(kind.format, value)
            return
        held = self.name("s")
        self.line(f"{held} = {value}")
        if not nullable:
            self.sized(kind, held)
            return
        run = list(self.run)
        with self.block(f"if {held} is None:"):
            self.null(kind, null_struct)
            self.flush()
        with self.block("else:"):
            self.run = run
            if isinstance(kind, Layout):
                self.give("b", "1")
            self.sized(kind, held)
            self.flush()

    def null(self, kind: Any, null_struct: str = "-1") -> None:
        """Null is a length of -1, or a struct's mark of -1; as a varint it is 0."""
        if isinstance(kind, Layout):
            self.give("b", null_struct)
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
        if _is_number(kind):
            self.line(f'{self.buffer} += pack(f">{{len({held})}}{kind.format}", *{held})')
            return
        element = self.name("o")
        with self.block(f"for {element} in {held}:"):
            if isinstance(kind, Layout):
                self.bare(kind, element)
                self.struct(kind, element)
            else:
                self.value(kind, element, False)
            self.flush()

    def bare(self, cls: Layout, held: str) -> None:
        """An element with nothing to say of varying size, such as a partition without an error, is one run."""
        plain, tagged, _ = self.sorted_fields(cls)
        varying = [field for field in plain if not (isinstance(field.kind, Kind) and field.kind.format)]
        nulls = [field for field in varying if self.version in field.nullable]
        lists = [field for field in varying if field not in nulls and isinstance(field.kind, ListOf)]
        if not nulls + tagged or len(nulls + lists) < len(varying) or self.has_records(cls):
            return
        with self.block(f"if {' and '.join(self.is_bare(field, held) for field in nulls + tagged + lists)}:"):
            for field in plain:
                if field not in varying:
                    self.give(field.kind.format, f"{held}.{field.name}")
                elif field in nulls:
                    self.null(field.kind)
                else:
                    self.give(*(("B", "1") if self.flexible else ("i", "0")))
            if self.flexible:
                self.give("x", "")
            self.flush()
            self.line("continue")

    def is_bare(self, field: Field, held: str) -> str:
        value = f"{held}.{field.name}"
        if self.version in field.tagged:
            default = self.constant("D", field.default)
            return f"{value} {'is' if isinstance(field.kind, Layout) else '=='} {default}"
        return f"{value} is None" if self.version in field.nullable else f"not len({value})"

    def tags(self, tagged: list[Field], held: str) -> None:
        """Count those that are not at their default; then each in a buffer of its own, as its size stands before it."""
        count = self.name("n")
        values = [self.name("s") for _ in tagged]
        for field, value in zip(tagged, values, strict=True):
            self.line(f"{value} = {held}.{field.name}")
        tests = [self.name("t") for _ in tagged]
        for field, value, test in zip(tagged, values, tests, strict=True):
            self.line(f"{test} = {self.differs(field, value)}")
        self.line(f"{count} = {' + '.join(tests)}")
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
        if isinstance(field.kind, Layout) and self.version in field.nullable:
            return f"{value} is not {default} and {value} != {default}"
        if isinstance(field.kind, Layout):
            return f"{value} is not {default} and {self.differ(field.kind, value, field.default)}"
        return f"{value} != {default}"

    def differ(self, kind: Layout, value: str, default: Any) -> str:
        """The fields are compared all at once, unless there is but one, or a struct among them."""
        plain, tagged, _ = self.sorted_fields(kind)
        names = [field.name for field in plain + tagged]
        if len(names) < 2 or any(isinstance(field.kind, Layout) for field in plain + tagged):
            return f"{value} != {self.constant('D', default)}"
        defaults = self.constant("D", tuple(getattr(default, name) for name in names))
        return f"({', '.join(f'{value}.{name}' for name in names)}) != {defaults}"

    def tag(self, field: Field, value: str) -> None:
        outer, self.buffer = self.buffer, self.name("b")
        self.line(f"{self.buffer} = bytearray()")
        self.value(field.kind, value, self.version in field.nullable, null_struct="0")
        self.flush()
        inner, self.buffer = self.buffer, outer
        self.line(f"{outer} += {varint(field.tag or 0)!r}")
        self.line(f"{outer} += varint(len({inner}))")
        self.line(f"{outer} += {inner}")
