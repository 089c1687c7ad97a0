"""DescribeTransactions and ListTransactions (KIP-664): where transactional ids stand, for those who look after the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.coordination import subscriptions
from ottla.coordination.machine import Caller, Decision, Moment
from ottla.coordination.subscriptions import Evaluation
from ottla.coordination.transactions.states import NAMES, TopicPartition, Transaction, Transactions, by_topic
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import (
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

Described = DescribeTransactionsResponse.TransactionState
Listed = ListTransactionsResponse.TransactionState

KNOWN_STATES = frozenset(NAMES.values())


def describe(state: Transactions, transactional_id: str, _caller: Caller, _moment: Moment) -> Decision[Described]:
    known = state.by_id.get(transactional_id)
    if known is None:
        raise KafkaError(Error.TRANSACTIONAL_ID_NOT_FOUND)
    return Decision(
        Described(
            transactional_id=transactional_id,
            transaction_state=NAMES[known.state],
            transaction_timeout_ms=known.timeout_ms,
            transaction_start_time_ms=known.started_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            topics=_topics(state.unmarked.get(transactional_id, known.partitions)),
        )
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[Described.TopicData]:
    """As in Apache Kafka: while a transaction ends, those that have their marker are not part of it any more."""
    return [Described.TopicData(topic=name, partitions=ids) for name, ids in by_topic(partitions).items()]


class Filter(NamedTuple):
    """Which ids are wanted; what is empty, or below zero, lets all pass."""

    states: frozenset[str]
    producer_ids: frozenset[int]
    longer_than_ms: int
    pattern: str | None

    @classmethod
    def of(cls, request: ListTransactionsRequest) -> Filter:
        """INVALID_REGULAR_EXPRESSION if the pattern is none."""
        if request.transactional_id_pattern:
            subscriptions.check(request.transactional_id_pattern)
        return cls(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            request.duration_filter,
            request.transactional_id_pattern,
        )

    @property
    def unknown_states(self) -> list[str]:
        return sorted(self.states - KNOWN_STATES)

    def passes(self, known: Transaction, wall_ms: int) -> bool:
        return (
            (not self.producer_ids or known.producer_id in self.producer_ids)
            and (not self.states or NAMES[known.state] in self.states)
            and (self.longer_than_ms < 0 or wall_ms - known.started_ms > self.longer_than_ms)
        )


def passing(states: Iterable[Transactions], wanted: Filter, wall_ms: int) -> list[Transaction]:
    """What these partitions know of ids that are wanted, as far as the pattern does not matter."""
    return [known for state in states for known in state.by_id.values() if wanted.passes(known, wall_ms)]


def matching(known: Iterable[Transaction], wanted: Filter) -> Evaluation:
    """Which of their ids match the pattern: long work, to be done in slices."""
    return Evaluation([wanted.pattern] if wanted.pattern else [], [each.transactional_id for each in known])


def listed(known: Iterable[Transaction], matched: Evaluation) -> list[Listed]:
    names = next(iter(matched.found.values()), None)
    return [
        Listed(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            transaction_state=NAMES[each.state],
        )
        for each in known
        if names is None or each.transactional_id in names
    ]
