"""What went wrong with a transaction, in the words of Java's admin client and of Kafka's tool around it."""

from __future__ import annotations

from ottla.cli.kafka.java_errors import java_message
from ottla.client.cluster import TopicPartition
from ottla.client.transaction_admin import Abortion
from ottla.wire.errors import Error, KafkaError


def detailed(what: str, why: str) -> str:
    return f"{what}: {why}. Enable debug logging for additional detail."


def partition_name(where: TopicPartition) -> str:
    return f"{where.topic}-{where.partition}"


def of_listing(error: KafkaError, node_id: int) -> str:
    if error.error is Error.UNSUPPORTED_VERSION:
        return error.message
    why = {Error.COORDINATOR_NOT_AVAILABLE: "because the coordinator is shutting down"}
    return f"ListTransactions request sent to broker {node_id} failed " + why.get(
        error.error, "with an unexpected exception"
    )


def of_describing(error: KafkaError, name: str) -> str:
    why = {
        Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "due to authorization failure",
        Error.TRANSACTIONAL_ID_NOT_FOUND: "because the ID could not be found",
    }
    reason = why.get(error.error, "due to unexpected error")
    return f"DescribeTransactions request for transactionalId `{name}` failed {reason}"


def of_producers(error: KafkaError, where: TopicPartition, broker: int | None) -> str:
    of = f"Failed to describe active producers for partition {partition_name(where)}"
    if error.error is Error.NOT_LEADER_OR_FOLLOWER and broker is not None:
        return f"{of} on brokerId {broker}"
    if error.error is Error.TOPIC_AUTHORIZATION_FAILED:
        return f"{of} due to authorization failure on topic `{where.topic}`"
    if error.error is Error.INVALID_TOPIC_EXCEPTION:
        return f"Failed to fetch metadata for partition {partition_name(where)} due to invalid topic `{where.topic}`"
    is_known = error.error in (Error.UNKNOWN_TOPIC_OR_PARTITION, Error.BROKER_NOT_AVAILABLE)
    return error.message if is_known else f"{of} due to unexpected error"


def spec(what: Abortion) -> str:
    return (
        f"AbortTransactionSpec(topicPartition={partition_name(what.where)}, producerId={what.producer_id}, "
        f"producerEpoch={what.epoch}, coordinatorEpoch={what.coordinator_epoch})"
    )


def of_aborting(error: KafkaError, what: Abortion) -> str:
    fenced = f"since the provided coordinator epoch {what.coordinator_epoch} has been fenced by the active coordinator"
    why = {
        Error.CLUSTER_AUTHORIZATION_FAILED: "due to cluster authorization error",
        Error.INVALID_PRODUCER_EPOCH: "due an invalid producer epoch",
        Error.TRANSACTION_COORDINATOR_FENCED: fenced,
    }
    reason = why.get(error.error) or f"due to unexpected error: {java_message(error)}"
    return f"WriteTxnMarkers request with {spec(what)} failed {reason}"


def of_fencing(error: KafkaError, name: str) -> str:
    why = {
        Error.CLUSTER_AUTHORIZATION_FAILED: "due to cluster authorization failure",
        Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "due to transactional ID authorization failure",
    }
    return f"InitProducerId request for transactionalId `{name}` failed " + why.get(
        error.error, "due to unexpected error"
    )
