"""The records of a new generation, after a change of members or topics.

Every function takes a group and returns records, which the caller appends as one batch. Membership
and target are in the same batch, so no reader sees one without the other.

Source: Kafka GroupMetadataManager, TargetAssignmentBuilder; KIP-345, KIP-848.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from eoslog.coordinator.groups import records
from eoslog.coordinator.groups.assignors import DEFAULT_ASSIGNOR, MemberSubscription, assign
from eoslog.coordinator.groups.offset_records import encode_offset_key
from eoslog.coordinator.groups.records import (
    NOTHING,
    STATIC_LEAVE_EPOCH,
    CurrentAssignment,
    MemberMetadata,
    Owned,
    RecordType,
    TopicMetadata,
)
from eoslog.coordinator.groups.state import Group
from eoslog.model import INTERNAL_TOPICS, TopicPartition

Change = list[tuple[bytes, bytes | None]]
"""Keys and values of one batch; a null value deletes."""
Catalogue = Mapping[str, TopicMetadata]
"""The directory's topics by name."""


def topics_of(member: MemberMetadata, catalogue: Catalogue) -> frozenset[str]:
    """The existing topics that a member subscribes to, by name or by pattern.

    A pattern must match the whole name, as in Kafka, and never matches an internal topic.
    """
    named = {topic for topic in member.topics if topic in catalogue}
    if member.regex is not None:
        pattern = re.compile(member.regex)
        named.update(t for t in catalogue if t not in INTERNAL_TOPICS and pattern.fullmatch(t))
    return frozenset(named)


def subscribed_topics(
    members: Collection[MemberMetadata], catalogue: Catalogue
) -> dict[str, TopicMetadata]:
    """The topics of all members, on which the group's target depends."""
    names = frozenset[str]().union(*(topics_of(member, catalogue) for member in members))
    return {name: catalogue[name] for name in sorted(names)}


def group_assignor(members: Collection[MemberMetadata]) -> str:
    """The strategy that most members have; among equals, the first by name."""
    votes = Counter(member.assignor or DEFAULT_ASSIGNOR for member in members)
    if not votes:
        return DEFAULT_ASSIGNOR
    return min(votes, key=lambda name: (-votes[name], name))


def compute_target(
    members: Mapping[str, MemberMetadata], previous: Mapping[str, Owned], catalogue: Catalogue
) -> dict[str, Owned]:
    """Compute the target of every member, by topic id."""
    topics = subscribed_topics(list(members.values()), catalogue)
    names = {topic.topic_id: name for name, topic in topics.items()}
    subscriptions = {
        member_id: MemberSubscription(
            topics_of(member, catalogue),
            member.instance_id,
            frozenset(
                (names[topic_id], partition)
                for topic_id, partition in previous.get(member_id, NOTHING)
                if topic_id in names
            ),
        )
        for member_id, member in members.items()
    }
    counts = {name: topic.partitions for name, topic in topics.items()}
    target = assign(group_assignor(list(members.values())), subscriptions, counts)
    return {
        member_id: frozenset((topics[name].topic_id, partition) for name, partition in owned)
        for member_id, owned in target.items()
    }


def next_epoch(group: Group) -> int:
    """The generation after the group's current one, classic generations included."""
    classic = group.classic.generation if group.classic is not None else 0
    return max(group.epoch, group.target_epoch, classic, 0) + 1


def new_generation(
    group: Group,
    members: Mapping[str, MemberMetadata],
    catalogue: Catalogue,
    previous: Mapping[str, Owned] | None = None,
) -> Change:
    """Return the records that give these members a new target with a new epoch.

    Args:
        group: the current group.
        members: the members of the new generation.
        catalogue: the directory's topics.
        previous: the targets to change as little as possible; None means the current ones.
    """
    if previous is None:
        previous = {member_id: member.target for member_id, member in group.members.items()}
    epoch = next_epoch(group)
    group_id = group.group_id
    topics = subscribed_topics(list(members.values()), catalogue)
    change: Change = [
        (records.encode_group_key(RecordType.GROUP, group_id), records.encode_epoch(epoch))
    ]
    if topics != group.topics:
        key = records.encode_group_key(RecordType.TOPICS, group_id)
        change.append((key, records.encode_topics(topics.values())))
    for member_id, target in compute_target(members, previous, catalogue).items():
        known = group.members.get(member_id)
        if known is None or known.target != target:
            key = records.encode_member_key(RecordType.MEMBER_TARGET, group_id, member_id)
            change.append((key, records.encode_member_target(target)))
    key = records.encode_group_key(RecordType.TARGET, group_id)
    change.append((key, records.encode_epoch(epoch)))
    return change


def current_record(group_id: str, member_id: str, current: CurrentAssignment) -> Change:
    """Return the record of a member's step towards its target."""
    key = records.encode_member_key(RecordType.MEMBER_CURRENT, group_id, member_id)
    return [(key, records.encode_member_current(current))]


def _member_record(group_id: str, member_id: str, metadata: MemberMetadata) -> Change:
    key = records.encode_member_key(RecordType.MEMBER, group_id, member_id)
    return [(key, records.encode_member(metadata))]


def _removed(group_id: str, member_id: str) -> Change:
    kinds = (RecordType.MEMBER_CURRENT, RecordType.MEMBER_TARGET, RecordType.MEMBER)
    return [(records.encode_member_key(kind, group_id, member_id), None) for kind in kinds]


def _metadata(group: Group) -> dict[str, MemberMetadata]:
    return {member_id: member.metadata for member_id, member in group.members.items()}


def join(group: Group, member_id: str, metadata: MemberMetadata, catalogue: Catalogue) -> Change:
    """Return the records of a new member, which has no partitions yet."""
    change = _member_record(group.group_id, member_id, metadata)
    change += current_record(group.group_id, member_id, CurrentAssignment())
    return change + new_generation(group, {**_metadata(group), member_id: metadata}, catalogue)


def take_over(
    group: Group, old_id: str, new_id: str, metadata: MemberMetadata, catalogue: Catalogue
) -> Change:
    """Return the records of a static member that returns with a new member id.

    The old member id is fenced. If the subscription is unchanged, the new member inherits the
    target, and the other members are not affected.
    """
    old = group.members[old_id]
    change = _removed(group.group_id, old_id)
    change += _member_record(group.group_id, new_id, metadata)
    change += current_record(group.group_id, new_id, CurrentAssignment())
    same = (old.metadata.topics, old.metadata.regex, old.metadata.assignor) == (
        metadata.topics, metadata.regex, metadata.assignor
    )  # fmt: skip
    members = _metadata(group)
    del members[old_id]
    members[new_id] = metadata
    if same and subscribed_topics(list(members.values()), catalogue) == group.topics:
        key = records.encode_member_key(RecordType.MEMBER_TARGET, group.group_id, new_id)
        return [*change, (key, records.encode_member_target(old.target))]
    previous = {member_id: member.target for member_id, member in group.members.items()}
    previous[new_id] = previous.pop(old_id)
    return change + new_generation(group, members, catalogue, previous)


def resubscribe(
    group: Group, member_id: str, metadata: MemberMetadata, catalogue: Catalogue
) -> Change:
    """Return the records of a member's new subscription."""
    change = _member_record(group.group_id, member_id, metadata)
    return change + new_generation(group, {**_metadata(group), member_id: metadata}, catalogue)


def remove(group: Group, member_ids: Collection[str], catalogue: Catalogue) -> Change:
    """Return the records that remove members and free their partitions."""
    change: Change = []
    for member_id in sorted(member_ids):
        change += _removed(group.group_id, member_id)
    rest = {m: metadata for m, metadata in _metadata(group).items() if m not in member_ids}
    return change + new_generation(group, rest, catalogue)


def leave_for_a_while(group: Group, member_id: str) -> Change:
    """Return the record of a static member that leaves but keeps its target."""
    current = replace(
        group.members[member_id].current,
        epoch=STATIC_LEAVE_EPOCH,
        previous_epoch=-1,
        pending=NOTHING,
    )  # it reads nothing now, so the partitions that it had to release are free
    return current_record(group.group_id, member_id, current)


def delete_offsets(group_id: str, partitions: Collection[TopicPartition]) -> Change:
    """Return tombstones of committed offsets, which also delete pending ones."""
    return [
        (encode_offset_key(group_id, partition.topic, partition.partition), None)
        for partition in sorted(partitions)
    ]


def delete_group(group: Group, pending: Collection[TopicPartition]) -> Change:
    """Return tombstones of all records of an empty group."""
    change = delete_offsets(group.group_id, {*group.offsets, *pending})
    for kind in (RecordType.TOPICS, RecordType.TARGET, RecordType.GROUP):
        change.append((records.encode_group_key(kind, group.group_id), None))
    if group.classic is not None:
        key = records.encode_group_key(RecordType.CLASSIC_GROUP, group.group_id)
        change.append((key, None))
    return change
