"""Voter sets, the high watermark, and the file in which a voter keeps its promises."""

from __future__ import annotations

import pytest

from ottla.raft.quorum import Address, QuorumState, Voter, VoterSet, leader_change
from ottla.wire.codec import decode, encode
from ottla.wire.ids import uuid_bytes
from ottla.wire.messages.quorum import VotersRecord

DIRECTORY = uuid_bytes("FVAW7n9mTWOGed4fZjwMhg")
ONE = VoterSet((Voter(1, DIRECTORY, (Address("CONTROLLER", "localhost", 39193),)),))
THREE = VoterSet((Voter(1), Voter(2), Voter(3)))

# What `kafka-storage format --standalone` of 4.3.1 wrote.
VOTERS = bytes.fromhex(
    "00000200000001155016ee7f664d638679de1f663c0c86020b434f4e54524f4c4c45520a6c6f63616c686f737499190000000001000000"
)


def test_the_voters_record_is_the_one_apache_kafka_writes() -> None:
    assert encode(ONE.to_record(), 0) == VOTERS
    assert VoterSet.of_record(decode(VotersRecord, VOTERS, 0)) == ONE


def test_leader_change_is_the_one_apache_kafka_writes() -> None:
    assert encode(leader_change(1, ONE, (1,)), 0) == bytes.fromhex("00000000000102000000010002000000010000")


def test_a_majority_must_have_synced_past_the_start_of_the_epoch() -> None:
    """TRAP-32, TRAP-33: the leader's own end counts only as far as it is synced."""
    assert ONE.high_watermark({1: 10}, epoch_start=5, current=0) == 10
    assert THREE.high_watermark({1: 10, 2: 7, 3: 4}, epoch_start=5, current=0) == 7
    assert THREE.high_watermark({1: 10, 2: 5}, epoch_start=5, current=3) == 3
    assert THREE.high_watermark({1: 10}, epoch_start=5, current=3) == 3
    assert THREE.high_watermark({1: 8, 2: 6}, epoch_start=5, current=7) == 7


def test_half_of_the_voters_is_no_majority() -> None:
    for count, majority in ((1, 1), (2, 2), (3, 2), (4, 3), (5, 3)):
        assert VoterSet(tuple(Voter(number) for number in range(count))).majority == majority
    four = VoterSet(tuple(Voter(number) for number in range(4)))
    assert four.high_watermark({0: 10, 1: 10, 2: 6}, epoch_start=5, current=0) == 6


def test_voters_can_come_from_the_setting() -> None:
    voters = VoterSet.of_setting("1@a.example:9093, 2@[::1]:9094")
    assert voters.ids == (1, 2) and voters.voters[1].addresses == (Address("", "::1", 9094),)


def test_the_state_file_of_4_3_1_is_read_and_written_as_it_is() -> None:
    written = (
        b'{"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    state = QuorumState.of_json(written)
    assert state == QuorumState(epoch=3, leader=1)
    assert state.to_json(1, ONE) == written


def test_the_older_layout_belongs_to_quorums_with_a_fixed_voter_set() -> None:
    written = (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    assert QuorumState.of_json(written).to_json(0, ONE) == written


def test_a_newer_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="too new"):
        QuorumState.of_json(b'{"leaderId":1,"leaderEpoch":3,"votedId":-1,"data_version":2}')
