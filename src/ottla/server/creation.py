"""Topics that are made because somebody named them: what they are made with, and, where this node is not the one to decide,
how the controller is asked.

Clients that start together name the same topics together. What nobody waits for is collected for a moment; what somebody
waits for is asked for once, however many wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.client.connection import Lost
from ottla.config import BrokerConfig
from ottla.metadata.controller import NewTopic
from ottla.metadata.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from ottla.server.controller import LINGER_S
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.topics import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from ottla.server.node import Node

log = logging.getLogger("ottla.controller")

# How long whoever waits for a topic waits for the controller, and until this node has read of it; then he is told to come
# again.
WAITING_S = 5.0
READING_S = 2.0
LOOK_S = 0.01

# The internal topics: where the settings about them begin, and what every one of them is created with.
INTERNAL_SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    CONSUMER_OFFSETS: ("offsets.topic", {"cleanup.policy": "compact", "compression.type": "producer"}),
    TRANSACTION_STATE: (
        "transaction.state.log",
        {"cleanup.policy": "compact", "compression.type": "uncompressed", "unclean.leader.election.enable": "false"},
    ),
    SHARE_GROUP_STATE: (
        "share.coordinator.state.topic",
        {"cleanup.policy": "delete", "compression.type": "producer", "retention.ms": "-1"},
    ),
}


def auto_topic(name: str, config: BrokerConfig) -> NewTopic:
    """Counts come from the settings; the internal topics have their own."""
    if name not in INTERNAL_SETTINGS:
        return NewTopic(name, config["num.partitions"], config["default.replication.factor"])
    prefix, configs = INTERNAL_SETTINGS[name]
    configs = {**configs, "segment.bytes": str(config[f"{prefix}.segment.bytes"])}
    if name != CONSUMER_OFFSETS:
        configs["min.insync.replicas"] = str(config[f"{prefix}.min.isr"])
    return NewTopic(name, config[f"{prefix}.num.partitions"], config[f"{prefix}.replication.factor"], configs=configs)


class Creation:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._wanted: dict[str, NewTopic] = {}
        self._asked: set[str] = set()
        self._making: dict[str, asyncio.Task[KafkaError | None]] = {}

    # --- for nobody in particular

    def create_soon(self, wanted: Iterable[NewTopic]) -> None:
        first = not self._wanted
        self._wanted.update((new.name, new) for new in wanted if new.name not in self._asked)
        if first and self._wanted:
            asyncio.get_running_loop().call_later(LINGER_S, self._begin)

    def _begin(self) -> None:
        wanted, self._wanted = list(self._wanted.values()), {}
        self._node.spawn(self._ask_for(wanted))

    async def _ask_for(self, wanted: list[NewTopic]) -> None:
        names = {new.name for new in wanted}
        self._asked |= names
        try:
            for name, error in (await self._ask(wanted, self._node.config["request.timeout.ms"] / 1000)).items():
                if error is not None:
                    log.warning("topic %s could not be created: %s", name, error)
        except OSError as error:
            log.warning("topics %s could not be created: %s", sorted(names), error)
        finally:
            self._asked -= names

    # --- for somebody who waits

    async def create(self, new: NewTopic) -> KafkaError | None:
        """Make a topic and wait until this node knows it; or why it was not made."""
        making = self._making.get(new.name)
        if making is None:
            making = self._making[new.name] = self._node.spawn(self._create(new))
            making.add_done_callback(lambda _: self._making.pop(new.name, None))
        return await asyncio.shield(making)

    async def _create(self, new: NewTopic) -> KafkaError | None:
        try:
            error = (await self._ask([new], WAITING_S))[new.name]
        except Lost as lost:
            return KafkaError(Error.REQUEST_TIMED_OUT, str(lost))
        until = self._node.loop.time() + READING_S
        while error is None and self._node.quorum.image.topic(new.name) is None and self._node.loop.time() < until:
            await asyncio.sleep(LOOK_S)
        return error

    # --- asking

    async def _ask(self, wanted: list[NewTopic], timeout_s: float) -> dict[str, KafkaError | None]:
        request = CreateTopicsRequest(topics=[_requested(new) for new in wanted], timeout_ms=int(timeout_s * 1000))
        answer: CreateTopicsResponse = await self._node.channel.ask(request, timeout_s)
        return {topic.name: _error(topic) for topic in answer.topics}


def _requested(new: NewTopic) -> CreateTopicsRequest.Topic:
    kind = CreateTopicsRequest.Topic
    return kind(
        name=new.name,
        num_partitions=new.partitions,
        replication_factor=new.replication_factor,
        configs=[kind.Config(name=name, value=value) for name, value in new.configs.items()],
    )


def _error(topic: CreateTopicsResponse.Topic) -> KafkaError | None:
    """Somebody else may have been faster: that is as good."""
    if topic.error_code in (0, Error.TOPIC_ALREADY_EXISTS.code):
        return None
    return KafkaError(Error(topic.error_code), topic.error_message)  # type: ignore[call-arg]
