"""Real clients whose transactional id runs out of epochs: after 32,766 it goes on with another producer id, unnoticed.

Thirty thousand epochs are used up by asking for a producer id again and again; the last ones by the client itself.
"""

from __future__ import annotations

import asyncio

import pytest

from compat.transacting import Confluent, Library, committed_offsets, every_library, finalize, until
from ottla.client.cluster import Cluster
from ottla.client.coordinator import TRANSACTION, find
from ottla.client.transaction_admin import TransactionAdmin, TransactionInfo
from ottla.testing import Broker, broker
from ottla.wire.messages.transactions import InitProducerIdRequest

pytestmark = pytest.mark.apache

# The last epochs, so few that what follows uses them up: every beginner takes one, and in generation 2 every end.
LEFT, ENDS, BEGINNERS = 11, 30, 15
EPOCH_MAX = 32_767


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("generation", "name"), [(2, "java-4.3"), (1, "java-4.3"), (2, "confluent")], ids=lambda value: str(value)
)
def test_epochs_run_out(generation: int, name: str) -> None:
    """TXN-02, TXN-05: what was committed is read, once and in order, and no more; the group is where the last one put it."""
    library = every_library()[name]
    if reason := library.why_missing():
        pytest.skip(reason)
    with broker() as running:
        finalize(running.bootstrap, generation)
        topic = running.create_topic("written")
        before = asyncio.run(use_up(running, topic))
        wanted = ended(running, library, topic) + begun(running, library, topic)
        after = asyncio.run(described(running, topic))
        until(lambda: read(running, topic) == wanted, "all of it, once and in order")
        assert committed_offsets(running.bootstrap, topic, topic, 1) == [len(wanted)]
    library.close()
    assert before.epoch == EPOCH_MAX - LEFT
    assert after.producer_id > before.producer_id and after.epoch <= ENDS + 2 * BEGINNERS


async def use_up(running: Broker, transactional_id: str) -> TransactionInfo:
    async with Cluster(running.bootstrap) as cluster:
        node = await find(cluster, transactional_id, TRANSACTION)
        coordinator, epoch = await cluster.broker(node.node_id), -1
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        while epoch < EPOCH_MAX - LEFT:
            epoch = (await coordinator.request(request, version=4)).producer_epoch
    return await described(running, transactional_id)


async def described(running: Broker, transactional_id: str) -> TransactionInfo:
    async with Cluster(running.bootstrap) as cluster:
        return await TransactionAdmin(cluster).describe(transactional_id)


def ended(running: Broker, library: Library, topic: str) -> list[str]:
    """One producer; each third of its transactions is aborted."""
    producer, committed = library.producer(running.bootstrap, topic).init(), []
    for number in range(ENDS):
        producer.wrote(topic, f"{number}")
        if number % 3 == 2:
            producer.abort()
            continue
        committed.append(f"{number}")
        producer.offset(topic, topic, len(committed))
        producer.commit()
    producer.close()
    return committed


def begun(running: Broker, library: Library, topic: str) -> list[str]:
    """One producer after the other."""
    values = [f"begun {number}" for number in range(BEGINNERS)]
    for number, value in enumerate(values):
        producer = library.producer(running.bootstrap, topic).init()
        producer.wrote(topic, value)
        producer.offset(topic, topic, ENDS - ENDS // 3 + number + 1)
        producer.commit()
        producer.close()
    return values


def read(running: Broker, topic: str) -> list[str]:
    return [each.value for each in Confluent().read(running.bootstrap, topic, 1, "read_committed")]
