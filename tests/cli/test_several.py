"""What `ottla serve --brokers N` makes before it starts anything: settings and directories."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness import free_port
from ottla.cli.mistakes import Mistake
from ottla.cli.several import Member, Wish, check_free, prepare
from ottla.config import BrokerConfig, read_properties
from ottla.log.identity import MetaProperties, read_meta_properties
from ottla.raft import snapshots
from ottla.raft.quorum import VoterSet
from ottla.wire.messages.quorum import VotersRecord
from ottla.world import RealDisk


def make(data: Path, brokers: int = 3, port: int = 9092, **settings: str) -> list[Member]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return prepare(Wish(data, brokers, "localhost", port, named))


def config(member: Member) -> BrokerConfig:
    return BrokerConfig(read_properties(member.file.read_text()))


def meta(data: Path, node_id: int) -> MetaProperties:
    found = read_meta_properties(RealDisk(), str(data / f"node-{node_id}"))
    assert found is not None
    return found


def voters(data: Path, node_id: int) -> VoterSet | None:
    path = data / f"node-{node_id}" / "__cluster_metadata-0" / snapshots.SnapshotId(0, 0).file_name
    if not path.exists():
        return None
    notes = [note for notes, _ in snapshots.read(path.read_bytes()) for note in notes]
    return next(VoterSet.of_record(note) for note in notes if isinstance(note, VotersRecord))


def test_three_nodes_know_each_other_from_the_start(tmp_path: Path) -> None:
    """FTM-07, KRF-05: one id of the cluster, three voters with the directories they really have."""
    members = make(tmp_path)
    assert [member.address for member in members] == ["localhost:9092", "localhost:9094", "localhost:9096"]
    metas = {n: meta(tmp_path, n) for n in (1, 2, 3)}
    assert len({each.cluster_id for each in metas.values()}) == 1
    for n in metas:
        found = voters(tmp_path, n)
        assert found is not None
        assert {voter.id: voter.directory for voter in found.voters} == {n: m.directory_id for n, m in metas.items()}
        assert [voter.addresses[0].port for voter in found.voters] == [9093, 9095, 9097]


def test_what_they_run_with(tmp_path: Path) -> None:
    """REP-21: topics get three copies, and writes go on without one of them."""
    nodes = [config(member) for member in make(tmp_path, num_partitions="6")]
    assert {node["num.partitions"] for node in nodes} == {6}
    assert {node["default.replication.factor"] for node in nodes} == {3}
    assert {node["min.insync.replicas"] for node in nodes} == {2}
    assert len({node["broker.rack"] for node in nodes}) == 1
    assert [node.controller_endpoints[0].port for node in nodes] == [9093, 9095, 9097]


@pytest.mark.parametrize(("brokers", "controllers"), [(1, [1]), (2, [1]), (3, [1, 2, 3]), (5, [1, 2, 3])])
def test_who_keeps_the_metadata(tmp_path: Path, brokers: int, controllers: list[int]) -> None:
    """KRF-05: never an even number."""
    members = make(tmp_path, brokers)
    assert [member.node_id for member in members if member.is_controller] == controllers
    assert [n for n in range(1, brokers + 1) if voters(tmp_path, n)] == controllers


def test_a_second_start_finds_what_is_there(tmp_path: Path) -> None:
    make(tmp_path)
    before = [meta(tmp_path, n) for n in (1, 2, 3)]
    members = make(tmp_path, port=19092)
    assert [meta(tmp_path, n) for n in (1, 2, 3)] == before
    assert [member.address for member in members] == ["localhost:19092", "localhost:19094", "localhost:19096"]
    ports = [config(member).controller_endpoints[0].port for member in members]
    assert ports == [9093, 9095, 9097], "the voters are written down with these"


def test_a_wiped_node_comes_back_without_a_vote(tmp_path: Path) -> None:
    make(tmp_path)
    before = meta(tmp_path, 2)
    shutil.rmtree(tmp_path / "node-2")
    make(tmp_path)
    assert meta(tmp_path, 2).cluster_id == before.cluster_id
    assert meta(tmp_path, 2).directory_id != before.directory_id
    assert voters(tmp_path, 2) is None


def test_more_brokers_later(tmp_path: Path) -> None:
    """OPS-07"""
    make(tmp_path)
    members = make(tmp_path, 4)
    assert config(members[3])["process.roles"] == ("broker",)
    assert meta(tmp_path, 4).cluster_id == meta(tmp_path, 1).cluster_id


def test_a_first_start_that_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "cluster.properties").unlink()
    shutil.rmtree(tmp_path / "node-3")
    make(tmp_path)
    found = voters(tmp_path, 1)
    assert found is not None
    assert {voter.directory for voter in found.voters} == {meta(tmp_path, n).directory_id for n in (1, 2, 3)}


def test_what_has_been_in_use_is_never_thrown_away(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "node-1" / "__cluster_metadata-0" / "00000000000000000000.log").write_bytes(b"records")
    (tmp_path / "cluster.properties").unlink()
    with pytest.raises(Mistake, match="has been in use"):
        make(tmp_path)


@pytest.mark.parametrize(
    ("brokers", "settings", "why"),
    [
        (0, {}, "at least one"),
        (3, {"node_id": "7"}, "each node gets its own"),
        (3, {"controller_quorum_voters": "1@a:1"}, "each node gets its own"),
        (30_000, {}, "need the ports"),
        (3, {"advertised_listeners": "PLAINTEXT://nowhere"}, "write PLAINTEXT"),
    ],
)
def test_mistakes(tmp_path: Path, brokers: int, settings: Mapping[str, str], why: str) -> None:
    with pytest.raises(Mistake, match=why):
        make(tmp_path, brokers, **settings)


def test_directories_of_one_node_and_of_several_are_not_mixed_up(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(Mistake, match="single node"):
        make(tmp_path / "node-1")
    with pytest.raises(Mistake, match="start them all with --brokers 3"):
        make(tmp_path, 2)


def test_what_clients_are_told_goes_up_with_the_ports(tmp_path: Path) -> None:
    members = prepare(Wish(tmp_path, 2, "0.0.0.0", 9092, {"advertised.listeners": "PLAINTEXT://big.example:7000"}))
    assert [config(member).advertised[0].port for member in members] == [7000, 7002]


def test_ports_are_looked_at_before_anything_is_settled(tmp_path: Path) -> None:
    """The ports of controllers stay as they were when the cluster was made."""
    port = free_port()
    with socket.create_server(("localhost", port)):
        with pytest.raises(
            Mistake, match=rf"port {port} of localhost is taken: choose others with --listen .* PORT \+ 1"
        ):
            check_free(Wish(tmp_path, 1, "localhost", port, {}))
        with pytest.raises(Mistake, match=rf"port {port} is taken, and a controller needs it: choose others"):
            check_free(Wish(tmp_path, 1, "localhost", port - 1, {}))
        assert not list(tmp_path.iterdir())
        make(tmp_path, brokers=1, port=port - 1)
        with pytest.raises(Mistake, match=rf"port {port} is taken, and a controller of the cluster .* another --data"):
            check_free(Wish(tmp_path, 1, "localhost", free_port(), {}))


def test_nodes_that_run_keep_their_settings(tmp_path: Path) -> None:
    make(tmp_path)
    holder = (
        "import sys; from ottla.world import RealDisk; held = RealDisk().lock(sys.argv[1]); print(); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, str(tmp_path / "node-2" / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        node.stdout.readline()
        with pytest.raises(Mistake, match="is in use: its node 2 runs"):
            check_free(Wish(tmp_path, 3, "localhost", 29092, {}))
        node.communicate(b"")
