"""Whether a transaction may begin in a partition: its coordinator is asked before its first batch gets in (KIP-890).

A batch that belongs to no open transaction could never be taken back: nobody would end what nobody knows of, and
`read_committed` would stop in front of it for ever. So the leader of a partition asks the coordinator, unless the
transaction is open there already:

- generation 1: has the client added this partition to its transaction?
- generation 2: add it, the client leaves that to us.

The answer holds for the transaction of that moment. It may be over when the batch comes to be appended; so the log gives out
a *guard* before the question, takes it back when a marker arrives, and compares (`log/producers`).

All partitions of a request are asked about with one question. Where the coordinator is in this process and has nothing to
write or to wait for, `must_wait` has its answer at once; that is the usual case in generation 1, where the client has heard
that the partition was added before it sends the batch. A coordinator on another node is asked with AddPartitionsToTxn.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from ottla.coordination.transactions import adding
from ottla.log.producers import UNGUARDED, Guard
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.messages.transactions import AddPartitionsToTxnRequest, TopicPartitions

if TYPE_CHECKING:
    from ottla.server.node import Node

Place = tuple[str, int]

# What a coordinator says that is not ready. Older producers would not try again, but for want of replicas they do.
PASSING = {
    Error.NETWORK_EXCEPTION,
    Error.COORDINATOR_LOAD_IN_PROGRESS,
    Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_COORDINATOR,
}
# With a guard the batch may try; with None its transaction was open; an error is the answer.
Verdict = Guard | KafkaError | None

VERIFIES = "transaction.partition.verification.enable"
PATIENCE = "request.timeout.ms"


class Manner(IntEnum):
    """What the version of a request says about its client."""

    OLD = 0
    ABORTS = 1  # it knows TRANSACTION_ABORTABLE
    ADDS = 2  # it leaves adding partitions to us: generation 2


class Entrant(NamedTuple):
    """A producer that wants into partitions with its transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    manner: Manner


class NotAdmitted(KafkaError):
    """A refusal in the words that a producer expects. Kafka explains only some of them."""

    def __init__(self, error: Error, explanation: str | None = None) -> None:
        super().__init__(error, explanation)
        self.explanation = explanation


async def admit(node: Node, entrant: Entrant, wanted: Mapping[Place, int]) -> dict[Place, Verdict]:
    """A verdict for each partition, given the sequence of the batch that wants in (-1 for one without)."""
    verdicts = guard(node, entrant, wanted)
    if must_wait(node, entrant, verdicts):
        await ask(node, entrant, verdicts)
    return verdicts


def guard(node: Node, entrant: Entrant, wanted: Mapping[Place, int]) -> dict[Place, Verdict]:
    """The part without a wait. Where the verdict is a guard, the coordinator must be asked."""
    if entrant.manner is not Manner.ADDS and not node.config[VERIFIES]:
        return dict.fromkeys(wanted, UNGUARDED)
    verdicts: dict[Place, Verdict] = {}
    now_ms, adds = node.world.now_ms(), entrant.manner is Manner.ADDS
    for place, sequence in wanted.items():
        try:
            partition = node.replicas.find(*place)
            partition.check_leader(-1)
            producers = partition.log.producers
            verdicts[place] = producers.guard(entrant.producer_id, entrant.epoch, sequence, adds, now_ms)
        except KafkaError as error:
            verdicts[place] = error
    return verdicts


def must_wait(node: Node, entrant: Entrant, verdicts: Mapping[Place, Verdict]) -> bool:
    """Whether somebody must be asked whose answer is not at hand."""
    places = _guarded(verdicts)
    return bool(places) and not _is_admitted(node, entrant, places)


def _guarded(verdicts: Mapping[Place, Verdict]) -> tuple[Place, ...]:
    return tuple(place for place, verdict in verdicts.items() if type(verdict) is Guard and verdict is not UNGUARDED)


def _is_admitted(node: Node, entrant: Entrant, places: tuple[Place, ...]) -> bool:
    """Whether the coordinator is here, and what it has committed lets the batches in."""
    if not entrant.transactional_id:
        return False
    shard = node.transactions.shard_here(entrant.transactional_id)
    if shard is None or shard.machine is None:
        return False
    return adding.is_admitted(shard.machine.state, _question(entrant, places), shard.committed_end)


async def ask(node: Node, entrant: Entrant, verdicts: dict[Place, Verdict]) -> None:
    """Ask the coordinator about all partitions that have a guard; what it refuses becomes the verdict.

    In generation 2 the transaction before may be about to end: the client has every right to begin the next one, so the
    coordinator keeps the question for a moment (`waiting`) before the client is told to come back."""
    errors = await _ask(node, entrant, _guarded(verdicts))
    for place, error in errors.items():
        if error is not Error.NONE:
            verdicts[place] = KafkaError(_as_told(error, entrant.manner))


async def _ask(node: Node, entrant: Entrant, places: tuple[Place, ...]) -> dict[Place, Error]:
    try:
        coordinator = node.transactions.leader_of(entrant.transactional_id)
        if not entrant.transactional_id:
            # Any coordinator would say so, but only where there is one: clients that hear of none come back.
            return dict.fromkeys(places, Error.INVALID_REQUEST)
        if coordinator != node.config.node_id:
            return await _ask_elsewhere(node, coordinator, entrant, places)
        return await node.transactions.ask(entrant.transactional_id, adding.admit, _question(entrant, places))
    except KafkaError as error:
        return dict.fromkeys(places, error.error)


async def _ask_elsewhere(
    node: Node, coordinator: int, entrant: Entrant, places: tuple[Place, ...]
) -> dict[Place, Error]:
    topics: dict[str, TopicPartitions] = {}
    for name, index in places:
        topics.setdefault(name, TopicPartitions(name=name, partitions=[])).partitions.append(index)
    question = AddPartitionsToTxnRequest.Transaction(
        transactional_id=entrant.transactional_id,
        producer_id=entrant.producer_id,
        producer_epoch=entrant.epoch,
        verify_only=entrant.manner is not Manner.ADDS,
        topics=list(topics.values()),
    )
    line = node.peers.line("verify", coordinator, concurrent=True)
    try:
        answer = await line.ask(AddPartitionsToTxnRequest(transactions=[question]), node.config[PATIENCE] / 1000)
    except OSError as error:
        raise KafkaError(Error.NETWORK_EXCEPTION) from error
    if answer.error_code:
        raise KafkaError(error_of(answer.error_code))
    errors = {
        (topic.name, told.partition_index): error_of(told.partition_error_code)
        for result in answer.results_by_transaction
        for topic in result.topic_results
        for told in topic.results_by_partition
    }
    # What nobody spoke of nobody has admitted.
    return {place: errors.get(place, Error.NETWORK_EXCEPTION) for place in places}


def _question(entrant: Entrant, places: tuple[Place, ...]) -> adding.Admission:
    transactional_id, producer_id, epoch, manner = entrant
    return adding.Admission(transactional_id, producer_id, epoch, places, verify_only=manner is not Manner.ADDS)


def _as_told(error: Error, manner: Manner) -> Error:
    """Producers do not expect all that one coordinator says to another broker."""
    if error is Error.PRODUCER_FENCED:
        return Error.INVALID_PRODUCER_EPOCH
    if error is Error.TRANSACTION_ABORTABLE and manner is Manner.OLD:
        return Error.INVALID_TXN_STATE
    return error


def for_producer(error: Error, manner: Manner) -> NotAdmitted:
    """The answer to a Produce that was not admitted."""
    if error is Error.INVALID_TXN_STATE:
        return NotAdmitted(error, "Partition was not added to the transaction")
    if error in PASSING or (error is Error.CONCURRENT_TRANSACTIONS and manner is not Manner.ADDS):
        why = f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}"
        return NotAdmitted(Error.NOT_ENOUGH_REPLICAS, why)
    return NotAdmitted(error)
