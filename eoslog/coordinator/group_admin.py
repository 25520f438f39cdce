"""The groups as an administrator sees them: list, describe, reset, delete.

Source: Kafka ListGroups (16), DescribeGroups (15), ConsumerGroupDescribe (69), DeleteGroups (42).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from eoslog.coordinator import group_rebalance as rebalance
from eoslog.coordinator.group_offsets import GroupOffsets, OffsetMap
from eoslog.coordinator.group_rebalance import Catalogue, Change
from eoslog.coordinator.group_records import OwnedPartition, TopicMetadata
from eoslog.coordinator.group_state import Group, GroupTable
from eoslog.errors import GroupNotFound, NonEmptyGroup
from eoslog.model import GroupDescription, MemberDescription, TopicPartition


class GroupAdmin(GroupOffsets):
    """What looks at whole groups.

    Thread-safety: any thread.
    """

    def __init__(self, host: Any) -> None:
        """Serve the groups of a directory open in this process."""
        super().__init__(host)
        # Names of topic ids, kept after a deletion so that members can be told to let go.
        self._topic_names: dict[bytes, str] = {}

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
        self._catalogue()
        with self._shard(group_id).folded() as (table, _):
            group = self._known(table, group_id)
            members = [
                MemberDescription(
                    member_id,
                    member.metadata.client_id,
                    member.metadata.instance_id,
                    member.current.epoch,
                    member.metadata.topics or tuple(filter(None, [member.metadata.regex])),
                    sorted(self._named(group, member.current.assigned)),
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
        """
        with self._shard(group_id).folded() as (table, _):
            group = table.groups.get(group_id)
            if group is not None and group.members:
                raise NonEmptyGroup(f"group {group_id} has {len(group.members)} members")
        # Should a member join right now, the commit itself is refused: it names no member.
        self.commit_offsets(group_id, "", -1, offsets)

    def delete_group(self, group_id: str) -> None:
        """Forget a group and its offsets (DeleteGroups).

        Raises:
            NonEmptyGroup: it has members.
            GroupNotFound: no such group.

        Durability: durable on return.
        """
        shard = self._shard(group_id)

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

    def forget_topic(self, topic: str) -> None:
        """Drop every group's offsets in a deleted topic, so that a new one of its name is new."""
        for log in self._host.group_partitions():
            shard = self._shard_of(log)

            def decide(table: GroupTable) -> Change:
                change: Change = []
                for group_id in {*table.groups, *(g for p in table.pending.values() for g, _ in p)}:
                    group = table.groups.get(group_id)
                    known = {*(group.offsets if group else ()), *table.pending_of(group_id)}
                    gone = [p for p in known if p.topic == topic]
                    change += rebalance.delete_offsets(group_id, gone)
                return change

            result = shard.change(decide)
            if result is not None:
                log.flush(result.last_offset + 1)

    # Shared with membership.

    def _known(self, table: GroupTable, group_id: str) -> Group:
        group = table.groups.get(group_id)
        if group is None:
            raise GroupNotFound(f"no group {group_id!r}")
        return group

    def _names(self, group: Group) -> dict[bytes, str]:
        names = dict(self._topic_names)
        names.update((topic.topic_id, topic.name) for topic in group.topics.values())
        return names

    def _named(self, group: Group, owned: Collection[OwnedPartition]) -> frozenset[TopicPartition]:
        names = self._names(group)
        return frozenset(TopicPartition(names[t], p) for t, p in owned if t in names)

    def _catalogue(self) -> Catalogue:
        metadata = self._host.metadata
        metadata.refresh()
        catalogue = {
            name: TopicMetadata(info.topic_id, name, len(info.partitions))
            for name, info in metadata.topics.items()
            if not info.deleted
        }
        self._topic_names.update((topic.topic_id, name) for name, topic in catalogue.items())
        return catalogue
