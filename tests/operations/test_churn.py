"""The benchmark's members that come and go: both kinds settle on a node, and two owners of one partition are found out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bench import churn, client
from bench.drivers import CannotMeasure
from bench.scenes import Size
from harness import Node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("churn") / "data", settings=churn.SETTINGS)
    node.start()
    try:
        client.make_topic(node, churn.TOPIC, churn.PARTITIONS)
        yield node
    finally:
        node.kill()


def test_members_of_both_protocols_settle(node: Node) -> None:
    """At once, on one node: most of the time passes until those who went without a word are forgotten."""

    async def both() -> None:
        size = Size(members=4, churn_seconds=1.0)
        await asyncio.gather(*(churn.churn(node, size, kind) for kind in churn.LINES.values()))

    asyncio.run(both())


class Greedy(churn.ConsumerChurner):
    """Says that it gives back what it goes on using."""

    group = "greedy"

    def __init__(self, *about: object) -> None:
        super().__init__(*about)  # type: ignore[arg-type]
        self._kept = frozenset[int]()

    def _own(self, epoch: int, partitions: frozenset[int]) -> None:
        super()._own(epoch, partitions)
        self._kept |= partitions
        self._owners.note(epoch, self._kept, self.member)


def test_a_member_that_keeps_what_is_no_longer_its_own(node: Node) -> None:
    """Nobody goes here: whoever comes gets what others have to give back."""
    size = Size(members=4, churn_seconds=0.4)
    with pytest.raises(CannotMeasure, match=r"partition \d+ had two owners in epoch \d+"):
        asyncio.run(churn.churn(node, size, Greedy))


def test_owners_of_one_partition() -> None:
    owners = churn.Owners()
    owners.note(1, [0, 1], "first")
    owners.note(2, [0], "second")
    owners.note(2, [1], "first")
    with pytest.raises(CannotMeasure, match="partition 1 had two owners in epoch 2: first and second"):
        owners.note(2, [1], "second")
