"""What members of groups may commit and read, and what administrators may do meanwhile: asked of one broker, as plain data.

Each side has member ids of its own, so the whole conversation is held with each broker for itself, and what was answered is
compared afterwards.
"""

from __future__ import annotations

from typing import Any

from compat.chosen_commits import committed, fetched, forgotten, wanted
from compat.peers import COMPACTED_TOPIC, PLAIN_TOPIC, Peer, asking, comparable

PLAIN = (PLAIN_TOPIC, (0, 1))
BOTH = (PLAIN, (COMPACTED_TOPIC, (0,)))
SUBSCRIBED = b"\0\1\0\0\0\1" + len(PLAIN_TOPIC).to_bytes(2, "big") + PLAIN_TOPIC.encode() + b"\xff" * 4 + bytes(4)
PATIENT = {"session_timeout": 30_000, "rebalance_timeout": 30_000}


class Conversation:
    """Answers of one broker, without the ids that it made up."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.answers: list[Any] = []

    def ask(self, key: int, version: int, **values: Any) -> Any:
        answer = self.peer.ask(asking(key, version, **values))
        self.answers.append((key, version, comparable(answer, self.peer)))
        return answer

    def join(self, group: str, protocol_type: str, subscription: bytes = SUBSCRIBED) -> tuple[str, int]:
        """One member, in a stable group. None of this is compared here."""
        protocols = [{"name": "range", "metadata": subscription}]
        said = {"group_id": group, "protocol_type": protocol_type, "protocols": protocols, **PATIENT}
        joined = self.peer.ask(asking(11, 3, **said))
        whose = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
        given = [{"member_id": joined.member_id, "assignment": b"given"}]
        assert self.peer.ask(asking(14, 3, **whose, assignments=given)).error_code.name == "none"
        return joined.member_id, joined.generation_id

    def join_consumers(self, group: str) -> int:
        """One member of a consumer group, by the name of "m", until it has its partitions; its epoch."""
        said = {"group_id": group, "member_id": "m", "rebalance_timeout": 30_000, "topic_partitions": []}
        answer = self.peer.ask(asking(68, 1, **said, subscribed_topic_names=[PLAIN_TOPIC]))
        while answer.assignment is None or not answer.assignment.topic_partitions:
            assert answer.error_code.name == "none"
            answer = self.peer.ask(asking(68, 1, group_id=group, member_id="m", member_epoch=answer.member_epoch))
        owned = [{"topic_id": t.topic_id, "partitions": t.partitions} for t in answer.assignment.topic_partitions]
        beat = {"group_id": group, "member_id": "m", "member_epoch": answer.member_epoch, "topic_partitions": owned}
        return int(self.peer.ask(asking(68, 1, **beat)).member_epoch)


def with_members(peer: Peer) -> list[Any]:
    """Classic groups of consumers and of others, and a consumer group."""
    talk = Conversation(peer)
    for group, kind in (("chosen-consumers", "consumer"), ("chosen-workers", "connect"), ("chosen-odd", "consumer")):
        subscription = b"" if group == "chosen-odd" else SUBSCRIBED
        member, generation = talk.join(group, kind, subscription)
        commits_of_members(talk, group, member, generation)
        administrators_meanwhile(talk, group)
        left = {"group_id": group, "member_id": member}
        peer.ask(asking(13, 2, **left))
        after_all_left(talk, group)
    epoch = talk.join_consumers("chosen-848")
    commits_of_members(talk, "chosen-848", "m", epoch)
    administrators_meanwhile(talk, "chosen-848")
    peer.ask(asking(68, 1, group_id="chosen-848", member_id="m", member_epoch=-1))
    after_all_left(talk, "chosen-848")
    return talk.answers


def commits_of_members(talk: Conversation, group: str, member: str, generation: int) -> None:
    for version in (2, 8, 9, 10):
        for name, number in (
            *((member, generation), (member, generation + 1), (member, generation - 1), (member, -1)),
            *(("", generation), ("", -1), ("nobody", generation), ("nobody", -1)),
        ):
            said = {"member_id": name, "generation_id_or_member_epoch": number, "group_instance_id": None}
            talk.ask(8, version, **committed(*BOTH, group=group, **said))
    static = {"member_id": member, "generation_id_or_member_epoch": generation, "group_instance_id": "i"}
    talk.ask(8, 9, **committed(PLAIN, group=group, **static))
    for name, number in ((None, -1), ("", -1), (member, generation), (member, generation + 1), ("nobody", generation)):
        asked = {"group_id": group, "member_id": name, "member_epoch": number, **wanted(*BOTH)}
        talk.ask(9, 9, groups=[asked])
        talk.ask(9, 10, groups=[asked], require_stable=True)
        talk.ask(9, 10, groups=[{**asked, "topics": None}])


def administrators_meanwhile(talk: Conversation, group: str) -> None:
    talk.ask(47, 0, **forgotten(group, *BOTH, ("chosen-none", (0,))))
    talk.ask(9, 7, **fetched((group, wanted(all_topics=True))))
    talk.ask(42, 2, groups_names=[group])
    for states, kinds in (([], []), (["stable"], []), ([], ["consumer"]), (["empty"], ["classic"])):
        talk.ask(16, 5, states_filter=states, types_filter=kinds)
    for version in (0, 4, 6):
        described = talk.peer.ask(asking(15, version, groups=[group]))
        talk.answers.append((15, version, _without_ids(comparable(described, talk.peer))))
    talk.ask(69, 1, group_ids=[group])


def after_all_left(talk: Conversation, group: str) -> None:
    talk.ask(8, 9, **committed(PLAIN, group=group, offset=99))
    talk.ask(9, 9, **fetched((group, wanted(all_topics=True))))
    talk.ask(47, 0, **forgotten(group, (PLAIN_TOPIC, (1,))))
    talk.ask(15, 6, groups=[group])
    talk.ask(69, 1, group_ids=[group])
    talk.ask(42, 2, groups_names=[group])
    talk.ask(42, 2, groups_names=[group])


def _without_ids(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: "masked" if name == "member_id" else _without_ids(value) for name, value in answer.items()}
    return [_without_ids(item) for item in answer] if isinstance(answer, list) else answer
