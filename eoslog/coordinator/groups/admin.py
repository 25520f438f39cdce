"""Administration of groups: list, describe, reset, delete.

Source: Kafka ListGroups (16), DescribeGroups (15), ConsumerGroupDescribe (69), DeleteGroups (42).
"""

from __future__ import annotations

from eoslog.coordinator.groups import rebalance
from eoslog.coordinator.groups.liveness import GroupLiveness
from eoslog.coordinator.groups.offsets import GroupOffsets, OffsetMap, add_held
from eoslog.coordinator.groups.rebalance import Change
from eoslog.coordinator.groups.shard import GroupShards
from eoslog.coordinator.groups.state import Group, GroupTable
from eoslog.coordinator.groups.validation import group_not_found, non_empty_group
from eoslog.coordinator.host import HeldOffset
from eoslog.descriptions import GroupDescription, MemberDescription
from eoslog.errors import GroupNotFound, PolicyViolation, PreparedTransactionPending
from eoslog.model import OWN_GROUPS, PUBLISHING_IDS_GROUP, TopicPartition
from eoslog.storage.directory.directory import NeverUsed


class GroupAdmin:
    """Lists, describes, resets and deletes groups. Thread-safe."""

    def __init__(self, shards: GroupShards, liveness: GroupLiveness, offsets: GroupOffsets) -> None:
        """Serve the groups of a directory."""
        self._shards = shards
        self._host = shards.host
        self._liveness = liveness
        self._offsets = offsets

    def list_groups(self) -> list[str]:
        """See `GroupCoordinator.list_groups`."""
        found: set[str] = set()
        for shard in self._shards.existing():
            with shard.folded() as (table, _):
                found.update(table.groups)
                found.update(group_id for p in table.pending.values() for group_id, _ in p)
        found.update(g for g in self._host.transactions.groups_with_held_offsets() if self._held(g))
        return sorted(found)

    def _held(self, group_id: str) -> list[HeldOffset]:
        return list(self._offsets.held(group_id))

    def describe_group(self, group_id: str) -> GroupDescription:
        """See `GroupCoordinator.describe_group`."""
        self._liveness.refresh(group_id)
        return self.view_group(group_id)

    def view_group(self, group_id: str) -> GroupDescription:
        """See `GroupCoordinator.view_group`."""
        try:
            shard = self._shards.of(group_id)
        except NeverUsed:  # a read-only process creates no partitions
            raise group_not_found(group_id) from None
        named = self._shards.named
        # First, because a delivery in between writes its offsets to the group's partition.
        held = self._held(group_id)
        with shard.folded() as (table, _):
            group = table.groups.get(group_id)
            if group is None:
                if not held and not any(table.pending_of(group_id)):
                    raise group_not_found(group_id)
                group = Group(group_id)
            offsets = {p: stored.value.public() for p, stored in group.offsets.items()}
            add_held(held, offsets)
            members = [
                MemberDescription(
                    member_id,
                    member.metadata.client_id,
                    member.metadata.instance_id,
                    member.current.epoch,
                    (*member.metadata.topics, *filter(None, [member.metadata.regex])),
                    sorted(named(group, member.current.assigned | member.current.pending)),
                    sorted(named(group, member.target)),
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
                dict(sorted(offsets.items())),
            )

    def holders(self, group_id: str) -> list[tuple[str, int | None, list[TopicPartition]]]:
        """See `GroupCoordinator.holders`."""
        named = self._shards.named
        with self._shards.of(group_id).folded() as (table, _):
            group = table.groups.get(group_id)
            if group is None:
                return []
            return [
                (
                    member_id,
                    self._host.process_pid(
                        member.metadata.process_number, member.metadata.process_nonce
                    ),
                    sorted(named(group, member.current.assigned | member.current.pending)),
                )
                for member_id, member in sorted(group.members.items())
            ]

    def member_processes(self, group_id: str) -> dict[str, tuple[int, int]]:
        """See `GroupCoordinator.member_processes`."""
        with self._shards.of(group_id).folded() as (table, _):
            group = table.groups.get(group_id) or Group(group_id)
            return {
                member_id: (member.metadata.process_number, member.metadata.process_nonce)
                for member_id, member in group.members.items()
            }

    def subscribed_topics(self, group_id: str) -> set[str]:
        """See `GroupCoordinator.subscribed_topics`."""
        with self._shards.of(group_id).folded() as (table, _):
            return set((table.groups.get(group_id) or Group(group_id)).topics)

    def is_pending(self, group_id: str, partition: TopicPartition, producer_id: int) -> bool:
        """See `GroupCoordinator.is_pending`."""
        with self._shards.of(group_id).folded() as (table, _):
            return (group_id, partition) in table.pending.get(producer_id, {})

    def pending_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """See `GroupCoordinator.pending_offsets`."""
        try:
            shard = self._shards.of(group_id)
        except NeverUsed:  # a read-only process creates no partitions
            return {}
        with shard.folded() as (table, _):
            return {
                partition: producer_id
                for producer_id, offsets in table.pending.items()
                for name, partition in offsets
                if name == group_id
            }

    def reset_offsets(
        self, group_id: str, offsets: OffsetMap, *, forward_only: bool, timeout: float
    ) -> None:
        """See `GroupCoordinator.reset_offsets`."""
        self._liveness.refresh(group_id)
        with self._shards.of(group_id).folded() as (table, _):
            _refuse_versions(group_id)
            group = table.groups.get(group_id)
            if group is not None and group.members:
                raise non_empty_group(group)
        # If a member joins now, the commit itself is rejected, because it names no member.
        if forward_only:
            self._offsets.advance(group_id, offsets, timeout)
        else:
            self._offsets.commit(group_id, "", -1, None, offsets)

    def delete_group(self, group_id: str, *, force: bool = False) -> None:
        """See `GroupCoordinator.delete_group`."""
        self._liveness.refresh(group_id)
        shard = self._shards.of(group_id)
        if not force:
            _refuse_versions(group_id)

        def decide(table: GroupTable) -> Change:
            pending = set(table.pending_of(group_id))
            group = table.groups.get(group_id) or (Group(group_id) if pending else None)
            if group is None:
                raise group_not_found(group_id)
            if group.members:
                raise non_empty_group(group)
            if held and not group.offsets and not pending:
                raise group_not_found(group_id)
            return rebalance.delete_group(group, pending)

        held = self._held(group_id)
        try:
            result = shard.change(decide)
        except GroupNotFound:
            if not held:
                raise
            raise PreparedTransactionPending(
                f"group {group_id!r}: its only offsets are part of the staged transaction "
                f"{held[0].token!r}, and a deletion of the group does not change them; delete it "
                "after their delivery"
            ) from None
        if result is not None:
            shard.log.flush(result.last_offset + 1)


def _refuse_versions(group_id: str) -> None:
    """Protect the progress of writers against changes by accident."""
    if group_id.startswith(PUBLISHING_IDS_GROUP):
        raise PolicyViolation(
            f"group {group_id!r} stores publishing ids of the producer name "
            f"{group_id.removeprefix(PUBLISHING_IDS_GROUP)!r}, not consumer offsets; without them "
            "a repeated record is stored again. To delete it anyway, pass force=True"
        )
    if group_id.startswith(OWN_GROUPS):
        raise PolicyViolation(
            f"group {group_id!r} stores Spark write versions, not consumer offsets; without them "
            "Spark may repeat a write. To delete it anyway, pass force=True"
        )
