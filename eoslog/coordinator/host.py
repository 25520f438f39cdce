"""Protocols for the part of the engine, the layer above, that coordinators use.

Imports go down only, so the engine is described here, and is passed to the coordinators when they
are created. Both coordinators use `Host`; each has its own protocol, `TransactionHost` or
`GroupHost`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from eoslog.coordinator.producer_ids import ProducerIds
from eoslog.coordinator.trace import Trace
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.log.published_end import PublishedEnd
from eoslog.storage.metadata.image import TopicInfo
from eoslog.storage.metadata.metadata_log import FoldedLog
from eoslog.storage.segment.carried_batches import CarriedBatches

HEARTBEAT_INTERVAL_S = 1.0
"""How often a process that has the log open sends its heartbeat."""


class HostLog(FoldedLog, Protocol):
    """One open partition; `storage.PartitionLog` implements it."""

    topic: str
    partition: int
    topic_id: bytes
    core: Any
    """The compiled partition, from which the core reads `log_end` and `cleaned_to`."""

    @property
    def cleaned_to(self) -> int:
        """The offset up to which the log is cleaned.

        A fold must start again if it began before this offset rose, and its next offset is below:
        the records in between may be cleaned away.
        """

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark."""

    @property
    def stable_end(self) -> int:
        """The first offset of an open transaction, or the log end."""

    @property
    def flushed_end(self) -> int:
        """The end of what the files keep in a power loss, or in "os" the log end."""

    def carry(self, end: int, most: int) -> CarriedBatches | None:
        """The batches from the high watermark to `end`, for a decision; None: flush."""

    def count_carried(self, end: int) -> None:
        """Raise the high watermark to `end`, because a decision carries the rest."""

    def wait(self, beyond: int, timeout: float, *, of: PublishedEnd = ...) -> bool:
        """Wait until a published end is beyond an offset; False after `timeout` seconds."""

    def await_append(self, deadline: float) -> bool:
        """Wait until an append that is under way has ended; False at the deadline."""

    def repair(self) -> None:
        """Undo or complete the append of a process that exited with the append lock held."""

    def open_transactions(self) -> list[tuple[int, int, int, int]]:
        """(producer id, epoch, first offset, last offset) of each undecided transaction."""

    def open_transaction(self, producer_id: int) -> tuple[int, int, int] | None:
        """(epoch, first offset, last offset) of a producer's undecided transaction."""

    def producer_entry(self, producer_id: int) -> tuple[int, int, int, int] | None:
        """The state of a producer, or None.

        The parts are (epoch, coordinator epoch, first and last offset of open data or -1).
        """


class Host(Protocol):
    """The part of an open directory that both coordinators use.

    `engine.Engine` implements it.
    """

    read_only: bool

    @property
    def is_fixed(self) -> bool:
        """Whether it is a fixed view: read-only, and opened while there was no writer."""

    @property
    def process_number(self) -> int:
        """This process's entry in the process table."""

    @property
    def process_nonce(self) -> int:
        """A number that distinguishes this process from earlier ones with the same entry."""

    def process_alive(self, number: int, nonce: int) -> bool:
        """Whether the process with that number and nonce still holds its lock."""

    def group_partition(self, group_id: str) -> HostLog:
        """The `__consumer_offsets` partition of a group, created at first use."""

    def clock_ms(self) -> int:
        """The wall clock in milliseconds since the epoch."""


class TransactionHost(Host, Protocol):
    """The part of a directory that the transaction coordinator uses."""

    producer_ids: ProducerIds

    def partition(self, topic: str, partition: int) -> HostLog:
        """Return the open partition.

        Raises:
            UnknownTopicOrPartition: if it does not exist, or was deleted.
        """

    def transaction_partition(self, transactional_id: str) -> HostLog:
        """The `__transaction_state` partition of an id, created at first use."""

    def transaction_partition_at(self, number: int) -> HostLog:
        """A `__transaction_state` partition by its number, created at first use."""

    def transaction_partitions(self) -> Sequence[HostLog]:
        """All existing `__transaction_state` partitions."""

    def transaction_ends(self) -> list[int]:
        """The published log end of each of them; -1 if this session has not used it."""

    def internal_topic(self, name: str) -> HostLog:
        """Partition 0 of an internal topic that is created at its first use.

        Raises:
            IllegalState: if the log was opened with read_only=True, and the topic does not exist.
            InvalidTopic: if an ordinary topic has the name.
        """

    def existing_internal_topic(self, name: str) -> HostLog | None:
        """The same, without creating it: None if the topic was never used."""

    def has_internal_topic(self, name: str) -> bool:
        """Whether such a topic exists; it is not opened."""

    def open_logs(self) -> Sequence[HostLog]:
        """All partitions that this process has open."""

    def flush_many(self, targets: Sequence[tuple[Any, int]]) -> None:
        """Flush several partitions in parallel, each to its offset."""

    def process_text(self, owner: tuple[int, int]) -> str:
        """Describe a process by its number and nonce, for messages."""


class PartitionResolver(Protocol):
    """The part of the transaction coordinator's resolver that positions use."""

    def resolve_blockers(self, log: HostLog, *, grace_s: float = ...) -> int:
        """End overdue or decided transactions of a partition, and return how many."""


class PositionTransactions(Protocol):
    """The part of the transaction coordinator that positions use."""

    @property
    def resolver(self) -> PartitionResolver:
        """Ends transactions that are due."""

    def add_partitions_to_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> tuple[Any, int]:  # fmt: skip
        """Add partitions to a transaction; return the condition of an append to them.

        Kafka's AddPartitionsToTxn (24).
        """


class PositionHost(Host, Protocol):
    """The part of a directory that named positions use."""

    @property
    def transactions(self) -> PositionTransactions:
        """The transaction coordinator."""

    def internal_topic(self, name: str) -> HostLog:
        """Partition 0 of an internal topic that is created at its first use."""

    def existing_internal_topic(self, name: str) -> HostLog | None:
        """The same, without creating it: None if the topic was never used."""


class Topics(Protocol):
    """The user topics of a directory; `storage.MetadataLog` implements it."""

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """The topics by name, as of the last refresh."""

    def refresh(self) -> None:
        """Read the changes since the last refresh."""


class HeldOffset(NamedTuple):
    """An offset of a group in a staged transaction that is not delivered.

    `decided`: the transaction is committed, and its decision is durable. Otherwise it is undecided.
    """

    partition: TopicPartition
    topic_id: bytes
    value: OffsetAndMetadata
    token: str
    decided: bool


class OffsetTransactions(Protocol):
    """The part of the transaction coordinator that the group coordinator uses."""

    @property
    def events(self) -> Trace:
        """The trace of requests."""

    def add_offsets_to_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str,
        also: Collection[TopicPartition] = (),
    ) -> tuple[Any, int]:  # fmt: skip
        """Add a group's partition, and more; return the condition of an append.

        Kafka's AddOffsetsToTxn (25).
        """

    def resolve_blockers(self, log: HostLog) -> int:
        """End overdue or decided transactions of a partition, and return how many."""

    def held_offsets(self, group_id: str) -> list[HeldOffset]:
        """Return a group's offsets in staged transactions that are not delivered."""

    def groups_with_held_offsets(self) -> set[str]:
        """Return the groups that may have such offsets."""


class GroupHost(Host, Protocol):
    """The part of a directory that the group coordinator uses."""

    @property
    def transactions(self) -> OffsetTransactions:
        """The transaction coordinator."""

    @property
    def metadata(self) -> Topics:
        """The topics that members may subscribe to."""

    def topic(self, name: str) -> TopicInfo:
        """Return a topic from the current metadata.

        Raises:
            UnknownTopicOrPartition: if it does not exist.
        """

    def group_partitions(self) -> Sequence[HostLog]:
        """All existing `__consumer_offsets` partitions."""

    def process_heartbeat_age(self, number: int) -> float:
        """Seconds since the last heartbeat of the process with that entry."""

    def process_pid(self, number: int, nonce: int) -> int | None:
        """The process id at its registration; None if another process has the entry now."""

    def note_idle_member(self, member: int, since_ms: int) -> None:
        """Publish the member of this process with the oldest poll; 0: none."""

    def schedule(self, what: str, interval_s: float, run: Callable[[], object]) -> None:
        """Call `run` every `interval_s` seconds in a thread of its own."""
