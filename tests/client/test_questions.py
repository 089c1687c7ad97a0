"""What requests say, given what the client knows and what it was told before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from desk import on_loop
from ottla.client import commits
from ottla.client.classic_member import ClassicMember
from ottla.client.cluster import Cluster, Leader, TopicPartition
from ottla.client.commits import Committed
from ottla.client.coordinator import Coordinator
from ottla.client.fetching import Terms, fetch_request
from ottla.client.membership import Manners
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.commits import OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse
from ottla.wire.messages.groups import LeaveGroupRequest
from ottla.wire.schema import Layout, Message

WHERE = TopicPartition("t", 0)


class Line:
    """A connection to a broker that speaks what we speak; it is never asked anything."""

    closed = False

    def version_of(self, request: Layout) -> int:
        return request.versions.high

    def close(self) -> None:
        self.closed = True


class Heard(Coordinator):
    """Notes what it is asked, and in which version."""

    def __init__(self, answer: Message, ids: Mapping[str, bytes]) -> None:
        cluster = Cluster("localhost:1")
        cluster._ids.update(ids)
        super().__init__(cluster, "g")
        self.answer = answer
        self.asked: list[tuple[Message, int | None]] = []
        self.line: Any = Line()
        self._connection = self.line

    async def ask(self, request: Message, timeout_s: float = 0, version: int | None = None) -> Any:
        self.asked.append((request, version))
        return self.answer


@pytest.mark.parametrize(("ids", "version"), [({}, 9), ({"t": b"i" * 16}, 10)])
@on_loop
async def test_a_topic_is_named_by_its_id_only_if_that_is_known(ids: dict[str, bytes], version: int) -> None:
    """An id that is not known would name no topic at all."""
    coordinator = Heard(OffsetCommitResponse(), ids)
    await commits.commit(coordinator, {WHERE: Committed(1)})
    assert [said for _, said in coordinator.asked] == [version]


@on_loop
async def test_who_asks_for_all_offsets_asks_for_names() -> None:
    """Some may be of topics that are gone, which an id would not tell."""
    answer = OffsetFetchResponse(groups=[OffsetFetchResponse.Group(group_id="g")])
    coordinator = Heard(answer, {"t": b"i" * 16})
    await commits.fetch(coordinator)
    await commits.fetch(coordinator, [WHERE])
    assert [said for _, said in coordinator.asked] == [9, OffsetFetchRequest.versions.high]


@pytest.mark.parametrize("error", [Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE, Error.UNKNOWN_MEMBER_ID])
def test_a_coordinator_that_has_moved_is_looked_for_anew(error: Error) -> None:
    coordinator = Heard(OffsetCommitResponse(), {})
    with pytest.raises(KafkaError):
        coordinator.judge(error.code)
    assert coordinator.line.closed is (error is not Error.UNKNOWN_MEMBER_ID)


def test_a_leader_is_told_which_leadership_it_is_asked_in() -> None:
    """One that follows another by now, and has less, must not be taken for it."""
    cluster = Cluster("localhost:1")
    cluster._leaders[WHERE] = Leader(1, 7)
    request = fetch_request(cluster, {WHERE: 5}, Terms())
    assert request.topics[0].partitions[0].current_leader_epoch == 7


@on_loop
async def test_a_member_that_nobody_reads_with_any_more_leaves_its_partitions_to_others() -> None:
    """Its heartbeats alone would keep them for ever (max.poll.interval.ms)."""
    coordinator, owner = Heard(OffsetCommitResponse(), {}), None
    member = ClassicMember(coordinator, owner, Manners(rebalance_timeout_ms=1_000))  # type: ignore[arg-type]
    member.member_id, member._settled_at = "me", asyncio.get_running_loop().time() - 2
    await member._beat_once()
    ((request, _),) = coordinator.asked
    assert isinstance(request, LeaveGroupRequest) and request.members[0].member_id == "me"
    assert member._is_lost and member.member_id == ""
