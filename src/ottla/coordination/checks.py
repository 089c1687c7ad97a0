"""What is wrong with a request whichever group it is about.

This is asked before anybody looks for the coordinator of the group, as in Apache Kafka: who asks for something that makes no
sense hears so also where nothing is loaded yet, or ever will be.
"""

from __future__ import annotations

from ottla.config import BrokerConfig
from ottla.coordination import assignors
from ottla.coordination.consumer_member import AWAY_EPOCH, JOINING_EPOCH, LEFT_EPOCH
from ottla.metadata.features import GROUP_VERSION
from ottla.metadata.image import Image
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import ConsumerGroupHeartbeatRequest, JoinGroupRequest, SyncGroupRequest

# From this version on whoever syncs says by which protocol (KIP-559).
SYNCS_BY_NAME = 5
# From this version on clients make their member ids themselves.
CLIENT_MAKES_ID = 1


def check_named(group_id: str) -> None:
    """Only old commits, and whoever looks at them, may leave the name of the group empty."""
    if not group_id:
        raise KafkaError(Error.INVALID_GROUP_ID)


# --- the classic protocol


def check_join(request: JoinGroupRequest, config: BrokerConfig) -> None:
    check_named(request.group_id)
    least, most = config["group.min.session.timeout.ms"], config["group.max.session.timeout.ms"]
    if not least <= request.session_timeout_ms <= most:
        raise KafkaError(Error.INVALID_SESSION_TIMEOUT)


def check_sync(request: SyncGroupRequest, version: int) -> None:
    if version >= SYNCS_BY_NAME and (request.protocol_type is None or request.protocol_name is None):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL)
    check_named(request.group_id)


# --- the consumer protocol


def check_served(image: Image) -> None:
    """The protocol is served once the cluster has agreed on it."""
    if image.features.get(GROUP_VERSION, 0) < 1:
        raise KafkaError(Error.UNSUPPORTED_VERSION)


def check_consumer(request: ConsumerGroupHeartbeatRequest, version: int, config: BrokerConfig, image: Image) -> None:
    check_served(image)
    epoch = request.member_epoch
    if version >= CLIENT_MAKES_ID or epoch > 0 or epoch == LEFT_EPOCH:
        _check_text(request.member_id, "MemberId")
    _check_text(request.group_id, "GroupId")
    _check_text(request.instance_id, "InstanceId")
    _check_text(request.rack_id, "RackId")
    if epoch == JOINING_EPOCH:
        _check_joining(request)
    elif epoch == AWAY_EPOCH and request.instance_id is None:
        raise KafkaError(Error.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < AWAY_EPOCH:
        raise KafkaError(Error.INVALID_REQUEST, "MemberEpoch is invalid.")
    served = assignors.named(config["group.consumer.assignors"])
    if request.server_assignor is not None and request.server_assignor not in served:
        said = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(served)}."
        raise KafkaError(Error.UNSUPPORTED_ASSIGNOR, said)


def _check_text(text: str | None, what: str) -> None:
    if text is not None and not text.strip():
        raise KafkaError(Error.INVALID_REQUEST, f"{what} can't be empty.")


def _check_joining(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise KafkaError(Error.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise KafkaError(Error.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        said = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        raise KafkaError(Error.INVALID_REQUEST, said)
