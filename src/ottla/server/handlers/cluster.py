"""DescribeCluster: the nodes of the cluster.

Versions: 1 can ask for controllers instead of brokers (KIP-919), 2 for fenced brokers too (KIP-1073).
"""

from __future__ import annotations

from ottla.metadata.image import Broker, Image
from ottla.server.access import CLUSTER_OPERATIONS
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import NO_OPERATIONS, DescribeClusterRequest, DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2
KINDS = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}


def alive_on(image: Image, listener: str) -> list[Broker]:
    """Brokers that serve, and that can be reached by the listener a client came in on."""
    alive = (image.brokers[broker_id] for broker_id in sorted(image.brokers))
    return [broker for broker in alive if not broker.fenced and listener in broker.endpoints]


def controller_for_clients(ctx: Context, alive: list[Broker]) -> int:
    """A broker that takes requests for the controller: the controller itself, if clients can reach it; or any that lives.

    In Apache Kafka it is any broker, because all of them pass on what is meant for the controller. So do ours."""
    ids, leader = [broker.id for broker in alive], ctx.node.quorum.leader_id
    if leader in ids:
        return leader
    return ctx.node.world.random.choice(ids) if ids else -1


@serves(DescribeClusterRequest, versions="0-2")
async def describe_cluster(request: DescribeClusterRequest, ctx: Context) -> DescribeClusterResponse:
    here = CONTROLLERS if ctx.is_to_controller else BROKERS
    if request.endpoint_type != here:
        return _wrong_kind(request.endpoint_type, here, ctx.version)
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_OPERATIONS
    answer = DescribeClusterResponse(
        cluster_id=ctx.image.cluster_id, endpoint_type=here, cluster_authorized_operations=operations
    )
    if here == CONTROLLERS:
        _describe_controllers(answer, ctx)
    else:
        _describe_brokers(answer, ctx, with_fenced=request.include_fenced_brokers)
    return answer


def _describe_brokers(answer: DescribeClusterResponse, ctx: Context, with_fenced: bool) -> None:
    image, listener = ctx.image, ctx.listener
    alive = alive_on(image, listener)
    shown = _with_fenced(image, listener) if with_fenced else alive
    answer.controller_id = controller_for_clients(ctx, alive)
    answer.brokers = [_described(broker, listener) for broker in shown]


def _describe_controllers(answer: DescribeClusterResponse, ctx: Context) -> None:
    answer.controller_id = ctx.node.quorum.leader_id
    for controller_id, controller in sorted(ctx.image.controllers.items()):
        if (endpoint := controller.endpoints.get(ctx.listener)) is not None:
            node = DescribeClusterResponse.Broker(broker_id=controller_id, host=endpoint.host, port=endpoint.port)
            answer.brokers.append(node)


def _wrong_kind(asked: int, here: int, version: int) -> DescribeClusterResponse:
    if version == 0:  # which cannot ask for controllers
        error, why = Error.INVALID_REQUEST, "Controllers are described since version 1 of this request"
    elif asked not in KINDS:
        error, why = Error.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {asked}"
    else:
        error = Error.MISMATCHED_ENDPOINT_TYPE
        why = (
            f"The request was sent to an endpoint of type {KINDS[here]}, "
            f"but we wanted an endpoint of type {KINDS[asked]}"
        )
    return DescribeClusterResponse(error_code=error.code, error_message=why)


def _with_fenced(image: Image, listener: str) -> list[Broker]:
    ordered = (image.brokers[broker_id] for broker_id in sorted(image.brokers))
    return [broker for broker in ordered if listener in broker.endpoints]


def _described(broker: Broker, listener: str) -> DescribeClusterResponse.Broker:
    endpoint = broker.endpoints[listener]
    return DescribeClusterResponse.Broker(
        broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack, is_fenced=broker.fenced
    )
