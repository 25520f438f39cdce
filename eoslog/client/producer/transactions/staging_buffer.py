"""The records of a staged transaction, until it is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eoslog import _core
from eoslog.coordinator.transactions.prepared_records import PendingOffset, PreparedEntry
from eoslog.coordinator.transactions.staged_records import StagedBatches
from eoslog.descriptions import GroupMetadata
from eoslog.errors import UnknownTopicOrPartition
from eoslog.model import AppendResult, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["StagingBuffer"]

_NOWHERE = AppendResult(-1, -1, False, -1)


class StagingBuffer:
    """Batches and offsets of a staged transaction, in memory.

    The sender's lock guards it.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.parts: list[StagedBatches] = []
        self.offsets: list[PendingOffset] = []
        self.groups: list[tuple[GroupMetadata, Mapping[TopicPartition, OffsetAndMetadata]]] = []
        self.entry: PreparedEntry | None = None  # once its payload is written

    def add(self, log: Any, partition: TopicPartition, data: Any) -> AppendResult:
        """Keep the batches of one partition, after the checks of its topic.

        Raises:
            EoslogError: as `PartitionLog.append`, if the topic would reject the batches.
        """
        checked = bytes(log.checked(memoryview(data)))
        records = sum(batch.count for batch in _core.iter_batches(memoryview(checked)))
        self.parts.append(StagedBatches(partition, log.topic_id, checked, records))
        return _NOWHERE

    def add_offsets(
        self, engine: Engine, group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:  # fmt: skip
        """Keep offsets that the delivery commits for a group.

        Args:
            engine: the open directory.
            group: the group and its member.
            offsets: the offsets, with the ids of their topics.

        Raises:
            UnknownTopicOrPartition: if a partition does not exist.
        """
        for tp, one in sorted(offsets.items(), key=lambda item: item[0]):
            if tp.partition not in engine.topic(tp.topic).partitions:
                raise UnknownTopicOrPartition(
                    f"send_offsets_to_transaction: {tp} does not exist; log.topics() lists the "
                    "topics"
                )
            assert one.topic_id is not None  # `with_topic_ids` has added it
            self.offsets.append(
                PendingOffset(
                    group.group_id, tp.topic, one.topic_id, tp.partition, one.offset,
                    one.leader_epoch, one.metadata or "",
                )
            )  # fmt: skip
        self.groups.append((group, offsets))
