"""What the replicas of the metadata log ask of each other, on the controllers' listeners (KIP-595, KIP-630, KIP-853, KIP-996).

Vote, BeginQuorumEpoch, EndQuorumEpoch and UpdateRaftVoter are answered by the replica itself. A Fetch here means the
metadata log: it waits, up to its limit, until there is something beyond its offset or the watermark has risen (version 18
tells the one the follower knows, KIP-1166). FetchSnapshot brings bytes of a snapshot from a position on.

Whatever the replica promised while it was asked is on disk before the answer goes out: `step_before_answer` sees to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ottla.raft import partition
from ottla.raft.leading import Verdict
from ottla.raft.quorum import Voter
from ottla.raft.replica import Replica
from ottla.raft.snapshots import SnapshotId
from ottla.server.consensus import Consensus
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.quorum import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from ottla.wire.schema import ZERO_UUID

Fetched = FetchResponse.Topic.Partition
Piece = FetchSnapshotResponse.Topic.Partition
TELLS_LEADER = 17

Q = TypeVar("Q")
A = TypeVar("A")


def _consensus(ctx: Context) -> Consensus:
    if not ctx.node.quorum.is_started:
        raise KafkaError(Error.BROKER_NOT_AVAILABLE)
    return ctx.node.quorum.consensus


def _answered_by(part: Callable[[Replica, Q, float, str], A], request: Q, ctx: Context) -> A:
    consensus = _consensus(ctx)
    answer = part(consensus.replica, request, consensus.now_ms(), ctx.listener)
    consensus.step_before_answer()
    return answer


@serves(VoteRequest, versions="0-2")
async def vote(request: VoteRequest, ctx: Context) -> VoteResponse:
    return _answered_by(Replica.vote, request, ctx)


@serves(BeginQuorumEpochRequest, versions="0-1")
async def begin_quorum_epoch(request: BeginQuorumEpochRequest, ctx: Context) -> BeginQuorumEpochResponse:
    return _answered_by(Replica.begin_epoch, request, ctx)


@serves(EndQuorumEpochRequest, versions="0-1")
async def end_quorum_epoch(request: EndQuorumEpochRequest, ctx: Context) -> EndQuorumEpochResponse:
    return _answered_by(Replica.end_epoch, request, ctx)


# --- the log


@serves(FetchRequest, versions="4-18", only_on_controller=True)
async def fetch_metadata(request: FetchRequest, ctx: Context) -> FetchResponse:
    consensus = _consensus(ctx)
    if consensus.replica.is_another_cluster(request.cluster_id):
        return FetchResponse(error_code=Error.INCONSISTENT_CLUSTER_ID.code)
    asked = partition.only_fetched(request.topics, "partition")
    if asked is None:
        return FetchResponse(error_code=Error.INVALID_REQUEST.code)
    verdict = _judge(request, consensus)
    if request.max_wait_ms > 0 and _is_bare(verdict, asked, consensus):
        offset, epoch = asked.fetch_offset, consensus.replica.epoch

        def has_news() -> bool:
            replica = consensus.replica
            is_other = replica.epoch != epoch or not replica.is_leader
            return is_other or consensus.store.end_offset > offset or _watermark(replica) > asked.high_watermark

        await consensus.when(has_news, request.max_wait_ms / 1000)
        verdict = _judge(request, consensus)
    return _fetched(request, verdict, consensus, ctx)


def _judge(request: FetchRequest, consensus: Consensus) -> Verdict:
    """The offset in a Fetch is an acknowledgement, and may commit something."""
    verdict = consensus.replica.fetch(request, consensus.now_ms())
    consensus.step_before_answer()
    return verdict


def _is_bare(verdict: Verdict, asked: FetchRequest.Topic.Partition, consensus: Consensus) -> bool:
    """Whether there is nothing to tell yet."""
    is_known = _watermark(consensus.replica) <= asked.high_watermark
    return verdict.has_records and consensus.store.end_offset <= asked.fetch_offset and is_known


def _watermark(replica: Replica) -> int:
    return getattr(replica.role, "watermark", -1)


def _fetched(request: FetchRequest, verdict: Verdict, consensus: Consensus, ctx: Context) -> FetchResponse:
    replica, store = consensus.replica, consensus.store
    asked = request.topics[0].partitions[0]
    answer = Fetched(
        error_code=verdict.error.code,
        high_watermark=verdict.watermark,
        log_start_offset=store.start_offset,
        current_leader=Fetched.LeaderIdAndEpoch(leader_id=replica.leader_id, leader_epoch=replica.epoch),
        aborted_transactions=[],
        records=b"",
    )
    if verdict.diverging is not None:
        epoch, end = verdict.diverging
        answer.diverging_epoch = Fetched.EpochEndOffset(epoch=epoch, end_offset=end)
    elif verdict.snapshot is not None:
        answer.snapshot_id = Fetched.SnapshotId(end_offset=verdict.snapshot.end_offset, epoch=verdict.snapshot.epoch)
    elif verdict.has_records:
        answer.records = store.records_from(asked.fetch_offset, request.max_bytes)
    topic = FetchResponse.Topic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[answer])
    # Version 16 has the field, for clients; controllers fill it in since directory ids are told (KIP-853).
    leader = replica.where_leader_is(ctx.listener) if ctx.version >= TELLS_LEADER else []
    where = [FetchResponse.NodeEndpoint(node_id=each.node_id, host=each.host, port=each.port) for each in leader]
    return FetchResponse(responses=[topic], node_endpoints=where)


# --- snapshots


@serves(FetchSnapshotRequest, versions="0-1")
async def fetch_snapshot(request: FetchSnapshotRequest, ctx: Context) -> FetchSnapshotResponse:
    consensus = _consensus(ctx)
    if consensus.replica.is_another_cluster(request.cluster_id):
        return FetchSnapshotResponse(error_code=Error.INCONSISTENT_CLUSTER_ID.code)
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return FetchSnapshotResponse(error_code=Error.INVALID_REQUEST.code)
    replica, topic = consensus.replica, request.topics[0]
    asked = topic.partitions[0]
    answer = Piece(index=asked.partition, snapshot_id=asked.snapshot_id, unaligned_records=b"")
    if partition.only(request.topics, "name", "partition") is None:
        answer.error_code = Error.UNKNOWN_TOPIC_OR_PARTITION.code
    else:
        answer.error_code = (await _bring(request, consensus, answer)).code
        answer.current_leader = Piece.LeaderIdAndEpoch(leader_id=replica.leader_id, leader_epoch=replica.epoch)
    topics = [FetchSnapshotResponse.Topic(name=topic.name, partitions=[answer])]
    return FetchSnapshotResponse(topics=topics, node_endpoints=replica.where_leader_is(ctx.listener))


async def _bring(request: FetchSnapshotRequest, consensus: Consensus, answer: Piece) -> Error:
    """Fill in the bytes, or say why not."""
    asked = request.topics[0].partitions[0]
    if error := consensus.replica.leader_refusal(asked.current_leader_epoch):
        return error
    wanted = SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
    if not consensus.store.has_snapshot(wanted):
        return Error.SNAPSHOT_NOT_FOUND
    size, data = await consensus.store.snapshot_bytes(wanted, asked.position, max(request.max_bytes, 1))
    if not data:
        return Error.POSITION_OUT_OF_RANGE
    answer.size, answer.position, answer.unaligned_records = size, asked.position, data
    consensus.replica.snapshot_served(request, consensus.now_ms())
    consensus.step_before_answer()
    return Error.NONE


# --- voters that move


@serves(UpdateRaftVoterRequest, versions="0-0")
async def update_raft_voter(request: UpdateRaftVoterRequest, ctx: Context) -> UpdateRaftVoterResponse:
    consensus = _consensus(ctx)
    try:
        _update(request, consensus)
    except KafkaError as error:
        return _moved(error.error, consensus.replica, ctx.listener)
    consensus.step_before_answer()
    return _moved(Error.NONE, consensus.replica, ctx.listener)


def _update(request: UpdateRaftVoterRequest, consensus: Consensus) -> None:
    replica = consensus.replica
    if replica.is_another_cluster(request.cluster_id):
        raise KafkaError(Error.INCONSISTENT_CLUSTER_ID)
    if error := replica.leader_refusal(request.current_leader_epoch):
        raise KafkaError(error)
    versions = request.kraft_version_feature
    low, high = versions.min_supported_version, versions.max_supported_version
    if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID or not 0 <= low <= high:
        raise KafkaError(Error.INVALID_REQUEST)
    addresses = partition.addresses_of(request.listeners)
    own = replica.member.me.addresses
    if own and own[0].name not in [address.name for address in addresses]:
        raise KafkaError(Error.INVALID_REQUEST)
    moved = Voter(request.voter_id, request.voter_directory_id, addresses, (low, high))
    replica.update_voter(moved, consensus.now_ms())


def _moved(error: Error, replica: Replica, listener: str) -> UpdateRaftVoterResponse:
    kind = UpdateRaftVoterResponse.CurrentLeader
    address = replica.member.leader_address(listener)
    leader = kind(leader_id=replica.leader_id, leader_epoch=replica.epoch)
    if address is not None:
        leader.host, leader.port = address.host, address.port
    return UpdateRaftVoterResponse(error_code=error.code, current_leader=leader)
