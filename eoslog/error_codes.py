"""Kafka's error codes and their categories.

`eoslog.errors` has the exceptions. Codes from -1 up are Kafka's. Codes below -100 are local
conditions, with librdkafka's number if it has one.

Source: Kafka `Errors`, KIP-1050 for the categories.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

__all__ = ["ErrorCode"]

_N, _R, _A, _F = range(4)  # neither, retriable, abortable, fatal


class ErrorCode(IntEnum):
    """A Kafka error code with its category and a one-line description.

    At most one of `retriable`, `abortable` and `fatal` is true::

        code = eoslog.ErrorCode.PRODUCER_FENCED
        print(int(code), code.name, code.fatal, code.description)
    """

    description: str
    _category: int

    def __new__(cls, code: int, category: int, description: str) -> Self:
        """Create the member from a row of the table."""
        self = int.__new__(cls, code)
        self._value_ = code
        self._category = category
        self.description = description
        return self

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return self._category == _R

    @property
    def abortable(self) -> bool:
        """Whether the producer can continue after it aborts the transaction."""
        return self._category == _A

    @property
    def fatal(self) -> bool:
        """Whether the handle must be closed."""
        return self._category == _F

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the member for a number; unknown codes become UNKNOWN_SERVER_ERROR."""
        try:
            return cls._value2member_map_[code]  # type: ignore[return-value]
        except (KeyError, TypeError):
            return cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = -1, _N, "An unexpected error occurred."
    NONE = 0, _N, "Success."
    OFFSET_OUT_OF_RANGE = 1, _N, "The offset is not within the range of the log."
    CORRUPT_MESSAGE = 2, _R, "The record's checksum, size or structure is wrong."
    UNKNOWN_TOPIC_OR_PARTITION = 3, _R, "The topic partition does not exist."
    INVALID_FETCH_SIZE = 4, _N, "The fetch size is invalid."
    LEADER_NOT_AVAILABLE = 5, _R, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, _R, "The partition is led elsewhere."
    REQUEST_TIMED_OUT = 7, _R, "The request timed out."
    BROKER_NOT_AVAILABLE = 8, _N, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, _R, "The replica is not available."
    MESSAGE_TOO_LARGE = 10, _A, "The batch is larger than max.message.bytes."
    STALE_CONTROLLER_EPOCH = 11, _N, "The controller moved."
    OFFSET_METADATA_TOO_LARGE = 12, _N, "The metadata of an offset commit is too long."
    NETWORK_EXCEPTION = 13, _R, "The connection was closed before a response."
    COORDINATOR_LOAD_IN_PROGRESS = 14, _R, "The coordinator is loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, _R, "The coordinator is not available."
    NOT_COORDINATOR = 16, _R, "This is not the right coordinator."
    INVALID_TOPIC_EXCEPTION = 17, _N, "The topic name or operation on it is illegal."
    RECORD_LIST_TOO_LARGE = 18, _N, "The append is larger than a segment."
    NOT_ENOUGH_REPLICAS = 19, _R, "Fewer replicas than required."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _R, "Written, but to fewer replicas than required."
    INVALID_REQUIRED_ACKS = 21, _N, "acks must be 0, 1 or all."
    ILLEGAL_GENERATION = 22, _A, "The member's generation is not the group's."
    INCONSISTENT_GROUP_PROTOCOL = 23, _N, "The member's protocols do not fit the group's."
    INVALID_GROUP_ID = 24, _N, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, _A, "The group does not know this member."
    INVALID_SESSION_TIMEOUT = 26, _N, "The session timeout is out of range."
    REBALANCE_IN_PROGRESS = 27, _N, "The group is rebalancing; rejoin."
    INVALID_COMMIT_OFFSET_SIZE = 28, _N, "The offset commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, _A, "No access to the topic."
    GROUP_AUTHORIZATION_FAILED = 30, _A, "No access to the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, _F, "No access to the cluster."
    INVALID_TIMESTAMP = 32, _A, "The timestamp is out of range."
    UNSUPPORTED_SASL_MECHANISM = 33, _N, "The SASL mechanism is not supported."
    ILLEGAL_SASL_STATE = 34, _N, "The request is illegal in this SASL state."
    UNSUPPORTED_VERSION = 35, _F, "The version is not supported."
    TOPIC_ALREADY_EXISTS = 36, _N, "The topic exists."
    INVALID_PARTITIONS = 37, _N, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, _N, "The replication factor is invalid."
    INVALID_REPLICA_ASSIGNMENT = 39, _N, "The replica assignment is invalid."
    INVALID_CONFIG = 40, _N, "The configuration is invalid."
    NOT_CONTROLLER = 41, _R, "This is not the controller."
    INVALID_REQUEST = 42, _N, "The request is invalid."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _N, "The message format does not support the request."
    POLICY_VIOLATION = 44, _N, "The request violates a policy."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _A, "The sequence number is not the next one."
    DUPLICATE_SEQUENCE_NUMBER = 46, _N, "The batch was stored before."
    INVALID_PRODUCER_EPOCH = 47, _A, "The producer's epoch is older than the current one."
    INVALID_TXN_STATE = 48, _F, "The operation is illegal in the transaction's state."
    INVALID_PRODUCER_ID_MAPPING = 49, _A, "The transactional id has another producer id."
    INVALID_TRANSACTION_TIMEOUT = 50, _F, "The transaction timeout is out of range."
    CONCURRENT_TRANSACTIONS = 51, _R, "The previous transaction is still being completed."
    TRANSACTION_COORDINATOR_FENCED = 52, _N, "The marker comes from a deposed coordinator."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _F, "No access to the transactional id."
    SECURITY_DISABLED = 54, _N, "Security is disabled."
    OPERATION_NOT_ATTEMPTED = 55, _N, "Not attempted because a sibling failed."
    KAFKA_STORAGE_ERROR = 56, _R, "The log directory failed."
    LOG_DIR_NOT_FOUND = 57, _N, "The log directory was not found."
    SASL_AUTHENTICATION_FAILED = 58, _N, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, _A, "The log has no state of this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, _N, "A reassignment is in progress."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _N, "Delegation tokens are disabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, _N, "The delegation token was not found."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _N, "The delegation token has another owner."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        _N,
        "The delegation token request is not allowed.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _N, "No access to the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, _N, "The delegation token expired."
    INVALID_PRINCIPAL_TYPE = 67, _N, "The principal type is not supported."
    NON_EMPTY_GROUP = 68, _N, "The group has members."
    GROUP_ID_NOT_FOUND = 69, _N, "The group does not exist."
    FETCH_SESSION_ID_NOT_FOUND = 70, _R, "The fetch session was not found."
    INVALID_FETCH_SESSION_EPOCH = 71, _R, "The fetch session epoch is wrong."
    LISTENER_NOT_FOUND = 72, _R, "The leader has no matching listener."
    TOPIC_DELETION_DISABLED = 73, _N, "Topic deletion is disabled."
    FENCED_LEADER_EPOCH = 74, _R, "The leader epoch is older than the current one."
    UNKNOWN_LEADER_EPOCH = 75, _R, "The leader epoch is newer than the current one."
    UNSUPPORTED_COMPRESSION_TYPE = 76, _N, "The compression type is not supported."
    STALE_BROKER_EPOCH = 77, _N, "The broker epoch is stale."
    OFFSET_NOT_AVAILABLE = 78, _R, "The offset is not available yet."
    MEMBER_ID_REQUIRED = 79, _N, "Join again with the member id given."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _R, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, _N, "The group is full."
    FENCED_INSTANCE_ID = 82, _A, "Another member took this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _R, "No eligible leader."
    ELECTION_NOT_NEEDED = 84, _R, "No election needed."
    NO_REASSIGNMENT_IN_PROGRESS = 85, _N, "No reassignment is in progress."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _N, "The group is subscribed to the topic."
    INVALID_RECORD = 87, _A, "A record failed validation."
    UNSTABLE_OFFSET_COMMIT = 88, _R, "A transactional offset commit is pending."
    THROTTLING_QUOTA_EXCEEDED = 89, _R, "The quota is exceeded."
    PRODUCER_FENCED = 90, _F, "A newer producer with the same transactional id took over."
    RESOURCE_NOT_FOUND = 91, _N, "The resource was not found."
    DUPLICATE_RESOURCE = 92, _N, "The resource is a duplicate."
    UNACCEPTABLE_CREDENTIAL = 93, _N, "The credential is not acceptable."
    INCONSISTENT_VOTER_SET = 94, _N, "The voter sets differ."
    INVALID_UPDATE_VERSION = 95, _N, "The update version is invalid."
    FEATURE_UPDATE_FAILED = 96, _N, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _N, "The principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, _N, "The snapshot was not found."
    POSITION_OUT_OF_RANGE = 99, _N, "The position is out of range."
    UNKNOWN_TOPIC_ID = 100, _R, "The topic id is unknown."
    DUPLICATE_BROKER_REGISTRATION = 101, _N, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, _N, "The broker id is not registered."
    INCONSISTENT_TOPIC_ID = 103, _R, "The topic id differs from the log's."
    INCONSISTENT_CLUSTER_ID = 104, _N, "The cluster id differs."
    TRANSACTIONAL_ID_NOT_FOUND = 105, _N, "The transactional id is unknown."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _R, "The fetch session mixes topic ids and names."
    INELIGIBLE_REPLICA = 107, _N, "The replica may not join the ISR."
    NEW_LEADER_ELECTED = 108, _N, "A new leader was elected."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _N, "The offset moved to tiered storage."
    FENCED_MEMBER_EPOCH = 110, _N, "The member's epoch was fenced; rejoin."
    UNRELEASED_INSTANCE_ID = 111, _N, "The instance id is still in use."
    UNSUPPORTED_ASSIGNOR = 112, _N, "The assignor is not supported."
    STALE_MEMBER_EPOCH = 113, _N, "The member's epoch is stale; retry after the next poll."
    MISMATCHED_ENDPOINT_TYPE = 114, _N, "The endpoint is of another type."
    UNSUPPORTED_ENDPOINT_TYPE = 115, _N, "The endpoint type is not supported."
    UNKNOWN_CONTROLLER_ID = 116, _N, "The controller id is unknown."
    UNKNOWN_SUBSCRIPTION_ID = 117, _N, "The subscription id is unknown."
    TELEMETRY_TOO_LARGE = 118, _N, "The telemetry is too large."
    INVALID_REGISTRATION = 119, _N, "The registration is invalid."
    TRANSACTION_ABORTABLE = 120, _A, "The transaction must be aborted."
    INVALID_RECORD_STATE = 121, _N, "The record state is invalid."
    SHARE_SESSION_NOT_FOUND = 122, _R, "The share session was not found."
    INVALID_SHARE_SESSION_EPOCH = 123, _R, "The share session epoch is wrong."
    FENCED_STATE_EPOCH = 124, _N, "The state epoch was fenced."
    INVALID_VOTER_KEY = 125, _N, "The voter key is wrong."
    DUPLICATE_VOTER = 126, _N, "The voter exists."
    VOTER_NOT_FOUND = 127, _N, "The voter was not found."
    INVALID_REGULAR_EXPRESSION = 128, _N, "The regular expression is invalid."
    REBOOTSTRAP_REQUIRED = 129, _N, "The client must bootstrap again."
    STREAMS_INVALID_TOPOLOGY = 130, _N, "The topology is invalid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _N, "The topology epoch is invalid."
    STREAMS_TOPOLOGY_FENCED = 132, _N, "The topology epoch was fenced."
    SHARE_SESSION_LIMIT_REACHED = 133, _N, "Too many share sessions."
    LOCAL_FENCED = -144, _F, "This handle was fenced locally."
    LOCAL_NO_OFFSET = -168, _N, "No committed offset and no reset policy."
    LOCAL_STATE = -172, _N, "The call is illegal in the handle's state."
    LOCAL_QUEUE_FULL = -184, _R, "The producer's buffer is full."
    LOCAL_TIMED_OUT = -185, _R, "A local wait timed out."
    LOCAL_DELIVERY_TIMEOUT = -192, _A, "The record was not delivered within delivery.timeout.ms."
    LOCAL_COMMIT_OUTCOME_UNKNOWN = -1000, _F, "Whether the transaction committed is unknown."
    LOCAL_TRANSACTION_ABORTED = (
        -1001,
        _A,
        "The record was dropped because its transaction was aborted.",
    )
    LOCAL_COMMIT_FAILED = -1002, _N, "The offsets were not committed: the group rebalanced."
    LOCAL_OUTCOME_CONFLICT = -1004, _N, "The transaction was decided the other way."
    LOCAL_UNKNOWN_TOKEN = -1005, _N, "No prepared transaction with this token is known."
    LOCAL_PREPARED_TRANSACTION_PENDING = -1006, _N, "The id has an undecided prepared transaction."
    LOCAL_PUBLISHING_ID_REGRESSION = -1007, _N, "The publishing id is not above the last one."
    LOCAL_POSITION_CONFLICT = -1008, _A, "The named position is not the expected one."
    LOCAL_SERIALIZATION = -1003, _A, "A key or value could not be converted."
