"""The state in a partition of `__consumer_offsets`.

It consists of groups, members, committed and pending offsets.

`GroupTable.apply` folds one batch. It is the only way to change the state, for live and for
replayed batches. `reconcile` computes the next step of a member. This module uses no clock, lock or
I/O.

Transactional offsets are pending, under their producer id, until the marker. A COMMIT makes each of
them visible, unless a later record has set the offset since. An ABORT drops them.

Source: Kafka GroupMetadataManager, OffsetMetadataManager, CurrentAssignmentBuilder;
KIP-98, KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from eoslog.coordinator.groups import records
from eoslog.coordinator.groups.offset_records import OffsetKey, OffsetValue, decode_offset_value
from eoslog.coordinator.groups.records import (
    NOTHING,
    ClassicGroup,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    Owned,
    RecordType,
    TopicMetadata,
)
from eoslog.model import TopicPartition

COMMIT_MARKER = 1
NO_GENERATION = -1


class StoredBatch(Protocol):
    """The part of a batch (`_core.Batch`) that the fold uses."""

    producer_id: int
    transactional: bool
    control: bool

    @property
    def control_type(self) -> int | None:
        """1 for COMMIT, 0 for ABORT."""

    def records(self) -> list[tuple[int, int, bytes | None, bytes | None, object]]:
        """(offset, timestamp, key, value, headers) of each record, in order."""


class StoredOffset(NamedTuple):
    """A committed offset, and the offset of its record; the higher one is newer."""

    value: OffsetValue
    record_offset: int


@dataclass(slots=True)
class Member:
    """A member of a group."""

    metadata: MemberMetadata = field(default_factory=MemberMetadata)
    target: Owned = NOTHING
    current: CurrentAssignment = field(default_factory=CurrentAssignment)


@dataclass(slots=True)
class Group:
    """A group; with manual assignment, its epoch is -1 and it has no members.

    Invariants:
        - No partition is in the `assigned` or `pending` of two members.
        - A member's epoch never exceeds `target_epoch`.
    """

    group_id: str
    epoch: int = NO_GENERATION
    target_epoch: int = NO_GENERATION
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[TopicPartition, StoredOffset] = field(default_factory=dict)
    classic: ClassicGroup | None = None

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        if not self.members:
            return "Empty"
        if self.target_epoch < self.epoch:
            return "Assigning"
        if all(self.settled(member) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def settled(self, member: Member) -> bool:
        """Whether a member has reached its target."""
        current = member.current
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch

    def by_instance(self, instance_id: str) -> str | None:
        """The member that has a static name."""
        for member_id, member in self.members.items():
            if member.metadata.instance_id == instance_id:
                return member_id
        return None

    def held_by_others(self, member_id: str) -> Owned:
        """All partitions that other members hold or have not released."""
        return NOTHING.union(
            *(
                member.current.assigned | member.current.pending
                for other, member in self.members.items()
                if other != member_id
            )
        )

    @property
    def vanished(self) -> bool:
        """Whether the group has no records left."""
        empty = not self.members and not self.offsets and not self.topics
        return empty and self.epoch == NO_GENERATION and self.classic is None


Pending = dict[tuple[str, TopicPartition], StoredOffset]


class GroupTable:
    """The fold of one partition of `__consumer_offsets`.

    Invariants:
        - `next_offset` is the end of the fold; folding from 0 gives an equal table.
        - A pending offset is in no group's `offsets`.
    """

    def __init__(self) -> None:
        """Start with the state of an empty partition."""
        self.groups: dict[str, Group] = {}
        self.pending: dict[int, Pending] = {}
        self.next_offset = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupTable):
            return NotImplemented
        return (self.groups, self.pending) == (other.groups, other.pending)

    __hash__ = None  # type: ignore[assignment]

    def apply(self, batch: StoredBatch) -> None:
        """Fold one batch, data or marker."""
        if batch.control:
            if batch.control_type is not None:
                self._end(batch.producer_id, batch.control_type == COMMIT_MARKER)
            return
        producer_id = batch.producer_id if batch.transactional else None
        for offset, _timestamp, key, value, _headers in batch.records():
            self._apply_record(offset, key, value, producer_id)

    def pending_of(self, group_id: str) -> Iterator[TopicPartition]:
        """The partitions with pending offsets of a group."""
        for offsets in self.pending.values():
            for name, partition in offsets:
                if name == group_id:
                    yield partition

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def _apply_record(
        self, offset: int, key: bytes | None, value: bytes | None, producer_id: int | None
    ) -> None:
        known = records.decode_key(key)
        if known is None:
            return
        if isinstance(known, OffsetKey):
            self._apply_offset(offset, known, value, producer_id)
            return
        group = self._group(known.group_id)
        if isinstance(known, records.MemberKey):
            _apply_member(group, known, value)
        else:
            _apply_group(group, known.type, value)
        if group.vanished:
            del self.groups[known.group_id]

    def _apply_offset(
        self, offset: int, key: OffsetKey, value: bytes | None, producer_id: int | None
    ) -> None:
        partition = key.topic_partition
        if value is None:
            self._forget_offset(key.group_id, partition)
            return
        stored = StoredOffset(decode_offset_value(value), offset)
        if producer_id is not None:
            self.pending.setdefault(producer_id, {})[key.group_id, partition] = stored
            return
        self._group(key.group_id).offsets[partition] = stored

    def _forget_offset(self, group_id: str, partition: TopicPartition) -> None:
        for producer_id in list(self.pending):
            self.pending[producer_id].pop((group_id, partition), None)
            if not self.pending[producer_id]:
                del self.pending[producer_id]
        group = self.groups.get(group_id)
        if group is not None:
            group.offsets.pop(partition, None)
            if group.vanished:
                del self.groups[group_id]

    def _end(self, producer_id: int, commit: bool) -> None:
        # A marker may be for offsets that a tombstone has deleted: then it does nothing.
        pending = self.pending.pop(producer_id, {})
        if not commit:
            return
        for (group_id, partition), stored in pending.items():
            group = self._group(group_id)
            visible = group.offsets.get(partition)
            if visible is None or stored.record_offset > visible.record_offset:
                group.offsets[partition] = stored


def _apply_group(group: Group, record_type: RecordType, value: bytes | None) -> None:
    if record_type is RecordType.CLASSIC_GROUP:
        group.classic = None if value is None else records.decode_classic_group(value)
    elif record_type is RecordType.GROUP:
        group.epoch = NO_GENERATION if value is None else records.decode_epoch(value)
    elif record_type is RecordType.TARGET:
        group.target_epoch = NO_GENERATION if value is None else records.decode_epoch(value)
    elif record_type is RecordType.TOPICS:
        group.topics = {} if value is None else records.decode_topics(value)


def _apply_member(group: Group, key: records.MemberKey, value: bytes | None) -> None:
    # A tombstone of the member record removes the member with its target and assignment. Later
    # tombstones of those must not create the member again.
    if value is None and (key.type is RecordType.MEMBER or key.member_id not in group.members):
        group.members.pop(key.member_id, None)
        return
    member = group.members.setdefault(key.member_id, Member())
    if key.type is RecordType.MEMBER:
        assert value is not None
        member.metadata = records.decode_member(value)
    elif key.type is RecordType.MEMBER_TARGET:
        member.target = NOTHING if value is None else records.decode_member_target(value)
    else:
        current = CurrentAssignment() if value is None else records.decode_member_current(value)
        member.current = current


def reconcile(
    group: Group, member_id: str, owned: Iterable[records.OwnedPartition]
) -> CurrentAssignment:
    """Compute a member's next assignment, after a report of its partitions.

    First the member releases partitions that are not in its target, and its epoch stays the same.
    Then its epoch advances to that of the target, and it is granted the partitions that no other
    member holds. The rest is granted at later heartbeats, when other members have released them.

    Args:
        group: the group.
        member_id: one of its members.
        owned: the partitions that the member still reads.

    Returns:
        The member's next assignment; equal to the current one if nothing changes.
    """
    member = group.members[member_id]
    current = member.current
    owned = frozenset(owned)
    if current.state is MemberState.UNREVOKED and owned & current.pending:
        return current
    if group.settled(member):
        return current
    keep = current.assigned & member.target
    revoke = current.assigned - member.target
    # Each step invalidates the previous epoch. Otherwise a late heartbeat, from a time when the
    # member had fewer partitions, would look like a release of the others.
    if revoke & owned:
        return CurrentAssignment(current.epoch, current.epoch, MemberState.UNREVOKED, keep, revoke)
    missing = member.target - keep
    unreleased = missing & group.held_by_others(member_id)
    state = MemberState.UNRELEASED if unreleased else MemberState.STABLE
    return CurrentAssignment(
        group.target_epoch, current.epoch, state, keep | (missing - unreleased)
    )
