"""Ends of transactions that are decided and cannot be carried out: PREPARE is written, and nodes that need a marker are gone.

The topic has one copy of each partition, one on each node. Whoever is away has the only log that its marker can go to, so the
transaction stays prepared until that node is back, however fast everything else is: other partitions have their markers, this
one has not, and nothing is complete. Meanwhile the coordinator falls as well, or not.

All of it is slow, because librdkafka may wait for ever in send_offsets_to_transaction when coordinators have changed, without
having asked anybody, and nothing in Python ends that. `tests/sim/test_cluster_transactions.py` has the same falls.
"""

from __future__ import annotations

import confluent_kafka
import pytest

from cluster.coordination import TRANSACTION, committed, coordinator_of
from cluster.nodes import Cluster, eventually
from cluster.test_transactions_of_three import GENERATIONS, QUICK, set_generation
from compat.transacting import SECONDS, Confluent, Transactor
from ottla.wire.messages.transactions import DescribeTransactionsRequest, DescribeTransactionsResponse

NODES = 3
VICTIMS = ("coordinator", "leader", "both")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("victims", VICTIMS)
def test_every_end_is_carried_out(three: Cluster, victims: str, commits: bool, generation: int) -> None:
    """TXN-03, TXN-07, REP-12: the coordinator, the leader of a partition, and both; commits and aborts of both generations."""
    cut_short(three, victims, commits, generation)


def cut_short(three: Cluster, victims: str, commits: bool, generation: int) -> None:
    set_generation(three, generation)
    topic = f"{victims}-{commits}-{generation}"
    three.create(topic, NODES, copies=1)
    three.create(f"in-{topic}")
    producer = Confluent().producer(three.bootstrap, topic, **QUICK).init()
    transact(producer, topic, "before", 1)
    producer.commit()
    transact(producer, topic, "cut", 2)
    coordinator = coordinator_of(three, topic, TRANSACTION)
    away = who_leads_elsewhere(three, topic, coordinator)
    if victims == "coordinator":
        three.members[away].pause()
    else:
        three.members[away].kill()
    end(producer, commits)
    assert state_of(three, topic).startswith("Prepare")
    if victims != "leader":
        three.members[coordinator].kill()
    three.mend()
    for internal in ("__transaction_state", "__consumer_offsets"):
        three.wait_in_sync(internal)
    wanted = "CompleteCommit" if commits else "CompleteAbort"
    eventually(lambda: state_of(three, topic) == wanted, "the transaction is complete", 60)
    eventually(lambda: stable(three, topic) == stable(three, topic, "read_uncommitted"), "nothing hangs", 60)
    goes_on(three, producer, topic, ["before", *(["cut"] if commits else []), "after"])


def goes_on(three: Cluster, producer: Transactor, topic: str, wanted: list[str]) -> None:
    """The producer writes another transaction, and readers get what was committed, once and in order."""
    transact(producer, topic, "after", 3)
    producer.commit()
    eventually(lambda: by_partition(three, topic) == [wanted] * NODES, "what was committed, and no more", 60)
    assert committed(three, f"group-{topic}", f"in-{topic}", 1) == [3]


def by_partition(three: Cluster, topic: str) -> list[list[str]]:
    found = Confluent().read(three.bootstrap, topic, NODES, "read_committed")
    return [[each.value for each in found if each.partition == index] for index in range(NODES)]


def transact(producer: Transactor, topic: str, value: str, offset: int) -> None:
    producer.begin()
    for partition in range(NODES):
        producer.send(topic, value, partition)
    producer.flush()
    producer.offset(f"group-{topic}", f"in-{topic}", offset)


def end(producer: Transactor, commits: bool) -> None:
    """The answer comes when the decision is written, not when it is carried out."""
    if commits:
        producer.commit()
    else:
        producer.abort()


def who_leads_elsewhere(three: Cluster, topic: str, coordinator: int) -> int:
    """The leader of a partition that is not the coordinator; rather one that does not lead the metadata as well."""
    leaders = {int(part.leader_id) for part in three.partitions(topic)} - {coordinator}
    controller = three.active_controller()
    return min(leaders - {controller} or leaders)


def state_of(three: Cluster, transactional_id: str) -> str:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def described() -> str:
        coordinator = coordinator_of(three, transactional_id, TRANSACTION)
        answer = three.ask(lambda line: line.ask(request, DescribeTransactionsResponse, 0), coordinator)
        found = answer.transaction_states[0]
        return "" if found.error_code else str(found.transaction_state)

    return str(eventually(described, f"the state of {transactional_id}", 60))


def stable(three: Cluster, topic: str, isolation: str = "read_committed") -> list[int]:
    """Up to where readers may read, by partition. librdkafka asks once, and perhaps a broker that has just come back."""
    settings = {"bootstrap.servers": three.bootstrap, "group.id": "nobody", "isolation.level": isolation}
    reader = confluent_kafka.Consumer(settings)
    places = [confluent_kafka.TopicPartition(topic, index) for index in range(NODES)]
    try:
        return [int(reader.get_watermark_offsets(place, SECONDS)[1]) for place in places]
    except confluent_kafka.KafkaException as error:
        raise ConnectionError(str(error)) from error
    finally:
        reader.close()
