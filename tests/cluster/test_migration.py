"""From Apache Kafka 4.3.1 to Ottla and back by a rolling restart: the same directories, the same settings, another program.

The cluster goes on meanwhile: every quorum and every in-sync set has members of both kinds on the way.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from apache import kafka
from apache.tools import ApacheTools
from cluster.loads import Writer, read_all
from cluster.nodes import DYNAMIC, STATIC, ApacheMember, Cluster, Member, eventually
from harness import HOST, free_port
from ottla.wire.ids import uuid_text
from ottla.wire.records import batches

pytestmark = [pytest.mark.apache, pytest.mark.slow, pytest.mark.timeout(400)]

PARTITIONS = 3
ALONE = {"default.replication.factor": "1", "min.insync.replicas": "1"}
# Levels of features that Apache Kafka brings, and we do not serve: an operator lowers them before the first node changes.
WITHOUT = [option for name in ("share.version", "streams.version") for option in ("--feature", f"{name}=0")]


@pytest.mark.parametrize("quorum", [DYNAMIC, STATIC])
def test_there_and_back_under_load(tmp_path: Path, quorum: str) -> None:
    """A client that retries sees no error, and every record is there in order at the end."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    with Cluster(tmp_path, quorum=quorum, kinds=dict.fromkeys((1, 2, 3), ApacheMember)) as nodes:
        nodes.start()
        where = ("--bootstrap-server", nodes.bootstrap)
        kafka.run_tool("org.apache.kafka.tools.FeatureCommand", *where, "downgrade", *WITHOUT)
        nodes.create("moving", PARTITIONS)
        with Writer(nodes.bootstrap, "moving", PARTITIONS, per_second=500) as writer:
            writer.wait_for(50)
            for kind in (Member, ApacheMember):
                for node_id in nodes.members:
                    _exchange(nodes, node_id, kind)
                    nodes.wait_brokers({1, 2, 3})
                    nodes.wait_in_sync("moving")
                    writer.wait_for(50)
                    nodes.create(f"beside-{kind.name}-{node_id}", 2)
            writer.finish()
        assert not writer.errors, writer.errors[:3]
        for partition in range(PARTITIONS):
            _check(nodes, writer, partition)


def _exchange(nodes: Cluster, node_id: int, kind: type[Member]) -> None:
    """Stop a node in good order, and start the other program on what it leaves."""
    old = nodes.members[node_id]
    assert old.stop(60) in (0, 128 + signal.SIGTERM)
    new = kind(old.directory, node_id, old.roles, (old.port, old.controller_port))
    nodes.members[node_id] = new
    new.start()


def _check(nodes: Cluster, writer: Writer, partition: int) -> None:
    """Every record once and in order. When a leader goes, this client library may take a new epoch and say again what had
    been written in the old one (librdkafka issue 4953): that is none of the brokers' doing, and leaves a trace in the log."""
    found = [int(value) for value in read_all(nodes.bootstrap, "moving", partition)]
    once = list(dict.fromkeys(found))
    assert once == list(range(writer.sent[partition]))
    assert once == found or len(_producer_epochs(nodes, partition)) > 1, "repeated in the same epoch"


def _producer_epochs(nodes: Cluster, partition: int) -> set[int]:
    segments = sorted((nodes.members[1].directory / f"moving-{partition}").glob("*.log"))
    return {batch.producer_epoch for path in segments for _, batch in batches(path.read_bytes())}


@pytest.mark.parametrize("kinds", [(Member, ApacheMember), (ApacheMember, Member)], ids=["to-apache", "to-ottla"])
def test_the_quorum_moves_to_a_controller_of_the_other_kind(
    tmp_path: Path, kinds: tuple[type[Member], type[Member]], tools: ApacheTools
) -> None:
    """A new controller listens, is added as a voter, and leads when the old one is removed, which goes on as a broker."""
    with Cluster(tmp_path, 1, kinds={1: kinds[0]}, settings=ALONE) as nodes:
        old, new = nodes.members[1], kinds[1](tmp_path / "node-2", 2, "controller", (free_port(), free_port()))
        nodes.format()
        servers = ",".join(f"{HOST}:{member.controller_port}" for member in (old, new))
        for member in (old, new):
            member.write_properties(nodes.settings | {"controller.quorum.bootstrap.servers": servers})
        nodes.launch()
        nodes.wait_ready()
        where = ("--bootstrap-server", nodes.bootstrap)
        tools.run("kafka-features", *where, "downgrade", *WITHOUT)
        nodes.create("before", 1, copies=1)
        new.format("--cluster-id", nodes.id, "--no-initial-controllers")
        nodes.members[2] = new
        new.start()
        eventually(lambda: _ids(nodes.quorum_state().observers) == {2}, "it listens")
        ran = tools.run("kafka-metadata-quorum", *where, "--command-config", new.properties, "add-controller")
        assert ran.code == 0, ran
        voters = nodes.quorum_state().current_voters
        assert _ids(voters) == {1, 2}
        directory = next(uuid_text(voter.replica_directory_id) for voter in voters if voter.replica_id == 1)
        words = ("remove-controller", "--controller-id", "1", "--controller-directory-id", directory)
        ran = tools.run("kafka-metadata-quorum", *where, *words)
        assert ran.code == 0, ran
        assert nodes.active_controller() == 2
        nodes.create("after", 1, copies=1)
        assert len(nodes.partitions("before")) == 1


def _ids(states: Any) -> set[int]:
    return {int(state.replica_id) for state in states}
