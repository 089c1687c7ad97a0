"""The records of the offsets topic, against bytes that Apache Kafka 4.3.1 wrote."""

import pytest

from ottla.coordination import records as r
from ottla.coordination.records import Record, pack, unpack
from ottla.wire.codec import Malformed, Unencodable, encode

MEMBER = "k7xrl55BTXy+D9wgggpSdA"
TOPIC_ID = bytes.fromhex("9cf74923fe6a4669b71cd350f8b0afeb")
CLASSIC_MEMBER = "rdkafka-ff920eca-cb8d-4e11-9faa-611b16759b99"

# What a consumer of each protocol left behind: key, value, and what they say.
WRITTEN_BY_APACHE = [
    (
        "0002000167",
        "0003000000000000ffffffff000001a1e1b4794200000000",
        Record(
            r.GroupMetadataKey(group="g"),
            r.GroupMetadataValue(
                protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=1794788063554
            ),
        ),
    ),
    (
        "0002000167",
        "00030008636f6e73756d657200000001000572616e6765002c72646b61666b612d66663932306563612d636238642d346531312d396661612d"
        "363131623136373539623939000001a1e1b4795c00000001002c72646b61666b612d66663932306563612d636238642d346531312d39666161"
        "2d363131623136373539623939ffff000772646b61666b61000a2f3132372e302e302e31000493e00000afc800000017000300000001000174"
        "0000000000000000ffffffff000000000015000000000001000174000000010000000000000000",
        Record(
            r.GroupMetadataKey(group="g"),
            r.GroupMetadataValue(
                protocol_type="consumer",
                generation=1,
                protocol="range",
                leader=CLASSIC_MEMBER,
                current_state_timestamp=1794788063580,
                members=[
                    r.GroupMetadataValue.Member(
                        member_id=CLASSIC_MEMBER,
                        client_id="rdkafka",
                        client_host="/127.0.0.1",
                        rebalance_timeout=300000,
                        session_timeout=45000,
                        subscription=bytes.fromhex("0003000000010001740000000000000000ffffffff0000"),
                        assignment=bytes.fromhex("000000000001000174000000010000000000000000"),
                    )
                ],
            ),
        ),
    ),
    (
        "000100016700017400000000",
        "000400000000000000050000000001000001a1e1b479f40100109cf74923fe6a4669b71cd350f8b0afeb",
        Record(
            r.OffsetCommitKey(group="g", topic="t", partition=0),
            r.OffsetCommitValue(
                offset=5, leader_epoch=0, metadata="", commit_timestamp=1794788063732, topic_id=TOPIC_ID
            ),
        ),
    ),
    (
        "000500046738343800166b3778726c3535425458792b44397767676770536441",
        "000000000872646b61666b610b2f3132372e302e302e3102027401000493e00001000100",
        None,
    ),
    ("0003000467383438", "000000000002010008931b9eb3a2f575d7", None),
    (
        "000700046738343800166b3778726c3535425458792b44397767676770536441",
        "0000029cf74923fe6a4669b71cd350f8b0afeb02000000000000",
        None,
    ),
    ("0006000467383438", "000000000002010008000001a1e1b47a5a", None),
    (
        "000800046738343800166b3778726c3535425458792b44397767676770536441",
        "0000000000020000000000029cf74923fe6a4669b71cd350f8b0afeb020000000001000502000000020100",
        Record(
            r.ConsumerGroupCurrentMemberAssignmentKey(group_id="g848", member_id=MEMBER),
            r.ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=2,
                previous_member_epoch=0,
                state=0,
                assigned_partitions=[
                    r.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
                        topic_id=TOPIC_ID, partitions=[0], assignment_epochs=[2]
                    )
                ],
            ),
        ),
    ),
    ("0003000467383438", "00000000000300", None),
    ("000500046738343800166b3778726c3535425458792b44397767676770536441", None, None),
]


@pytest.mark.parametrize("number", range(len(WRITTEN_BY_APACHE)))
def test_same_bytes_as_apache(number: int) -> None:
    """OFF-02: what is in the topic is what Apache would have written, to the byte."""
    key, value, said = WRITTEN_BY_APACHE[number]
    raw = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    record = unpack(*raw)
    assert record is not None
    assert said is None or record == said
    assert pack(record) == raw


def test_an_offset_with_an_expiry_of_its_own_is_version_1() -> None:
    """TRAP-51."""
    value = r.OffsetCommitValue(offset=7, metadata="m", commit_timestamp=5, expire_timestamp=99)
    key, packed = pack(Record(r.OffsetCommitKey(group="g", topic="t", partition=1), value))
    assert packed is not None and packed[:2] == b"\0\1"
    again = unpack(key, packed)
    assert again is not None and again.value == value


@pytest.mark.parametrize("topic_id", [TOPIC_ID, bytes(16)])
@pytest.mark.parametrize("note", ["", "m", "ü" * 63, "n" * 126, "n" * 127, "n" * 4096])
def test_offsets_packed_by_hand_are_as_the_layouts_say(note: str, topic_id: bytes) -> None:
    """OFF-02: short notes and long ones, with and without the topic's id."""
    said = {"offset": 2**40, "leader_epoch": 3, "metadata": note, "commit_timestamp": 1794788063732}
    value = r.OffsetCommitValue(**said, topic_id=topic_id)
    key = r.OffsetCommitKey(group="gruppe-ü", topic="t", partition=7)
    assert pack(Record(key, value)) == (b"\0\1" + encode(key, 0), b"\0\4" + encode(value, 4))


def test_a_group_whose_name_is_too_long_for_a_key_is_not_written() -> None:
    value = r.OffsetCommitValue(offset=7, topic_id=TOPIC_ID)
    with pytest.raises(Unencodable):
        pack(Record(r.OffsetCommitKey(group="g" * 40_000, topic="t", partition=1), value))


def test_kinds_and_versions_that_nobody_knows_are_passed_over() -> None:
    """TRAP-51: share and streams groups, and later releases."""
    for kind in (10, 15, 17, 23, 999):
        assert unpack(kind.to_bytes(2, "big") + b"\0\1g", b"\0\0whatever") is None
    assert unpack(bytes.fromhex("0002000167"), b"\0\x63whatever") is None


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\1\0\5g", b"\0\2"])
def test_a_key_that_cannot_be_read_is_an_error(key: bytes | None) -> None:
    with pytest.raises(Malformed):
        unpack(key, b"")


def test_the_oldest_layout_of_offsets_is_read() -> None:
    old = unpack(bytes.fromhex("000000016700017400000000"), bytes.fromhex("0000") + bytes(8) + b"\0\0" + bytes(8))
    assert old is not None and isinstance(old.key, r.OffsetCommitKey) and old.key.group == "g"
