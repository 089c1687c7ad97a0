"""Requests that only the active controller can grant, passed on to it by every other node (KIP-590); also by the active one
itself, if it is deposed before it has an answer.

The request travels as it came, in an envelope that says who sent it and from where; the answer for the client is inside the
answer to the envelope. As in Apache Kafka it is sent again when the controller changes or the connection is lost, so a
request may be carried out twice: somebody whose topic was made may hear that it is there already.

Without a controller the client waits as long as it said it would, at most a minute, and is then told REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ottla.client.connection import Lost
from ottla.server.context import Context
from ottla.wire.codec import Malformed, decode, encode
from ottla.wire.errors import Error, KafkaError
from ottla.wire.frames import read_response_header
from ottla.wire.messages import RESPONSES
from ottla.wire.messages.brokers import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.server.dispatch import Exchange
    from ottla.server.node import Node

Call = Callable[[Any, Any], Awaitable[Message | None] | Message | None]

# How long a request is kept for a controller to come, where it says nothing itself.
FORWARD_S = 60.0
# So much longer than it says, because the controller's own answer that the time is over has to travel.
GRACE_S = 1.0

# A principal in an envelope stands behind the version of its layout.
VERSION = struct.Struct(">h")
NO_ADDRESS = bytes(4)


def may_forward(ctx: Context) -> bool:
    """A controller does not pass on what was meant for it: whoever asked looks for the active one himself."""
    return not ctx.is_to_controller


def forwarding(frame: bytes) -> Call:
    """Stands in for the handler of a request that came in this frame."""

    async def forward(request: Message, exchange: Exchange) -> Message | None:
        node = exchange.node
        if node.controller.is_active:
            answer: Message = await exchange.handler.answer(request, exchange)
            if not node.channel.tells_of_another(answer):
                return answer
        return await relay(frame, request, exchange)

    return forward


async def relay(frame: bytes, request: Message, exchange: Exchange) -> Message | None:
    """The controller's answer. KafkaError when there is none."""
    envelope = enclosed(frame, exchange.principal, exchange.client_host)
    try:
        answer: EnvelopeResponse = await exchange.node.channel.ask(envelope, patience_s(request))
    except Lost as error:
        raise KafkaError(Error.REQUEST_TIMED_OUT, str(error)) from error
    if answer.error_code == Error.UNSUPPORTED_VERSION.code:
        # The controller is older than this node: its client has to ask again what can be said.
        exchange.connection.abort(f"the controller does not serve {exchange.handler.name} version {exchange.version}")
        return None
    if answer.error_code or answer.response_data is None:
        raise KafkaError(Error.UNKNOWN_SERVER_ERROR)
    return _opened(answer.response_data, exchange)


def patience_s(request: Message) -> float:
    timeout_ms = getattr(request, "timeout_ms", 0)
    return min(timeout_ms / 1000 + GRACE_S, FORWARD_S) if timeout_ms > 0 else FORWARD_S


def _opened(data: bytes, exchange: Exchange) -> Message:
    layout = RESPONSES[exchange.handler.key]
    try:
        correlation_id, position = read_response_header(data, layout, exchange.version)
        if correlation_id != exchange.correlation_id:
            raise Malformed(f"the answer to {correlation_id} is not that to {exchange.correlation_id}")
        answer: Message = decode(layout, data, exchange.version, position)  # type: ignore[arg-type]
    except Malformed as error:
        raise KafkaError(Error.UNKNOWN_SERVER_ERROR) from error
    return answer


# --- envelopes


def enclosed(frame: bytes, principal: str, host: str) -> EnvelopeRequest:
    return EnvelopeRequest(
        request_data=frame, request_principal=principal_bytes(principal), client_host_address=address_bytes(host)
    )


def principal_bytes(principal: str) -> bytes:
    kind, _, name = principal.partition(":")
    return VERSION.pack(0) + encode(DefaultPrincipalData(type=kind, name=name), 0)


def principal_of(data: bytes | None) -> str:
    """KafkaError when it is none."""
    try:
        if data is None or VERSION.unpack_from(data)[0] not in DefaultPrincipalData.versions:
            raise Malformed("a principal of another kind")
        principal = decode(DefaultPrincipalData, data, 0, VERSION.size)
    except (Malformed, struct.error) as error:
        why = "Failed to deserialize client principal from envelope"
        raise KafkaError(Error.PRINCIPAL_DESERIALIZATION_FAILURE, why) from error
    return f"{principal.type}:{principal.name}"


def address_bytes(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return NO_ADDRESS


def host_of(address: bytes) -> str:
    """KafkaError when it is none."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError as error:
        raise KafkaError(Error.INVALID_REQUEST, "Failed to parse client address from envelope") from error


class Inside(Context):
    """The surroundings of a request that came in an envelope, or from this very node, to the controller."""

    __slots__ = ("_client_host", "_principal")
    is_to_controller = True
    comes_behind = False

    def __init__(self, node: Node, client_id: str | None, version: int, principal: str, client_host: str) -> None:
        self.node = node
        self.client_id = client_id
        self.version = version
        self.took_effect = False
        self._principal = principal
        self._client_host = client_host

    @property
    def principal(self) -> str:
        return self._principal

    @property
    def client_host(self) -> str:
        """That of the client which asked another node; none where this node itself asks."""
        return self._client_host

    @property
    def listener(self) -> str:
        """That of the controller; the one it came in on was another node's."""
        return next((endpoint.name for endpoint in self.node.config.controller_endpoints), "")

    def effective(self) -> None:
        """Nobody waits behind it."""
