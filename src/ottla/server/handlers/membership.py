"""Who belongs to the cluster: the quorum of its controllers, and brokers that leave for good.

DescribeQuorum versions: 1 when each voter was last seen (KIP-836), 2 directory ids and addresses (KIP-853). It knows one
partition, that of the metadata; a request for any other, or for more than one, finds nothing.

This release runs a quorum of one: a voter can be neither added nor taken away, and whoever tries is told why.
"""

from __future__ import annotations

from ottla.log.directory import METADATA_TOPIC
from ottla.metadata import controller
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import uuid_text
from ottla.wire.messages.membership import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaState,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from ottla.wire.schema import ZERO_UUID

Described = DescribeQuorumResponse.Topic
NOT_HERE = "This server does not host this topic-partition."


@serves(DescribeQuorumRequest, versions="0-2", forwarded=True)
async def describe_quorum(request: DescribeQuorumRequest, ctx: Context) -> DescribeQuorumResponse:
    asked = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
    if asked == [(METADATA_TOPIC, [0])]:
        leader = Described(topic_name=METADATA_TOPIC, partitions=[_leadership(ctx)])
        return DescribeQuorumResponse(error_message="", topics=[leader], nodes=_nodes(ctx))
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
    """This node alone: what it has written is in sync with itself, what it has synced is committed."""
    quorum, now_ms = ctx.node.quorum, ctx.now_ms
    voters = [
        ReplicaState(
            replica_id=voter.id,
            replica_directory_id=voter.directory,
            log_end_offset=quorum.store.end_offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        for voter in quorum.voters.voters
    ]
    return Described.Partition(
        error_message="",
        leader_id=ctx.image.controller_id,
        leader_epoch=ctx.image.epoch,
        high_watermark=quorum.store.synced_end,
        current_voters=voters,
    )


def _nodes(ctx: Context) -> list[DescribeQuorumResponse.Node]:
    """Where the voters are. Of this one that is where it listens now, which need not be what stands in the log."""
    kind, me = DescribeQuorumResponse.Node, ctx.node.config.node_id
    ports = {listener.name: listener.port for listener in ctx.node.listeners if listener.is_controller}
    return [
        kind(
            node_id=voter.id,
            listeners=[
                kind.Listener(name=a.name, host=a.host, port=ports.get(a.name, a.port) if voter.id == me else a.port)
                for a in voter.addresses
            ],
        )
        for voter in ctx.node.quorum.voters.voters
    ]


@serves(AddRaftVoterRequest, versions="0-1", forwarded=True)
async def add_raft_voter(request: AddRaftVoterRequest, ctx: Context) -> AddRaftVoterResponse:
    _check_cluster(request.cluster_id, ctx)
    _check_voter(request.voter_id, request.voter_directory_id, "Add")
    controllers = ctx.node.config.controller_endpoints
    if controllers and controllers[0].name not in [listener.name for listener in request.listeners]:
        why = f"Add voter request didn't include the endpoint for the default listener {controllers[0].name}"
        raise KafkaError(Error.INVALID_REQUEST, why)
    if request.voter_id in ctx.node.quorum.voters.ids:
        who = _key(request.voter_id, request.voter_directory_id)
        raise KafkaError(
            Error.DUPLICATE_VOTER, f"The voter id for {who} is already part of the set of voters {_voters(ctx)}."
        )
    raise KafkaError(Error.UNSUPPORTED_VERSION, "This release runs a quorum of one controller.")


@serves(RemoveRaftVoterRequest, versions="0-0", forwarded=True)
async def remove_raft_voter(request: RemoveRaftVoterRequest, ctx: Context) -> RemoveRaftVoterResponse:
    _check_cluster(request.cluster_id, ctx)
    _check_voter(request.voter_id, request.voter_directory_id, "Remove")
    who = _key(request.voter_id, request.voter_directory_id)
    raise KafkaError(Error.VOTER_NOT_FOUND, f"Cannot remove voter {who} from the set of voters {_voters(ctx)}")


def _check_cluster(cluster_id: str | None, ctx: Context) -> None:
    own = ctx.image.cluster_id
    if cluster_id not in (None, own):
        why = f'The given id "{cluster_id}" doesn\'t match the cluster id "{own}"'
        raise KafkaError(Error.INCONSISTENT_CLUSTER_ID, why)


def _check_voter(voter_id: int, directory_id: bytes, verb: str) -> None:
    if voter_id < 0 or directory_id == ZERO_UUID:
        raise KafkaError(Error.INVALID_REQUEST, f"{verb} voter request didn't include a valid voter")


def _key(voter_id: int, directory_id: bytes) -> str:
    return f"ReplicaKey(id={voter_id}, directoryId={uuid_text(directory_id)})"


def _voters(ctx: Context) -> str:
    return f"[{', '.join(_key(voter.id, voter.directory) for voter in ctx.node.quorum.voters.voters)}]"


@serves(UnregisterBrokerRequest, versions="0-0", forwarded=True)
async def unregister_broker(request: UnregisterBrokerRequest, ctx: Context) -> UnregisterBrokerResponse:
    active = ctx.node.controller
    await active.propose(lambda image: controller.unregister(image, request.broker_id, active.rules))
    return UnregisterBrokerResponse()
