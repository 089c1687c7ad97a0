"""Scripts of consumer groups (KIP-848), played on our node and on Apache Kafka 4.3.1: all are told the same, word by word, and
the same is written. Also groups that change their kind, with members of both protocols.

OTTLA_DIFFERENTIAL_SELF sets Apache against Apache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apache import kafka
from compat.parties import NAMES, SECONDS, Line
from compat.peers import ours_and_apaches
from compat.test_classic_scripts import OFFSETS_TOPIC, read_topic
from ottla.coordination.records import OffsetCommitKey, unpack
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetCommitRequest
from ottla.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ottla.wire.messages.subscriptions import ConsumerProtocolAssignment, ConsumerProtocolSubscription, packed
from ottla.wire.messages.topics import CreatePartitionsRequest, CreateTopicsRequest
from ottla.wire.schema import Message, Struct

pytestmark = pytest.mark.apache

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.max.size": "3",
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
}
# Clocks, places in the metadata log, hashes of topic ids.
MASKED = (
    "throttle_time_ms",
    "assignment_timestamp",
    "timestamp",
    "version",
    "metadata_hash",
    "current_state_timestamp",
)

Script = Callable[["Play"], None]
SCRIPTS: list[Script] = []


def script(play: Script) -> Script:
    SCRIPTS.append(play)
    return play


class Play:
    """One group on one broker. `epochs` are those that members were told; `topics` are made for this script."""

    def __init__(self, address: str, name: str) -> None:
        self.line = Line(address)
        self.group_id = f"group-{name}"
        self.name = name
        self.names: dict[object, str] = {}
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, dict[bytes, list[int]]] = {}
        self.said: list[tuple[str, Message]] = []
        self._await_coordinator()

    def _await_coordinator(self) -> None:
        deadline = time.monotonic() + SECONDS
        find, beat = FindCoordinatorRequest(coordinator_keys=[self.group_id]), HeartbeatRequest(group_id=self.group_id)
        while self.aside(find, 4).coordinators[0].error_code or self.aside(beat, 4).error_code != 25:
            assert time.monotonic() < deadline, "no coordinator"
            time.sleep(0.1)

    def aside(self, request: Message, version: int) -> Any:
        self.line.send(request, version)
        return self.line.hear()

    def ask(self, who: str, request: Message, version: int) -> Any:
        answer = self.aside(request, version)
        self.said.append((who, answer))
        return answer

    # --- topics

    def topic(self, name: str, partitions: int = 4) -> str:
        full = f"{self.name}-{name}"
        topic = CreateTopicsRequest.Topic(name=full, num_partitions=partitions, replication_factor=1)
        made = self.aside(CreateTopicsRequest(topics=[topic], timeout_ms=15_000), 7).topics[0]
        assert made.error_code == 0
        self.names[made.topic_id] = name
        self._await_topic(full)
        return full

    def _await_topic(self, topic: str) -> None:
        """Apache's coordinator learns of a topic some time after it was made: somebody else looks out for it."""
        deadline = time.monotonic() + SECONDS
        scout = ConsumerGroupHeartbeatRequest(group_id=f"scouts of {topic}", member_id="scout", topic_partitions=[])
        scout.rebalance_timeout_ms, scout.subscribed_topic_names = 30_000, [topic]
        while not self.aside(scout, 1).assignment.topic_partitions:
            assert time.monotonic() < deadline, f"no topic {topic}"
            time.sleep(0.05)

    def grow(self, name: str, count: int) -> None:
        topic = CreatePartitionsRequest.Topic(name=f"{self.name}-{name}", count=count, assignments=None)
        assert self.aside(CreatePartitionsRequest(topics=[topic], timeout_ms=15_000), 3).results[0].error_code == 0

    # --- the new protocol

    def request(self, who: str, **said: Any) -> ConsumerGroupHeartbeatRequest:
        values = {"group_id": self.group_id, "member_id": who, "member_epoch": self.epochs.get(who, 0)}
        return ConsumerGroupHeartbeatRequest(**{**values, **said})

    def join(self, who: str, *topics: str, version: int = 1, **said: Any) -> Any:
        full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
        return self.heed(who, self.ask(who, self.request(who, **{"member_epoch": 0, **full, **said}), version))

    def beat(self, who: str, *, owns: bool = False, is_lost: bool = False, version: int = 1, **said: Any) -> Any:
        if owns:
            said["topic_partitions"] = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic, partitions=those)
                for topic, those in self.owned.get(who, {}).items()
            ]
        answer = self.ask(who, self.request(who, **said), version)
        return answer if is_lost else self.heed(who, answer)

    def heed(self, who: str, answer: Any) -> Any:
        if answer.error_code == 0:
            self.epochs[who] = answer.member_epoch
            if answer.assignment is not None:
                self.owned[who] = {topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions}
        return answer

    def until(self, who: str, partitions: int) -> None:
        """Heartbeats that nobody compares, until the member has so many partitions."""
        deadline = time.monotonic() + SECONDS
        while sum(map(len, self.owned.get(who, {}).values())) != partitions:
            assert time.monotonic() < deadline, self.owned.get(who)
            self.heed(who, self.aside(self.request(who), 1))
            time.sleep(0.05)

    # --- the classic protocol

    def classic_join(self, who: str, *topics: str, version: int = 9, **said: Any) -> Any:
        """`who` may have been told an id; a newcomer of the later versions is told one and comes back with it."""
        subscription = packed(ConsumerProtocolSubscription(topics=list(topics)), 1)
        values = {
            "group_id": self.group_id,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": self.id_of(who),
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequest.Protocol(name="range", metadata=subscription)],
        }
        answer = self.ask(who, JoinGroupRequest(**{**values, **said}), version)
        if answer.member_id:
            self.names[answer.member_id] = who
        if answer.error_code == Error.MEMBER_ID_REQUIRED.code:
            return self.classic_join(who, *topics, version=version, **said)
        self.epochs[who] = answer.generation_id
        return answer

    def id_of(self, who: str) -> str:
        return next((str(told) for told, name in reversed(self.names.items()) if name == who), "")

    def sync(self, who: str, parts: dict[str, dict[str, list[int]]] | None = None, **said: Any) -> Any:
        given = [
            SyncGroupRequest.Assignment(member_id=self.id_of(name), assignment=self._assignment(part))
            for name, part in (parts or {}).items()
        ]
        values = {"group_id": self.group_id, "generation_id": self.epochs.get(who, 0), "member_id": self.id_of(who)}
        names = {"protocol_type": "consumer", "protocol_name": "range", "assignments": given}
        return self.ask(who, SyncGroupRequest(**{**values, **names, **said}), 5)

    @staticmethod
    def _assignment(part: dict[str, list[int]]) -> bytes:
        topics = [ConsumerProtocolAssignment.TopicPartition(topic=t, partitions=p) for t, p in part.items()]
        return packed(ConsumerProtocolAssignment(assigned_partitions=topics), 1)

    def heartbeat(self, who: str, **said: Any) -> Any:
        values = {"group_id": self.group_id, "generation_id": self.epochs.get(who, 0), "member_id": self.id_of(who)}
        return self.ask(who, HeartbeatRequest(**{**values, **said}), 4)

    def leave(self, *leaving: tuple[str, str | None]) -> Any:
        members = [LeaveGroupRequest.Member(member_id=self.id_of(w) or w, group_instance_id=i) for w, i in leaving]
        return self.ask("admin", LeaveGroupRequest(group_id=self.group_id, members=members), 5)

    # --- comparing

    def minutes(self) -> list[tuple[str, str, Any]]:
        return [(who, type(answer).__name__, self._comparable(answer)) for who, answer in self.said]

    def records(self, log: list[tuple[bytes | None, bytes | None]]) -> list[Any]:
        """What keys were written how often, and the last value of each that has one."""
        kinds, last = [], {}
        for key, value in log:
            record = unpack(key, value)
            if record is None or isinstance(record.key, OffsetCommitKey):
                continue
            if getattr(record.key, "group_id", getattr(record.key, "group", None)) == self.group_id:
                subject = repr(self._comparable(record.key))
                kinds.append((subject, record.value is None))
                last[subject] = self._comparable(record.value)
        return [sorted(kinds), {subject: value for subject, value in last.items() if value is not None}]

    def _comparable(self, value: Any) -> Any:
        if isinstance(value, (Message, Struct)):
            fields = {field.name: getattr(value, field.name) for field in type(value).fields}
            told = {name: self._comparable(each) for name, each in fields.items() if name not in MASKED}
            return {**told, **({"error_code": NAMES[fields["error_code"]]} if "error_code" in fields else {})}
        if isinstance(value, list):
            return sorted((self._comparable(each) for each in value), key=repr)
        if isinstance(value, str):
            for told, name in self.names.items():
                if isinstance(told, str) and told:
                    value = value.replace(told, f"<{name}>")
            return value
        return self.names.get(value, value) if isinstance(value, bytes) else value


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    with ours_and_apaches(tmp_path_factory.mktemp("scripts848"), SETTINGS) as both:
        yield both


# --- members come, share, and go


@script
def from_nobody_to_nobody(play: Play) -> None:
    t = play.topic("t")
    play.join("a", t)
    play.beat("a")
    play.beat("a", owns=True)
    play.join("a", t)  # again
    play.beat("a", member_epoch=-1)
    play.beat("a", member_epoch=-1)
    play.join("b", t, version=0)
    play.beat("b", version=0)
    play.beat("b", member_epoch=-1, version=0)


@script
def two_share(play: Play) -> None:
    t = play.topic("t")
    play.join("a", t)
    play.join("b", t)
    play.beat("b")
    play.beat("a")
    play.beat("a")  # does not say that it gave anything up
    play.beat("b")
    play.beat("a", owns=True)
    play.beat("b")
    play.beat("b", owns=True)
    play.beat("a", member_epoch=-1)
    play.beat("b")


@script
def a_topic_grows(play: Play) -> None:
    t = play.topic("t", 2)
    play.join("a", t)
    play.grow("t", 3)
    play.until("a", 3)
    play.beat("a", owns=True)


@script
def another_subscription(play: Play) -> None:
    t, u = play.topic("t", 2), play.topic("u", 2)
    play.join("a", t)
    play.beat("a", subscribed_topic_names=[t, u])
    play.beat("a", subscribed_topic_names=[u])
    play.beat("a", owns=True)
    play.beat("a", subscribed_topic_names=[])
    play.beat("a", owns=True)
    play.beat("a", rack_id="r", server_assignor="range", rebalance_timeout_ms=7000)


@script
def topics_that_do_not_exist(play: Play) -> None:
    play.join("a", "none")
    play.beat("a")
    play.join("b")
    play.beat("a", member_epoch=-1)


# --- expressions


@script
def expressions(play: Play) -> None:
    play.topic("ta"), play.topic("u", 1)
    regex = f"{play.name}-t."
    play.join("a", subscribed_topic_names=None, subscribed_topic_regex=regex)
    play.until("a", 4)
    play.join("b", subscribed_topic_regex=regex)
    play.beat("a")
    play.beat("a", owns=True)
    play.until("b", 2)
    play.beat("b", subscribed_topic_regex="")
    play.beat("b", owns=True)
    play.beat("a", member_epoch=-1)
    play.beat("b", member_epoch=-1)


@script
def expressions_that_cannot_be(play: Play) -> None:
    for regex in ("[a", "(a", "a)", "*a", "a**", "(?<n", "\\", "\\q", "a{5,2}", "(?=a)", "[b-a]", "a{1001}"):
        play.join("a", subscribed_topic_regex=regex)
    play.join("a")
    play.beat("a", subscribed_topic_regex="(")


# --- static members


@script
def static_members(play: Play) -> None:
    t = play.topic("t")
    play.join("a", t, instance_id="i")
    play.join("b", t, instance_id="i")
    play.beat("b", member_epoch=1, instance_id="i")
    play.beat("a", instance_id="j")
    play.beat("a", instance_id="i", member_epoch=-2)
    play.beat("a", instance_id="i", member_epoch=2)
    play.join("b", t, instance_id="i")
    play.beat("a", instance_id="i", member_epoch=2)
    play.beat("b", instance_id="i", member_epoch=-2)
    play.join("b", t, instance_id="i")
    play.join("c", t, instance_id="k")
    play.beat("b", instance_id="i", member_epoch=-1)
    play.beat("b", instance_id="i", member_epoch=-2)
    play.beat("c", member_epoch=-1)


# --- what is refused


@script
def epochs_that_are_not_right(play: Play) -> None:
    t = play.topic("t", 2)
    play.join("a", t)
    play.grow("t", 3)
    play.until("a", 3)
    epoch = play.epochs["a"]
    for wrong in (epoch + 1, epoch - 1, 1, -3, 2**31 - 1):
        play.beat("a", member_epoch=wrong, is_lost=True)
        play.beat("a", member_epoch=wrong, owns=True, is_lost=True)
    more = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=bytes(16), partitions=[7])
    play.beat("a", member_epoch=epoch - 1, topic_partitions=[more], is_lost=True)


@script
def requests_that_make_no_sense(play: Play) -> None:
    t = play.topic("t", 1)
    for version in (0, 1):
        for said in (
            {"member_id": ""} if version else {"member_id": "", "member_epoch": 5},
            {"member_id": "", "member_epoch": -1},
            {"group_id": ""},
            {"instance_id": ""},
            {"instance_id": " "},
            {"rack_id": ""},
            {"rebalance_timeout_ms": -1},
            {"topic_partitions": None},
            {"topic_partitions": [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=bytes(16), partitions=[])]},
            {"subscribed_topic_names": None},
            {"member_epoch": -2},
            {"member_epoch": -3},
            {"server_assignor": "mine"},
            {"server_assignor": ""},
            {"member_epoch": 4},
            {"member_epoch": -1},
        ):
            play.join("a", t, version=version, **said)
    play.join("a", t)
    for epoch in (1, -1):
        play.beat("nobody", member_epoch=epoch)


@script
def a_full_group(play: Play) -> None:
    t = play.topic("t", 1)
    for who in ("a", "b", "c", "d"):
        play.join(who, t)
    play.join("a", t)
    play.classic_join("e", t, version=3)


@script
def commits(play: Play) -> None:
    t = play.topic("t", 2)
    play.join("a", t)
    play.grow("t", 3)
    play.until("a", 3)
    epoch = play.epochs["a"]
    for member_id in ("a", "b", ""):
        for generation in (epoch, epoch - 1, epoch + 1, -1):
            for version in (8, 9):
                for partition in (0, 2):
                    part = OffsetCommitRequest.Topic.Partition(partition_index=partition, committed_offset=1)
                    request = OffsetCommitRequest(group_id=play.group_id, member_id=member_id)
                    request.generation_id_or_member_epoch = generation
                    request.topics = [OffsetCommitRequest.Topic(name=t, partitions=[part])]
                    play.ask(f"{member_id} {generation - epoch} v{version}", request, version)


# --- both protocols


def classic_alone(play: Play, t: str, **said: Any) -> None:
    """A classic group of one, which has everything."""
    play.classic_join("c", t, **said)
    play.sync("c", {"c": {t: [0, 1, 2, 3]}}, **said)


@script
def up_and_down(play: Play) -> None:
    t = play.topic("t")
    classic_alone(play, t)
    play.heartbeat("c")
    play.join("n", t)
    play.heartbeat("c")
    play.classic_join("c", t)
    play.sync("c")
    play.heartbeat("c")
    play.beat("n")
    play.classic_join("c", t)
    play.sync("c")
    play.beat("n")
    play.heartbeat("c")
    play.beat("n", member_epoch=-1)
    play.heartbeat("c")
    play.classic_join("c", t)
    play.sync("c", {"c": {t: [0, 1, 2, 3]}})
    play.heartbeat("c")


@script
def a_classic_member_comes_to_a_consumer_group(play: Play) -> None:
    t = play.topic("t")
    play.join("n", t)
    play.classic_join("c", t)
    play.sync("c")
    play.heartbeat("c")
    play.beat("n")
    play.beat("n", owns=True)
    play.heartbeat("c")
    play.classic_join("c", t)
    play.sync("c")
    play.heartbeat("c")
    play.heartbeat("c", generation_id=99)
    play.sync("c", generation_id=99)
    play.sync("c", protocol_name="other")
    play.sync("c", protocol_type="connect")
    play.sync("c", protocol_type=None)
    play.sync("c", protocol_name=None)
    play.ask("n", HeartbeatRequest(group_id=play.group_id, member_id="n", generation_id=play.epochs["n"]), 4)
    play.classic_join("d", t, protocol_type="connect", version=3)
    play.classic_join("d", t, protocols=[JoinGroupRequest.Protocol(name="odd", metadata=b"")], version=3)
    play.classic_join("d", t, session_timeout_ms=1, version=3)
    play.leave(("nobody", None), ("c", "i"), ("n", None))
    play.heartbeat("c")


@script
def static_members_of_both_kinds(play: Play) -> None:
    t = play.topic("t")
    classic_alone(play, t, group_instance_id="i")
    play.join("n", t, instance_id="i")  # the same one, restarted with the new protocol
    play.beat("n", instance_id="i")
    play.heartbeat("c", group_instance_id="i")
    play.beat("n", instance_id="i", member_epoch=-2)
    play.classic_join("d", t, group_instance_id="i")  # and back
    play.sync("d", group_instance_id="i")
    play.heartbeat("d", group_instance_id="i")
    play.leave(("", "i"))
    play.join("n", t)
    play.beat("n", member_epoch=-1)


@script
def subscriptions_that_cannot_be_read(play: Play) -> None:
    t = play.topic("t")
    for who, metadata in (("c", b""), ("d", b"\0"), ("e", b"\xff\xff")):
        protocols = [JoinGroupRequest.Protocol(name="range", metadata=metadata)]
        play.classic_join(who, protocols=protocols, version=3)
        play.join("n", t)
        play.sync(who, {who: {t: [0, 1, 2, 3]}})
        play.join("n", t)
        play.leave((who, None))
        play.join("n", t)
        play.classic_join("f", protocols=protocols, version=3)
        play.beat("n", member_epoch=-1)


# Where a static member brings about the way down, Apache writes what it changed in the group, and then that all of it is gone.
WRITTEN_SHORTER = [static_members_of_both_kinds]


@pytest.mark.parametrize("play", SCRIPTS, ids=lambda play: play.__name__)
def test_same_words(play: Script, addresses: list[str]) -> None:
    """GRP-12, GRP-14: what members are told, and what is written about them."""
    minutes, written = [], []
    for address in addresses:
        staged = Play(address, play.__name__.replace("_", "-"))
        try:
            play(staged)
        finally:
            staged.line.close()
        minutes.append(staged.minutes())
        written.append(staged.records(read_topic(address, OFFSETS_TOPIC)))
    for number, (ours, theirs) in enumerate(zip(*minutes, strict=True)):
        assert ours == theirs, f"answer {number}"
    assert written[0][1] == written[1][1]
    assert written[0][0] == written[1][0] or play in WRITTEN_SHORTER
