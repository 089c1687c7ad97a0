"""Where replicas of new partitions go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata.records import BrokerRegistrationChangeRecord
from ottla.wire.errors import Error, KafkaError
from pictures import Pictured, directory


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_six_partitions_over_three_brokers(factor: int, seed: int) -> None:
    """REP-01, REP-26: each leads two of them, the first and the fourth, the second and the fifth, the third and the sixth."""
    placed = Pictured(1, 2, 3, seed=seed).spread(6, factor)
    leaders = [replicas[0] for replicas in placed]
    assert leaders[:3] == leaders[3:] and sorted(leaders[:3]) == [1, 2, 3]
    assert Counter(replica for replicas in placed for replica in replicas) == dict.fromkeys((1, 2, 3), 2 * factor)


def test_the_leaderships_of_a_broker_that_fails_go_to_many() -> None:
    """REP-12."""
    placed = Pictured(1, 2, 3, 4, 5).spread(20, 2)
    for leader in range(1, 6):
        assert sorted(follower for first, follower in placed if first == leader) == sorted({1, 2, 3, 4, 5} - {leader})


@pytest.mark.parametrize("racks", ["aabbcc", "abcabc", "aaabbc", "aaaaab", "aabb  "])
@pytest.mark.parametrize("factor", [2, 3])
def test_copies_go_to_different_racks(racks: str, factor: int) -> None:
    """OPS-08: as many racks as there are, also where one has far more brokers than another."""
    rack_of = dict(enumerate(racks, 1))
    for replicas in Pictured(1, 2, 3, 4, 5, 6, racks=racks).spread(12, factor):
        assert len(set(replicas)) == factor
        assert len({rack_of[replica] for replica in replicas}) == min(factor, len(set(racks)))


def test_all_of_a_rack_lead() -> None:
    """Nine brokers in three racks: a round gives each of them one leadership, and the next one another."""
    placed = Pictured(*range(1, 10), racks="aaabbbccc").spread(18, 3)
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(range(1, 10), 2)
    held = Counter(replica for replicas in placed for replica in replicas)
    assert max(held.values()) - min(held.values()) <= 2


def test_brokers_of_one_host_share_a_rack() -> None:
    """`--brokers 3` on one host, and on two."""
    one_host = Pictured(1, 2, 3, racks="hhh").spread(6, 3)
    assert Counter(replicas[0] for replicas in one_host) == {1: 2, 2: 2, 3: 2}
    for replicas in Pictured(1, 2, 3, 4, 5, 6, racks="hhhkkk").spread(12, 2):
        assert (replicas[0] <= 3) != (replicas[1] <= 3), "a host that fails takes only one copy along"


def test_fenced_brokers_get_copies_only_if_nobody_else_is_there_and_never_lead() -> None:
    cluster = Pictured(1, 2, 3, 4)
    cluster.silence(2)
    assert all(2 not in replicas for replicas in cluster.spread(6, 3, "three"))
    placed = cluster.spread(6, 4, "four")
    assert all(replicas[3] == 2 for replicas in placed)
    assert all(2 not in cluster.partition(index, "four").isr for index in range(6))


def test_a_rack_that_is_down_gets_a_copy_rather_than_two_in_one_rack() -> None:
    cluster = Pictured(1, 2, 3, 4, racks="aabc")
    cluster.silence(4)
    assert all(4 not in replicas for replicas in cluster.spread(4, 2, "two")), "two racks are there"
    assert all(4 in replicas and replicas[0] != 4 for replicas in cluster.spread(4, 3, "three"))


def test_who_is_about_to_stop_or_has_cordoned_everything_gets_nothing() -> None:
    """KIP-1066."""
    cluster = Pictured(1, 2, 3, 4)
    cluster.topic((1, 4), name="led")
    cluster.beat(1, want_shut_down=True)
    cluster.beat(2, cordoned_log_dirs=[directory(2)])
    assert all(set(replicas) == {3, 4} for replicas in cluster.spread(4, 2))
    with pytest.raises(KafkaError) as refused:
        cluster.spread(1, 3, "more")
    assert refused.value.error is Error.INVALID_REPLICATION_FACTOR
    assert refused.value.message == (
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because only "
        "2 broker(s) are registered or some brokers have all their log directories cordoned."
    )


def test_nobody_is_there() -> None:
    cluster = Pictured(1, 2)
    cluster.silence(1)
    cluster.silence(2)
    with pytest.raises(KafkaError) as refused:
        cluster.spread(1, 2)
    assert refused.value.error is Error.INVALID_REPLICATION_FACTOR
    assert refused.value.message.endswith(
        "All brokers are currently fenced, or have all their log directories cordoned."
    )


@given(
    racks=st.text("abc ", min_size=1, max_size=7),
    factor=st.integers(1, 5),
    count=st.integers(1, 30),
    fenced=st.sets(st.integers(1, 7)),
    seed=st.integers(0, 9),
)
def test_every_placement(racks: str, factor: int, count: int, fenced: set[int], seed: int) -> None:
    """Different brokers, a leader that is there, all racks used that can be, and no broker with far more than its rack."""
    cluster = Pictured(*range(1, len(racks) + 1), racks=racks, seed=seed)
    rack_of = dict(enumerate(racks, 1))
    for broker_id in sorted(fenced & set(rack_of)):
        epoch = cluster.image.brokers[broker_id].epoch
        cluster.replay(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=1))
    live = set(rack_of) - fenced
    if factor > len(rack_of) or not live:
        with pytest.raises(KafkaError):
            cluster.spread(count, factor)
        return
    led: Counter[int] = Counter()
    for replicas in cluster.spread(count, factor):
        assert len(set(replicas)) == factor and replicas[0] in live
        assert len({rack_of[replica] for replica in replicas}) == min(factor, len(set(racks)))
        led[replicas[0]] += 1
    for rack in set(racks):
        shares = [led[broker_id] for broker_id in live if rack_of[broker_id] == rack]
        assert not shares or max(shares) - min(shares) <= 1
