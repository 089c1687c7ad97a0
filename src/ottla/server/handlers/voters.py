"""The voters of the metadata: who they are, and how one comes or goes.

DescribeQuorum versions: 1 when each voter was last seen (KIP-836), 2 directory ids and addresses (KIP-853). It knows one
partition, that of the metadata; a request for any other, or for more than one, finds nothing.

Voters are added and taken away one at a time (KIP-853); what may be refused, and with which words, is in `raft`.
"""

from __future__ import annotations

from ottla.raft.partition import addresses_of
from ottla.raft.quorum import Key, Voter
from ottla.raft.replica import Replica
from ottla.raft.roles import Progress
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.quorum import METADATA_TOPIC
from ottla.wire.messages.voters import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaState,
)
from ottla.wire.schema import ZERO_UUID

Described = DescribeQuorumResponse.Topic
NOT_HERE = "This server does not host this topic-partition."


@serves(DescribeQuorumRequest, versions="0-2", forwarded=True)
async def describe_quorum(request: DescribeQuorumRequest, ctx: Context) -> DescribeQuorumResponse:
    asked = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
    if asked == [(METADATA_TOPIC, [0])]:
        told = _leadership(ctx)
        leader, nodes = Described(topic_name=METADATA_TOPIC, partitions=[told]), [] if told.error_code else _nodes(ctx)
        return DescribeQuorumResponse(error_message="", topics=[leader], nodes=nodes)
    unknown = Error.UNKNOWN_TOPIC_OR_PARTITION.code
    topics = [
        Described(
            topic_name=name,
            partitions=[
                Described.Partition(partition_index=index, error_code=unknown, error_message=NOT_HERE)
                for index in indexes
            ],
        )
        for name, indexes in asked
    ]
    return DescribeQuorumResponse(error_message="", topics=topics)


def _leadership(ctx: Context) -> Described.Partition:
    """How far everybody is, as the leader knows it: whatever it has itself, it has caught up with."""
    consensus, now_ms = ctx.node.quorum.consensus, ctx.now_ms
    replica = consensus.replica
    if not replica.is_leader:
        unknown = Error.NOT_LEADER_OR_FOLLOWER
        return Described.Partition(error_code=unknown.code, error_message=unknown.message)
    voters, observers = replica.progress(consensus.now_ms())
    me = replica.member.me
    own = ReplicaState(
        replica_id=me.id,
        replica_directory_id=me.directory,
        log_end_offset=consensus.store.end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    since_ms = now_ms - consensus.now_ms()
    return Described.Partition(
        error_message="",
        leader_id=me.id,
        leader_epoch=replica.epoch,
        high_watermark=replica.high_watermark,
        current_voters=[own if key.id == me.id else _state(key, far, since_ms) for key, far in voters.items()],
        observers=[_state(key, far, since_ms) for key, far in observers.items()],
    )


def _state(key: Key, far: Progress, since_ms: float) -> ReplicaState:
    return ReplicaState(
        replica_id=key.id,
        replica_directory_id=key.directory,
        log_end_offset=far.end,
        last_fetch_timestamp=-1 if far.fetched_ms is None else int(since_ms + far.fetched_ms),
        last_caught_up_timestamp=-1 if far.caught_up_ms is None else int(since_ms + far.caught_up_ms),
    )


def _nodes(ctx: Context) -> list[DescribeQuorumResponse.Node]:
    """Where the voters are. Of this one that is where it listens now, which need not be what stands in the log."""
    kind, me = DescribeQuorumResponse.Node, ctx.node.config.node_id
    ports = {listener.name: listener.port for listener in ctx.node.listeners if listener.is_controller}
    # Voters that the settings name have no listener of their own name, and Kafka's tools stumble over an empty one.
    unnamed = ctx.node.config["controller.listener.names"][0].upper()
    return [
        kind(
            node_id=voter.id,
            listeners=[
                kind.Listener(
                    name=a.name or unnamed, host=a.host, port=ports.get(a.name, a.port) if voter.id == me else a.port
                )
                for a in voter.addresses
            ],
        )
        for voter in ctx.node.quorum.voters.voters
    ]


@serves(AddRaftVoterRequest, versions="0-1", forwarded=True)
async def add_raft_voter(request: AddRaftVoterRequest, ctx: Context) -> AddRaftVoterResponse:
    """Version 1 need not wait for the commit (KIP-1186)."""
    consensus = ctx.node.quorum.consensus
    replica = consensus.replica
    _check_cluster(request.cluster_id, ctx)
    _check_voter(request.voter_id, request.voter_directory_id, "Add", replica)
    own = replica.member.me.addresses
    if own and own[0].name not in [listener.name for listener in request.listeners]:
        why = f"Add voter request didn't include the endpoint for the default listener {own[0].name}"
        raise KafkaError(Error.INVALID_REQUEST, why)
    new = Voter(request.voter_id, request.voter_directory_id, addresses_of(request.listeners))
    change = replica.add_voter(new, consensus.now_ms(), until_committed=request.ack_when_committed)
    consensus.step()
    await consensus.changed(change)
    return AddRaftVoterResponse()


@serves(RemoveRaftVoterRequest, versions="0-0", forwarded=True)
async def remove_raft_voter(request: RemoveRaftVoterRequest, ctx: Context) -> RemoveRaftVoterResponse:
    consensus = ctx.node.quorum.consensus
    _check_cluster(request.cluster_id, ctx)
    _check_voter(request.voter_id, request.voter_directory_id, "Remove", consensus.replica)
    change = consensus.replica.remove_voter(Key(request.voter_id, request.voter_directory_id), consensus.now_ms())
    consensus.step()
    await consensus.changed(change)
    return RemoveRaftVoterResponse()


def _check_cluster(cluster_id: str | None, ctx: Context) -> None:
    own = ctx.image.cluster_id
    if cluster_id not in (None, own):
        why = f'The given id "{cluster_id}" doesn\'t match the cluster id "{own}"'
        raise KafkaError(Error.INCONSISTENT_CLUSTER_ID, why)


def _check_voter(voter_id: int, directory_id: bytes, verb: str, replica: Replica) -> None:
    if not replica.is_leader:
        raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
    if voter_id < 0 or directory_id == ZERO_UUID:
        raise KafkaError(Error.INVALID_REQUEST, f"{verb} voter request didn't include a valid voter")
