"""The groups as an administrator sees them: list, describe, reset, delete.

Source: Kafka ListGroups (16), DescribeGroups (15), ConsumerGroupDescribe (69), DeleteGroups (42).
"""

from __future__ import annotations

from eoslog.coordinator import group_rebalance as rebalance
from eoslog.coordinator.group_offsets import OffsetMap
from eoslog.coordinator.group_rebalance import Change
from eoslog.coordinator.group_state import Group, GroupTable, StoredOffset
from eoslog.coordinator.group_watch import GroupWatch
from eoslog.errors import (
    GroupNotFound,
    NonEmptyGroup,
    PolicyViolation,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import OWN_GROUPS, GroupDescription, MemberDescription, TopicPartition

_NO_GROUP = ""
"""No group has this name: a tombstone of its offsets says nothing, and moves the log's end."""


class GroupAdmin(GroupWatch):
    """What looks at whole groups.

    Thread-safety: any thread.
    """

    def list_groups(self) -> list[str]:
        """The ids of all groups, also of those that only have offsets (ListGroups)."""
        found: set[str] = set()
        for log in self._host.group_partitions():
            with self._shard_of(log).folded() as (table, _):
                found.update(table.groups)
                found.update(group_id for p in table.pending.values() for group_id, _ in p)
        return sorted(found)

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group's state, members, assignments and visible offsets (DescribeGroups).

        Raises:
            GroupNotFound: no such group.
        """
        self._clear_out(group_id)
        try:
            shard = self._shard(group_id)
        except StorageError:
            if not getattr(self._host, "read_only", False):
                raise
            # A reader makes no partitions: without one there is no group.
            raise GroupNotFound(f"no group {group_id!r}") from None
        with shard.folded() as (table, _):
            group = self._known(table, group_id)
            members = [
                MemberDescription(
                    member_id,
                    member.metadata.client_id,
                    member.metadata.instance_id,
                    member.current.epoch,
                    member.metadata.topics or tuple(filter(None, [member.metadata.regex])),
                    sorted(self._named(group, member.current.assigned | member.current.pending)),
                    sorted(self._named(group, member.target)),
                )
                for member_id, member in sorted(group.members.items())
            ]
            assignor = rebalance.group_assignor([m.metadata for m in group.members.values()])
            return GroupDescription(
                group_id,
                group.state,
                max(group.epoch, 0),
                assignor if members else "",
                members,
                {p: stored.value.public() for p, stored in sorted(group.offsets.items())},
            )

    def reset_offsets(self, group_id: str, offsets: OffsetMap) -> None:
        """Set where a group without members goes on reading.

        Raises:
            NonEmptyGroup: it has members, which would not notice.
            PolicyViolation: it holds versions, not positions.
        """
        self._clear_out(group_id)
        with self._shard(group_id).folded() as (table, _):
            _refuse_versions(group_id)
            group = table.groups.get(group_id)
            if group is not None and group.members:
                raise NonEmptyGroup(f"group {group_id} has {len(group.members)} members")
        # Should a member join right now, the commit itself is refused: it names no member.
        self.commit_offsets(group_id, "", -1, offsets)

    def delete_group(self, group_id: str, *, force: bool = False) -> None:
        """Forget a group and its offsets (DeleteGroups).

        Args:
            group_id: the group.
            force: also one that holds versions.

        Raises:
            NonEmptyGroup: it has members.
            GroupNotFound: no such group.
            PolicyViolation: it holds versions, and `force` is not set.

        Durability: durable on return.
        """
        self._clear_out(group_id)
        shard = self._shard(group_id)
        if not force:
            _refuse_versions(group_id)

        def decide(table: GroupTable) -> Change:
            pending = set(table.pending_of(group_id))
            group = table.groups.get(group_id) or (Group(group_id) if pending else None)
            if group is None:
                raise GroupNotFound(f"no group {group_id!r}")
            if group.members:
                raise NonEmptyGroup(f"group {group_id} has {len(group.members)} members")
            return rebalance.delete_group(group, pending)

        result = shard.change(decide)
        if result is not None:
            shard.log.flush(result.last_offset + 1)

    def forget_topic(self, topic: str, topic_id: bytes) -> None:
        """Drop every group's offsets in a deleted topic, so that a new one of its name is new.

        A commit that found the topic alive and is not appended yet has to decide again: something
        is appended in any case. Once the name is another topic's, the offsets are that one's.
        """
        for log in self._host.group_partitions():
            shard = self._shard_of(log)

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
                log.flush(result.last_offset + 1)

    def _is_another(self, name: str, topic_id: bytes) -> bool:
        try:
            return bool(self._host.topic(name).topic_id != topic_id)
        except UnknownTopicOrPartition:
            return False

    def expire_offsets(self, retention_ms: int) -> int:
        """Drop committed offsets that are older than `offsets.retention.minutes`; how many.

        One goes when its own expiry has passed, or when it was committed `retention_ms` ago and
        nobody is there who reads its topic. One that an undecided transaction may still replace
        stays. A group of which nothing is left goes too.

        Args:
            retention_ms: negative: only explicit expiries count.

        Source: KIP-211, Kafka OffsetMetadataManager.cleanupExpiredOffsets.
        """
        now = self._host.clock_ms()
        count = 0
        for log in self._host.group_partitions():
            shard = self._shard_of(log)

            def decide(table: GroupTable) -> Change:
                change: Change = []
                for group_id, group in table.groups.items():
                    pending = set(table.pending_of(group_id))
                    gone = [
                        partition
                        for partition, stored in group.offsets.items()
                        if partition not in pending
                        and _expired(group, partition, stored, now, retention_ms)
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
                log.flush(result.last_offset + 1)
        return count

    # Shared with membership.

    def _clear_out(self, group_id: str) -> None:
        """Members whose process has gone are no members, though nobody has said so yet."""
        if getattr(self._host, "read_only", False):
            self._catalogue()
        else:
            self._look_after_group(group_id)

    def _known(self, table: GroupTable, group_id: str) -> Group:
        group = table.groups.get(group_id)
        if group is None:
            raise GroupNotFound(f"no group {group_id!r}")
        return group


def _expired(
    group: Group, partition: TopicPartition, stored: StoredOffset, now: int, retention_ms: int
) -> bool:
    value = stored.value
    if value.expire_timestamp >= 0:
        return value.expire_timestamp <= now
    if retention_ms < 0 or value.commit_timestamp < 0 or group.group_id.startswith(OWN_GROUPS):
        return False
    for member in group.members.values():
        metadata = member.metadata
        if metadata.regex is not None or partition.topic in metadata.topics:
            return False
    return now - value.commit_timestamp >= retention_ms


def _refuse_versions(group_id: str) -> None:
    """Nobody moves or deletes by chance what says which write was the last."""
    if group_id.startswith(OWN_GROUPS):
        raise PolicyViolation(
            f"group {group_id} holds versions of what Spark wrote, not positions: without them a "
            "write that runs again is written again; `force` deletes it all the same"
        )
