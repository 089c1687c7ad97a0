"""Controllers of ours and of Apache Kafka 4.3.1 in one metadata quorum: each votes for the other, copies the other's log and
takes over from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from apache import kafka
from cluster.nodes import ApacheMember, Cluster, Member, eventually

pytestmark = [pytest.mark.apache, pytest.mark.slow]

SETTINGS = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "500"}
# Levels of features that an Apache node would bring, and we do not serve yet.
WITHOUT = [option for name in ("share.version", "streams.version") for option in ("--feature", f"{name}=0")]


class Beside(ApacheMember):
    def format(self, *options: str) -> None:
        super().format(*options, *WITHOUT)


def test_voters_of_both_kinds_elect_each_other(tmp_path: Path) -> None:
    """KRF-05, KRF-11, KRF-20: killed and stopped in turn, whoever leads; at the end everybody has the same log."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    leaders: set[str] = set()
    with Cluster(tmp_path, settings=SETTINGS, kinds={1: Member, 2: Beside, 3: Member}) as mixed:
        mixed.start()
        for turn in range(3):
            leader = mixed.active_controller()
            leaders.add(mixed.members[leader].name)
            if turn % 2:
                mixed.members[leader].stop(60)
            else:
                mixed.members[leader].kill()
            assert mixed.active_controller() != leader
            mixed.create(f"turn-{turn}", 3, copies=2)
            mixed.members[leader].start()
            mixed.wait_brokers({1, 2, 3})
        leaders.add(mixed.members[mixed.active_controller()].name)
        for of in mixed.members:
            assert [len(mixed.partitions(f"turn-{turn}", of)) for turn in range(3)] == [3, 3, 3]
    assert leaders == {"ottla", "apache"}


@pytest.mark.parametrize("kinds", [{1: Member, 2: Beside}, {1: Beside, 2: Member}], ids=["from-ours", "from-theirs"])
def test_snapshots_are_read_by_the_other_kind(tmp_path: Path, kinds: dict[int, type[Member]]) -> None:
    """KRF-06, KRF-10: a broker whose disk was wiped begins with a snapshot of the controller's."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    small = {"metadata.log.max.record.bytes.between.snapshots": "1500", "metadata.max.retention.bytes": "1024"}
    roles = {1: "broker,controller", 2: "broker"}
    with Cluster(tmp_path, nodes=2, settings={**SETTINGS, **small}, kinds=kinds, roles=roles) as mixed:
        mixed.start()
        for n in range(20):
            mixed.create(f"topic-{n}", 1, copies=1)
        eventually(lambda: _snapshots(mixed, 1), "the controller has written a snapshot")
        mixed.members[2].stop(60)
        mixed.wipe(2)
        mixed.members[2].start()
        eventually(lambda: len(mixed.partitions("topic-19", 2)) == 1, "it knows everything")
        assert eventually(lambda: _snapshots(mixed, 2), "it keeps what it began with")


def _snapshots(mixed: Cluster, node_id: int) -> list[str]:
    found = (mixed.members[node_id].directory / "__cluster_metadata-0").glob("*.checkpoint")
    return sorted(path.name for path in found if not path.name.startswith("00000000000000000000-"))
