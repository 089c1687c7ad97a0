"""What both group protocols share: settings of a member, what it may call back, and the errors that tell it apart.

A member has two sides. `settle`, called from every fetch, brings the member to where it should be: joined, and with the
partitions it was given; only there are partitions taken and given, so the caller is never surprised between two
fetches. A background task keeps the membership alive meanwhile, and notes what `settle` has to do next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from ottla.client.assignors import COOPERATIVE_STICKY, RANGE, Assignor
from ottla.client.cluster import TopicPartition
from ottla.client.commits import Committer
from ottla.wire.errors import Error

Partitions = list[TopicPartition]

# The member is not known (any more) in this shape: whatever it owned is lost, and it joins as new.
FORGOTTEN = {Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.FENCED_MEMBER_EPOCH}
# What a coordinator says while it moves, loads or is being made.
COORDINATOR_BUSY = {
    Error.NOT_COORDINATOR,
    Error.COORDINATOR_NOT_AVAILABLE,
    Error.COORDINATOR_LOAD_IN_PROGRESS,
    Error.REQUEST_TIMED_OUT,
}


class Manners(NamedTuple):
    """How a member behaves; the defaults are those of Java's client."""

    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_ms: int = 3_000
    instance_id: str | None = None
    assignors: Sequence[Assignor] = (RANGE, COOPERATIVE_STICKY)
    server_assignor: str | None = None


class Owner(Protocol):
    """Who reads the partitions: told what to stop and what to start."""

    async def topics(self) -> dict[str, int]:
        """The topics to subscribe to now, and how many partitions each has."""
        ...

    async def give_up(self, partitions: Partitions, *, lost: bool) -> None:
        """Read these no longer; when they are lost, another may read them already, and nothing can be committed."""
        ...

    async def take_on(self, partitions: Partitions) -> None: ...


class Member(Protocol):
    """One side of a group protocol."""

    owned: Partitions

    @property
    def committer(self) -> Committer: ...

    def rejoin(self, why: str) -> None:
        """Something changed that the group must hear of."""
        ...

    async def topics_changed(self) -> bool:
        """Whether what the owner subscribes to is not what the group knows."""
        ...

    async def settle(self) -> None: ...

    async def leave(self) -> None: ...


Listener = Callable[[Partitions], Awaitable[None]]
