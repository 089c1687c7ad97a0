"""The bench for the groups of one partition of the offsets topic."""

from __future__ import annotations

from typing import Any

from machine_bench import MachineBench
from ottla.coordination import consumer
from ottla.coordination.group_coordinator import GroupCoordinator
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Decision, Packed
from ottla.coordination.records import Record, unpack
from ottla.metadata.image import Image
from ottla.wire.errors import Error, KafkaError


class GroupsBench(MachineBench[Groups]):
    """What is ordered, the evaluation of expressions, is seen to at once. `slices`: how many it took so far."""

    slices = 0

    def __init__(self, image: Image | None = None, **settings: object) -> None:
        self.image = Image() if image is None else image
        self.most_bytes = 1 << 20  # a batch beyond this is refused
        super().__init__(**settings)

    def new_machine(self) -> GroupCoordinator:
        return GroupCoordinator(Groups(self.config, lambda: self.image, self.chance))

    def check_room(self, packed: list[Packed]) -> None:
        if sum(len(key) + len(value or b"") for key, value in packed) > self.most_bytes:
            raise KafkaError(Error.UNKNOWN_SERVER_ERROR)  # what the driver makes of a batch that is too large

    def carry_out(self, decision: Decision[Any]) -> Decision[Any]:
        done = super().carry_out(decision)
        orders, self.orders = self.orders, []
        for order in orders:
            self.slices += 1
            while not order.evaluation.go_on():
                self.slices += 1
            super().carry_out(consumer.resolve(self.groups, order, self.moment))
        return done

    @property
    def groups(self) -> Groups:
        return self.state

    def written(self, since: int = 0) -> list[Record]:
        """What stands in the log, read back from its bytes."""
        read = [unpack(key, value) for key, value in self.log[since:]]
        return [record for record in read if record is not None]
