"""A voter whose disk was wiped is another one: Kafka's own tool takes the old one out of the quorum and the new one in."""

from __future__ import annotations

import pytest

from apache.tools import ApacheTools
from cluster.conftest import StartCluster
from cluster.nodes import DYNAMIC, Cluster, eventually
from ottla.wire.ids import uuid_text

pytestmark = pytest.mark.apache


def voters(nodes: Cluster) -> dict[int, bytes]:
    return {int(v.replica_id): bytes(v.replica_directory_id) for v in nodes.quorum_state().current_voters}


def test_a_wiped_voter_is_replaced(cluster: StartCluster, tools: ApacheTools) -> None:
    """KRF-05, KIP-853: as long as it only observes, its word does not count for the voter that is gone."""
    nodes = cluster(DYNAMIC)
    before = voters(nodes)
    gone = next(n for n in nodes.members if n != nodes.active_controller())
    member = nodes.members[gone]
    member.kill()
    nodes.wipe(gone)
    member.start()
    nodes.wait_brokers({1, 2, 3})
    observing = eventually(lambda: nodes.quorum_state().observers, "it copies the log again")
    assert [int(each.replica_id) for each in observing] == [gone]
    assert voters(nodes) == before
    assert f"--controller-id {gone} --controller-directory-id {uuid_text(before[gone])}" in member.log_text()
    where = ("--bootstrap-server", nodes.bootstrap)
    old = ("--controller-id", gone, "--controller-directory-id", uuid_text(before[gone]))
    ran = tools.run("kafka-metadata-quorum", *where, "remove-controller", *map(str, old))
    assert ran.code == 0, ran
    assert sorted(voters(nodes)) == sorted(set(before) - {gone})
    properties = str(member.properties)
    ran = tools.run("kafka-metadata-quorum", "--command-config", properties, *where, "add-controller")
    assert ran.code == 0, ran
    now = eventually(lambda: len(found := voters(nodes)) == 3 and found, "it votes")
    assert now[gone] != before[gone]
    nodes.create("agreed", 1)
