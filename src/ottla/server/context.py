"""What a handler sees of the world besides its request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.coordination.groups import Groups
    from ottla.coordination.transactions.states import Transactions
    from ottla.metadata.image import Image
    from ottla.replication.replicas import Replicas
    from ottla.server.connection import Connection
    from ottla.server.coordinators import Coordinators
    from ottla.server.node import Node


# Who has not logged in.
ANONYMOUS = "User:ANONYMOUS"
# The node, where it asks its own controller: no user, so no rule and no quota of users is meant for it.
ITSELF = "Node:ITSELF"


class Context:
    """One request's surroundings. Cheap, because one is made for every request."""

    __slots__ = ("client_id", "connection", "node", "took_effect", "version")

    def __init__(self, node: Node, connection: Connection, client_id: str | None, version: int) -> None:
        self.node = node
        self.connection = connection
        self.client_id = client_id
        self.version = version
        # A handler of an ordered API that waits before it took effect holds back what the connection sends next.
        self.took_effect = False

    @property
    def image(self) -> Image:
        """The committed picture of the cluster."""
        return self.node.quorum.image

    @property
    def replicas(self) -> Replicas:
        return self.node.replicas

    @property
    def groups(self) -> Coordinators[Groups]:
        return self.node.groups

    @property
    def transactions(self) -> Coordinators[Transactions]:
        return self.node.transactions

    @property
    def now_ms(self) -> int:
        return self.node.world.now_ms()

    @property
    def principal(self) -> str:
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """The address of whoever asks."""
        return self.connection.peer_host

    @property
    def listener(self) -> str:
        """Name of the listener the request came in on."""
        return self.connection.listener.name

    @property
    def is_to_controller(self) -> bool:
        """Whether it came in on the controller's listener, where other APIs are served than on a broker's."""
        return self.connection.listener.is_controller

    @property
    def comes_behind(self) -> bool:
        """Whether its client has not even waited for the answer to an earlier request."""
        return self.connection.exchanges[0] is not self

    def effective(self) -> None:
        """From here on this request only waits: later requests of its connection may start."""
        if not self.took_effect:
            self.took_effect = True
            self.connection.release(self)
