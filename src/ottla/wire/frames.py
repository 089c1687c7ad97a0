"""Feed bytes, get frames; and the headers in front of requests and responses.

A frame is a length of four bytes and that many bytes. It starts with a header: a request says which api, which version
and its correlation id; a response repeats only the correlation id. Both headers have a flexible form that ends in
tagged fields (request header 2, response header 1), used with the flexible versions of the body. Two exceptions: the
client id keeps its 16-bit length even in the flexible header, because a broker must be able to read it before it knows
what version it deals with; and the answer to ApiVersions always has the oldest header, because the client does not yet
know what the broker speaks (KIP-511).

A length is a promise, not a fact: nothing is reserved for a frame before its bytes are here.
"""

from __future__ import annotations

import struct
from collections import defaultdict

from ottla.wire.codec import Data, Encoder, Malformed, Part, encode_parts, encoder, size_of
from ottla.wire.messages import REQUESTS
from ottla.wire.primitives import skip_tags
from ottla.wire.schema import Layout, Message
from ottla.wire.told import KEYS, telling

API_VERSIONS = 18
SIZE = struct.Struct(">i")
REQUEST_HEAD = struct.Struct(">hhih")
HEAD_BYTES = REQUEST_HEAD.size
RESPONSE_HEAD = struct.Struct(">ii")
PLAIN_HEAD, TAGGED_HEAD = bytes(8), bytes(9)
FLEXIBLE_FROM = {key: request.flexible_from for key, request in REQUESTS.items()}
# The empty header and the encoder of every answer that was given so far.
RESPONDING: defaultdict[type[Message], dict[int, tuple[bytes, Encoder]]] = defaultdict(dict)
read_head = REQUEST_HEAD.unpack_from
FRAME_BYTES_MAX = 100 * 1024 * 1024  # socket.request.max.bytes


def read_request_header(frame: Data) -> tuple[int, int, int, str | None, int]:
    """Api key, version, correlation id, client id, and where the body starts. An api nobody knows is Malformed."""
    try:
        key, version, correlation_id, size = read_head(frame)
        flexible_from = FLEXIBLE_FROM.get(key)
        if flexible_from is None:
            raise Malformed(f"there is no api {key}")
        position = HEAD_BYTES if size == -1 else HEAD_BYTES + size
        if not HEAD_BYTES <= position <= len(frame):
            raise Malformed(f"client id of {size} bytes")
        client_id = None if size == -1 else str(frame[HEAD_BYTES:position], "utf-8")
        if version >= flexible_from:
            # Nearly always there are no tagged fields, which is one byte of zero.
            count = frame[position]
            position = skip_tags(frame, position + 1, len(frame), count) if count else position + 1
        return key, version, correlation_id, client_id, position
    except (struct.error, IndexError):
        raise Malformed("request header ends too early") from None
    except UnicodeDecodeError:
        raise Malformed("client id is not UTF-8") from None


def request_frame(request: Message, version: int, correlation_id: int, client_id: str | None) -> list[Part]:
    """A whole frame: length, header, body."""
    cls = type(request)
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    tags = b"\0" if version >= cls.flexible_from else b""
    return _frame(request, version, REQUEST_HEAD.pack(cls.key, version, correlation_id, size) + name + tags)


def response_frame(response: Message, version: int, correlation_id: int) -> list[Part]:
    """A whole frame: length, header, body; holes are left for the connection to fill."""
    parts: list[Part] = []
    parts.append(add_response(bytearray(), parts, response, version, correlation_id))
    return parts


def add_response(
    buffer: bytearray, parts: list[Part], response: Message, version: int, correlation_id: int
) -> bytearray:
    """Write a whole frame behind what the buffer holds; the buffer to go on with.

    Where the response has holes, the buffer so far and the holes are added to `parts`, and a new buffer is begun.
    """
    start, held = len(buffer), len(parts)
    cls = type(response)
    head, encode = RESPONDING[cls].get(version) or _learn(cls, version)
    buffer += head
    after = encode(response, buffer, parts)
    if len(parts) == held:
        RESPONSE_HEAD.pack_into(after, start, len(after) - start - 4, correlation_id)
    else:
        size = size_of(parts[held:]) + len(after) - start - 4
        RESPONSE_HEAD.pack_into(parts[held], start, size, correlation_id)  # type: ignore[arg-type]
    return after


def _learn(response: type[Message], version: int) -> tuple[bytes, Encoder]:
    head = TAGGED_HEAD if _response_has_tags(response, version) else PLAIN_HEAD
    learned = RESPONDING[response][version] = head, (telling if response.key in KEYS else encoder)(response, version)
    return learned


def read_response_header(frame: Data, response: Layout, version: int) -> tuple[int, int]:
    """Correlation id, and where the body starts."""
    try:
        correlation_id: int = SIZE.unpack_from(frame)[0]
        if not _response_has_tags(response, version):
            return correlation_id, SIZE.size
        return correlation_id, skip_tags(frame, SIZE.size + 1, len(frame), frame[SIZE.size])
    except (struct.error, IndexError):
        raise Malformed("response header ends too early") from None


def _response_has_tags(response: Layout, version: int) -> bool:
    return version >= response.flexible_from and response.key != API_VERSIONS


def _frame(message: Message, version: int, header: bytes) -> list[Part]:
    parts = encode_parts(message, version, b"\0\0\0\0" + header)
    first = parts[0]
    assert isinstance(first, bytearray)
    SIZE.pack_into(first, 0, size_of(parts) - SIZE.size)
    return parts


class Frames:
    """Cuts a stream of bytes into frames. After Malformed the stream has no known place to go on from."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held = bytearray()

    def feed(self, data: Data) -> list[bytes]:
        """The frames that are complete with these bytes, without their lengths."""
        size = len(data) - SIZE.size
        if not self._held and 0 <= size <= self._bytes_max and SIZE.unpack_from(data)[0] == size:
            return [bytes(data[SIZE.size :])]  # just one, as mostly
        self._held += data
        done: list[bytes] = []
        position = 0
        with memoryview(self._held) as view:
            while (end := self._end_of_frame(position)) is not None:
                done.append(bytes(view[position + SIZE.size : end]))
                position = end
        del self._held[:position]
        return done

    def _end_of_frame(self, position: int) -> int | None:
        if len(self._held) < position + SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._held, position)
        if not 0 <= size <= self._bytes_max:
            raise Malformed(f"frame of {size} bytes")
        end: int = position + SIZE.size + size
        return end if end <= len(self._held) else None
