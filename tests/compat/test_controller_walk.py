"""The controller of one node, and that of Apache Kafka 4.3.1, asked the same by brokers that exist only in the requests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from apache import kafka
from compat.chosen_quorum import EVERYTHING, differences
from compat.controllers import Side, two_clusters
from compat.walking import Walk

pytestmark = pytest.mark.apache

SEED = os.environ.get("OTTLA_DIFFERENTIAL_SEED", "ottla")
STEPS = int(os.environ.get("OTTLA_DIFFERENTIAL_STEPS", "150"))
# Nobody is fenced for silence, and nothing is elected but by request.
SETTINGS = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "broker.session.timeout.ms": "3600000",
    "auto.leader.rebalance.enable": "false",
    "unclean.leader.election.interval.ms": "3600000",
}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    with two_clusters(tmp_path_factory.mktemp("walk"), 1, SETTINGS) as pair:
        yield pair


def test_requests_of_voters_brokers_and_administrators(sides: tuple[Side, Side]) -> None:
    assert differences(EVERYTHING, (sides[0].active, sides[1].active)) == ""


def test_the_same_after_every_step(sides: tuple[Side, Side]) -> None:
    """KRF-02, KRF-12, TRAP-12, TRAP-37, TRAP-38: another walk with OTTLA_DIFFERENTIAL_SEED, a longer one with _STEPS."""
    walk = Walk(sides, SEED)
    walk.begin()
    for _ in range(STEPS):
        walk.step()
        if len(walk.differences) > 5:
            break
    assert not walk.differences, f"seed {SEED}, {walk.asked} requests:\n" + "\n".join(walk.differences)
    assert walk.asked > STEPS // 2
