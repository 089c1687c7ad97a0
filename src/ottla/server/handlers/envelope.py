"""Envelope: a client's request that another node passes on to the controller (KIP-590).

Errors as in Apache Kafka: PRINCIPAL_DESERIALIZATION_FAILURE for a sender that cannot be read, INVALID_REQUEST for an address
that is none or an API that is not passed on, UNSUPPORTED_VERSION for a request that cannot be read, so that the two can be
told apart. Where the answer inside would say NOT_CONTROLLER the envelope itself says it: whoever sent it looks for another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ottla.server.context import Context
from ottla.server.dispatch import ON_CONTROLLER, PLAIN_BYTES_MAX, Handler, serves
from ottla.server.forwarding import Inside, host_of, principal_of
from ottla.wire.codec import Malformed
from ottla.wire.errors import Error, KafkaError
from ottla.wire.frames import read_request_header, response_frame
from ottla.wire.messages.brokers import EnvelopeRequest, EnvelopeResponse

# Those of Kafka's APIs that brokers pass on.
FORWARDABLE = frozenset({19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 67, 80, 81})


class Opened(NamedTuple):
    handler: Handler
    request: Any
    version: int
    correlation_id: int
    client_id: str | None


@serves(EnvelopeRequest, versions="0-0")
async def envelope(request: EnvelopeRequest, ctx: Context) -> EnvelopeResponse:
    principal = principal_of(request.request_principal)
    client_host = host_of(bytes(request.client_host_address))
    handler, inner, version, correlation_id, client_id = _opened(bytes(request.request_data), ctx)
    answer = await handler.answer(inner, Inside(ctx.node, client_id, version, principal, client_host))
    if ctx.node.channel.tells_of_another(answer):
        raise KafkaError(Error.NOT_CONTROLLER)
    parts = response_frame(answer, version, correlation_id)
    return EnvelopeResponse(response_data=b"".join(bytes(part) for part in parts)[4:])  # type: ignore[arg-type]


def _opened(data: bytes, ctx: Context) -> Opened:
    try:
        key, version, correlation_id, client_id, position = read_request_header(data)
        handler = ON_CONTROLLER.get(key)
        if handler is None or key not in FORWARDABLE:
            raise KafkaError(Error.INVALID_REQUEST, f"API {key} is not enabled or is not eligible for forwarding")
        if len(data) > PLAIN_BYTES_MAX:
            raise Malformed(f"a request of {len(data)} bytes")
        if not handler.low <= version <= handler.newest(ctx.node.config):
            raise Malformed(f"version {version} of {handler.name}")
        decode = handler.decoders.get(version) or handler.learn(version)
        return Opened(handler, decode(data, position)[0], version, correlation_id, client_id)
    except Malformed as error:
        raise KafkaError(Error.UNSUPPORTED_VERSION, str(error)) from error
