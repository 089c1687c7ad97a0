"""A class body is a wire layout.

    class MetadataRequest(Message, key=3, versions="0-13", flexible="9+"):
        class Topic(Struct):
            topic_id: uuid = v("10+")
            name: string | None = v("0+", nullable="10+")

        topics: list[Topic] | None = v("0+", nullable="1+")
        allow_auto_topic_creation: boolean = v("4+", True)

One class describes all versions of a message, and one object serves them all. The order of the lines is the order of
the bytes. The type says how a value looks on the wire; `v` says in which versions it is there, what it is when it is
not there, where it may be null, and whether it is a tagged field. Field names are the snake_case of the names in
Kafka's own message definitions, so that anybody can compare the two.

Terms. A *struct* is a row of fields. A *message* is a struct with versions of its own: a request, a response, or the
value of a record in an internal log (`key` is then that record's own type number; nothing here knows the difference).
A *span* is a range of versions, written "3+", "3-7", "5" or "" for none. A version is *flexible* when lengths are
varints and every struct ends in tagged fields (KIP-482). A *tagged* field is written by number, after the others, and
only if it differs from its default.

Objects are plain slots: no checks, no conversions. Every field has a default, so `MetadataRequest()` is legal. A field
that is itself a struct starts as one frozen object shared by everybody, because a Fetch answer over a thousand
partitions would otherwise build three thousand objects that say nothing; assigning to a field of it raises, and the
way to change it is to assign a new struct.

Making a class costs a few microseconds: annotations are read, and constructors and codecs compiled, when first used.
What belongs to the class (its key, its versions, its fields) lives on the metaclass, so a field may have any name,
`key` included. Modules that declare messages must not postpone their annotations (`from __future__ import
annotations`): the names in them would be out of reach.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, dataclass_transform, get_args

S = TypeVar("S", bound="Struct")

ZERO_UUID = bytes(16)
VERSION_MAX = 32767


class Kind(NamedTuple):
    """A primitive type. `format` is its letter for `struct`, empty when the size varies."""

    name: str
    format: str
    size: int
    zero: Any


class ListOf(NamedTuple):
    """An array; `element` is a Kind, a struct class, or another ListOf."""

    element: Any


int8 = Annotated[int, Kind("int8", "b", 1, 0)]
int16 = Annotated[int, Kind("int16", "h", 2, 0)]
int32 = Annotated[int, Kind("int32", "i", 4, 0)]
int64 = Annotated[int, Kind("int64", "q", 8, 0)]
uint16 = Annotated[int, Kind("uint16", "H", 2, 0)]
uint32 = Annotated[int, Kind("uint32", "I", 4, 0)]
float64 = Annotated[float, Kind("float64", "d", 8, 0.0)]
boolean = Annotated[bool, Kind("boolean", "?", 1, False)]
uuid = Annotated[bytes, Kind("uuid", "16s", 16, ZERO_UUID)]
string = Annotated[str, Kind("string", "", 0, "")]
byte_string = Annotated[bytes, Kind("byte_string", "", 0, b"")]
# Record batches: a memoryview of the frame when read; bytes, or anything with a `size` (a piece of a file), to write.
records = Annotated[Any, Kind("records", "", 0, None)]


class Span(NamedTuple):
    """Versions from `low` to `high`, both included."""

    low: int
    high: int

    @classmethod
    def of(cls, text: str) -> Span:
        if not text:
            return cls(1, 0)
        low, plus, _ = text.partition("+")
        if plus:
            return cls(int(low), VERSION_MAX)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high


class Unset:
    """Stands for "not given" where None is a value."""


UNSET = Unset()


class Written(NamedTuple):
    """What the right side of a field's line said."""

    versions: str
    default: Any
    nullable: str
    tag: int | None
    tagged: str


def v(
    versions: str = "0+", default: Any = UNSET, *, nullable: str = "", tag: int | None = None, tagged: str = ""
) -> Any:
    """The right side of a field's line. A field with a tag is always tagged, unless `tagged` says when."""
    return Written(versions, default, nullable, tag, tagged)


@dataclass(frozen=True, slots=True)
class Field:
    """One line of a layout. `fresh` says that the default must be made anew for each object (a list)."""

    name: str
    kind: Any
    versions: Span
    nullable: Span
    tag: int | None
    tagged: Span
    default: Any

    @property
    def fresh(self) -> bool:
        return isinstance(self.default, list)


class Facts:
    """All that is known about one struct class: what its body said, and what was worked out from that on first use."""

    __slots__ = ("blank", "decoders", "encoders", "fields", "flexible_from", "key", "versions", "written")

    def __init__(self, written: dict[str, Written], key: int, versions: str, flexible: str) -> None:
        self.written = written
        self.key = key
        self.versions = Span.of(versions or "0+")
        self.flexible_from = Span.of(flexible).low if flexible else VERSION_MAX + 1
        self.fields: tuple[Field, ...] | None = None
        self.blank: Struct | None = None
        self.decoders: dict[int, Callable[..., Any]] = {}
        self.encoders: dict[int, Callable[..., Any]] = {}


class Layout(type):
    """The class of struct classes: turns the lines of a body into slots, and answers questions about the class."""

    __facts__: Facts

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        body: dict[str, Any],
        key: int = -1,
        versions: str = "",
        flexible: str = "",
    ) -> Layout:
        written = {line: value for line, value in body.items() if isinstance(value, Written)}
        kept = {line: value for line, value in body.items() if line not in written}
        return super().__new__(
            mcs,
            name,
            bases,
            {"__facts__": Facts(written, key, versions, flexible), "__slots__": tuple(written), **kept},
        )

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_said: Any) -> None:
        super().__init__(name, bases, body)

    @property
    def key(cls) -> int:
        """The number of the api or of the record type; -1 when there is none."""
        return cls.__facts__.key

    @property
    def versions(cls) -> Span:
        return cls.__facts__.versions

    @property
    def flexible_from(cls) -> int:
        """The first flexible version; above all versions when there is none."""
        return cls.__facts__.flexible_from

    @property
    def fields(cls) -> tuple[Field, ...]:
        """The layout: annotations and right sides put together."""
        facts = cls.__facts__
        if facts.fields is None:
            facts.fields = _fields(cls, facts.written)
        return facts.fields

    @property
    def blank(cls) -> Struct:
        """The one frozen object of this class in which every field has its default."""
        facts = cls.__facts__
        if facts.blank is None:
            facts.blank = _blank(cls)
        return facts.blank


def _fields(cls: Layout, written: dict[str, Written]) -> tuple[Field, ...]:
    hints = inspect.get_annotations(cls)
    if set(hints) != set(written):
        raise TypeError(f"{cls.__qualname__}: every field needs `= v(...)`: {sorted(set(hints) ^ set(written))}")
    return tuple(_field(cls, name, hints[name], said) for name, said in written.items())


def _field(cls: Layout, name: str, hint: Any, said: Written) -> Field:
    kind, optional = _kind(hint)
    default = _zero(kind) if said.default is UNSET else said.default
    nullable = Span.of(said.nullable)
    if optional != (default is None or nullable.low <= nullable.high):
        raise TypeError(f"{cls.__qualname__}.{name}: `| None` in the type and nulls in `v(...)` go together")
    tagged = Span.of(said.tagged or (said.versions if said.tag is not None else ""))
    return Field(name, kind, Span.of(said.versions), nullable, said.tag, tagged, default)


def _kind(hint: Any) -> tuple[Any, bool]:
    """What stands on the wire, and whether the type allows None."""
    if isinstance(hint, str):
        raise TypeError(f"annotation {hint!r} is a string: this module must not postpone its annotations")
    if isinstance(hint, Layout):
        return hint, False
    parts = get_args(hint)
    if type(None) in parts:
        (rest,) = (part for part in parts if part is not type(None))
        return _kind(rest)[0], True
    if hasattr(hint, "__metadata__"):
        kind = hint.__metadata__[0]
        return kind, kind.name == "records"
    return ListOf(_kind(parts[0])[0]), False


def _zero(kind: Any) -> Any:
    if isinstance(kind, ListOf):
        return []
    if isinstance(kind, Layout):
        return kind.blank
    return kind.zero


def _frozen(self: Struct, name: str, value: object) -> None:
    raise AttributeError(f"{type(self).__name__}: this default is shared; assign a new struct instead of {name!r}")


def _blank(cls: Layout) -> Struct:
    """Same layout, same constructor, but `__setattr__` refuses; the fields were set before it was put in place."""
    cls()  # The subclass below must inherit the compiled constructor, not compile one of its own.
    body = {"__facts__": cls.__facts__, "__slots__": (), "__qualname__": cls.__qualname__, "__module__": cls.__module__}
    frozen = type.__new__(Layout, cls.__name__, (cls,), body)
    blank: Struct = frozen()
    frozen.__setattr__ = _frozen  # type: ignore[method-assign,assignment]
    return blank


def _constructor(cls: Layout) -> Callable[..., None]:
    """Compile `__init__(self, *, ...)`: keyword arguments and plain assignments, nothing else."""
    scope: dict[str, Any] = {"UNSET": UNSET}
    parameters, body = ["self", "*"], []
    for field in cls.fields:
        scope[f"default_{field.name}"] = UNSET if field.fresh else field.default
        parameters.append(f"{field.name}=default_{field.name}")
        value = f"{field.default!r} if {field.name} is UNSET else {field.name}" if field.fresh else field.name
        body.append(f"    self.{field.name} = {value}")
    source = f"def __init__({', '.join(parameters if cls.fields else ['self'])}):\n" + "\n".join(body or ["    pass"])
    exec(source, scope)
    constructor: Callable[..., None] = scope["__init__"]
    return constructor


def maker(cls: type[S], *names: str) -> Callable[..., S]:
    """A function of just these fields, in this order, that makes an object; the other fields have their defaults.

    Calling the class takes twice as long: it is for what the busiest handlers make.
    """
    body = [f"    made.{name} = {name}" for name in names]
    scope: dict[str, Any] = {"new": object.__new__, "cls": cls}
    for field in cls.fields:
        if field.name not in names:
            scope[f"default_{field.name}"] = field.default
            value = repr(field.default) if field.fresh else f"default_{field.name}"
            body.append(f"    made.{field.name} = {value}")
    exec("\n".join([f"def make({', '.join(names)}):", "    made = new(cls)", *body, "    return made"]), scope)
    make: Callable[..., S] = scope["make"]
    return make


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=Layout):
    """A row of fields. Equal when all fields are."""

    def __init__(self, **values: Any) -> None:
        """Only the first construction of each class comes by here: it compiles the constructor and steps aside."""
        cls = type(self)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        self.__init__(**values)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or type(self).__facts__ is not type(other).__facts__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).__facts__.written)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in type(self).__facts__.written)
        return f"{type(self).__qualname__}({', '.join(shown)})"


class Message(Struct):
    """A struct with versions of its own: class M(Message, key=3, versions="0-13", flexible="9+")."""
