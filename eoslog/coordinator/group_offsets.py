"""Committed offsets of groups: plain commits, commits inside transactions, stable reads.

    commit_offsets      checked against the membership, durable on return
    txn_offset_commit   a transactional batch of the producer, pending until its marker
    fetch_offsets       never tells of an undecided offset: drives the transaction or waits

Source: Kafka OffsetMetadataManager; OffsetCommit (8), OffsetFetch (9), TxnOffsetCommit (28),
OffsetDelete (47); KIP-98, KIP-447, KIP-848.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eoslog.config import LogConfig
from eoslog.coordinator import group_rebalance as rebalance
from eoslog.coordinator.group_rebalance import Change
from eoslog.coordinator.group_shard import GroupShard
from eoslog.coordinator.group_state import Group, GroupTable
from eoslog.coordinator.offset_records import (
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.errors import (
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    StaleMemberEpoch,
    TransactionAbortable,
    UnknownMember,
    UnknownTopicOrPartition,
    error_for,
)
from eoslog.model import OffsetAndMetadata, TopicPartition

DEFAULT_TIMEOUT_S = 60.0
NO_GENERATION = -1
_STABLE_POLL_S = 0.05
_MAX_STRING_BYTES = 32_767  # of a string in a record
_REMADE = "topic {!r} was deleted and made again: the offsets are those of the old one"

_Refusal = type[UnknownTopicOrPartition] | type[TransactionAbortable]
OffsetMap = Mapping[TopicPartition, OffsetAndMetadata]


class GroupOffsets:
    """The offset half of the group coordinator.

    Thread-safety: any thread.
    """

    def __init__(self, host: Any, config: LogConfig | None = None) -> None:
        """Serve the groups of a directory open in this process, within its limits."""
        self._host = host
        self._config = config or LogConfig.of()
        # Names of topic ids, kept after a deletion so that members can be told to let go.
        self._topic_names: dict[bytes, str] = {}
        self._shards: dict[tuple[str, int], GroupShard] = {}
        self._shards_mutex = threading.Lock()

    def _shard(self, group_id: str) -> GroupShard:
        if not isinstance(group_id, str) or not group_id:
            raise error_for(ErrorCode.INVALID_GROUP_ID, f"group id {group_id!r}")
        return self._shard_of(self._host.group_partition(group_id))

    def _shard_of(self, log: Any) -> GroupShard:
        key = (log.topic, log.partition)
        with self._shards_mutex:
            shard = self._shards.get(key)
            if shard is None or shard.log is not log:
                shard = self._shards[key] = GroupShard(log, self._host.clock_ms)
            return shard

    # Commits.

    def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        offsets: OffsetMap,
        *,
        instance_id: str | None = None,
    ) -> None:
        """Commit where a group goes on reading (OffsetCommit).

        Args:
            group_id: the group.
            member_id: the member that commits, "" without membership (manual assignment).
            member_epoch: its generation, -1 without membership.
            offsets: next offset to read, per partition.
            instance_id: the member's static name, if it has one.

        Raises:
            UnknownMember: the group has members and this is none of them (any more).
            FencedInstanceId: another member took over the static name.
            StaleMemberEpoch: the epoch is not the member's, or a partition is another member's.
            IllegalGeneration: a generation is given where the group has none.
            UnknownTopicOrPartition: nothing was committed; also where a topic was made again.
            KafkaError: OFFSET_METADATA_TOO_LARGE, after the other offsets were committed.

        Durability: durable on return.
        """
        topics = self._check_partitions(offsets)
        fitting, too_large = self._split_by_metadata(offsets)
        shard = self._shard(group_id)

        def decide(table: GroupTable) -> Change:
            group = table.groups.get(group_id)
            check_commit(group, group_id, member_id, member_epoch, instance_id, transactional=False)
            self._check_owner(group, member_id, topics, fitting, StaleMemberEpoch)
            self._check_topics(topics, UnknownTopicOrPartition)
            return self._commit_records(group_id, fitting)

        result = shard.change(decide)
        if result is not None:
            shard.log.flush(result.last_offset + 1)
        if too_large:
            raise self._too_large(too_large)

    def txn_offset_commit(
        self,
        group_id: str,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        offsets: OffsetMap,
    ) -> TopicPartition:
        """Commit offsets as a part of a transaction (AddOffsetsToTxn and TxnOffsetCommit).

        They are one transactional batch of the producer in the group's partition and become
        visible, or vanish, with the transaction's marker there. Member id "" and generation -1
        (a producer that only knows the group's name) are accepted in any state, unfenced.

        Returns:
            The partition that now takes part in the transaction, with the batch's base offset;
            the batch has one record per partition of `offsets`.

        Raises:
            IllegalGeneration: the generation is not the member's, or a partition is another's.
            UnknownMember, FencedInstanceId: as for `commit_offsets`.
            ProducerFenced, InvalidProducerEpoch, InvalidTxnState: the transaction is not this
                producer's to write to.
            TransactionAbortable: a topic was deleted, or made again, while this went on.
            KafkaError: OFFSET_METADATA_TOO_LARGE; nothing was written.

        Durability: published on return; the transaction's commit makes it durable.
        """
        topics = self._check_partitions(offsets, TransactionAbortable)
        _, too_large = self._split_by_metadata(offsets)
        if too_large:
            raise self._too_large(too_large)
        shard = self._shard(group_id)
        events = self._host.transactions.events

        def conditions() -> list[tuple[Any, int]]:
            # Ongoing, with this partition listed, must be what the coordinator's log still says
            # when the batch is appended; otherwise it could outlive its transaction.
            return [
                self._host.transactions.add_offsets_to_txn(
                    transactional_id, producer_id, producer_epoch, group_id
                )
            ]

        def decide(table: GroupTable) -> Change:
            group = table.groups.get(group_id)
            check_commit(group, group_id, member_id, member_epoch, instance_id, transactional=True)
            self._check_owner(group, member_id, topics, offsets, IllegalGeneration)
            self._check_topics(topics, TransactionAbortable)
            return self._commit_records(group_id, offsets)

        with events.request(
            "TxnOffsetCommit", transactional_id, producer_id, producer_epoch, group_id=group_id
        ):
            result = shard.change(
                decide,
                conditions=conditions,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=True,
            )
        log = shard.log
        base = None if result is None else result.base_offset
        return TopicPartition(log.topic, log.partition, base)

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
        """What fits, and whose metadata is too long; Kafka counts characters too."""
        limit = self._config.offset_metadata_max_bytes
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
            f"{sorted(partitions)[0]}: offset metadata is longer than offset.metadata.max.bytes = "
            f"{self._config.offset_metadata_max_bytes} characters, or {_MAX_STRING_BYTES} bytes",
        )

    def _check_partitions(
        self, offsets: OffsetMap, remade: _Refusal = UnknownTopicOrPartition
    ) -> dict[str, bytes]:
        """Which topics these are, by name: a name may be another topic's a moment later."""
        topics = {}
        for partition, committed in offsets.items():
            info = self._host.topic(partition.topic)
            if partition.partition not in info.partitions:
                raise UnknownTopicOrPartition(
                    f"{partition}: {partition.topic} has {len(info.partitions)} partitions"
                )
            if committed.offset < 0:
                raise error_for(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition}: cannot commit {committed.offset}"
                )
            if committed.topic_id not in (None, info.topic_id):
                raise remade(_REMADE.format(partition.topic))
            topics[partition.topic] = info.topic_id
        return topics

    def _check_topics(self, topics: Mapping[str, bytes], error: _Refusal) -> None:
        # After the fold and before the append: a deletion that comes later goes through this
        # partition after it (`forget_topic`), and one that came first moves its end.
        for name, topic_id in topics.items():
            try:
                known = self._host.topic(name).topic_id
            except UnknownTopicOrPartition as gone:
                raise error(f"topic {name!r} was deleted: its offsets are gone with it") from gone
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
        # Kafka lets any member commit any partition. A partition that another member holds was
        # taken from this one; its late commit would send the new owner's progress back.
        if group is None or not member_id:
            return
        # Who holds a partition of a deleted topic has not been given that of the one that has the
        # name now: of several topics in a row, several members may hold "it" at one time.
        known = self._names(group)
        current = group.members[member_id].current
        for topic_id, partition in current.assigned | current.pending:
            held = TopicPartition(known.get(topic_id, ""), partition)
            if held in offsets and topics[held.topic] != topic_id:
                raise error(
                    f"group {group.group_id}: {held} was given to {member_id} of a topic that "
                    "was deleted"
                )
        names = {topic.topic_id: topic.name for topic in group.topics.values()}
        for other_id, other in group.members.items():
            if other_id == member_id:
                continue
            for topic_id, partition in other.current.assigned | other.current.pending:
                name = names.get(topic_id)
                if name is not None and TopicPartition(name, partition) in offsets:
                    raise error(
                        f"group {group.group_id}: {name}-{partition} belongs to {other_id}, "
                        f"not to {member_id}"
                    )

    def _names(self, group: Group) -> dict[bytes, str]:
        names = dict(self._topic_names)
        names.update((topic.topic_id, topic.name) for topic in group.topics.values())
        return names

    # Reads.

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets (OffsetFetch); partitions without one are left out.

        Args:
            group_id: the group.
            partitions: which ones; None: all.
            require_stable: settle undecided transactions on these partitions first, by driving
                those that are due and waiting for the others.
            timeout: longest wait in seconds.

        Raises:
            KafkaError: UNSTABLE_OFFSET_COMMIT, retriable: a transaction is still open.

        Durability: what is returned is durable.
        """
        wanted = None if partitions is None else set(partitions)
        shard = self._shard(group_id)
        deadline = time.monotonic() + timeout
        while True:
            with shard.folded() as (table, end):
                unstable = set(table.pending_of(group_id)) if require_stable else set()
                if wanted is not None:
                    unstable &= wanted
                group = table.groups.get(group_id)
                found = {} if group is None else _public(group, wanted)
            if not unstable:
                break
            self._host.transactions.resolve_blockers(shard.log)
            left = deadline - time.monotonic()
            if shard.log.log_end != end:
                continue
            if left <= 0:
                raise error_for(
                    ErrorCode.UNSTABLE_OFFSET_COMMIT,
                    f"group {group_id}: {sorted(unstable)[0]} has an undecided transactional "
                    f"offset after {timeout} s",
                )
            shard.log.wait(end, min(_STABLE_POLL_S, left), of="log_end")
        if found and not getattr(self._host, "read_only", False):
            # An offset that was acted on must not be taken back by a power cut.
            shard.log.flush(end)
        return found

    # Administration.

    def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Forget committed offsets (OffsetDelete), pending ones too.

        Raises:
            GroupNotFound: no such group.
            KafkaError: GROUP_SUBSCRIBED_TO_TOPIC, a member reads one of the topics.

        Durability: durable on return.
        """
        shard = self._shard(group_id)

        def decide(table: GroupTable) -> Change:
            pending = set(table.pending_of(group_id))
            group = table.groups.get(group_id) or (Group(group_id) if pending else None)
            if group is None:
                raise error_for(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {group_id!r}")
            subscribed = group.topics.keys() & {p.topic for p in partitions}
            if group.members and subscribed:
                raise error_for(
                    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                    f"group {group_id} is subscribed to {sorted(subscribed)[0]}",
                )
            known = group.offsets.keys() | pending
            return rebalance.delete_offsets(group_id, known & set(partitions))

        result = shard.change(decide)
        if result is not None:
            shard.log.flush(result.last_offset + 1)


def check_commit(
    group: Group | None,
    group_id: str,
    member_id: str,
    member_epoch: int,
    instance_id: str | None,
    *,
    transactional: bool,
) -> None:
    """Whether a commit may be written; Kafka's order of questions.

    Raises:
        UnknownMember, FencedInstanceId, IllegalGeneration, StaleMemberEpoch: it may not.
    """
    if group is None or not group.members:
        if member_epoch < 0:
            return
        if group is None:
            raise IllegalGeneration(
                f"group {group_id}: no such group, commit has generation {member_epoch}"
            )
        raise UnknownMember(f"group {group_id} has no members, commit is by {member_id!r}")
    if member_epoch < 0 and not member_id and instance_id is None:
        if transactional:
            return
        raise UnknownMember(
            f"group {group_id} has {len(group.members)} members, commit is by none of them"
        )
    check_member(group, member_id, instance_id)
    current = group.members[member_id].current.epoch
    if member_epoch != current:
        error = IllegalGeneration if transactional else StaleMemberEpoch
        raise error(
            f"group {group_id}: member {member_id} is at epoch {current}, "
            f"the commit at {member_epoch}"
        )


def check_member(group: Group, member_id: str, instance_id: str | None) -> None:
    """Whether a member is what it says it is.

    Raises:
        UnknownMember: it is not in the group.
        FencedInstanceId: its static name has another member id now.
    """
    if instance_id is not None:
        holder = group.by_instance(instance_id)
        if holder is not None and holder != member_id:
            raise FencedInstanceId(
                f"group {group.group_id}: instance {instance_id!r} is {holder} now, not {member_id}"
            )
    if member_id not in group.members:
        raise UnknownMember(f"group {group.group_id} has no member {member_id!r}")


def _public(
    group: Group, wanted: Collection[TopicPartition] | None
) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        partition: stored.value.public()
        for partition, stored in group.offsets.items()
        if wanted is None or partition in wanted
    }
