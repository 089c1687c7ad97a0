"""The oracle of a cluster whose voters change: who they are is read from the committed log, not from what nodes believe.

    voters-leap       two voter sets that were committed one after the other differ by more than one voter
    voters-differ     what a node takes for the committed voters is not what the committed log says
    two-changes       a leader that knows what is committed has two changes in its log that are not
    not-by-majority   a leader calls committed what a majority of the voters has not synced

The last one counts disks by their directories, as they are: of the voters that the log names at the watermark, or of those
that the leader counts by now, a majority has what is below it. A disk that was wiped counts with what it had.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ottla.raft.history import History
from ottla.raft.quorum import Key, VoterSet
from ottla.raft.roles import Leader
from ottla.raft.snapshots import read_note
from ottla.server.node import Node
from ottla.sim.cluster import Machine, SimCluster
from ottla.sim.cluster_checks import QUORUM, Watch
from ottla.wire.messages.quorum import VotersRecord
from ottla.wire.records import Batch, iterate

ADD, REMOVE = "add", "remove"


class Turn(NamedTuple):
    """One who comes or goes."""

    verb: str
    key: Key


def keys(voters: VoterSet) -> frozenset[Key]:
    return frozenset(voter.key for voter in voters.voters)


def turns(before: VoterSet, now: VoterSet) -> list[Turn]:
    """What has to happen to the one to make the other of it."""
    gone, new = sorted(keys(before) - keys(now)), sorted(keys(now) - keys(before))
    return [Turn(REMOVE, key) for key in gone] + [Turn(ADD, key) for key in new]


class WatchOfVoters(Watch):
    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        # What was committed at which offset. The first was there before anybody looked.
        self._sets: dict[int, VoterSet] = {}
        self._synced: dict[bytes, int] = {}
        # Who votes in the end, where that is not left to an operator.
        self.wanted: frozenset[int] | None = None

    @property
    def voters(self) -> VoterSet:
        """Those of the committed log."""
        return self._sets[max(self._sets)] if self._sets else VoterSet()

    @property
    def turns(self) -> list[Turn]:
        """All that ever was committed."""
        sets = [self._sets[offset] for offset in sorted(self._sets)]
        return [turn for before, now in pairwise(sets) for turn in turns(before, now)]

    def outdated(self) -> list[Key]:
        """Voters whose disk was wiped."""
        now = {Key(machine.number, machine.directory_id) for machine in self.cluster.machines.values()}
        return [voter.key for voter in self.voters.voters if voter.key not in now]

    # -- looking

    def look(self) -> None:
        super().look()
        self.look_at_leaders()

    def look_at_leaders(self) -> None:
        """Only that, for those who look more often: what is open or wrong for a moment is over soon."""
        for machine in self.cluster.machines.values():
            self._note_synced(machine)
        for node, role in self._leaders():
            self._look_at_majority(node, role)

    def look_at(self, machine: Machine) -> None:
        super().look_at(machine)
        node = machine.node
        if node is not None and node.quorum.is_started:
            # What of the log is committed and has no records of the metadata in it is committed all the same.
            quorum, truth = node.quorum, self._truth(QUORUM, QUORUM)
            self._compare(truth, machine, quorum.store.log, quorum.consensus.replica.high_watermark, quorum.epoch)
            self._look_at_history(machine.name, quorum.consensus.replica.history, quorum.committed_end.value)
        self._note_synced(machine)

    def _note_synced(self, machine: Machine) -> None:
        """A process that starts again after a kill does not know yet that the end of its log was synced before: as long as
        that is there, it counts (seed v88)."""
        node = machine.node
        if node is not None and node.quorum.is_started:
            store = node.quorum.store
            before = self._synced.get(store.directory_id, 0)
            self._synced[store.directory_id] = max(store.synced_end, min(before, store.end_offset))

    def _read_notes(self, batch: Batch, data: bytearray) -> None:
        for offset, record in enumerate(iterate(bytes(data)), batch.base_offset):
            message = read_note(record.key, record.value)
            if isinstance(message, VotersRecord):
                self._commit(offset, VoterSet.of_record(message))

    def _commit(self, offset: int, now: VoterSet) -> None:
        before = self._as_of(offset - 1)
        if offset not in self._sets and before is not None and len(turns(before, now)) > 1:
            self.report("voters-leap", QUORUM, f"{before.ids} became {now.ids} at {offset}: {turns(before, now)}")
        self._sets[offset] = now

    def _as_of(self, offset: int) -> VoterSet | None:
        held = [at for at in self._sets if at <= offset]
        return self._sets[max(held)] if held else None

    def _look_at_history(self, name: str, history: History, committed: int) -> None:
        believed = _believed(history, committed - 1)
        if believed is None:
            return
        known = self._as_of(committed - 1)
        if known is None:
            self._sets[-1] = believed
        elif known != believed:
            self.report("voters-differ", QUORUM, f"below {committed} {name} has {believed}, and the log {known}")

    # -- those who lead

    def _leaders(self) -> Iterator[tuple[Node, Leader]]:
        """Who leads the newest epoch, and knows what is committed. Others may lead without knowing that they do not."""
        newest = max(self._truth(QUORUM, QUORUM).leaders, default=-1)
        for machine in self.cluster.machines.values():
            node = machine.node
            if node is None or not node.quorum.is_started or not self.cluster.is_up(machine.name):
                continue
            role = node.quorum.consensus.replica.role
            if isinstance(role, Leader) and role.watermark >= 0 and node.quorum.epoch == newest:
                yield node, role

    def _look_at_majority(self, leader: Node, role: Leader) -> None:
        history, end = leader.quorum.consensus.replica.history, role.watermark
        named = f"{leader.config.node_id} leads epoch {leader.quorum.epoch}"
        open_changes = [offset for offset, _ in history._voters.entries if offset >= end]
        if len(open_changes) > 1:
            self.report("two-changes", QUORUM, f"{named} with changes at {open_changes}, and commits up to {end}")
        counted = [_believed(history, end - 1), history.voters]
        if not any(voters is not None and self._have(voters, end) >= voters.majority for voters in counted):
            far = {voter.key: self._synced.get(voter.directory, 0) for voter in history.voters.voters}
            self.report("not-by-majority", QUORUM, f"{named} and commits up to {end}, but synced is {far}")

    def _have(self, voters: VoterSet, end: int) -> int:
        return sum(self._synced.get(voter.directory, 0) >= end for voter in voters.voters)

    # -- is everything as it should be?

    def _not_voting(self, name: str, nodes: dict[str, Node]) -> str | None:
        """Everybody takes those for the voters whom the log names, under the directories that they have; and one leads."""
        believed, leader = nodes[name].quorum.voters, nodes[name].quorum.leader_id
        if believed != self.voters:
            return f"for {name} the voters are {believed.ids}, and in the log {self.voters.ids}"
        if outdated := self.outdated():
            return f"of the voters {self.voters.ids} these are no more: {outdated}"
        if leader not in self.voters.ids:
            return f"{leader} leads, and the voters are {self.voters.ids}"
        if self.wanted is not None and self.wanted != set(self.voters.ids):
            return f"the voters are {self.voters.ids}, and should be {sorted(self.wanted)}"
        return None


def _believed(history: History, offset: int) -> VoterSet | None:
    """What a node has noted for an offset; told by its notes, because what it makes of them may be the mistake."""
    held = [voters for at, voters in history._voters.entries if at <= offset]
    return held[-1] if held else None
