"""Layout x version -> encode and decode, compiled on first use.

The functions here are the whole face of the codec; how the compiled code comes about, and what it promises about
hostile bytes, is told in generator.py. Compiled functions are kept with the class they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from ottla.wire.generator import Code, Reading, Writing
from ottla.wire.primitives import Data, Hole, Malformed, Part, Unencodable
from ottla.wire.schema import Layout, Message

__all__ = [
    "Data",
    "Hole",
    "Malformed",
    "Part",
    "Unencodable",
    "decode",
    "decoder",
    "encode",
    "encode_parts",
    "encoder",
    "size_of",
    "source_of",
]

M = TypeVar("M", bound=Message)
Decoder: TypeAlias = Callable[[Data, int], tuple[Any, int]]
Encoder: TypeAlias = Callable[[Any, bytearray, list[Part]], bytearray]


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
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size
    return size


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
