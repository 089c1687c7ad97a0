"""What brokers and controllers ask of the active controller: to be let in, to be remembered, to be let go.

BrokerRegistration versions: 2 directories (KIP-858), 3 the epoch of the last clean stop (KIP-966), 4 features from 0 on.
BrokerHeartbeat: 1 directories that failed, 2 directories that take no new replicas (KIP-1066). AlterPartition: 3 epochs of
those in sync (KIP-903). None of them is served to clients, except UnregisterBroker: a broker that is gone for good.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.metadata import controller
from ottla.metadata.controller import Decision, Registration
from ottla.metadata.directories import Assigned, Place
from ottla.metadata.features import CONTROLLER_REGISTRATION
from ottla.metadata.heartbeats import Standing, noted
from ottla.metadata.image import Endpoint, FeatureRange, Image
from ottla.server.connection import ControllerConnection
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


@serves(BrokerRegistrationRequest, versions="0-4")
async def broker_registration(request: BrokerRegistrationRequest, ctx: Context) -> BrokerRegistrationResponse:
    active, watch, who = ctx.node.controller, ctx.node.watch, _who(request)
    sessions, now_ms, rules = active.sessions, active.now_ms(), active.rules
    is_mine = _names_this_node(who.id, ctx)

    def decide(image: Image) -> Decision[int]:
        old = image.broker(who.id)
        is_heard = old is not None and sessions.is_live(who.id, old.epoch, now_ms) and not watch.is_adrift(who.id)
        in_session = is_heard or (old is not None and is_mine)
        decision = controller.register_broker(image, who, rules, in_session=in_session)
        sessions.registered(who.id, decision.reply, image.offset + len(decision.records), now_ms)
        return decision

    return BrokerRegistrationResponse(broker_epoch=await active.submit(decide))


def _names_this_node(broker_id: int, ctx: Context) -> bool:
    """Whether somebody comes by a connection with the id of the broker in this very process, which need not beat."""
    config = ctx.node.config
    return broker_id == config.node_id and "broker" in config["process.roles"] and hasattr(ctx, "connection")


def _who(request: BrokerRegistrationRequest) -> Registration:
    return Registration(
        id=request.broker_id,
        incarnation=request.incarnation_id,
        endpoints=_endpoints(request.listeners),
        directories=request.log_dirs,
        rack=request.rack,
        previous_epoch=request.previous_broker_epoch,
        features=_levels(request.features),
        cluster_id=request.cluster_id,
        is_of_zookeeper=request.is_migrating_zk_broker,
    )


def _endpoints(listeners: Iterable[Listener]) -> list[Endpoint]:
    return [Endpoint(each.name, each.host, each.port, each.security_protocol) for each in listeners]


def _levels(features: Iterable[Feature]) -> dict[str, FeatureRange]:
    return {each.name: (each.min_supported_version, each.max_supported_version) for each in features}


@serves(BrokerHeartbeatRequest, versions="0-2")
async def broker_heartbeat(request: BrokerHeartbeatRequest, ctx: Context) -> BrokerHeartbeatResponse:
    active = ctx.node.controller
    sessions, now_ms, rules = active.sessions, active.now_ms(), active.rules

    def decide(image: Image) -> Decision[Standing]:
        decision = controller.heartbeat(image, request, sessions, rules)
        noted(sessions, request, decision.reply, now_ms)
        return decision

    decided = active.submit(decide)
    connection = getattr(ctx, "connection", None)  # the broker of this very node has none
    if isinstance(connection, ControllerConnection):
        ctx.node.watch.heard(request.broker_id, connection)
    standing = await decided
    return BrokerHeartbeatResponse(
        is_caught_up=standing.is_caught_up, is_fenced=standing.is_fenced, should_shut_down=standing.may_go
    )


@serves(AlterPartitionRequest, versions="2-3")
async def alter_partitions(request: AlterPartitionRequest, ctx: Context) -> AlterPartitionResponse:
    active = ctx.node.controller
    rules = active.rules
    if not request.topics:
        return AlterPartitionResponse()  # whoever asks for nothing is not even asked who it is
    return await active.submit(lambda image: controller.alter_partition(image, request, rules))


@serves(AllocateProducerIdsRequest, versions="0-0")
async def allocate_producer_ids(request: AllocateProducerIdsRequest, ctx: Context) -> AllocateProducerIdsResponse:
    who, epoch = request.broker_id, request.broker_epoch
    block = await ctx.node.controller.submit(lambda image: controller.next_producer_ids(image, who, epoch))
    return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.size)


@serves(ControllerRegistrationRequest, versions="0-0")
async def controller_registration(
    request: ControllerRegistrationRequest, ctx: Context
) -> ControllerRegistrationResponse:
    endpoints, features = _endpoints(request.listeners), _levels(request.features)

    def decide(image: Image) -> Decision[None]:
        if image.metadata_version < CONTROLLER_REGISTRATION:
            why = "The current MetadataVersion is too old to support controller registrations."
            raise KafkaError(Error.UNSUPPORTED_VERSION, why)
        who, incarnation = request.controller_id, request.incarnation_id
        return controller.register_controller(image, who, incarnation, endpoints, features)

    await ctx.node.controller.submit(decide)
    return ControllerRegistrationResponse()


@serves(AssignReplicasToDirsRequest, versions="0-0")
async def assign_replicas_to_dirs(request: AssignReplicasToDirsRequest, ctx: Context) -> AssignReplicasToDirsResponse:
    wanted = [(directory.id, _places(directory)) for directory in request.directories]
    active, who, epoch = ctx.node.controller, request.broker_id, request.broker_epoch
    rules = active.rules
    assigned = await active.submit(lambda image: controller.assign_replicas(image, who, epoch, wanted, rules))
    return AssignReplicasToDirsResponse(directories=_told(assigned))


def _places(directory: AssignReplicasToDirsRequest.Directory) -> list[Place]:
    return [(topic.topic_id, each.partition_index) for topic in directory.topics for each in topic.partitions]


Told = AssignReplicasToDirsResponse.Directory


def _told(assigned: Assigned) -> list[Told]:
    directories = []
    for directory, outcomes in assigned:
        topics: dict[bytes, Told.Topic] = {}
        for (topic_id, index), error in outcomes:
            topic = topics.setdefault(topic_id, Told.Topic(topic_id=topic_id))
            code = 0 if error is None else error.code
            topic.partitions.append(Told.Topic.Partition(partition_index=index, error_code=code))
        directories.append(Told(id=directory, topics=list(topics.values())))
    return directories


@serves(UnregisterBrokerRequest, versions="0-0", forwarded=True)
async def unregister_broker(request: UnregisterBrokerRequest, ctx: Context) -> UnregisterBrokerResponse:
    active = ctx.node.controller
    await active.propose(lambda image: controller.unregister(image, request.broker_id, active.rules))
    return UnregisterBrokerResponse(error_message="")
