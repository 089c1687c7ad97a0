"""InitProducerId: the id with which an idempotent producer numbers its batches.

Versions: 3 may bring the current id along (KIP-360), which means something only together with a transactional id.

No transactions are coordinated here yet: a transactional id gets the answer of a broker that is not its coordinator.
"""

from __future__ import annotations

from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

NONE = -1


@serves(InitProducerIdRequest, versions="0-5")
async def init_producer_id(request: InitProducerIdRequest, ctx: Context) -> InitProducerIdResponse:
    try:
        _check(request, ctx.node.config["transaction.max.timeout.ms"])
        return InitProducerIdResponse(producer_id=await ctx.node.quorum.producer_id(), producer_epoch=0)
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=NONE, producer_epoch=NONE)


def _check(request: InitProducerIdRequest, timeout_max_ms: int) -> None:
    if (request.producer_id == NONE) != (request.producer_epoch == NONE) or request.transactional_id == "":
        raise KafkaError(Error.INVALID_REQUEST)
    if request.transactional_id is None:
        return
    if not 0 < request.transaction_timeout_ms <= timeout_max_ms:
        raise KafkaError(Error.INVALID_TRANSACTION_TIMEOUT)
    raise KafkaError(Error.NOT_COORDINATOR)
