"""Committed offsets of groups: plain and transactional commits, stable reads.

    commit       checks the membership; durable on return
    advance      commits only larger offsets, and waits for undecided ones
    txn_commit   writes a transactional batch of the producer, pending until its marker
    fetch        returns decided offsets only: ends an overdue transaction, or waits

Source: Kafka OffsetMetadataManager; OffsetCommit (8), OffsetFetch (9), TxnOffsetCommit (28),
OffsetDelete (47); KIP-98, KIP-447, KIP-848.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from eoslog._util.arguments import as_seconds, shown
from eoslog.coordinator.groups import rebalance
from eoslog.coordinator.groups.local_members import LocalMembers
from eoslog.coordinator.groups.offset_records import (
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.coordinator.groups.rebalance import Change
from eoslog.coordinator.groups.shard import GroupShards
from eoslog.coordinator.groups.state import Group, GroupTable
from eoslog.coordinator.groups.validation import check_commit, group_not_found, unknown_member
from eoslog.coordinator.host import HeldOffset, HostLog
from eoslog.errors import (
    ErrorCode,
    IllegalGeneration,
    IllegalState,
    PreparedTransactionPending,
    StaleMemberEpoch,
    TransactionAbortable,
    UnknownMember,
    UnknownTopicOrPartition,
    error_for,
)
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.directory.directory import NeverUsed
from eoslog.storage.log.published_end import PublishedEnd

_STABLE_POLL_S = 0.05
_MAX_STRING_BYTES = 32_767  # the limit of a string in a record
_REMADE = (
    "topic {!r} was deleted and re-created: these offsets belong to the old topic; read the new "
    "topic, and commit its offsets"
)

_MissingTopic = type[UnknownTopicOrPartition] | type[TransactionAbortable]
OffsetMap = Mapping[TopicPartition, OffsetAndMetadata]


class _Undecided(Exception):
    """A transaction has an offset of one of the partitions, and is not decided."""


class GroupOffsets:
    """Writes and reads committed offsets. Thread-safe."""

    def __init__(
        self, shards: GroupShards, members: LocalMembers, offset_metadata_max_bytes: int
    ) -> None:
        """Serve the groups of a directory; the limit is that of an offset's metadata."""
        self._shards = shards
        self._host = shards.host
        self._members = members
        self._metadata_max_bytes = offset_metadata_max_bytes

    # Commits.

    def commit(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        offsets: OffsetMap,
        *,
        forward_only: bool = False,
    ) -> None:
        """See `GroupCoordinator.commit_offsets`, and `advance` for `forward_only`."""
        topics = self._check_partitions(offsets)
        fitting, too_large = self._split_by_metadata(offsets)
        shard = self._shards.of(group_id)

        def decide(table: GroupTable) -> Change:
            group = table.groups.get(group_id)
            check_commit(group, group_id, member_id, member_epoch, instance_id, transactional=False)
            self._check_owner(group, member_id, topics, fitting, StaleMemberEpoch)
            self._check_topics(topics, UnknownTopicOrPartition)
            if not forward_only:
                return self._commit_records(group_id, fitting)
            ahead = _beyond(group, fitting)
            if not ahead.keys().isdisjoint(table.pending_of(group_id)):
                raise _Undecided  # the record of now would win over a larger offset
            return self._commit_records(group_id, ahead)

        try:
            result = shard.change(decide)
        except (UnknownMember, StaleMemberEpoch, IllegalGeneration) as error:
            raise self._members.explained(error, group_id, member_id) from None
        # Without a record, the call rests on offsets of other processes, which may not be durable.
        shard.log.flush(shard.log.log_end if result is None else result.last_offset + 1)
        if too_large:
            raise self._too_large(too_large)

    def advance(self, group_id: str, offsets: OffsetMap, timeout: float) -> None:
        """Commit the offsets that are larger than the group's, without membership.

        The comparison and the write are one conditional append. The call waits until transactions
        with offsets of these partitions are decided, because one of them may be larger.
        """
        while True:
            self.fetch(group_id, offsets, require_stable=True, timeout=timeout, closing=bool)
            with contextlib.suppress(_Undecided):  # one came after the wait
                return self.commit(group_id, "", -1, None, offsets, forward_only=True)

    def txn_commit(
        self,
        group_id: str,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        offsets: OffsetMap,
        also: Collection[TopicPartition] = (),
        on_listed: Callable[[tuple[Any, int]], None] | None = None,
        *,
        forward_only: bool = False,
    ) -> TopicPartition:
        """See `GroupCoordinator.txn_offset_commit`."""
        topics = self._check_partitions(offsets, TransactionAbortable)
        _, too_large = self._split_by_metadata(offsets)
        if too_large and not forward_only:  # those of a delivery were checked at the prepare
            raise self._too_large(too_large)
        shard = self._shards.of(group_id)
        events = self._host.transactions.events

        def conditions() -> list[tuple[Any, int]]:
            # When the batch is appended, the coordinator's log must still say that the transaction
            # is Ongoing and lists this partition. Otherwise no marker would end the batch.
            add = partial(
                self._host.transactions.add_offsets_to_txn,
                transactional_id, producer_id, producer_epoch, group_id,
            )  # fmt: skip
            try:
                listed = add(also)
            except UnknownTopicOrPartition:
                return [add()]
            if on_listed is not None:
                on_listed(listed)
            return [listed]

        def decide(table: GroupTable) -> Change:
            group = table.groups.get(group_id)
            check_commit(group, group_id, member_id, member_epoch, instance_id, transactional=True)
            self._check_owner(group, member_id, topics, offsets, IllegalGeneration)
            self._check_topics(topics, TransactionAbortable)
            wanted = _beyond(group, offsets) if forward_only else offsets
            return self._commit_records(group_id, wanted)

        with events.request(
            "TxnOffsetCommit", transactional_id, producer_id, producer_epoch, group_id=group_id
        ):
            try:
                result = shard.change(
                    decide,
                    conditions=conditions,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    transactional=True,
                )
            except (UnknownMember, IllegalGeneration) as error:
                raise self._members.explained(error, group_id, member_id) from None
        log = shard.log
        base = None if result is None else result.base_offset
        return TopicPartition(log.topic, log.partition, base)

    def check_staged(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        offsets: OffsetMap,
        *,
        token: str | None,
    ) -> tuple[HostLog, int]:
        """See `GroupCoordinator.check_staged_offsets`."""
        topics = self._check_partitions(offsets, TransactionAbortable)
        _, too_large = self._split_by_metadata(offsets)
        if too_large:
            raise self._too_large(too_large)
        shard = self._shards.of(group_id)
        with shard.folded() as (table, end):
            group = table.groups.get(group_id)
            check_commit(group, group_id, member_id, member_epoch, instance_id, transactional=True)
            self._check_owner(group, member_id, topics, offsets, IllegalGeneration)
        for held in self.held(group_id):
            tp = held.partition
            if tp in offsets and not held.decided and held.token != token:
                raise PreparedTransactionPending(
                    f"group {group_id!r}: the offset of {tp} is part of the prepared transaction "
                    f"{held.token!r}, which is not decided; decide it with log.resolve(token, "
                    "outcome), then send the offsets again"
                )
        return shard.log, end

    def _commit_records(self, group_id: str, offsets: OffsetMap) -> Change:
        now = self._host.clock_ms()
        return [
            (
                encode_offset_key(group_id, partition.topic, partition.partition),
                encode_offset_value(
                    OffsetValue(o.offset, o.leader_epoch, o.metadata or "", commit_timestamp=now)
                ),
            )
            for partition, o in sorted(offsets.items(), key=lambda item: item[0])
        ]

    def _split_by_metadata(
        self, offsets: OffsetMap
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], list[TopicPartition]]:
        """Split offsets by the length of their metadata; Kafka counts characters too."""
        limit = self._metadata_max_bytes
        fitting: dict[TopicPartition, OffsetAndMetadata] = {}
        too_large = []
        for partition, committed in offsets.items():
            text = committed.metadata or ""
            if len(text) > limit or len(text.encode()) > _MAX_STRING_BYTES:
                too_large.append(partition)
            else:
                fitting[partition] = committed
        return fitting, too_large

    def _too_large(self, partitions: Collection[TopicPartition]) -> Exception:
        return error_for(
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            f"{sorted(partitions)[0]}: the offset's metadata is longer than "
            f"{self._metadata_max_bytes} characters (offset.metadata.max.bytes), or "
            f"{_MAX_STRING_BYTES} bytes; shorten it, or raise offset.metadata.max.bytes",
        )

    def _check_partitions(
        self, offsets: OffsetMap, remade: _MissingTopic = UnknownTopicOrPartition
    ) -> dict[str, bytes]:
        """Return the topic ids by name, because a topic may be re-created under its name."""
        topics = {}
        for partition, committed in offsets.items():
            info = self._host.topic(partition.topic)
            if partition.partition not in info.partitions:
                raise UnknownTopicOrPartition(
                    f"{partition}: the topic has only {len(info.partitions)} partitions; commit "
                    f"one of 0 to {len(info.partitions) - 1}"
                )
            if committed.offset < 0:
                raise error_for(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{partition}: expected an offset of 0 or more, got {committed.offset}",
                )
            if committed.topic_id not in (None, info.topic_id):
                raise remade(_REMADE.format(partition.topic))
            topics[partition.topic] = info.topic_id
        return topics

    def _check_topics(self, topics: Mapping[str, bytes], error: _MissingTopic) -> None:
        # This check runs after the fold and before the append. `forget_topic` appends to this
        # partition: if the deletion came first, the append's condition fails; if it comes later, it
        # deletes these offsets.
        for name, topic_id in topics.items():
            try:
                known = self._host.topic(name).topic_id
            except UnknownTopicOrPartition as gone:
                raise error(
                    f"topic {shown(name)} was deleted together with its committed offsets; nothing "
                    "was committed"
                ) from gone
            if known != topic_id:
                raise error(_REMADE.format(name))

    def _check_owner(
        self,
        group: Group | None,
        member_id: str,
        topics: Mapping[str, bytes],
        offsets: OffsetMap,
        error: type[StaleMemberEpoch] | type[IllegalGeneration],
    ) -> None:
        # Kafka lets any member commit any partition. Here a member cannot commit a partition that
        # another member holds: a late commit would overwrite the new owner's progress.
        if group is None or not member_id:
            return
        # A member that holds a partition of a deleted topic does not hold that of the new topic of
        # the same name. After several re-creations, several members may hold such partitions.
        known = self._shards.names(group)
        if member_id not in group.members:
            raise unknown_member(group, member_id)
        current = group.members[member_id].current
        for topic_id, partition in current.assigned | current.pending:
            held = TopicPartition(known.get(topic_id, ""), partition)
            if held in offsets and topics[held.topic] != topic_id:
                raise error(
                    f"group {group.group_id!r}: member {member_id} has {held} of a topic that was "
                    "deleted and re-created; poll again to get the new partition"
                )
        names = {topic.topic_id: topic.name for topic in group.topics.values()}
        for other_id, other in group.members.items():
            if other_id == member_id:
                continue
            for topic_id, partition in other.current.assigned | other.current.pending:
                name = names.get(topic_id)
                if name is not None and TopicPartition(name, partition) in offsets:
                    raise error(
                        f"group {group.group_id!r}: {name}-{partition} is assigned to member "
                        f"{other_id}, not to {member_id}; poll again"
                    )

    # Reads.

    def fetch(
        self,
        group_id: str,
        wanted: Collection[TopicPartition] | None,
        *,
        require_stable: bool,
        timeout: float,
        closing: Callable[[], bool],
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """See `GroupCoordinator.fetch_offsets`."""
        try:
            shard = self._shards.of(group_id)
        except NeverUsed:  # read-only: there are no offsets
            return {}
        deadline = time.monotonic() + as_seconds("timeout", timeout)
        late = False
        while True:
            with shard.folded() as (table, end):
                found, unstable = _visible(table, group_id, wanted)
            if not require_stable:
                break
            held = [one for one in self.held(group_id) if wanted is None or one.partition in wanted]
            if shard.log.log_end != end:  # an offset may have been delivered between the two looks
                with shard.folded() as (table, end):
                    found, more = _visible(table, group_id, wanted)
                unstable |= more
            unstable |= add_held(held, found)
            if not unstable:
                break
            if closing():
                raise IllegalState(
                    f"group {group_id!r}: the consumer was closed while it waited for offsets"
                )
            self._host.transactions.resolve_blockers(shard.log)
            left = deadline - time.monotonic()
            if shard.log.log_end != end and not late:
                late = left <= 0  # other groups may append all the time
                continue
            if self._host.is_fixed:
                raise error_for(
                    ErrorCode.UNSTABLE_OFFSET_COMMIT,
                    f"group {group_id!r}: the offset of {sorted(unstable)[0]} is part of a "
                    "transaction that has not ended, and this read-only log ends none: open it for "
                    "writing, or see log.pending()",
                )
            if left <= 0:
                raise error_for(
                    ErrorCode.UNSTABLE_OFFSET_COMMIT,
                    f"group {group_id!r}: the offset of {sorted(unstable)[0]} is part of a "
                    f"transaction that is undecided after {timeout} s; retry, or see "
                    "log.blockers()",
                )
            shard.log.wait(end, min(_STABLE_POLL_S, left), of=PublishedEnd.LOG_END)
        if found and not self._host.read_only:
            # The caller acts on the offset, so a power loss must not take it back.
            shard.log.flush(end)
        return found

    def held(self, group_id: str) -> Iterator[HeldOffset]:
        """The group's offsets in staged transactions, without those of deleted topics."""
        for held in self._host.transactions.held_offsets(group_id):
            with contextlib.suppress(UnknownTopicOrPartition):
                if self._host.topic(held.partition.topic).topic_id == held.topic_id:
                    yield held

    def staged(self, group_id: str) -> dict[TopicPartition, str]:
        """See `GroupCoordinator.staged_offsets`."""
        return {held.partition: held.token for held in self.held(group_id) if not held.decided}

    # Administration.

    def delete(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """See `GroupCoordinator.delete_offsets`."""
        shard = self._shards.of(group_id)

        def decide(table: GroupTable) -> Change:
            pending = set(table.pending_of(group_id))
            group = table.groups.get(group_id) or (Group(group_id) if pending else None)
            if group is None:
                raise group_not_found(group_id)
            subscribed = group.topics.keys() & {p.topic for p in partitions}
            if group.members and subscribed:
                raise error_for(
                    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                    f"group {group_id!r} has members that are subscribed to topic "
                    f"{sorted(subscribed)[0]!r}; stop them first",
                )
            known = group.offsets.keys() | pending
            return rebalance.delete_offsets(group_id, known & set(partitions))

        result = shard.change(decide)
        if result is not None:
            shard.log.flush(result.last_offset + 1)


def _beyond(group: Group | None, offsets: OffsetMap) -> OffsetMap:
    """The offsets that are larger than the group's."""
    known = {} if group is None else group.offsets
    return {
        tp: one
        for tp, one in offsets.items()
        if tp not in known or known[tp].value.offset < one.offset
    }


def _visible(
    table: GroupTable, group_id: str, wanted: Collection[TopicPartition] | None
) -> tuple[dict[TopicPartition, OffsetAndMetadata], set[TopicPartition]]:
    """The group's committed offsets, and the partitions with a pending one."""
    unstable = set(table.pending_of(group_id))
    if wanted is not None:
        unstable.intersection_update(wanted)
    group = table.groups.get(group_id)
    return {} if group is None else _public(group, wanted), unstable


def add_held(
    held: Iterable[HeldOffset], found: dict[TopicPartition, OffsetAndMetadata]
) -> set[TopicPartition]:
    """Add offsets of committed staged transactions that are not delivered.

    Returns:
        The partitions whose offset is part of an undecided one.
    """
    undecided = set()
    for one in held:
        tp = one.partition
        if not one.decided:
            undecided.add(tp)
        elif tp not in found or found[tp].offset < one.value.offset:
            found[tp] = one.value
    return undecided


def _public(
    group: Group, wanted: Collection[TopicPartition] | None
) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        partition: stored.value.public()
        for partition, stored in group.offsets.items()
        if wanted is None or partition in wanted
    }
