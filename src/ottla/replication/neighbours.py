"""What replication needs of the rest of the cluster, handed in by whoever builds the node: lines to other brokers, the active
controller, and who this broker is to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.brokers import AlterPartitionRequest, AlterPartitionResponse

# The life of a broker that does not say which one it is in.
ANY_LIFE = -1


class Line(Protocol):
    """A connection to another broker, made when it is first needed and again when it was lost."""

    async def ask(self, request: Any, timeout_s: float, go_on: Callable[[Any], Any] | None = None) -> Any:
        """The answer; OSError (TimeoutError is one) if there was none. The question that `go_on` makes of an answer is asked
        at once; then the answer is the one upon which it has none."""
        ...

    def close(self) -> None: ...


def no_line(purpose: str, broker_id: int) -> Line:
    raise ConnectionError(f"this node knows no way to broker {broker_id}")


async def no_controller(request: AlterPartitionRequest) -> AlterPartitionResponse:
    raise KafkaError(Error.NOT_CONTROLLER)


# In milliseconds and bytes, as in a broker without any settings of its own.
DEFAULTS: Mapping[str, int] = {
    "replica.lag.time.max.ms": 30_000,
    "replica.fetch.max.bytes": 1 << 20,
    "replica.fetch.response.max.bytes": 10 << 20,
    "replica.fetch.min.bytes": 1,
    "replica.fetch.wait.max.ms": 500,
    "replica.fetch.backoff.ms": 1000,
    "replica.socket.timeout.ms": 30_000,
    "leader.replication.throttled.rate": 2**63 - 1,
    "follower.replication.throttled.rate": 2**63 - 1,
}


@dataclass(frozen=True, slots=True)
class Neighbours:
    # A line for each purpose: what waits on one holds up nobody on another.
    open_line: Callable[[str, int], Line] = no_line
    ask_controller: Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]] = no_controller
    broker_epoch: Callable[[], int] = lambda: ANY_LIFE
    setting: Callable[[str], int] = DEFAULTS.__getitem__

    def seconds(self, name: str) -> float:
        """A setting in milliseconds, as the loop counts."""
        return self.setting(name) / 1000


ALONE = Neighbours()
