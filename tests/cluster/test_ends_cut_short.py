"""Ends of transactions that are decided and cannot be carried out: PREPARE is written, and nodes that need a marker are gone.

The topic has one copy of each partition, one on each node. Whoever is away has the only log that its marker can go to, so the
transaction stays prepared until that node is back, however fast everything else is: other partitions have their markers, this
one has not, and nothing is complete. Meanwhile the coordinator falls as well, or not.

`tests/sim/test_cluster_transactions.py` has the same falls.
"""

from __future__ import annotations

import itertools

import confluent_kafka
import pytest

from cluster.coordination import TRANSACTION, committed, coordinator_of
from cluster.generations import GENERATIONS, Speakers, described, ends_as, set_generation, speakers
from cluster.nodes import Cluster, eventually
from cluster.test_transactions_of_three import QUICK
from compat.transacting import SECONDS, Confluent, Library, Transactor

__all__ = ["speakers"]

NODES = 3
VICTIMS = ("coordinator", "leader", "both")
IN_EVERY_RUN = ("both", True, 2)
CASES = list(itertools.product(VICTIMS, (True, False), GENERATIONS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("victims", "commits", "generation"),
    [pytest.param(*case, marks=() if case == IN_EVERY_RUN else pytest.mark.slow) for case in CASES],
)
def test_every_end_is_carried_out(
    three: Cluster, speakers: Speakers, victims: str, commits: bool, generation: int
) -> None:
    """TXN-03, TXN-07, REP-12: the coordinator, the leader of a partition, and both; commits and aborts of both generations."""
    cut_short(three, speakers[generation], victims, commits, generation)


def cut_short(three: Cluster, library: Library, victims: str, commits: bool, generation: int) -> None:
    set_generation(three, generation)
    topic = f"{victims}-{commits}-{generation}"
    three.create(topic, NODES, copies=1)
    three.create(f"in-{topic}")
    producer = library.producer(three.bootstrap, topic, **QUICK).init()
    with ends_as(three, topic, generation):
        transact(producer, topic, "before", 1, f"group-{topic}")
        producer.commit()
    transact(producer, topic, "cut", 2, f"group-{topic}")
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
    assert committed(three, f"group-{topic}", f"in-{topic}", 1) == [2 if commits else 1]


def goes_on(three: Cluster, producer: Transactor, topic: str, wanted: list[str]) -> None:
    """The producer writes another transaction, and readers get what was committed, once and in order. Its offset is that of a
    group nobody knows yet: librdkafka would send it to the coordinator it remembers, and hang if that one has been away."""
    group = f"after-{topic}"
    transact(producer, topic, "after", 3, group)
    producer.commit()
    producer.close()
    eventually(lambda: by_partition(three, topic) == [wanted] * NODES, "what was committed, and no more", 60)
    eventually(lambda: committed(three, group, f"in-{topic}", 1) == [3], "the offset", 60)


def by_partition(three: Cluster, topic: str) -> list[list[str]]:
    found = Confluent().read(three.bootstrap, topic, NODES, "read_committed")
    return [[each.value for each in found if each.partition == index] for index in range(NODES)]


def transact(producer: Transactor, topic: str, value: str, offset: int, group: str) -> None:
    producer.begin()
    for partition in range(NODES):
        producer.send(topic, value, partition)
    producer.flush()
    producer.offset(group, f"in-{topic}", offset)


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
    return str(described(three, transactional_id).transaction_state)


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
