"""What consumers say to one another inside the classic group protocol: the broker carries it, and need not read it.

Each is written as a version number of 16 bits and then the body (KIP-429, KIP-792, KIP-881). A version above those we
know begins with the fields of the highest one that we do.
"""

from typing import TypeVar

from ottla.wire.codec import Malformed, decode, encode
from ottla.wire.schema import Message, Struct, byte_string, int32, string, v

VERSION = 3
VERSION_BYTES = 2


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """What a member wants, and what it has. Version 1 adds what it owns, 2 since which generation, 3 its rack."""

    class TopicPartition(Struct):
        topic: string = v("1+")
        partitions: list[int32] = v("1+")

    topics: list[string] = v("0+")
    user_data: byte_string | None = v("0+", None, nullable="0+")
    owned_partitions: list[TopicPartition] = v("1+")
    generation_id: int32 = v("2+", -1)
    rack_id: string | None = v("3+", None, nullable="3+")


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """What the leader gives to a member."""

    class TopicPartition(Struct):
        topic: string = v("0+")
        partitions: list[int32] = v("0+")

    assigned_partitions: list[TopicPartition] = v("0+")
    user_data: byte_string | None = v("0+", None, nullable="0+")


M = TypeVar("M", ConsumerProtocolSubscription, ConsumerProtocolAssignment)


def packed(message: ConsumerProtocolSubscription | ConsumerProtocolAssignment, version: int = VERSION) -> bytes:
    return version.to_bytes(VERSION_BYTES, "big") + encode(message, version)


def unpacked(cls: type[M], data: bytes) -> M:
    """Malformed when it is none of these, as nothing at all is."""
    version = int.from_bytes(data[:VERSION_BYTES], "big", signed=True)
    if len(data) < VERSION_BYTES or version < 0:
        raise Malformed(f"{cls.__name__}: there is no version {version}")
    return decode(cls, data, min(version, VERSION), VERSION_BYTES, trailing=True)
