"""The error table of Kafka 4.3: number, name, whether trying again may help, and a sentence for people.

Errors are raised where the fact is known, as `KafkaError`, and caught once per partition in a handler or once per
request in dispatch. The numbers and names are the protocol; the sentences are only the default for `error_message`.
"""

from __future__ import annotations

from enum import Enum


class Error(Enum):
    """One row of the table. `Error(6)` finds a row by its number."""

    code: int
    retriable: bool
    message: str

    def __new__(cls, code: int, retriable: bool, message: str) -> Error:
        row = object.__new__(cls)
        row._value_ = row.code = code
        row.retriable = retriable
        row.message = message
        return row

    UNKNOWN_SERVER_ERROR = -1, False, "unexpected error in the broker"
    NONE = 0, False, ""
    OFFSET_OUT_OF_RANGE = 1, False, "the offset is outside the log"
    CORRUPT_MESSAGE = 2, True, "the batch is damaged: wrong CRC, size or shape"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "no such topic or partition here"
    INVALID_FETCH_SIZE = 4, False, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, True, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, True, "this broker is not the leader, or not a replica, of the partition"
    REQUEST_TIMED_OUT = 7, True, "the request took longer than its timeout"
    BROKER_NOT_AVAILABLE = 8, False, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, True, "the replica is not available"
    MESSAGE_TOO_LARGE = 10, False, "the batch is larger than the topic allows"
    STALE_CONTROLLER_EPOCH = 11, False, "the controller epoch is old: another controller has taken over"
    OFFSET_METADATA_TOO_LARGE = 12, False, "the metadata of an offset commit is too large"
    NETWORK_EXCEPTION = 13, True, "the connection was lost before the answer came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "the coordinator is still loading"
    COORDINATOR_NOT_AVAILABLE = 15, True, "the coordinator is not available"
    NOT_COORDINATOR = 16, True, "this broker is not the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, False, "the topic name is not valid, or the topic may not be used this way"
    RECORD_LIST_TOO_LARGE = 18, False, "the batch is larger than a segment"
    NOT_ENOUGH_REPLICAS = 19, True, "fewer replicas are in sync than the topic requires"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "written, but fewer replicas are in sync than the topic requires"
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, False, "the generation is not the group's current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "the member's protocols do not fit those of the group"
    INVALID_GROUP_ID = 24, False, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, False, "the coordinator does not know this member"
    INVALID_SESSION_TIMEOUT = 26, False, "the session timeout is outside the allowed range"
    REBALANCE_IN_PROGRESS = 27, False, "the group is rebalancing: join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "the size of the commit is not valid"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "not authorized for this topic"
    GROUP_AUTHORIZATION_FAILED = 30, False, "not authorized for this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "not authorized for the cluster"
    INVALID_TIMESTAMP = 32, False, "the timestamp is outside the allowed range"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "this SASL mechanism is not enabled"
    ILLEGAL_SASL_STATE = 34, False, "the request does not fit the state of authentication"
    UNSUPPORTED_VERSION = 35, False, "this version is not supported"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic of this name exists already"
    INVALID_PARTITIONS = 37, False, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, False, "the replication factor is not valid, or larger than the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, False, "the replica assignment is not valid"
    INVALID_CONFIG = 40, False, "the setting or its value is not valid"
    NOT_CONTROLLER = 41, True, "this node is not the active controller"
    INVALID_REQUEST = 42, False, "the request makes no sense as it stands"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "the message format does not support this request"
    POLICY_VIOLATION = 44, False, "the request breaks a policy of this cluster"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "the sequence number does not follow the last one"
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "the sequence number was seen before"
    INVALID_PRODUCER_EPOCH = 47, False, "the producer epoch is old"
    INVALID_TXN_STATE = 48, False, "the transaction is in a state that does not allow this"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "the producer id does not belong to this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "the transaction timeout is larger than transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, True, "another operation on this transaction is still going on"
    TRANSACTION_COORDINATOR_FENCED = 52, False, "the transaction coordinator that sent the marker has been replaced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "not authorized for this transactional id"
    SECURITY_DISABLED = 54, False, "security is not enabled"
    OPERATION_NOT_ATTEMPTED = 55, False, "not attempted, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, True, "the disk failed, or the log on it is offline"
    LOG_DIR_NOT_FOUND = 57, False, "there is no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, False, "authentication failed"
    UNKNOWN_PRODUCER_ID = 59, False, "nothing is known about this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, False, "a reassignment of this partition is going on"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "delegation tokens are not enabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "the principal does not own this token and may not renew it"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "delegation tokens cannot be asked for over this connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "not authorized for delegation tokens"
    DELEGATION_TOKEN_EXPIRED = 66, False, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, False, "this type of principal is not supported"
    NON_EMPTY_GROUP = 68, False, "the group is not empty"
    GROUP_ID_NOT_FOUND = 69, False, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "there is no such fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session is at another epoch"
    LISTENER_NOT_FOUND = 72, True, "the leader has no listener of the name the request came in by"
    TOPIC_DELETION_DISABLED = 73, False, "deleting topics is disabled"
    FENCED_LEADER_EPOCH = 74, True, "the leader epoch of the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, True, "the leader epoch of the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "the client cannot read the compression of this partition"
    STALE_BROKER_EPOCH = 77, False, "the broker epoch is old"
    OFFSET_NOT_AVAILABLE = 78, True, "the new leader does not know its high watermark yet"
    MEMBER_ID_REQUIRED = 79, False, "join again with the member id in this answer"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, False, "the group is full"
    FENCED_INSTANCE_ID = 82, False, "another member has taken over this group instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "no replica may become leader"
    ELECTION_NOT_NEEDED = 84, True, "the partition has that leader already"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "no reassignment of this partition is going on"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "the group is subscribed to the topic"
    INVALID_RECORD = 87, False, "the records were refused"
    UNSTABLE_OFFSET_COMMIT = 88, True, "offsets of an open transaction are pending"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "the quota is used up"
    PRODUCER_FENCED = 90, False, "a newer producer with this transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, False, "there is no such resource"
    DUPLICATE_RESOURCE = 92, False, "a resource is named twice"
    UNACCEPTABLE_CREDENTIAL = 93, False, "the credential is not acceptable"
    INCONSISTENT_VOTER_SET = 94, False, "sender or receiver is not one of the expected voters"
    INVALID_UPDATE_VERSION = 95, False, "the version of the update is not the current one"
    FEATURE_UPDATE_FAILED = 96, False, "the feature could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "the forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, False, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, False, "the position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, True, "no topic with this id here"
    DUPLICATE_BROKER_REGISTRATION = 101, False, "this broker id is in use"
    BROKER_ID_NOT_REGISTERED = 102, False, "this broker id is not registered"
    INCONSISTENT_TOPIC_ID = 103, True, "the log belongs to another topic id"
    INCONSISTENT_CLUSTER_ID = 104, False, "this is another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "the fetch session mixes topic names and ids"
    INELIGIBLE_REPLICA = 107, False, "a replica in the new in-sync set may not be in it"
    NEW_LEADER_ELECTED = 108, False, "the change was made, but the leader changed with it"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "the offset has moved to tiered storage"
    FENCED_MEMBER_EPOCH = 110, False, "the member epoch is fenced: give up all partitions and join again"
    UNRELEASED_INSTANCE_ID = 111, False, "another member still holds this instance id"
    UNSUPPORTED_ASSIGNOR = 112, False, "the group does not support this assignor"
    STALE_MEMBER_EPOCH = 113, False, "the member epoch is old"
    MISMATCHED_ENDPOINT_TYPE = 114, False, "this is an endpoint of another type"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "this type of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, False, "there is no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "the telemetry subscription is unknown or old"
    TELEMETRY_TOO_LARGE = 118, False, "the telemetry is larger than allowed"
    INVALID_REGISTRATION = 119, False, "the controller refused the registration"
    TRANSACTION_ABORTABLE = 120, False, "the transaction has failed: abort it and go on"
    INVALID_RECORD_STATE = 121, False, "the record is not in a state to be acknowledged"
    SHARE_SESSION_NOT_FOUND = 122, True, "there is no such share session"
    INVALID_SHARE_SESSION_EPOCH = 123, True, "the share session is at another epoch"
    FENCED_STATE_EPOCH = 124, False, "the state epoch of the share group does not match"
    INVALID_VOTER_KEY = 125, False, "the voter key is not that of this replica"
    DUPLICATE_VOTER = 126, False, "this voter is in the set already"
    VOTER_NOT_FOUND = 127, False, "this voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, False, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, False, "the metadata is too old: bootstrap again"
    STREAMS_INVALID_TOPOLOGY = 130, False, "the topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "the topology epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, False, "the topology epoch is old"
    SHARE_SESSION_LIMIT_REACHED = 133, True, "there are too many share sessions"


def error_of(code: int) -> Error:
    """The row of the table. A number that is newer than it keeps its meaning of "no"."""
    known = Error._value2member_map_.get(code)
    return known if isinstance(known, Error) else Error.UNKNOWN_SERVER_ERROR


class KafkaError(Exception):
    """An answer other than success. `message` is for people; without one the table's sentence is used."""

    def __init__(self, error: Error, message: str | None = None) -> None:
        self.error = error
        self.code = error.code
        self.message = error.message if message is None else message
        super().__init__(f"{error.name}: {self.message}")
