"""ElectLeaders: the preferred leader, or any that lives, for some partitions or for all.

Versions: 1 unclean elections and an error for the whole request (KIP-460), 2 flexible. A request that leaves no time is not
begun: all of it gets REQUEST_TIMED_OUT, as in Apache Kafka; one that asks for nothing gets nothing, whatever else it says.
Where all partitions are meant, those are left out that have the right leader already.
"""

from __future__ import annotations

from ottla.metadata import controller
from ottla.metadata.leaders import Elected
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.server.handlers.topics import said
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.placement import ElectLeadersRequest, ElectLeadersResponse

Told = ElectLeadersResponse.Topic


@serves(ElectLeadersRequest, versions="0-2", forwarded=True)
async def elect_leaders(request: ElectLeadersRequest, ctx: Context) -> ElectLeadersResponse:
    wanted = request.topic_partitions
    asked = None if wanted is None else [(topic.topic, topic.partitions) for topic in wanted]
    active, kind = ctx.node.controller, request.election_type
    if asked == []:
        return ElectLeadersResponse()
    try:
        if request.timeout_ms <= 0:
            raise KafkaError(Error.REQUEST_TIMED_OUT)
        elected = await active.propose(lambda image: controller.elect_leaders(image, asked, kind, active.rules))
    except KafkaError as error:
        refused: Elected = [(topic, [(index, error) for index in indexes]) for topic, indexes in asked or ()]
        return ElectLeadersResponse(error_code=error.code, replica_election_results=_told(refused))
    return ElectLeadersResponse(replica_election_results=_told(elected))


def _told(elected: Elected) -> list[Told]:
    return [
        Told(topic=topic, partition_result=[_outcome(index, error) for index, error in outcomes])
        for topic, outcomes in elected
    ]


def _outcome(index: int, error: KafkaError | None) -> Told.Partition:
    if error is None:
        return Told.Partition(partition_id=index)
    # Clients show this text: where the error says all there is to say, Apache Kafka repeats its description.
    text = error.message if error.error is not Error.REQUEST_TIMED_OUT else said(error)
    return Told.Partition(partition_id=index, error_code=error.code, error_message=text)
