"""Partitions, offsets and the names that all layers share, as plain values.

`Record` is not in this module, because the compiled core creates it (`eoslog.Record`).
"""

from __future__ import annotations

import copyreg
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from eoslog._core import PartitionName

__all__ = [
    "CLUSTER_METADATA_TOPIC",
    "CONSUMER_OFFSETS_TOPIC",
    "EARLIEST",
    "INTERNAL_TOPICS",
    "LATEST",
    "NAMED_TRANSACTIONS",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_RESET",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "OWN_GROUPS",
    "POSITIONS_TOPIC",
    "PUBLISHING_IDS_GROUP",
    "STAGED_TRANSACTIONS_TOPIC",
    "STAGING_TOPIC",
    "TRANSACTION_STATE_TOPIC",
    "AppendLock",
    "AppendOrigin",
    "AppendResult",
    "IsolationLevel",
    "OffsetAndMetadata",
    "Offsets",
    "Outcome",
    "RecordMetadata",
    "TimestampType",
    "TopicPartition",
]

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
"""The two ends of a partition, as `seek`, `assign` and `auto.offset.reset` name them."""
NO_RESET: Final = "none"
"""`auto.offset.reset`: raise NoOffset instead of going to either end."""

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
STAGED_TRANSACTIONS_TOPIC = "__staged_transactions"
"""Payload of prepared transactions whose records are not in their topics yet."""
POSITIONS_TOPIC = "__positions"
"""Named positions of external sources."""
INTERNAL_TOPICS = frozenset(
    {
        TRANSACTION_STATE_TOPIC,
        CONSUMER_OFFSETS_TOPIC,
        CLUSTER_METADATA_TOPIC,
        STAGED_TRANSACTIONS_TOPIC,
        POSITIONS_TOPIC,
    }
)
"""Topics that only eoslog writes; the last two are created at their first use."""
STAGING_TOPIC = "eoslog-staging"
"""Not a topic: the folder of staged writes has the name of its partition 0."""
OWN_GROUPS = "__eoslog-"
"""Prefix of groups that store the progress of writers; their offsets do not expire."""
PUBLISHING_IDS_GROUP = OWN_GROUPS + "ids-"
"""Before a producer's name: the group whose offsets are the last publishing ids of the name."""
NAMED_TRANSACTIONS = "__name-"
"""Before a producer's name: the transactional id of the name."""


class IsolationLevel(str, Enum):
    """Which records a reader can see.

    `read_committed` excludes records of open and aborted transactions. Calls also accept the
    values as strings::

        log.scan("orders", isolation=eoslog.IsolationLevel.READ_UNCOMMITTED)
    """

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class TimestampType(IntEnum):
    """The origin of a record's timestamp: the producer, or the append.

    Compare it with the field of a record::

        for record in log.read("orders"):
            print(record.timestamp_type == eoslog.TimestampType.CREATE_TIME)
    """

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class AppendOrigin(Enum):
    """The origin of an append.

    Only a coordinator may append markers, and it skips sequence checks. A delivery is of records
    that were checked as they were produced. What their topic requires may have changed since.
    """

    CLIENT = "client"
    DELIVERY = "delivery"
    COORDINATOR = "coordinator"


class TopicPartition(PartitionName):
    """A partition of a topic, optionally with an offset.

    Equality and hash use only topic and partition, so it can be the key of a dict of offsets::

        tp = eoslog.TopicPartition("orders", 0)
        ends = {tp: 100}
        print(ends[eoslog.TopicPartition("orders", 0)])

    Args:
        topic: the topic.
        partition: the partition number.
        offset: an offset, or for `Consumer.assign` and `Consumer.seek` also "earliest" or "latest".
    """

    __slots__ = ("offset",)

    def __init__(self, topic: str, partition: int = 0, offset: int | str | None = None) -> None:
        """Set the topic, partition and offset."""
        self.topic = topic
        self.partition = partition
        self.offset: Any = offset

    def __reduce__(self) -> tuple[Any, ...]:
        state: tuple[Any, dict[str, Any]] = super().__getstate__()  # type: ignore[assignment]
        slots = {"topic": self.topic, "partition": self.partition, **state[1]}
        return copyreg.__newobj__, (type(self),), (state[0], slots)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        at = "" if self.offset is None else f", offset={self.offset!r}"
        return f"TopicPartition({self.topic!r}, {self.partition}{at})"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next offset to read, with metadata.

    Pass it to `Consumer.commit` or `Producer.send_offsets_to_transaction`::

        tp = eoslog.TopicPartition("orders", 0)
        consumer.commit({tp: eoslog.OffsetAndMetadata(100, metadata="batch 7")})

    Attributes:
        offset: the next offset to read.
        leader_epoch: the leader epoch of the last record; -1 if not known.
        metadata: a text that is stored with the offset.
        topic_id: the id of the topic, if known. A topic that was deleted and re-created under its
            name has another id.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a produced record is stored.

    Delivery callbacks and `Delivery.result` return it::

        metadata = producer.send("orders", value="3 apples").result(timeout=10)
        print(metadata.partition, metadata.offset)

    Attributes:
        topic: the topic.
        partition: the partition number.
        offset: the offset; -1 with `acks=0`, and for a duplicate whose offset is no longer known.
        timestamp: the timestamp, in ms since the epoch.
        duplicate: whether the record had been stored by an earlier attempt.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    duplicate: bool = False


class Offsets(NamedTuple):
    """The start and the ends of a partition.

    `Log.offsets` returns it::

        print(log.offsets("orders", 0).last_stable)

    Attributes:
        log_start: the first offset.
        last_stable: the offset after the last one that read_committed readers can see.
        high_watermark: the offset after the last durable record.
        log_end: the offset after the last record.
    """

    log_start: int
    last_stable: int
    high_watermark: int
    log_end: int


class AppendLock(NamedTuple):
    """The process that holds a partition's append lock.

    `Log.locks` returns it::

        for partition, lock in log.locks().items():
            print(partition, lock.pid, lock.seconds)

    Attributes:
        pid: the process id.
        seconds: how long the process has held the lock.
        command: its command line; None if this process cannot read it.
        stopped: whether it is suspended; None if this process cannot read its state.
    """

    pid: int
    seconds: float
    command: str | None = None
    stopped: bool | None = None


class AppendResult(NamedTuple):
    """The result of an append.

    For a duplicate, `base_offset` is -1 if it is no longer known.
    """

    base_offset: int
    last_offset: int
    duplicate: bool = False
    timestamp: int = NO_TIMESTAMP


class Outcome(Enum):
    """The decision about a prepared transaction, or the answer of a resolver.

    A resolver that does not know yet answers UNKNOWN, and is asked again::

        for prepared in log.pending():
            log.resolve(prepared.token, eoslog.Outcome.ABORT)

    RocketMQ's names are aliases: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW.
    """

    COMMIT = "commit"
    ABORT = "abort"
    UNKNOWN = "unknown"
    COMMIT_MESSAGE = COMMIT
    ROLLBACK_MESSAGE = ABORT
    UNKNOW = UNKNOWN
