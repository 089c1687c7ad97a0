"""Keeps an eye on the brokers while this node is the active controller: fences who is silent, gives leaderships back.

A broker that was killed is found out long before its session runs out. Its heartbeats come on one connection; when that is
lost, the controller knocks at the broker's door. If nobody listens there any more, the broker is gone. If somebody does, or
nobody answers at all, it may only be slow (stopped, swapped out, cut off), and has until the end of its session. A process
that is dying may still have its door open for a moment, so a knock that is cut off is repeated.

A controller that has just been elected has heard nobody yet, and a broker may die before its first heartbeat is due. So the
line of a knock that was answered stays open, and its loss is a reason to knock again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ottla.metadata import controller
from ottla.metadata.controller import Decision
from ottla.wire.errors import KafkaError
from ottla.wire.messages.cluster import ApiVersionsRequest

if TYPE_CHECKING:
    from ottla.server.connection import ControllerConnection
    from ottla.server.node import Node

log = logging.getLogger("ottla.controller")

KNOCKS_MAX = 10
BETWEEN_KNOCKS_S = 0.02
KNOCK_S = 2.0


class Watch:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._sessions = node.controller.sessions
        self._heard_on: dict[int, ControllerConnection] = {}
        self._adrift: set[int] = set()
        self._watching: asyncio.Task[None] | None = None
        # When each of the things was done that are done from time to time.
        self._done_s: dict[str, float] = {}
        node.quorum.when_leading(self._begin)

    def _begin(self) -> None:
        """Whoever led before may have gone together with its broker, and nobody here would have noticed: knock everywhere."""
        self._done_s.clear()
        if self._watching is None:
            self._watching = self._node.spawn(self._watch())
        for broker in self._node.controller.written.brokers.values():
            if not broker.fenced and broker.id != self._node.config.node_id:
                self._node.spawn(self._knock(broker.id))

    # --- connections

    def heard(self, broker_id: int, connection: ControllerConnection) -> None:
        """A broker beats on this connection."""
        if self._heard_on.get(broker_id) is not connection:
            self._heard_on[broker_id] = connection
            connection.broker_id = broker_id
        self._adrift.discard(broker_id)

    def lost(self, broker_id: int, connection: ControllerConnection) -> None:
        if self._heard_on.get(broker_id) is not connection:
            return
        del self._heard_on[broker_id]
        broker = self._node.controller.written.broker(broker_id)
        if self._node.controller.is_active and broker is not None and not broker.fenced:
            self._adrift.add(broker_id)
            self._node.spawn(self._knock(broker_id))

    def is_adrift(self, broker_id: int) -> bool:
        """Whether it beat on a connection that is lost, and has not been heard since: another process may take its place."""
        return broker_id in self._adrift

    async def _knock(self, broker_id: int) -> None:
        if not await self._is_gone(broker_id):
            return
        log.warning("broker %d is gone: its connection was lost and nobody listens where it was", broker_id)
        self._sessions.suspect(broker_id)
        self._fence_overdue_if_leading()

    async def _is_gone(self, broker_id: int) -> bool:
        """True when nobody is behind its door; False when it has been heard, or cannot be told from one that is slow."""
        line, cut_off = self._node.peers.line("knock", broker_id), 0
        line.hurry()  # it was there after it died the last time
        while broker_id not in self._heard_on and self._node.controller.is_active and cut_off < KNOCKS_MAX:
            try:
                await line.ask(ApiVersionsRequest(), KNOCK_S)
            except OSError:
                if line.is_refused:
                    return True
                cut_off += 1
                await asyncio.sleep(BETWEEN_KNOCKS_S)
            else:
                await line.lost()
        return False

    # --- from time to time

    async def _watch(self) -> None:
        try:
            while self._node.controller.is_active:
                await asyncio.sleep(self._sessions.look_every_ms / 1000)
                self._fence_overdue_if_leading()
                await self._elect_if_due()
        finally:
            self._watching = None

    def _fence_overdue_if_leading(self) -> None:
        try:
            self._fence_overdue()
        except KafkaError as error:  # no controller any more, or the disk is full: next time
            log.info("the controller could not look after the brokers: %s", error)

    def _fence_overdue(self) -> None:
        active, rules = self._node.controller, self._node.controller.rules
        for broker_id, epoch in self._sessions.overdue(active.now_ms()):
            fenced = active.decide(partial(controller.fence_silent, broker_id=broker_id, epoch=epoch, rules=rules))
            self._sessions.end(broker_id)
            self._adrift.discard(broker_id)
            if fenced:
                log.warning("broker %d is fenced: nothing was heard of it", broker_id)

    async def _elect_if_due(self) -> None:
        """Give leaderships back to those who come first, and let somebody lead where the topic prefers that to nobody."""
        config = self._node.config
        if config["auto.leader.rebalance.enable"] and self._is_due("leader.imbalance.check.interval.seconds", 1):
            await self._elect(controller.return_leaderships)
        if self._is_due("unclean.leader.election.interval.ms", 1000):
            await self._elect(controller.elect_uncleanly)

    def _is_due(self, setting: str, per_second: int) -> bool:
        now_s = self._node.loop.time()
        if now_s - self._done_s.setdefault(setting, now_s) < self._node.config[setting] / per_second:
            return False
        self._done_s[setting] = now_s
        return True

    async def _elect(self, step: Callable[..., Decision[bool]]) -> None:
        """A step may leave some for the next one."""
        active = self._node.controller
        try:
            while active.decide(partial(step, rules=active.rules)):
                await asyncio.sleep(0)
        except KafkaError as error:
            log.info("the controller could not elect leaders: %s", error)
