"""Disks of one node of three that fail or fill up, while somebody writes and counts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.conftest import KIND
from cluster.loads import Writer
from cluster.nodes import ApacheMember, Cluster, eventually
from operations.tracing import failing_syncs, needs_strace
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse

PARTITIONS = 6
SYNCED = {"flush.messages": "1"}
VOLUME_MIB = 48


def offline_directories(nodes: Cluster, of: int) -> list[str]:
    answer = nodes.ask(lambda line: line.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4), of)
    return [it.log_dir for it in answer.results if it.error_code == Error.KAFKA_STORAGE_ERROR.code]


def one_in(nodes: Cluster, topic: str, disk: int) -> tuple[int, int]:
    """A partition of this topic whose log lies on that disk of its leader, and the leader."""
    for index in range(PARTITIONS):
        leader = nodes.leader(topic, index)
        if (nodes.members[leader].log_dirs[disk] / f"{topic}-{index}").is_dir():
            return index, leader
    raise AssertionError(f"nothing of {topic} is led from disk {disk}")


def held_in(nodes: Cluster, node_id: int, topic: str, disk: int) -> set[int]:
    place = nodes.members[node_id].log_dirs[disk]
    return {index for index in range(PARTITIONS) if (place / f"{topic}-{index}").is_dir()}


def in_sync_with(nodes: Cluster, topic: str, node_id: int) -> set[int]:
    return {int(part.partition_index) for part in nodes.partitions(topic) if node_id in part.isr_nodes}


def test_one_of_two_disks_fails(tmp_path: Path) -> None:
    """REP-12, REP-20: its leaderships go to others and its replicas are in sync with nothing; the other disk of that broker
    goes on, and so does every client. A new process takes the disk up again."""
    needs_strace()
    with Cluster(tmp_path, kinds=dict.fromkeys((1, 2, 3), KIND)) as nodes:
        for member in nodes.members.values():
            member.log_dirs.append(member.directory.with_name(f"{member.directory.name}-second"))
        nodes.start()
        nodes.create("spread", PARTITIONS, configs=SYNCED)
        with Writer(nodes.bootstrap, "spread", PARTITIONS) as writer:
            writer.wait_for(50)
            index, leader = one_in(nodes, "spread", 1)
            hurt = held_in(nodes, leader, "spread", 1)
            assert 0 < len(hurt) < PARTITIONS
            disk = nodes.members[leader].log_dirs[1]
            with failing_syncs(nodes.members[leader], disk / f"spread-{index}" / "00000000000000000000.log"):
                eventually(lambda: nodes.leader("spread", index) != leader, "another leads")
                whole = set(range(PARTITIONS)) - hurt
                eventually(lambda: in_sync_with(nodes, "spread", leader) == whole, "the others stay in sync")
            writer.wait_for(50)
            assert nodes.members[leader].is_running()
            assert offline_directories(nodes, leader) == [str(disk)]
            assert not any(offline_directories(nodes, n) for n in nodes.members if n != leader)
            nodes.members[leader].stop()
            nodes.members[leader].start()
            nodes.wait_in_sync("spread")
            writer.wait_for(50)
            writer.finish()
        writer.check(nodes.bootstrap)


def test_the_only_disk_fails(tmp_path: Path) -> None:
    """REP-12, OPS-04 (disk error): the node ends and says why, and the others go on."""
    needs_strace()
    with Cluster(tmp_path, kinds=dict.fromkeys((1, 2, 3), KIND)) as nodes:
        nodes.start()
        nodes.create("only", 1, configs=SYNCED)
        with Writer(nodes.bootstrap, "only", 1) as writer:
            writer.wait_for(50)
            leader = nodes.members[nodes.leader("only")]
            process = leader.process
            assert process is not None
            with failing_syncs(leader, leader.directory / "only-0" / "00000000000000000000.log"):
                assert process.wait(60) == 1
            said = leader.log_text()
            assert f"the node ends, all of log.dirs have failed, the last was {leader.directory}" in said or (
                KIND is ApacheMember and "all log dirs in" in said
            )
            writer.wait_for(50)
            leader.process = None
            leader.start()
            nodes.wait_in_sync("only")
            writer.finish()
        writer.check(nodes.bootstrap)


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[Path]:
    """A place where the directories of three nodes are small file systems of their own."""
    with ExitStack() as ends:
        for n in (1, 2, 3):
            place = tmp_path / f"node-{n}"
            place.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_MIB}m", "tmpfs", str(place)]
            if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
                pytest.skip("only root may mount a small file system to fill")
            ends.callback(subprocess.run, ["umount", "-l", str(place)], check=True)
        yield tmp_path


def fill_up(place: Path) -> Path:
    """A file that leaves nothing to anybody else."""
    path = place / "in-the-way"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return path


def test_the_disk_of_one_node_is_full(volumes: Path) -> None:
    """OPS-04 (disk full), LOG-23, REP-10: it steps back from what it leads and from what it follows, and the others go on
    with the two copies that are left. When it has room again it catches up. Nobody waits for a lag to be noticed: that would
    take ten minutes here. (Apache Kafka takes a full disk for a broken one, and ends.)"""
    if KIND is ApacheMember:
        pytest.skip("Apache Kafka ends on a full disk")
    with Cluster(volumes, settings={"replica.lag.time.max.ms": "600000"}) as nodes:
        nodes.start()
        nodes.create("filled", PARTITIONS)
        with Writer(nodes.bootstrap, "filled", PARTITIONS) as writer:
            writer.wait_for(50)
            full = next(n for n in nodes.members if n != nodes.active_controller())
            in_the_way = fill_up(nodes.members[full].directory)
            eventually(lambda: not in_sync_with(nodes, "filled", full), "the full node is in sync with nothing")
            assert full not in {int(part.leader_id) for part in nodes.partitions("filled")}
            writer.wait_for(100)
            assert nodes.brokers() == {1, 2, 3}
            in_the_way.unlink()
            nodes.wait_in_sync("filled")
            writer.wait_for(50)
            writer.finish()
        writer.check(nodes.bootstrap)


@pytest.mark.slow
def test_the_disk_of_all_nodes_is_full(volumes: Path) -> None:
    """OPS-04, LOG-23: the last one in sync stays, so that consumers read on; writes resume when there is room."""
    if KIND is ApacheMember:
        pytest.skip("Apache Kafka ends on a full disk")
    with Cluster(volumes, settings={"replica.lag.time.max.ms": "600000"}) as nodes:
        nodes.start()
        nodes.create("filled", 2)
        with Writer(nodes.bootstrap, "filled", 2) as writer:
            writer.wait_for(50)
            in_the_way = [fill_up(member.directory) for member in nodes.members.values()]
            eventually(
                lambda: all(len(part.isr_nodes) == 1 for part in nodes.partitions("filled")), "all but one step back"
            )
            assert all(part.leader_id >= 0 for part in nodes.partitions("filled"))
            for path in in_the_way:
                path.unlink()
            nodes.wait_in_sync("filled")
            writer.wait_for(50)
            writer.finish()
        writer.check(nodes.bootstrap)
