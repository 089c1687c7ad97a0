"""Two-phase commit (KIP-939) on three brokers: what is prepared waits for another system's decision, whoever dies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from cluster.conftest import KIND
from cluster.coordination import TRANSACTION, coordinator_of
from cluster.nodes import Cluster as Nodes
from cluster.nodes import Member, eventually
from cluster.test_transactions_of_three import PARTITIONS, committed_values
from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.client.transactions import NOTHING, Outcome, Prepared

pytestmark = pytest.mark.skipif(KIND is not Member, reason="Apache Kafka has no two-phase commit")

SETTINGS = {"transaction.two.phase.commit.enable": "true"}
BUDGET_S = 45
IN_EVERY_RUN = ("both", True)
CASES = list(itertools.product(("coordinator", "leader", "both"), (False, True)))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("three"), settings=SETTINGS, kinds=dict.fromkeys((1, 2, 3), KIND)) as made:
        yield made.start()


def producer_of(cluster: Cluster, transactional_id: str) -> Producer:
    return Producer(cluster, transactional_id=transactional_id, two_phase_commit=True, delivery_s=BUDGET_S)


async def prepare(three: Nodes, topic: str, value: str) -> Prepared:
    """One record in each partition; the producer is gone afterwards."""
    async with Cluster(three.bootstrap, budget_s=BUDGET_S) as cluster:
        producer = producer_of(cluster, topic)
        await producer.init(keep_prepared=True)
        producer.begin()
        for partition in range(PARTITIONS):
            await producer.post(topic, value.encode(), b"k", partition=partition)
        return await producer.prepare()


async def come_back(three: Nodes, transactional_id: str) -> Prepared:
    async with Cluster(three.bootstrap, budget_s=BUDGET_S) as cluster:
        return await producer_of(cluster, transactional_id).init(keep_prepared=True)


async def complete(three: Nodes, transactional_id: str, decided: Prepared) -> Outcome:
    """As somebody who has been away as well."""
    async with Cluster(three.bootstrap, budget_s=BUDGET_S) as cluster:
        producer = producer_of(cluster, transactional_id)
        await producer.init(keep_prepared=True)
        return await producer.complete(decided)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("victims", "again"),
    [pytest.param(*case, marks=() if case == IN_EVERY_RUN else pytest.mark.slow) for case in CASES],
)
def test_what_is_prepared_waits_for_its_decision(three: Nodes, victims: str, again: bool) -> None:
    """REP-12: it is committed, and then another one is rolled back, whole and once. Who comes back is told what it left, also
    when the coordinator dies once more."""
    topic = f"{victims}-{again}"
    three.create(topic, PARTITIONS)
    for value, outcome in (("kept", Outcome.COMMITTED), ("dropped", Outcome.ABORTED)):
        prepared = asyncio.run(prepare(three, topic, value))
        fall(three, topic, victims)
        if again:
            assert asyncio.run(come_back(three, topic)) == prepared
            mend(three, topic)
            three.members[coordinator_of(three, topic, TRANSACTION)].kill()
        decided = prepared if outcome is Outcome.COMMITTED else NOTHING
        assert asyncio.run(complete(three, topic, decided)) is outcome
        mend(three, topic)
    eventually(lambda: committed_values(three, topic) == [["kept"]] * PARTITIONS, "what was decided, and no more")


def fall(three: Nodes, topic: str, victims: str) -> None:
    """Two of three at once are too many: they come back, and whoever lives waits for them."""
    gone = set()
    if victims != "leader":
        gone.add(coordinator_of(three, topic, TRANSACTION))
    if victims != "coordinator":
        gone.add(three.leader(topic, PARTITIONS - 1))
    for each in gone:
        three.members[each].kill()
    if len(gone) > 1:
        three.mend()


def mend(three: Nodes, topic: str) -> None:
    three.mend()
    for each in ("__transaction_state", topic):
        three.wait_in_sync(each)
