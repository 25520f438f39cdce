"""New generations: what to write when somebody joins, leaves, takes over, or a topic changes.

Every function looks at a group and returns records; appended as one batch they are the change.
Membership and target are written together, so that no reader sees one without the other.

Source: Kafka GroupMetadataManager, TargetAssignmentBuilder; KIP-345, KIP-848.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from eoslog.coordinator import group_records as records
from eoslog.coordinator.assignors import DEFAULT_ASSIGNOR, MemberSubscription, assign
from eoslog.coordinator.group_records import (
    NOTHING,
    STATIC_LEAVE_EPOCH,
    CurrentAssignment,
    MemberMetadata,
    Owned,
    RecordType,
    TopicMetadata,
)
from eoslog.coordinator.group_state import Group
from eoslog.coordinator.offset_records import encode_offset_key
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
    """What the group's target depends on: the topics of all members."""
    names = frozenset[str]().union(*(topics_of(member, catalogue) for member in members))
    return {name: catalogue[name] for name in sorted(names)}


def group_assignor(members: Collection[MemberMetadata]) -> str:
    """The strategy most members ask for; the first by name of equally popular ones."""
    votes = Counter(member.assignor or DEFAULT_ASSIGNOR for member in members)
    if not votes:
        return DEFAULT_ASSIGNOR
    return min(votes, key=lambda name: (-votes[name], name))


def compute_target(
    members: Mapping[str, MemberMetadata], previous: Mapping[str, Owned], catalogue: Catalogue
) -> dict[str, Owned]:
    """The target of every member, by topic id."""
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
    """The generation after the group's present one, classic generations counted."""
    classic = group.classic.generation if group.classic is not None else 0
    return max(group.epoch, group.target_epoch, classic, 0) + 1


def new_generation(
    group: Group,
    members: Mapping[str, MemberMetadata],
    catalogue: Catalogue,
    previous: Mapping[str, Owned] | None = None,
) -> Change:
    """The records that give these members a new target under a new epoch.

    Args:
        group: the group as it is.
        members: the members it shall have.
        catalogue: the directory's topics.
        previous: targets to stick to; default: those of the group's members.
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
    """A member's step towards its target."""
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
    """A member with a name of its own comes in, holding nothing."""
    change = _member_record(group.group_id, member_id, metadata)
    change += current_record(group.group_id, member_id, CurrentAssignment())
    return change + new_generation(group, {**_metadata(group), member_id: metadata}, catalogue)


def take_over(
    group: Group, old_id: str, new_id: str, metadata: MemberMetadata, catalogue: Catalogue
) -> Change:
    """A static member comes back under a new member id: the old one is fenced from here on.

    With an unchanged subscription it inherits the target and the group notices nothing.
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
    """A member changes what it subscribes to."""
    change = _member_record(group.group_id, member_id, metadata)
    return change + new_generation(group, {**_metadata(group), member_id: metadata}, catalogue)


def remove(group: Group, member_ids: Collection[str], catalogue: Catalogue) -> Change:
    """Members leave or are found dead; what they held is free at once."""
    change: Change = []
    for member_id in sorted(member_ids):
        change += _removed(group.group_id, member_id)
    rest = {m: metadata for m, metadata in _metadata(group).items() if m not in member_ids}
    return change + new_generation(group, rest, catalogue)


def leave_for_a_while(group: Group, member_id: str) -> Change:
    """A static member goes and keeps its place until its session ends or it comes back."""
    current = replace(
        group.members[member_id].current,
        epoch=STATIC_LEAVE_EPOCH,
        previous_epoch=-1,
        pending=NOTHING,
    )  # it reads nothing now: what it was to let go of is free
    return current_record(group.group_id, member_id, current)


def delete_offsets(group_id: str, partitions: Collection[TopicPartition]) -> Change:
    """Tombstones of committed offsets; they clear pending ones too."""
    return [
        (encode_offset_key(group_id, partition.topic, partition.partition), None)
        for partition in sorted(partitions)
    ]


def delete_group(group: Group, pending: Collection[TopicPartition]) -> Change:
    """Tombstones of everything that is known of an empty group."""
    change = delete_offsets(group.group_id, {*group.offsets, *pending})
    for kind in (RecordType.TOPICS, RecordType.TARGET, RecordType.GROUP):
        change.append((records.encode_group_key(kind, group.group_id), None))
    if group.classic is not None:
        key = records.encode_group_key(RecordType.CLASSIC_GROUP, group.group_id)
        change.append((key, None))
    return change
