"""Groups of thousands, and what a crash in the middle of a rebalance sets off: how often members are given work anew, how much
of it moves, and how long that takes, in simulated time."""

from __future__ import annotations

from classic_bench import ClassicBench
from consumers_bench import Consumer, Crowd
from machine_bench import Asked
from ottla.coordination.classic_group import STABLE
from ottla.wire.errors import Error

Uses = dict[str, set[tuple[bytes, int]]]


def uses(consumers: list[Consumer]) -> Uses:
    return {consumer.id: set(consumer.uses) for consumer in consumers}


def taken_away(before: Uses, after: Uses) -> int:
    return sum(len(before[member] - after[member]) for member in before.keys() & after.keys())


def settled(partitions: int, members: int, beat_ms: int = 5000) -> tuple[Crowd, list[Consumer], int]:
    """A stable group of so many; how long that took."""
    crowd = Crowd({"t": partitions})
    consumers = [Consumer(crowd, f"c{number:05}").join() for number in range(members)]
    took_ms = until_stable(crowd, consumers, beat_ms)
    assert sorted(partition for c in consumers for partition in c.partitions()) == list(range(partitions))
    return crowd, consumers, took_ms


def until_stable(crowd: Crowd, consumers: list[Consumer], beat_ms: int = 5000) -> int:
    began_ms = crowd.elapsed_ms
    while True:
        crowd.pass_ms(beat_ms)
        for consumer in consumers:
            consumer.beat()
        if crowd.group().state == "Stable":
            return crowd.elapsed_ms - began_ms
        assert crowd.elapsed_ms - began_ms < 120_000


class TestCrashes:
    """One during a rebalance does not cause an assignment storm."""

    def test_of_a_classic_member(self) -> None:
        """GRP-20: everybody joins once more, and never a third time."""
        bench = ClassicBench()
        crashed, *others = bench.stable(200)
        newcomer = bench.named()
        joins = [bench.join(newcomer), *self._rejoin(bench, others)]
        assert all(join.is_waiting for join in joins), "for the one that crashed"
        bench.pass_ms(15_000)
        assert {(join.error, join.reply.generation_id) for join in joins} == {(Error.NONE, 2)}
        bench.settle()
        for _ in range(20):
            bench.pass_ms(3000)
            assert {bench.heartbeat(member) for member in (newcomer, *others)} == {Error.NONE}
        assert (bench.group.generation, bench.group.state) == (2, STABLE)
        assert crashed not in bench.group.members

    def test_of_the_coordinator_of_classic_members(self) -> None:
        """GRP-20: who waited is told to look for the new one. The rebalance that was under way begins again, and only once."""
        bench = ClassicBench()
        members = bench.stable(200)
        waiting = self._rejoin(bench, members[100:], bench.join(bench.named()))
        bench.take_over()
        assert {join.error for join in waiting} == {Error.NOT_COORDINATOR} and len(waiting) == 101
        joins = [bench.join(member) for member in members[100:]]
        assert {join.reply.generation_id for join in joins} == {1}, (
            "of a rebalance that never ended nothing was written"
        )
        newcomer = bench.named()
        joins = self._rejoin(bench, members, bench.join(newcomer))
        bench.pass_ms(1000)
        assert {(join.error, join.reply.generation_id) for join in joins} == {(Error.NONE, 2)} and len(joins) == 201
        bench.settle()
        for _ in range(5):
            bench.pass_ms(3000)
            assert {bench.heartbeat(member) for member in (newcomer, *members)} == {Error.NONE}
        assert (bench.group.generation, bench.group.state) == (2, STABLE)

    @staticmethod
    def _rejoin(bench: ClassicBench, members: list[str], *others: Asked) -> list[Asked]:
        """Whoever hears of a rebalance joins again."""
        heard = [member for member in members if bench.heartbeat(member) is Error.REBALANCE_IN_PROGRESS]
        return [*others, *(bench.join(member) for member in heard)]

    def test_of_a_member_of_a_consumer_group(self) -> None:
        """GRP-20: its partitions find others, and nobody else gives up any but to the newcomer."""
        crowd, consumers, _ = settled(400, 200)
        epoch, before, written = crowd.group().epoch, uses(consumers), len(crowd.log)
        crashed, *others = consumers
        newcomer = Consumer(crowd, "newcomer").join()
        for consumer in others[:50]:
            consumer.beat()  # a few have given up what the newcomer is to have
        crowd.settle(newcomer, *others, rounds=50)
        assert crowd.group().epoch == epoch + 2, "one for who came and one for who went"
        assert crowd.group().state == "Stable" and crashed.id not in crowd.group().members
        after = uses([newcomer, *others])
        assert sum(map(len, after.values())) == 400
        assert taken_away(before, after) <= 2
        assert len(crowd.log) - written < 3 * 200, "about two records of each target, and few of members"

    def test_of_the_coordinator_of_a_consumer_group(self) -> None:
        """GRP-20"""
        crowd, consumers, _ = settled(400, 200)
        consumers.append(Consumer(crowd, "newcomer").join())
        epoch, before = crowd.group().epoch, uses(consumers)
        for consumer in consumers[:50]:
            consumer.beat()
        crowd.take_over()
        until_stable(crowd, consumers)
        assert crowd.group().epoch == epoch
        assert taken_away(before, uses(consumers)) <= 2
        assert sum(len(consumer.uses) for consumer in consumers) == 400


class TestHowLong:
    """A rebalance lasts 1 to 30 s or less, with members that heartbeat as they do by default."""

    def test_of_a_classic_group(self) -> None:
        """GRP-21"""
        bench = ClassicBench()
        members = bench.stable(1000)
        began_ms, newcomer = bench.elapsed_ms, bench.join(bench.named())
        for step in range(30):  # every 3 s, each in its turn
            bench.pass_ms(100)
            for member in members[step::30]:
                assert bench.heartbeat(member) is Error.REBALANCE_IN_PROGRESS
                bench.join(member)
        assert (newcomer.error, newcomer.reply.generation_id) == (Error.NONE, 2)
        bench.settle()
        assert bench.group.state == STABLE and bench.elapsed_ms - began_ms <= 3000

    def test_of_consumer_groups(self) -> None:
        """GRP-21, every 5 s: the first heartbeat gives up, the second says so, the third is given."""
        crowd, consumers, formed_ms = settled(2000, 1000)
        assert formed_ms <= 15_000
        consumers.append(Consumer(crowd, "newcomer").join())
        assert until_stable(crowd, consumers) <= 20_000
        crowd.pass_ms(1000)
        consumers.pop().leave()
        assert until_stable(crowd, consumers) <= 10_000


class TestTenThousand:
    def test_in_one_consumer_group(self) -> None:
        """GRP-22"""
        _, consumers, formed_ms = settled(12_000, 10_000)
        assert formed_ms <= 30_000
        assert {len(consumer.uses) for consumer in consumers} == {1, 2}

    def test_thousands_in_a_classic_group(self) -> None:
        """All of its metadata are one record, which has to fit into a batch."""
        bench = ClassicBench()
        assert len(bench.stable(4000)) == 4000 and bench.group.generation == 1
        bench.take_over()
        assert len(bench.group.members) == 4000
