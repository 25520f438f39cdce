"""Automatic deletion of offsets: of deleted topics, and expired ones.

Source: KIP-211, Kafka OffsetMetadataManager: onPartitionsDeleted, cleanupExpiredOffsets.
"""

from __future__ import annotations

from eoslog.coordinator.groups import rebalance
from eoslog.coordinator.groups.rebalance import Change
from eoslog.coordinator.groups.shard import GroupShards
from eoslog.coordinator.groups.state import Group, GroupTable, StoredOffset
from eoslog.errors import UnknownTopicOrPartition
from eoslog.model import OWN_GROUPS, PUBLISHING_IDS_GROUP, TopicPartition

_NO_GROUP = ""
"""No group has this id: a tombstone for it has no effect except to move the log end."""


class OffsetExpiry:
    """Deletes committed offsets that are no longer needed. Thread-safe."""

    def __init__(self, shards: GroupShards) -> None:
        """Serve the groups of a directory."""
        self._shards = shards
        self._host = shards.host

    def forget_topic(self, topic: str, topic_id: bytes) -> None:
        """See `GroupCoordinator.forget_topic`."""
        for shard in self._shards.existing():

            def decide(table: GroupTable) -> Change:
                if self._is_another(topic, topic_id):
                    return []
                change: Change = []
                for group_id in {*table.groups, *(g for p in table.pending.values() for g, _ in p)}:
                    group = table.groups.get(group_id)
                    known = {*(group.offsets if group else ()), *table.pending_of(group_id)}
                    gone = [p for p in known if p.topic == topic]
                    change += rebalance.delete_offsets(group_id, gone)
                return change or rebalance.delete_offsets(_NO_GROUP, [TopicPartition(topic)])

            result = shard.change(decide)
            if result is not None:
                shard.log.flush(result.last_offset + 1)

    def _is_another(self, name: str, topic_id: bytes) -> bool:
        try:
            return self._host.topic(name).topic_id != topic_id
        except UnknownTopicOrPartition:
            return False

    def expire(self, retention_ms: int, ids_retention_ms: int) -> int:
        """See `GroupCoordinator.expire_offsets`."""
        now = self._host.clock_ms()
        count = 0
        for shard in self._shards.existing():

            def decide(table: GroupTable) -> Change:
                change: Change = []
                for group_id, group in table.groups.items():
                    limit_ms = retention_ms
                    if group_id.startswith(OWN_GROUPS):
                        of_name = group_id.startswith(PUBLISHING_IDS_GROUP)
                        limit_ms = ids_retention_ms if of_name else -1
                    pending = set(table.pending_of(group_id))
                    gone = [
                        partition
                        for partition, stored in group.offsets.items()
                        if partition not in pending
                        and _expired(group, partition, stored, now, limit_ms)
                    ]
                    if not gone:
                        continue
                    if len(gone) == len(group.offsets) and not group.members and not pending:
                        change += rebalance.delete_group(group, ())
                    else:
                        change += rebalance.delete_offsets(group_id, gone)
                return change

            result = shard.change(decide)
            if result is not None:
                count += result.last_offset - result.base_offset + 1
                shard.log.flush(result.last_offset + 1)
        return count


def _expired(
    group: Group, partition: TopicPartition, stored: StoredOffset, now: int, retention_ms: int
) -> bool:
    value = stored.value
    if value.expire_timestamp >= 0:
        return value.expire_timestamp <= now
    if retention_ms < 0 or value.commit_timestamp < 0:
        return False
    for member in group.members.values():
        metadata = member.metadata
        if metadata.regex is not None or partition.topic in metadata.topics:
            return False
    return now - value.commit_timestamp >= retention_ms
