from __future__ import annotations

from pathlib import Path

import pytest

from ottla.raft.quorum import VoterSet
from ottla.raft.snapshots import Damaged, SnapshotId, batch_of, pieces, read
from ottla.wire.messages.quorum import KRaftVersionRecord, SnapshotFooterRecord, SnapshotHeaderRecord, VotersRecord
from ottla.wire.records import batches, look

APACHE = Path(__file__).parent.parent / "metadata" / "apache_4_3_1" / "00000000000000000065-0000000001.checkpoint"


def test_a_snapshot_of_4_3_1_is_read_and_rebuilt_to_the_same_bytes() -> None:
    """KRF-10."""
    data = APACHE.read_bytes()
    whole = list(read(data))
    header, version, voters = whole[0][0]
    assert isinstance(header, SnapshotHeaderRecord) and isinstance(version, KRaftVersionRecord)
    assert isinstance(voters, VotersRecord) and isinstance(whole[-1][0][0], SnapshotFooterRecord)
    values = [value for _, held in whole for value in held]
    assert len(values) == 26
    written = list(batches(data))
    ours = list(
        pieces(
            values,
            last_timestamp=header.last_contained_log_timestamp,
            kraft_version=version.kraft_version,
            voters=VoterSet.of_record(voters),
            epoch=1,
            now_ms=written[0][1].base_timestamp,
        )
    )
    assert b"".join(ours[:2]) == data[: written[2][0]]
    assert len(ours[2]) == written[2][1].size


def test_many_values_become_many_batches_in_a_row() -> None:
    parts = list(pieces([b"x"] * 1200, last_timestamp=5, kraft_version=0, voters=VoterSet(), epoch=3, now_ms=7))
    offsets = [(look(part).base_offset, look(part).last_offset) for part in parts]
    assert offsets == [(0, 0), (1, 500), (501, 1000), (1001, 1200), (1201, 1201)]
    assert sum(len(values) for _, values in read(b"".join(parts))) == 1200


@pytest.mark.parametrize("cut", [1, 75, 80])
def test_without_its_end_it_is_no_snapshot(cut: int) -> None:
    with pytest.raises(Damaged):
        list(read(APACHE.read_bytes()[:-cut]))


def test_a_flipped_bit_is_seen() -> None:
    data = bytearray(APACHE.read_bytes())
    data[300] ^= 1
    with pytest.raises(Damaged, match="CRC"):
        list(read(bytes(data)))


def test_names() -> None:
    name = "00000000000000000065-0000000001.checkpoint"
    assert SnapshotId.of_file_name(name) == SnapshotId(65, 1) and SnapshotId(65, 1).file_name == name
    for other in ("bootstrap.checkpoint", name + ".part", "65-1.checkpoint", "quorum-state"):
        assert SnapshotId.of_file_name(other) is None


def test_batches_carry_their_place() -> None:
    batch = look(batch_of([b"a", b"b"], 10, 4, 99))
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch, batch.max_timestamp) == (10, 11, 4, 99)
