"""Transactions whose coordinator, partitions and groups are on different brokers, and brokers that die on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from cluster.coordination import TRANSACTION, committed, coordinator_of, give_back
from cluster.generations import GENERATIONS, Speakers, ends_as, set_generation, speakers
from cluster.nodes import Cluster, eventually
from compat.own_process import ConfluentOnItsOwn
from compat.transacting import Aiokafka, Confluent, Found, KafkaPython, Library, Transactor

__all__ = ["speakers"]

PARTITIONS = 6
# Libraries that find their way fast when a broker is gone.
QUICK = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
}


def values(found: list[Found]) -> list[list[str]]:
    """By partition, in the order of the log."""
    return [[each.value for each in found if each.partition == index] for index in range(PARTITIONS)]


def committed_values(nodes: Cluster, topic: str) -> list[list[str]]:
    return values(Confluent().read(nodes.bootstrap, topic, PARTITIONS, "read_committed"))


@pytest.mark.parametrize("kind", [Confluent, KafkaPython, Aiokafka], ids=lambda kind: kind.name)
def test_partitions_of_many_leaders_end_together(three: Cluster, kind: type[Library]) -> None:
    """TXN-03, TXN-04, TXN-05, TXN-07: three coordinators, six partitions of three leaders, offsets of six groups. These
    libraries know generation 1, whatever the cluster serves."""
    library = kind()
    for level in GENERATIONS if kind is Confluent else (2,):
        set_generation(three, level)
        end_together(three, library, f"together-{library.name}-{level}", 1)
    library.close()


def test_partitions_of_many_leaders_end_together_in_generation_2(three: Cluster, speakers: Speakers) -> None:
    """TXN-03, TXN-04, TXN-05, TXN-07: the same, with partitions that the first write to them adds."""
    set_generation(three, 2)
    end_together(three, speakers[2], "together-in-2", 2)


def end_together(three: Cluster, library: Library, topic: str, generation: int) -> None:
    three.create(topic, PARTITIONS)
    names = [f"{topic}-{number}" for number in range(6)]
    producers = [library.producer(three.bootstrap, name).init() for name in names]
    spread(three, names)
    eventually(lambda: {int(part.leader_id) for part in three.partitions(topic)} == {1, 2, 3}, "three leaders")
    for number, producer in enumerate(producers):
        with ends_as(three, names[number], generation):
            send_everywhere(producer, topic, f"{number} stays")
            producer.offset(f"group of {names[number]}", topic, 5)
            producer.commit()
        send_everywhere(producer, topic, f"{number} goes")
        producer.offset(f"group of {names[number]}", topic, 7)
        producer.abort()
        producer.close()
    wanted = [f"{number} stays" for number in range(6)]
    eventually(
        lambda: committed_values(three, topic) == [wanted] * PARTITIONS, "what was committed is read, and no more"
    )
    groups = [f"group of {name}" for name in names]
    assert [committed(three, group, topic, 1) for group in groups] == [[5]] * 6


def spread(three: Cluster, names: Sequence[str]) -> None:
    """Each broker coordinates some of them: brokers that were killed have left that to others, and get it back."""
    give_back(three)
    eventually(lambda: {coordinator_of(three, name, TRANSACTION) for name in names} == {1, 2, 3}, "three coordinators")


def send_everywhere(producer: Transactor, topic: str, value: str) -> None:
    producer.begin()
    for partition in range(PARTITIONS):
        producer.send(topic, value, partition)
    producer.flush()


# What a producer does in one transaction, step by step; between any two of them a broker may die.
def steps(producer: Transactor, topic: str, group: str, number: int) -> dict[str, Callable[[], object]]:
    def send(parts: range) -> None:
        for partition in parts:
            producer.send(topic, f"{number}", partition)
        producer.flush()

    return {
        "init": producer.init,
        "begin": producer.begin,
        "some": lambda: send(range(3)),
        "all": lambda: send(range(3, 6)),
        "offsets": lambda: producer.offset(group, topic, number + 1),
        "commit": producer.commit,
    }


STEPS = ("init", "begin", "some", "all", "offsets", "commit")


def test_the_coordinator_is_killed_between_steps(three: Cluster, speakers: Speakers) -> None:
    """TXN-03, TXN-07, REP-12: the transaction ends as its producer was told, whole, once and in order."""
    kill_after_each_step(three, speakers[2], "coordinator", 2, ("all", "commit"))


@pytest.mark.slow
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("victim", ["coordinator", "leader"])
def test_a_broker_is_killed_after_each_step(three: Cluster, speakers: Speakers, victim: str, generation: int) -> None:
    """TXN-03, TXN-07, REP-12: the coordinator of the transaction, or a leader of one of its partitions."""
    kill_after_each_step(three, speakers[generation], victim, generation, STEPS)


def kill_after_each_step(three: Cluster, library: Library, victim: str, generation: int, deadly: Sequence[str]) -> None:
    set_generation(three, generation)
    topic = f"{len(deadly)}-{victim}-{generation}"
    three.create(topic, PARTITIONS)
    group, number = f"group-{topic}", 0
    for number, step in enumerate(deadly):
        producer = library.producer(three.bootstrap, topic, **QUICK)
        for name, do in steps(producer, topic, group, number).items():
            do()
            if name == step:
                gone = coordinator_of(three, topic, TRANSACTION) if victim == "coordinator" else three.leader(topic, 4)
                three.members[gone].kill()
        producer.close()
        three.mend()
        for internal in ("__transaction_state", "__consumer_offsets", topic):
            three.wait_in_sync(internal)
    wanted = [[str(each) for each in range(number + 1)]] * PARTITIONS
    eventually(lambda: committed_values(three, topic) == wanted, "all transactions are whole")
    assert committed(three, group, topic, 1) == [number + 1]
    check_speaks(three, library, topic, generation)


def check_speaks(three: Cluster, library: Library, topic: str, generation: int) -> None:
    """Nobody dies, so that nothing but the end itself can have brought a new epoch."""
    producer = library.producer(three.bootstrap, topic, **QUICK).init()
    with ends_as(three, topic, generation):
        send_everywhere(producer, topic, "unharmed")
        producer.commit()
    producer.close()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["coordinator", "leader"])
def test_a_broker_that_stands_still_is_replaced(three: Cluster, victim: str) -> None:
    """TXN-07, REP-12, REP-14: it is paused for longer than its session lasts. What it still takes for its own when it goes on
    is cut away; nobody waits for it longer than that."""
    topic = f"still-{victim}"
    three.create(topic, PARTITIONS)
    # It does not lead the metadata, and is not both.
    names = [f"{topic}-{number}" for number in range(12)]
    spread(three, names)
    controller, leader = three.active_controller(), three.leader(topic, 4)
    if victim == "leader" and leader == controller:
        leader = next(int(part.leader_id) for part in three.partitions(topic) if part.leader_id != controller)
    wanted = {"coordinator": lambda at: at not in (controller, leader), "leader": lambda at: at != leader}[victim]
    name = next(each for each in names if wanted(coordinator_of(three, each, TRANSACTION)))
    producer = ConfluentOnItsOwn().producer(three.bootstrap, name, **QUICK, **{"socket.timeout.ms": 3000}).init()
    send_everywhere(producer, topic, "0")
    paused = coordinator_of(three, name, TRANSACTION) if victim == "coordinator" else leader
    three.members[paused].pause()
    producer.commit()
    send_everywhere(producer, topic, "1")
    producer.commit()
    assert committed_values(three, topic) == [["0", "1"]] * PARTITIONS
    three.members[paused].resume()
    for each in ("__transaction_state", topic):
        three.wait_in_sync(each)
    send_everywhere(producer, topic, "2")
    producer.commit()
    producer.close()
    eventually(lambda: committed_values(three, topic) == [["0", "1", "2"]] * PARTITIONS, "all of it, once")
