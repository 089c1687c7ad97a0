"""The rules of the metadata quorum one by one, and its usual day as traces that can be read."""

from __future__ import annotations

import pytest

from ottla.raft import elections, following, partition
from ottla.raft.connections import NEVER, Destination, Send
from ottla.raft.history import History
from ottla.raft.leading import OBSERVER_SESSION_MS
from ottla.raft.quorum import NOBODY, Address, Key, QuorumState, VoterSet
from ottla.raft.replica import Lost, Replica
from ottla.raft.roles import Candidate, Change, Follower, Leader, Resigned, Unattached
from ottla.raft.snapshots import SnapshotId
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.quorum import (
    BeginQuorumEpochRequest,
    FetchSnapshotResponse,
    LeaderChangeMessage,
    VoteRequest,
    VotersRecord,
)
from ottla.wire.messages.quorum import SnapshotId as NamedSnapshot
from raft.assembly import CLUSTER, Assembly, Peer, key, voter

NOWHERE = Destination(1, "", 0)


def three(seed: int = 0, *observers: int, dynamic: bool = True) -> Assembly:
    assembly = Assembly([1, 2, 3], seed, observers, dynamic)
    assembly.start()
    return assembly


def settled(seed: int = 0, *observers: int, dynamic: bool = True) -> tuple[Assembly, Peer]:
    """A quorum that has a leader whom everybody follows."""
    assembly = three(seed, *observers, dynamic=dynamic)
    leader = assembly.elect()
    end = assembly.propose("first")
    assembly.run_until(lambda: assembly.everybody_has(end))
    return assembly, leader


def others(assembly: Assembly, leader: Peer) -> list[Peer]:
    return [peer for peer in assembly.peers.values() if peer is not leader]


# --- traces


def test_a_single_voter_leads_in_its_first_step_and_asks_nobody() -> None:
    """KRF-01, TRAP-29: one control batch with leader, version and voters."""
    alone = Assembly([1])
    alone.start()
    assert alone.trace == ["1 leader in epoch 1"]
    assert alone.wire == []
    kinds = [type(value).__name__ for _, value in alone.peers[1].disk.entries]
    assert kinds == ["LeaderChangeMessage", "KRaftVersionRecord", "VotersRecord"]
    assert alone.replica(1).high_watermark == 3
    assert alone.peers[1].promise == QuorumState(epoch=1, leader=1)


def test_a_single_voter_begins_a_new_epoch_at_every_start() -> None:
    alone = Assembly([1])
    for epoch in (1, 2, 3):
        alone.start()
        assert alone.replica(1).epoch == epoch
        alone.peers[1].crash()


def test_the_first_election_of_three() -> None:
    """KRF-05, KRF-20."""
    assembly = three(seed=2)
    assembly.run_until(
        lambda: all(isinstance(p.replica and p.replica.role, Leader | Follower) for p in assembly.peers.values())
    )
    assert assembly.trace == [
        "1 unattached in epoch 0",
        "2 unattached in epoch 0",
        "3 unattached in epoch 0",
        "3 prospective in epoch 0",
        "3 candidate in epoch 1",
        "1 unattached in epoch 1",
        "2 unattached in epoch 1",
        "3 leader in epoch 1",
        "1 follower of 3 in epoch 1",
        "2 follower of 3 in epoch 1",
    ]


def test_a_leader_that_resigns_is_followed_by_the_one_it_prefers() -> None:
    """KRF-11: nobody has to wait for a timeout."""
    assembly, leader = settled(seed=2)
    del assembly.trace[:]
    leader.replica.resign(assembly.now_ms)  # type: ignore[union-attr]
    leader.step()
    took = assembly.run_until(lambda: assembly.leader is not None and assembly.leader is not leader)
    assert assembly.trace == [
        "3 resigned in epoch 1",
        "1 prospective in epoch 1",
        "1 candidate in epoch 2",
        "2 unattached in epoch 2",
        "3 unattached in epoch 2",
        "1 leader in epoch 2",
    ]
    assert took < 20


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_leader_is_replaced_long_before_the_fetch_timeout(seed: int) -> None:
    """KRF-11: nobody listens at its address any more, and that is enough to ask for an election."""
    assembly, leader = settled(seed)
    leader.crash()
    took = assembly.run_until(lambda: assembly.leader is not None)
    assert took < 500
    end = assembly.propose("after")
    leader.start()
    assembly.run_until(lambda: assembly.everybody_has(end))


def test_a_leader_that_only_became_silent_is_replaced_after_the_fetch_timeout() -> None:
    assembly, leader = settled()
    assembly.isolate(leader.id)
    took = assembly.run_until(lambda: assembly.leader is not None and assembly.leader is not leader)
    assert took >= assembly.timing.fetch_timeout_ms - 60


# --- elections


def test_pre_vote_a_voter_that_was_cut_off_disturbs_nobody() -> None:
    """KIP-996: its epoch has not risen when it comes back."""
    assembly, leader = settled()
    away = others(assembly, leader)[0]
    assembly.isolate(away.id)
    assembly.run(20_000)
    assert assembly.replica(away.id).epoch == assembly.replica(leader.id).epoch
    assembly.heal()
    end = assembly.propose("on")
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert assembly.leader is leader
    assert leader.replica is not None and leader.replica.epoch == 1


def test_check_quorum_a_leader_that_hears_of_nobody_resigns() -> None:
    """KRF-18."""
    assembly, leader = settled()
    assembly.isolate(leader.id)
    took = assembly.run_until(lambda: not assembly.replica(leader.id).is_leader)
    assert assembly.timing.fetch_timeout_ms <= took <= 1.5 * assembly.timing.fetch_timeout_ms + 1


def test_a_leader_of_one_voter_never_resigns() -> None:
    alone = Assembly([1])
    alone.start()
    alone.run(60_000)
    assert alone.replica(1).is_leader


def test_a_vote_is_promised_before_it_is_given_and_kept_through_a_crash() -> None:
    """TRAP-34."""
    assembly = Assembly([1, 2, 3])
    assembly.start(1)
    peer, replica = assembly.peers[1], assembly.replica(1)
    ask = partition.vote(CLUSTER, 7, key(2), key(1), (0, 0), False)
    granted = replica.vote(ask, assembly.now_ms).topics[0].partitions[0]
    assert granted.vote_granted
    assert replica.take_ready(assembly.now_ms).promise == QuorumState(7, NOBODY, *key(2))
    peer.promise = QuorumState(7, NOBODY, *key(2))
    peer.crash()
    peer.start()
    again = assembly.replica(1)
    rival = partition.vote(CLUSTER, 7, key(3), key(1), (5, 100), False)
    assert not again.vote(rival, assembly.now_ms).topics[0].partitions[0].vote_granted
    assert again.vote(ask, assembly.now_ms).topics[0].partitions[0].vote_granted, "the same vote, asked for again"


def judged(replica: Replica, request: VoteRequest) -> tuple[Error, bool]:
    answer = replica.vote(request, 2000.0)
    if answer.error_code:
        return error_of(answer.error_code), False
    part = answer.topics[0].partitions[0]
    return error_of(part.error_code), part.vote_granted


def test_the_order_of_checks_of_a_vote() -> None:
    assembly, leader = settled()
    replica = assembly.replica(others(assembly, leader)[0].id)
    me, epoch, last = replica.member.key, replica.epoch, replica.member.last
    rival = key(9)
    ask = partition.vote
    assert judged(replica, ask("another", epoch + 1, rival, me, last, False)) == (Error.INCONSISTENT_CLUSTER_ID, False)
    odd = ask(CLUSTER, epoch + 1, rival, me, last, False)
    odd.topics[0].topic_name = "else"
    assert judged(replica, odd) == (Error.INVALID_REQUEST, False)
    assert judged(replica, ask(CLUSTER, epoch + 1, rival, me, (epoch + 1, 9), False)) == (Error.INVALID_REQUEST, False)
    assert judged(replica, ask(CLUSTER, epoch + 1, rival, me, (-1, 9), False)) == (Error.INVALID_REQUEST, False)
    assert judged(replica, ask(CLUSTER, epoch, rival, me, (epoch - 1, 9), False)) == (Error.NONE, False), "has a leader"
    assert judged(replica, ask(CLUSTER, epoch, rival, me, (epoch, 99), True)) == (Error.NONE, False), "hears from it"
    assert judged(replica, ask(CLUSTER, epoch + 1, Key(-1), me, last, False)) == (Error.INVALID_REQUEST, False)
    assert replica.epoch == epoch
    wiped = Key(me.id, bytes(15) + b"\xff")
    assert judged(replica, ask(CLUSTER, epoch + 1, rival, wiped, last, False)) == (Error.INVALID_VOTER_KEY, False)
    assert replica.epoch == epoch + 1, "that there is a new epoch is news whoever was meant"
    assert judged(replica, ask(CLUSTER, epoch, rival, me, (0, 0), False)) == (Error.FENCED_LEADER_EPOCH, False)
    shorter = (last[0], last[1] - 1)
    assert judged(replica, ask(CLUSTER, epoch + 1, rival, me, shorter, False)) == (Error.NONE, False)
    assert judged(replica, ask(CLUSTER, epoch + 1, rival, me, shorter, True)) == (Error.NONE, False)
    assert judged(replica, ask(CLUSTER, epoch + 1, rival, me, last, False)) == (Error.NONE, True)


def test_a_wiped_node_does_not_vote_under_its_old_id() -> None:
    """The directory id tells it from the voter it was (KIP-853)."""
    assembly, leader = settled()
    gone = others(assembly, leader)[0]
    wiped = Peer(gone.id, assembly, disk_number=1)
    assembly.peers[gone.id] = wiped
    wiped.start()
    assert not assembly.replica(gone.id).is_voter
    last = assembly.replica(leader.id).member.last
    ask = partition.vote(CLUSTER, last[0], leader.me.key, gone.me.key, last, True)
    assert judged(assembly.replica(gone.id), ask) == (Error.INVALID_VOTER_KEY, False)
    end = assembly.propose("copied")
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert not assembly.replica(gone.id).is_voter
    leader_role = assembly.replica(leader.id).role
    assert isinstance(leader_role, Leader)
    assert leader_role.replicas[gone.me.key].end < end, "its word does not count for the voter that is gone"


def test_a_wiped_voter_without_directory_id_votes_for_nobody_who_has_a_history_until_it_has_caught_up() -> None:
    """Under kraft.version 0 nothing else tells it from the voter that it was: what it had acknowledged is gone."""
    assembly, leader = settled(dynamic=False)
    wiped, behind = others(assembly, leader)
    behind.crash()
    end = assembly.propose("on two of three")
    assembly.run_until(lambda: assembly.everybody_has(end, leader.id, wiped.id))
    wiped.crash()
    leader.crash()
    again = Peer(wiped.id, assembly)
    assembly.peers[wiped.id] = again
    again.start()
    behind.start()
    assembly.run(20_000)
    assert assembly.leader is None, "together they would lose what was committed"
    leader.start()
    assembly.elect()
    end = assembly.propose("after")
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert not assembly.replica(wiped.id).member.is_blank


def test_who_led_an_epoch_never_leads_it_again() -> None:
    assembly, leader = settled()
    epoch = assembly.replica(leader.id).epoch
    leader.crash()
    leader.start()
    assert isinstance(assembly.replica(leader.id).role, Resigned)
    assembly.elect()
    assert assembly.leader is not None and assembly.leader.replica is not None
    assert assembly.leader.replica.epoch > epoch


def test_a_candidate_that_starts_again_asks_for_votes_only_in_a_new_epoch() -> None:
    """Its log may be shorter than the one it was voted for, and votes that were given are given again unseen."""
    assembly = Assembly([1, 2, 3])
    peer = assembly.peers[1]
    peer.promise = QuorumState(4, NOBODY, *peer.me.key)
    peer.start()
    assert isinstance(assembly.replica(1).role, Unattached)
    assembly.run_until(lambda: any("Vote" in type(flight.send.request).__name__ for flight in assembly.wire))
    asked = next(f.send.request for f in assembly.wire if isinstance(f.send.request, VoteRequest))
    assert asked.topics[0].partitions[0].pre_vote
    assembly.start(2)
    assert assembly.elect().replica.epoch == 5  # type: ignore[union-attr]


def test_a_log_that_failed_its_checks_neither_stands_nor_votes_until_it_has_caught_up() -> None:
    assembly, leader = settled()
    damaged, sound = others(assembly, leader)
    damaged.crash()
    damaged.disk.truncate(2)
    damaged.is_sound = False
    damaged.start()
    leader.crash()
    sound.crash()
    assembly.run(30_000)
    replica = assembly.replica(damaged.id)
    assert isinstance(replica.role, Follower | Unattached)
    ask = partition.vote(CLUSTER, 9, key(9), damaged.me.key, (8, 99), False)
    assert judged(replica, ask) == (Error.NONE, False)
    sound.start()
    leader.start()
    end = assembly.run_until(lambda: assembly.leader is not None) and assembly.propose("again")
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert assembly.replica(damaged.id).member.is_sound
    assert assembly.leader is not damaged


def test_a_replica_ends_rather_than_cut_off_what_was_committed() -> None:
    assembly, leader = settled()
    follower = others(assembly, leader)[0]
    replica = assembly.replica(follower.id)
    committed = replica.high_watermark
    assert committed > 2
    leader.disk.truncate(2)  # as if its disk had lost it
    assembly.rules.check = lambda peers: None  # type: ignore[method-assign]
    with pytest.raises(Lost, match="committed"):
        assembly.run(10_000)


def test_what_a_snapshot_holds_counts_as_committed_from_the_start() -> None:
    assembly = Assembly([1, 2, 3])
    disk = assembly.peers[1].disk
    disk.snapshots = [SnapshotId(5, 2)]
    disk.start_offset = disk.synced = 5
    assembly.peers[1].start()
    assert assembly.replica(1).high_watermark == 5


def test_a_new_leader_says_so_until_each_voter_has_fetched() -> None:
    assembly = three()
    leader = assembly.elect()
    silent = others(assembly, leader)[0]
    assembly.cut.add((leader.id, silent.id))
    assembly.cut.add((silent.id, leader.id))
    told = []
    before = assembly.request

    def request(source: int, send: object) -> None:
        if isinstance(send.request, BeginQuorumEpochRequest):  # type: ignore[attr-defined]
            told.append((assembly.now_ms, send.destination.id))  # type: ignore[attr-defined]
        before(source, send)  # type: ignore[arg-type]

    assembly.request = request  # type: ignore[method-assign]
    assembly.run(2_600)
    times = [at for at, whom in told if whom == silent.id]
    assert len(times) >= 2
    assert {whom for _, whom in told} == {silent.id}, "who fetches knows"


def test_answers_name_the_leader_and_where_it_listens() -> None:
    assembly, leader = settled()
    replica = assembly.replica(others(assembly, leader)[0].id)
    answer = replica.vote(partition.vote(CLUSTER, 1, key(9), replica.member.key, (0, 0), True), assembly.now_ms)
    part = answer.topics[0].partitions[0]
    assert (part.leader_id, part.leader_epoch) == (leader.id, 1)
    assert [(e.node_id, e.host, e.port) for e in answer.node_endpoints] == [(leader.id, f"host{leader.id}", 9093)]


# --- the log


def test_the_watermark_moves_only_past_the_first_record_of_the_leaders_own_epoch() -> None:
    """TRAP-32."""
    assembly, leader = settled()
    left, right = others(assembly, leader)
    for each in (left, right):
        assembly.cut.add((each.id, leader.id))
    assembly.propose("never committed by its leader")
    assert assembly.replica(leader.id).high_watermark < leader.disk.end_offset
    before = assembly.replica(leader.id).high_watermark
    role = assembly.replica(leader.id).role
    assert isinstance(role, Leader)
    voters = assembly.replica(leader.id).voters
    start = role.epoch_start + 7  # records of an earlier leader before it, that everybody has
    assert voters.high_watermark(dict.fromkeys(voters.ids, start), start, 0) == 0
    assert voters.high_watermark(dict.fromkeys(voters.ids, start + 1), start, 0) == start + 1
    assert before > 0


def test_the_leaders_own_log_counts_only_as_far_as_it_is_synced() -> None:
    """TRAP-33. One of two others has it: with our unsynced copy that would be a majority."""
    assembly, leader = settled()
    leader.auto_sync = False
    near, far = others(assembly, leader)
    assembly.isolate(far.id)
    end = assembly.propose("not on our disk")
    assembly.run(400)
    assert near.disk.synced == end
    assert assembly.replica(leader.id).high_watermark < end
    leader.sync()
    assert assembly.replica(leader.id).high_watermark == end


def test_a_follower_fetches_again_only_when_it_has_synced() -> None:
    """TRAP-33: its offset is its word for that."""
    assembly, leader = settled()
    follower, other = others(assembly, leader)
    assembly.isolate(other.id)
    follower.auto_sync = False
    end = assembly.propose("slow disk")
    assembly.run(400)
    assert follower.disk.end_offset == end
    assert assembly.replica(leader.id).high_watermark < end
    follower.sync()
    follower.step()
    assembly.run_until(lambda: assembly.everybody_has(end, leader.id, follower.id))


def test_what_a_deposed_leader_wrote_alone_is_cut_off() -> None:
    assembly, leader = settled()
    assembly.isolate(leader.id)
    assembly.propose("lonely", "lonelier")
    cut = leader.disk.end_offset - 2
    assembly.run_until(lambda: assembly.leader is not None and assembly.leader is not leader)
    end = assembly.propose("new")
    del assembly.trace[:]
    assembly.heal()
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert f"{leader.id} cuts its log to {cut}" in assembly.trace
    assert [v for _, v in leader.disk.entries if isinstance(v, str)] == ["first", "new"]


def test_a_replica_without_log_takes_a_snapshot_piece_by_piece() -> None:
    assembly, leader = settled()
    assembly.propose(*(f"record {n}" for n in range(20)))
    assembly.run(200)
    leader.snapshot()
    late = Peer(7, assembly)
    assembly.peers[7] = late
    late.start()
    end = assembly.propose("after the snapshot")
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert f"7 took the snapshot at {leader.disk.start_offset}" in assembly.trace
    assert assembly.replica(7).voters.ids == (1, 2, 3), "it knows the voters from there"


def test_a_piece_of_a_snapshot_that_was_not_asked_for_is_not_kept() -> None:
    assembly, leader = settled()
    replica = assembly.replica(others(assembly, leader)[0].id)
    answer = FetchSnapshotResponse.Topic.Partition(position=0, size=100, unaligned_records=b"some")
    answer.snapshot_id = NamedSnapshot(end_offset=9, epoch=1)
    for wanted, have in ((SnapshotId(9, 1), 50), (SnapshotId(8, 1), 0)):
        assert isinstance(replica.role, Follower)
        replica.role.snapshot, replica.role.snapshot_bytes = wanted, have
        assert not following.snapshot_answered(
            replica.member, Send(1, NOWHERE, FetchRequest()), answer, assembly.now_ms
        )
        assert replica.member.ready.snapshot is None and replica.role.snapshot is None


def test_an_observer_that_was_not_heard_of_for_long_is_forgotten() -> None:
    assembly, leader = settled(0, 4)
    assert leader.replica is not None
    voters, observers = leader.replica.progress(assembly.now_ms)
    assert key(4) in observers and len(voters) == 3
    voters, observers = leader.replica.progress(assembly.now_ms + OBSERVER_SESSION_MS + 1)
    assert not observers and len(voters) == 3


def test_observers_learn_the_leader_and_never_vote_or_stand() -> None:
    """KRF-06."""
    assembly, _ = settled(0, 8)
    assert isinstance(assembly.replica(8).role, Follower)
    for each in (1, 2, 3):
        assembly.peers[each].crash()
    assembly.run(30_000)
    assert isinstance(assembly.replica(8).role, Follower | Unattached)
    for each in (1, 2, 3):
        assembly.peers[each].start()
    assembly.elect()
    end = assembly.propose("again")
    assembly.run_until(lambda: assembly.everybody_has(end))


def test_fixed_voters_of_kraft_version_0() -> None:
    assembly, leader = settled(dynamic=False)
    assert all(not isinstance(value, VotersRecord) for _, value in leader.disk.entries)
    leader.crash()
    assembly.elect()
    with pytest.raises(KafkaError, match=r"kraft\.version feature is 0"):
        end = assembly.propose("commits the epoch")
        assembly.run_until(lambda: assembly.everybody_has(end))
        assembly.leader.replica.add_voter(voter(4), assembly.now_ms)  # type: ignore[union-attr]


def test_fixed_voters_are_named_by_the_log_from_then_on() -> None:
    """kraft.version 0 to 1: as soon as each of them has told the leader which directory is its own, and not before. What was
    known of their progress counts on, and so does what a next leader writes."""
    assembly, leader = settled(dynamic=False)
    replica = assembly.replica(leader.id)
    with pytest.raises(KafkaError, match="not all of the voters support it"):
        replica.upgrade(1, assembly.now_ms)
    assembly.run_until(lambda: isinstance(replica.role, Leader) and len(replica.role.told) == 2)
    change = replica.upgrade(1, assembly.now_ms)
    leader.step()
    assert replica.history.kraft_version == 1
    assert replica.voters == VoterSet((voter(1), voter(2), voter(3)))
    assembly.run_until(lambda: change.error is not None)
    assert change.error is Error.NONE
    assert replica.progress(assembly.now_ms)[1] == {}, "nobody is taken for an observer"
    leader.crash()
    assembly.elect()
    end = assembly.propose("on")
    leader.start()
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert all(assembly.replica(n).voters.voter(n) == voter(n) for n in (1, 2, 3))
    with pytest.raises(KafkaError):
        assembly.replica(others(assembly, assembly.leader)[0].id).upgrade(1, assembly.now_ms)


def test_who_is_no_fixed_voter_or_speaks_only_the_old_version_is_not_let_loose() -> None:
    assembly, leader = settled(dynamic=False)
    replica = assembly.replica(leader.id)
    with pytest.raises(KafkaError) as refused:
        replica.update_voter(voter(4), assembly.now_ms)
    assert refused.value.error is Error.VOTER_NOT_FOUND
    assembly.run_until(lambda: isinstance(replica.role, Leader) and len(replica.role.told) == 2)
    old = others(assembly, leader)[0].id
    replica.update_voter(voter(old)._replace(versions=(0, 0)), assembly.now_ms)
    with pytest.raises(KafkaError, match="not all of the voters support it"):
        replica.upgrade(1, assembly.now_ms)


def test_a_request_for_the_leader_of_another_epoch_is_refused() -> None:
    assembly, leader = settled()
    replica, follower = assembly.replica(leader.id), assembly.replica(others(assembly, leader)[0].id)
    epoch = replica.epoch

    def fetch(whom: Replica, at: int) -> Error:
        request = partition.fetch(CLUSTER, at, key(9), (0, 0), 0, 1 << 20, 500)
        return whom.fetch(request, assembly.now_ms).error

    assert fetch(replica, epoch - 1) is Error.FENCED_LEADER_EPOCH
    assert fetch(replica, epoch + 1) is Error.UNKNOWN_LEADER_EPOCH
    assert fetch(follower, epoch) is Error.NOT_LEADER_OR_FOLLOWER
    assert fetch(replica, epoch) is Error.NONE
    bad = partition.fetch(CLUSTER, epoch, key(9), (epoch + 1, 0), 0, 1 << 20, 500)
    assert replica.fetch(bad, assembly.now_ms).error is Error.INVALID_REQUEST


# --- changes of the voters


def add(assembly: Assembly, node_id: int) -> None:
    end = assembly.propose(f"before {node_id}")
    assembly.run_until(lambda: assembly.everybody_has(end))
    leader = assembly.leader
    assert leader is not None and leader.replica is not None
    change = leader.replica.add_voter(voter(node_id), assembly.now_ms)
    leader.step()
    assembly.run_until(lambda: change.error is not None)
    assert change.error is Error.NONE, change.message


def test_an_observer_becomes_a_voter_and_counts() -> None:
    """KIP-853."""
    assembly, leader = settled(0, 4)
    add(assembly, 4)
    assembly.run_until(lambda: assembly.replica(4).is_voter)
    assert assembly.replica(leader.id).voters.ids == (1, 2, 3, 4)
    down = others(assembly, leader)[:2]
    for peer in down:
        peer.crash()
    end = assembly.propose("two of four")
    assembly.run(1_000)
    assert assembly.replica(leader.id).high_watermark < end, "two of four are no majority"


def test_who_has_long_led_alone_waits_for_the_first_other_voter() -> None:
    """It counts from then on when it last heard from a majority: not resigned at once, but later, if there is silence."""
    assembly = Assembly([1], observers=(2,))
    assembly.start()
    assembly.run(60_000)
    add(assembly, 2)
    assembly.run(60_000)
    assert assembly.replica(1).is_leader and assembly.replica(1).epoch == 1
    assembly.isolate(2)
    assembly.run_until(lambda: not assembly.replica(1).is_leader)


def added(*speaks: ApiVersionsResponse.SupportedFeature) -> Change:
    """What becomes of a new voter that says what it can speak, and has never fetched."""
    assembly, leader = settled()
    assert leader.replica is not None
    change = leader.replica.add_voter(voter(5), assembly.now_ms)
    leader.step()
    (asked,) = [flight.send for flight in assembly.wire if isinstance(flight.send.request, ApiVersionsRequest)]
    leader.replica.answered(asked.number, ApiVersionsResponse(supported_features=list(speaks)), assembly.now_ms)
    return change


def test_a_voter_that_lags_is_not_added() -> None:
    change = added(ApiVersionsResponse.SupportedFeature(name="kraft.version", min_version=0, max_version=1))
    assert change.error is Error.REQUEST_TIMED_OUT
    assert change.message is not None and change.message.endswith("since it is lagging behind")


def test_a_voter_that_speaks_only_of_fixed_voters_is_not_added() -> None:
    assert added().error is Error.INVALID_REQUEST
    only_old = ApiVersionsResponse.SupportedFeature(name="kraft.version", min_version=0, max_version=0)
    assert added(only_old).error is Error.INVALID_REQUEST


def test_a_voter_that_cannot_speak_of_voters_any_more_does_not_move() -> None:
    assembly, leader = settled()
    assert leader.replica is not None
    follower = others(assembly, leader)[0].id
    with pytest.raises(KafkaError) as refused:
        leader.replica.update_voter(voter(follower)._replace(versions=(0, 0)), assembly.now_ms)
    assert refused.value.error is Error.INVALID_REQUEST


@pytest.mark.parametrize("is_there", [False, True])
def test_a_voter_that_cannot_be_asked_is_not_added(is_there: bool) -> None:
    """Nobody listens where it should be, or its answer is lost: either way it is told at once, and others can be added."""
    assembly, leader = settled(0, *([5] if is_there else []))
    assert leader.replica is not None
    if is_there:
        assembly.isolate(5)
    change = leader.replica.add_voter(voter(5), assembly.now_ms)
    leader.step()
    assembly.run_until(lambda: change.error is not None)
    assert change.error is Error.REQUEST_TIMED_OUT
    assert change.message is not None and change.message.endswith("API_VERSIONS returned an error NETWORK_EXCEPTION")


def test_one_change_at_a_time() -> None:
    assembly, leader = settled(0, 4, 5)
    assert leader.replica is not None
    leader.replica.add_voter(voter(4), assembly.now_ms)
    with pytest.raises(KafkaError, match="previous voter change"):
        leader.replica.remove_voter(key(1), assembly.now_ms)
    with pytest.raises(KafkaError, match="previous voter change"):
        leader.replica.add_voter(voter(5), assembly.now_ms)


def test_changes_that_make_no_sense() -> None:
    assembly, leader = settled()
    replica, now_ms = assembly.replica(leader.id), assembly.now_ms
    with pytest.raises(KafkaError, match="already part of the set"):
        replica.add_voter(voter(1), now_ms)
    with pytest.raises(KafkaError, match="Cannot remove voter"):
        replica.remove_voter(key(1, disk=9), now_ms)
    with pytest.raises(KafkaError, match="valid voter"):
        replica.add_voter(voter(4)._replace(directory=bytes(16)), now_ms)
    follower = assembly.replica(others(assembly, leader)[0].id)
    with pytest.raises(KafkaError) as refused:
        follower.remove_voter(key(1), now_ms)
    assert refused.value.error is Error.NOT_LEADER_OR_FOLLOWER


def test_a_leader_that_is_removed_commits_that_and_goes() -> None:
    assembly, leader = settled()
    assert leader.replica is not None
    change = leader.replica.remove_voter(leader.me.key, assembly.now_ms)
    leader.step()
    assembly.run_until(lambda: change.error is Error.NONE)
    assembly.run_until(lambda: assembly.leader is not None and assembly.leader is not leader)
    end = assembly.propose("without it")
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert not assembly.replica(leader.id).is_voter
    assert assembly.leader is not None and assembly.leader is not leader


def test_a_change_that_was_not_committed_is_undone_with_the_log() -> None:
    assembly, leader = settled(0, 4)
    assembly.isolate(leader.id)
    assert leader.replica is not None
    change = leader.replica.remove_voter(others(assembly, leader)[0].me.key, assembly.now_ms)
    leader.step()
    assert len(assembly.replica(leader.id).voters.ids) == 2, "it counts as soon as it is in the log"
    assembly.run_until(lambda: change.error is not None)
    assert change.error is not Error.NONE
    assembly.run_until(lambda: assembly.leader is not None and assembly.leader is not leader)
    end = assembly.propose("on")
    assembly.heal()
    assembly.run_until(lambda: assembly.everybody_has(end))
    assert assembly.replica(leader.id).voters.ids == (1, 2, 3)


def test_a_voter_that_moved_says_so_and_the_leader_writes_it_down() -> None:
    assembly, leader = settled()
    replica = assembly.replica(leader.id)
    moved = voter(2)._replace(addresses=(Address("CONTROLLER", "elsewhere", 1),))
    replica.update_voter(moved, assembly.now_ms)
    leader.step()
    assert replica.voters.voter(2) == moved


def test_the_voters_of_a_snapshot_are_those_of_its_offset() -> None:
    history = History()
    first, second = VoterSet((voter(1),)), VoterSet((voter(1), voter(2)))
    history.note(-1, first.to_record())
    history.note(10, second.to_record())
    history.note(11, LeaderChangeMessage())
    assert history.voters_as_of(9).ids == (1,)
    assert history.voters_as_of(10).ids == (1, 2)
    history.truncate(10)
    assert history.voters.ids == (1,)


def test_a_candidate_waits_its_time_when_it_is_refused() -> None:
    assembly = three(seed=1)
    assembly.run_until(
        lambda: any(isinstance(p.replica and p.replica.role, Candidate) for p in assembly.peers.values())
    )
    candidate = next(p.replica for p in assembly.peers.values() if p.replica and isinstance(p.replica.role, Candidate))
    role = candidate.role
    assert isinstance(role, Candidate)
    for each in (1, 2, 3):
        if each != candidate.member.me.id:
            role.ballots.record(each, granted=False)
    assert role.ballots.is_lost
    ready = candidate.take_ready(assembly.now_ms)
    assert ready.sends == []
    assert candidate.wake_ms == role.deadline_ms


def test_a_leader_that_answered_late_once_is_asked_again() -> None:
    """An observer that got no answer in time asks a bootstrap server. If that is the leader by another name, it answers what
    a follower wants to know, and the leader itself would never hear who wants to vote."""
    assembly, leader = settled(0, 8)
    replica = assembly.replica(8)
    role = replica.role
    assert isinstance(role, Follower)
    place = replica.member.destination(role.leader, role.addresses)
    assert place is not None
    now_ms, asked = assembly.now_ms, replica.member.connections
    asked.reset()
    asked.ask(place, FetchRequest(), now_ms)  # nobody will ever tell how this one ended
    assembly.run(20 * replica.member.timing.request_timeout_ms)
    asked_of = [send.destination.id for send, _ in asked._asked.values()]
    assert asked_of == [leader.id]


def test_who_looks_for_a_leader_claims_only_what_is_synced() -> None:
    """TRAP-33: the one that is asked may be the leader, and counts what it is told."""
    assembly, leader = settled()
    follower, other = others(assembly, leader)
    assembly.isolate(other.id)
    follower.auto_sync = False
    assembly.propose("slow disk")
    assembly.run(100)
    member = assembly.replica(follower.id).member
    assert member.journal.synced_end < member.journal.end_offset
    member.connections.reset()
    assert elections.ask_anybody(member, assembly.now_ms) == NEVER
    follower.sync()
    assert elections.ask_anybody(member, assembly.now_ms) < NEVER
