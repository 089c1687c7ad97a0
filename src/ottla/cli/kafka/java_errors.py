"""Errors of the cluster as Java's client words them: some of Kafka's tools print the name of the exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.wire.errors import KafkaError

PACKAGE = "org.apache.kafka.common.errors."
# The errors that the tools here can meet: the class of the exception, and its text.
EXCEPTIONS = {
    1: (
        "OffsetOutOfRangeException",
        "The requested offset is not within the range of offsets maintained by the server.",
    ),
    3: ("UnknownTopicOrPartitionException", "This server does not host this topic-partition."),
    7: ("TimeoutException", "The request timed out."),
    14: ("CoordinatorLoadInProgressException", "The coordinator is loading and hence can't process requests."),
    15: ("CoordinatorNotAvailableException", "The coordinator is not available."),
    16: ("NotCoordinatorException", "This is not the correct coordinator."),
    17: (
        "InvalidTopicException",
        "The request attempted to perform an operation on an invalid topic.",
    ),
    24: ("InvalidGroupIdException", "The group id is invalid."),
    25: ("UnknownMemberIdException", "The coordinator is not aware of this member."),
    27: ("RebalanceInProgressException", "The group is rebalancing, so a rejoin is needed."),
    29: ("TopicAuthorizationException", "Topic authorization failed."),
    30: ("GroupAuthorizationException", "Group authorization failed."),
    31: ("ClusterAuthorizationException", "Cluster authorization failed."),
    35: ("UnsupportedVersionException", "The version of API is not supported."),
    44: ("PolicyViolationException", "Request parameters do not satisfy the configured policy."),
    68: ("GroupNotEmptyException", "The group is not empty."),
    69: ("GroupIdNotFoundException", "The group id does not exist."),
    86: (
        "GroupSubscribedToTopicException",
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it.",
    ),
}


def java_message(error: KafkaError) -> str:
    """What Java's exception would say: the broker's own words, if it sent any."""
    from ottla.client.cluster import NoTopic

    if isinstance(error, NoTopic):
        return EXCEPTIONS[error.code][1]
    if error.message != error.error.message or error.code not in EXCEPTIONS:
        return error.message
    return EXCEPTIONS[error.code][1]


def java_text(error: KafkaError) -> str:
    """The exception as Java prints it: its class, and what it says."""
    name = EXCEPTIONS[error.code][0] if error.code in EXCEPTIONS else "UnknownServerException"
    return f"{PACKAGE}{name}: {java_message(error)}"
