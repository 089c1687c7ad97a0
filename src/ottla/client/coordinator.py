"""The broker that coordinates one group or one transactional id, over a connection of its own: a join may be answered late,
and whatever comes behind it on the same connection waits as long."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.connection import REQUEST_SECONDS, Connection, check
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.schema import Message

# Kinds of keys that a coordinator is found by.
GROUP, TRANSACTION = 0, 1
MANY_KEYS_VERSION = 4
# After one of these the coordinator is looked up anew.
MOVED = {Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE}


class Node:
    """Where a coordinator is."""

    __slots__ = ("host", "node_id", "port")

    def __init__(self, node_id: int, host: str, port: int) -> None:
        self.node_id, self.host, self.port = node_id, host, port


class Coordinator:
    """Of what `key` names: a group, or a transactional id."""

    def __init__(self, cluster: Cluster, key: str, kind: int = GROUP) -> None:
        self.cluster = cluster
        self.key = key
        self.kind = kind
        # What the cluster had agreed on when the last connection was made.
        self.features: dict[str, int] = {}
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def ask(self, request: Message, timeout_s: float = REQUEST_SECONDS, version: int | None = None) -> Any:
        """One attempt; whoever finds an error in the answer calls `judge`."""
        connection = await self.connection()
        return await connection.request(request, timeout_s, version)

    async def ask_up_to(self, limit: int, request: Message) -> Any:
        """The same in no higher version than this."""
        connection = await self.connection()
        return await connection.request(request, version=min(limit, connection.version_of(type(request))))

    def judge(self, code: int, message: str | None = None) -> None:
        """Raise what an answer says, and look for the coordinator anew when this is not it any more."""
        try:
            check(code, message)
        except KafkaError as error:
            if error.error in MOVED:
                self.close()
            raise

    async def connection(self) -> Connection:
        async with self._opening:
            if self._connection is None or self._connection.closed:
                node = await find(self.cluster, self.key, self.kind)
                self._connection = await self.cluster.open(node.host, node.port)
                self.features = self._connection.features
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def find(cluster: Cluster, key: str, kind: int = GROUP) -> Node:
    """Who coordinates this group, or this transactional id. One attempt."""
    connection = await cluster.any()
    version = connection.version_of(FindCoordinatorRequest)
    request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
    found: FindCoordinatorResponse = await connection.request(request, version=version)
    if version < MANY_KEYS_VERSION:
        check(found.error_code, found.error_message)
        return Node(found.node_id, found.host, found.port)
    (one,) = found.coordinators
    check(one.error_code, one.error_message)
    return Node(one.node_id, one.host, one.port)
