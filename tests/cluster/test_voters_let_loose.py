"""A quorum with fixed voters becomes one whose voters can change: kraft.version 0 to 1, as Apache Kafka's tool asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from apache.tools import ApacheTools, Ran
from cluster.conftest import KIND
from cluster.loads import Writer
from cluster.nodes import DYNAMIC, STATIC, Cluster, Member, eventually
from cluster.test_mixed_quorum import Beside

pytestmark = pytest.mark.apache
TOO_EARLY = "Invalid upgrade of kraft.version to KRAFT_VERSION_1 because not all of the voters support it"


def features(tools: ApacheTools, nodes: Cluster, *words: str) -> Ran:
    return tools.run("kafka-features", "--bootstrap-server", nodes.bootstrap, *words)


def quorum(tools: ApacheTools, nodes: Cluster, *words: str) -> str:
    ran = tools.run("kafka-metadata-quorum", "--bootstrap-server", nodes.bootstrap, *words)
    assert ran.code == 0, ran
    return ran.out


def level(tools: ApacheTools, nodes: Cluster) -> str:
    found = re.search(r"kraft.version.*FinalizedVersionLevel: (\d+)", features(tools, nodes, "describe").out)
    return found[1] if found else ""


def upgrade(tools: ApacheTools, nodes: Cluster) -> bool:
    """Voters tell the leader of themselves after a while; until then it is refused, here as there."""
    ran = features(tools, nodes, "upgrade", "--feature", "kraft.version=1")
    assert ran.code == 0 or TOO_EARLY in ran.out, ran
    return ran.code == 0


def directories(tools: ApacheTools, nodes: Cluster) -> set[str]:
    """Of the voters, as far as they are known."""
    voters = re.search(r"CurrentVoters:(.*)", quorum(tools, nodes, "describe", "--status"))
    return set(re.findall(r'"directoryId": "(\S+?)"', voters[1])) if voters else set()


KINDS: list[Mapping[int, type[Member]]] = [
    dict.fromkeys((1, 2, 3), KIND),
    pytest.param({1: Member, 2: Member, 3: Beside}, marks=pytest.mark.slow),  # type: ignore[list-item]
    pytest.param({1: Beside, 2: Beside, 3: Member}, marks=pytest.mark.slow),  # type: ignore[list-item]
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kinds", KINDS, ids=["one kind", "an Apache among ours", "one of ours among Apache"])
def test_fixed_voters_are_let_loose(kinds: Mapping[int, type[Member]], tools: ApacheTools, tmp_path: Path) -> None:
    """KRF-05, KRF-20: under load. Afterwards the log names the voters with their directories, also to those who start without
    the old setting; one can be removed. There is no way back."""
    with Cluster(tmp_path, quorum=STATIC, kinds=kinds) as nodes:
        nodes.start()
        nodes.create("written", 1)
        with Writer(nodes.bootstrap, "written", 1) as writer:
            writer.wait_for(50)
            assert level(tools, nodes) == "0"
            eventually(lambda: upgrade(tools, nodes), "the voters are let loose")
            eventually(lambda: level(tools, nodes) == "1", "every broker that may be asked knows that")
            named = eventually(lambda: directories(tools, nodes), "the voters are named")
            assert len(named) == 3
            assert upgrade(tools, nodes), "twice is once"
            back = features(tools, nodes, "downgrade", "--feature", "kraft.version=0")
            assert back.code == 1 and "Can't downgrade the version of this feature." in back.out
            restart_all(nodes)
            assert level(tools, nodes) == "1"
            assert directories(tools, nodes) == named
            remove_one(tools, nodes)
            writer.wait_for(50)
            writer.finish()
        writer.check(nodes.bootstrap)


def restart_all(nodes: Cluster) -> None:
    """One after the other, and none of them is told of fixed voters any more."""
    nodes.quorum = DYNAMIC
    for member in nodes.members.values():
        member.stop(60)
        member.write_properties(nodes.settings | nodes._quorum_settings())
        member.start()
        nodes.wait_brokers({1, 2, 3})
        nodes.wait_in_sync("written")


def remove_one(tools: ApacheTools, nodes: Cluster) -> None:
    leader = nodes.active_controller()
    gone = next(n for n in nodes.members if n != leader)
    state = quorum(tools, nodes, "describe", "--replication")
    directory = re.search(rf"^{gone}\s+(\S+)\s", state, re.MULTILINE)
    assert directory is not None, state
    quorum(tools, nodes, "remove-controller", "--controller-id", str(gone), "--controller-directory-id", directory[1])
    eventually(lambda: len(directories(tools, nodes)) == 2, "two voters are left")
