"""Decides about the cluster while this node leads the metadata quorum: decisions become records of the metadata log.

A decision is a plain function of the written picture (`metadata/`). It is made, appended and replayed without an await in
between, so the next one sees it. `submit` answers when its records are committed; `propose` when this node follows them as
well: when a create is answered, the topic is usable here. A decision without records is answered when all that it looked
at is committed.

A node that does not lead refuses with NOT_CONTROLLER.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from ottla.config import BrokerConfig, validate_topic_configs
from ottla.metadata import controller
from ottla.metadata.controller import Decision, NewTopic, Rules
from ottla.metadata.image import Image, Topic
from ottla.metadata.sessions import Sessions
from ottla.server.quorum import Quorum
from ottla.wire.errors import Error, KafkaError
from ottla.world import World

log = logging.getLogger("ottla.controller")

T = TypeVar("T")

# How long topics that nobody waits for are collected (the default of Apache's controller.quorum.append.linger.ms).
LINGER_S = 0.025


class Controller:
    def __init__(self, config: BrokerConfig, world: World, quorum: Quorum) -> None:
        self._config = config
        self._world = world
        self._quorum = quorum
        self.sessions = Sessions(config["broker.session.timeout.ms"])
        self._to_create: dict[str, NewTopic] = {}
        quorum.when_leading(self._begin)

    @property
    def is_active(self) -> bool:
        return self._quorum.leads

    @property
    def written(self) -> Image:
        """What decisions look at."""
        return self._quorum.written

    @property
    def rules(self) -> Rules:
        config = self._config
        return Rules(
            partitions=config["num.partitions"],
            replication_factor=config["default.replication.factor"],
            min_insync_replicas=config["min.insync.replicas"],
            unclean_election=config["unclean.leader.election.enable"],
            check_topic_configs=lambda configs: validate_topic_configs(configs, broker=config),
        )

    def now_ms(self) -> int:
        """A clock that nobody sets: sessions are measured with it."""
        return int(asyncio.get_running_loop().time() * 1000)

    def _begin(self) -> None:
        self.sessions.begin(self.written, self.now_ms())
        formatted = self._quorum.store.formatted_with()
        self.submit(lambda image: controller.bootstrap(image, formatted, self.rules))

    # --- deciding

    def propose(self, decide: Callable[[Image], Decision[T]]) -> asyncio.Future[T]:
        """Decide now. Await the reply: it comes once the records are committed and everybody here follows."""
        decision = self._decide(decide)
        return self._quorum.append(decision.records, decision.reply, when_shown=True)

    def submit(self, decide: Callable[[Image], Decision[T]]) -> asyncio.Future[T]:
        """Decide now. The reply comes once the records are committed."""
        decision = self._decide(decide)
        return self._quorum.append(decision.records, decision.reply, when_shown=False)

    def decide(self, decide: Callable[[Image], Decision[T]]) -> T:
        """Decide now, for itself: the reply at once, whatever becomes of the records."""
        decision = self._decide(decide)
        self._quorum.append(decision.records, None, when_shown=False)
        return decision.reply

    def _decide(self, decide: Callable[[Image], Decision[T]]) -> Decision[T]:
        self._quorum.check_leads()
        return decide(self._quorum.written)

    def create_soon(self, wanted: Iterable[NewTopic]) -> None:
        """Create topics that nobody waits for. Clients that start together ask together: one decision for all of them."""
        first = not self._to_create
        self._to_create.update((new.name, new) for new in wanted)
        if first and self._to_create:
            asyncio.get_running_loop().call_later(LINGER_S, self._create_wanted)

    def _create_wanted(self) -> None:
        wanted, self._to_create = list(self._to_create.values()), {}
        rng = self._world.random
        try:
            done = self.submit(lambda image: controller.create_topics(image, wanted, self.rules, rng))
        except KafkaError as error:
            log.warning("topics %s could not be created: %s", [new.name for new in wanted], error)
        else:
            done.add_done_callback(_tell_failures)


def _tell_failures(done: asyncio.Future[dict[str, Topic | KafkaError]]) -> None:
    """Whoever asked for a topic by naming it only ever hears "unknown"; the reason is for the log."""
    for name, outcome in {} if done.exception() else done.result().items():
        if isinstance(outcome, KafkaError) and outcome.error is not Error.TOPIC_ALREADY_EXISTS:
            log.warning("topic %s could not be created: %s", name, outcome)
