"""The values that users and the floors of eoslog hand each other; no behaviour, no I/O.

`Record` is not here: the compiled core makes it (`eoslog.Record`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset(
    {TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC, CLUSTER_METADATA_TOPIC}
)
STAGING_TOPIC = "eoslog-staging"
"""No topic: the folder of staged writes has the name of its partition 0."""
OWN_GROUPS = "__eoslog-"
"""Groups of this prefix keep what writers have done, no positions: their offsets never expire."""


class IsolationLevel(str, Enum):
    """What a reader may see."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class TimestampType(IntEnum):
    """Who set a record's timestamp."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class AppendOrigin(Enum):
    """Who appends: a coordinator may write markers and skips the sequence check."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class TopicPartition:
    """A partition of a topic, with an offset where a call wants one.

    To begin reading it may be "earliest" or "latest" too (`Consumer.assign`, `seek`).

    Equal and hashed by topic and partition alone, so that it is a key of offset maps.
    """

    __slots__ = ("offset", "partition", "topic")

    def __init__(self, topic: str, partition: int = 0, offset: int | str | None = None) -> None:
        """Name a partition."""
        self.topic = topic
        self.partition = partition
        self.offset: Any = offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicPartition):
            return NotImplemented
        return self.partition == other.partition and self.topic == other.topic

    def __lt__(self, other: TopicPartition) -> bool:
        return (self.topic, self.partition) < (other.topic, other.partition)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition))

    def __repr__(self) -> str:
        at = "" if self.offset is None else f", offset={self.offset!r}"
        return f"TopicPartition({self.topic!r}, {self.partition}{at})"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next one to read.

    `topic_id` is the topic that it counts in, where whoever commits knows that: one that was made
    again under the same name is another one.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record went. `offset` is -1 with acks=0, and for a duplicate too old to place."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    duplicate: bool = False


class Offsets(NamedTuple):
    """The ends of a partition; the log start is inclusive, all others exclusive."""

    log_start: int
    last_stable: int
    high_watermark: int
    log_end: int


class AppendLock(NamedTuple):
    """Who holds a partition's append lock, and for how long."""

    pid: int
    seconds: float


class AppendResult(NamedTuple):
    """What an append did. `duplicate`: it was stored before; `base_offset` -1 if too long ago."""

    base_offset: int
    last_offset: int
    duplicate: bool = False
    timestamp: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition of a described topic."""

    partition: int
    leader_epoch: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic; `config` holds what was set, not the defaults."""

    name: str
    topic_id: bytes
    partitions: Sequence[PartitionDescription]
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer's state in one partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int = -1
    current_txn_first_offset: int | None = None


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator holds it; times in ms, -1 where there is none."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int = -1
    last_update_ms: int = -1
    partitions: Sequence[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """How the transaction that a previous instance left behind has ended.

    It is the last one that reached the log; one that had flushed nothing leaves no trace.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """What ties `send_offsets_to_transaction` to a group membership, so that zombies are fenced."""

    group_id: str
    member_id: str = ""
    generation_id: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group; `assigned` is what it holds, with what it has not let go of yet."""

    member_id: str
    client_id: str = ""
    instance_id: str | None = None
    member_epoch: int = 0
    subscription: Sequence[str] = ()
    assigned: Sequence[TopicPartition] = ()
    target: Sequence[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group; `generation` is its epoch in KIP-848's words."""

    group_id: str
    state: str
    generation: int = 0
    assignor: str = ""
    members: Sequence[MemberDescription] = ()
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a check found or a repair did: a file, a byte in it, what is wrong."""

    path: str
    position: int
    message: str
    lost_records: int = 0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `Log.check` read and found."""

    partitions: int
    batches: int
    records: int
    problems: Sequence[Problem] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What `Log.backup` copied: partitions (those of internal topics too) and bytes, and what a
    check of the copy found, which then is wrong in the original too.
    """

    path: str
    partitions: int
    bytes: int
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What `import_kafka_dir` took over; sizes in bytes of `.log` files.

    `problems` names what recovery had to cut, and what was left out on purpose.
    """

    path: str
    topics: Sequence[str]
    partitions: int
    bytes_linked: int = 0
    bytes_copied: int = 0
    bytes_cut: int = 0
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What `repair` found and, unless `mode` is report, changed."""

    mode: str
    partitions: int
    problems: Sequence[Problem] = ()
    bytes_cut: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing had to be repaired."""
        return not self.problems
