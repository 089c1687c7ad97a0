"""Administrators remove members of a group that will not come back (KIP-345, KIP-571), as Java's admin does it: instance ids
and a reason travel in one LeaveGroup for all.

What is expected of our node is what Apache Kafka 4.3.1 does: the slow half plays the same there, and with older clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from apache import kafka
from compat.clients import Java, JavaError
from compat.members import Troop, wait_until
from compat.test_groups import QUICK, Topic
from harness import Node, Server, stop_all

pytestmark = pytest.mark.apache
LONG = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 300, "partition.assignment.strategy": "range"}
Recruit = Callable[..., Troop]


@pytest.fixture(scope="module", params=["ottla", pytest.param("apache", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    kind: type[Server] = {"ottla": Node, "apache": kafka.Apache}[request.param]
    server = kind(tmp_path_factory.mktemp("removing") / "data", settings=QUICK)  # type: ignore[call-arg]
    try:
        yield server.start().address
    finally:
        stop_all([server])


@pytest.fixture(scope="module", params=["java-4.3", pytest.param("java-3.9", marks=pytest.mark.slow)])
def java(address: str, request: pytest.FixtureRequest) -> Iterator[Java]:
    jars = {"java-4.3": kafka.JARS, "java-3.9": kafka.JARS_39}[request.param]
    client = Java(address, jars, request.param)
    if reason := client.why_missing():
        pytest.skip(reason)
    yield client
    client.close()


@pytest.fixture
def recruit(address: str, java: Java) -> Iterator[Recruit]:
    """Groups of two static members each, which do not leave when they go."""
    troops: list[Troop] = []

    def begin(protocol: str) -> Troop:
        name = f"{protocol}-{java.name}"
        settings = {"group.protocol": "consumer"} if protocol == "consumer" else LONG
        Topic(address, name, 6)
        troop = Troop(pytest.fail, address, name, name, **settings)
        troops.append(troop)
        for number in range(2):
            troop.add("confluent", group_instance_id=f"static-{number}")
        troop.settle(6, [3, 3])
        return troop

    yield begin
    for troop in troops:
        troop.close()


def members_of(address: str, group: str) -> tuple[str, list[str]]:
    """The state of a group, and its members' instances."""
    admin = AdminClient({"bootstrap.servers": address})
    told = admin.describe_consumer_groups([group])[group].result(60)
    return told.state.name, sorted(member.group_instance_id or "" for member in told.members)


def refused(java: Java, *words: object) -> str:
    with pytest.raises(JavaError) as told:
        java.order(*words)
    return str(told.value)


def test_static_members_and_then_everybody(address: str, java: Java, recruit: Recruit) -> None:
    """GRP-14: who left without saying so keeps its share until it is removed; then the others have it at once."""
    group = recruit("classic")
    group.leave(group.members[1])
    assert members_of(address, group.name) == ("STABLE", ["static-0", "static-1"])
    fates = java.order("removemembers", group.name, "static-1,nobody")
    assert fates == ["static-1\tremoved", "nobody\tUnknownMemberIdException"]
    group.settle(6, [6])
    doomed = group.add("confluent")
    group.settle(6, [3, 3])
    group.kill(doomed)
    group.leave(group.members[0])
    assert members_of(address, group.name) == ("STABLE", ["", "static-0"])
    assert java.order("removemembers", group.name, "") == []
    wait_until(lambda: members_of(address, group.name) == ("EMPTY", []), "an empty group")
    assert "leaving members should not be empty" in refused(java, "removemembers", group.name, "")
    for name in (group.name, "no-such-group"):
        assert java.order("removemembers", name, "static-0") == ["static-0\tUnknownMemberIdException"]
    assert refused(java, "removemembers", "no-such-group", "")  # in words that differ between releases


def test_members_of_the_newer_protocol(address: str, java: Java, recruit: Recruit) -> None:
    """GRP-14: the old request works on them too; they need not be of the classic one."""
    group = recruit("consumer")
    group.leave(group.members[1])
    fates = java.order("removemembers", group.name, "static-1,nobody")
    assert fates == ["static-1\tremoved", "nobody\tUnknownMemberIdException"]
    group.settle(6, [6])
    assert members_of(address, group.name) == ("STABLE", ["static-0"])
    assert java.order("removemembers", group.name, "") == []
    assert members_of(address, group.name) == ("EMPTY", [])
