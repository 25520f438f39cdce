"""What coordinators need from the floor above: the engine, seen through a narrow window.

Imports go down only, so the engine is described here and handed in by whoever wires the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from eoslog.coordinator.producer_ids import ProducerIds
from eoslog.storage.metadata import FoldedLog


class HostLog(FoldedLog, Protocol):
    """One open partition; `storage.PartitionLog` is one."""

    topic: str
    partition: int
    topic_id: bytes

    @property
    def cleaned_to(self) -> int:
        """A fold that stands below this offset, and began before it rose, must begin anew."""
        ...

    @property
    def last_stable_offset(self) -> int:
        """First offset that an open transaction holds back, or the high watermark."""

    @property
    def stable_end(self) -> int:
        """First offset that an open transaction holds back, or the log end."""

    def repair(self) -> None:
        """Undo or finish what a process left that died with the append lock."""

    def open_transactions(self) -> list[tuple[int, int, int, int]]:
        """(producer id, epoch, first offset, last offset) of what is undecided here."""

    def open_transaction(self, producer_id: int) -> tuple[int, int, int] | None:
        """(epoch, first offset, last offset) of what a producer has undecided here."""

    def producer_entry(self, producer_id: int) -> tuple[int, int, int, int] | None:
        """(epoch, coordinator epoch, first, last data offset of what it has open: -1, nothing)."""


class Host(Protocol):
    """A directory open in this process; `engine.Engine` is one."""

    producer_ids: ProducerIds
    read_only: bool

    @property
    def process_number(self) -> int:
        """This process's entry in the process table."""

    @property
    def process_nonce(self) -> int:
        """What tells this process from others that had the entry before."""

    @property
    def durability(self) -> str:
        """`strict` or `os`."""

    def partition(self, topic: str, partition: int) -> Any:
        """The open partition.

        Raises:
            UnknownTopicOrPartition: there is none, or it was deleted.
        """

    def transaction_partition(self, transactional_id: str) -> Any:
        """The `__transaction_state` partition of an id, made at first use."""

    def transaction_partitions(self) -> Sequence[Any]:
        """Every `__transaction_state` partition that exists."""

    def open_logs(self) -> Sequence[Any]:
        """Every partition that this process has open."""

    def group_partition(self, group_id: str) -> Any:
        """The `__consumer_offsets` partition of a group, made at first use."""

    def process_alive(self, number: int, nonce: int) -> bool:
        """Whether that very instance of a process still holds its lock."""

    def flush_many(self, targets: Sequence[tuple[Any, int]]) -> None:
        """Flush several partitions in parallel, each to its offset."""

    def clock_ms(self) -> int:
        """Wall clock."""
