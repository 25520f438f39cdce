"""The group coordinator: members, assignments and committed offsets.

**Rebalance.** The process that adds or removes a member computes a new target assignment, and
writes it with a new generation. Each member then moves towards the target at its own heartbeats, in
three steps:

1. It releases the partitions that are not in its target.
2. Its epoch advances to that of the target.
3. It is granted the partitions of its target that no other member holds.

No call waits for another member.

**Removal of members.** A member is removed in these cases:

- Its process has exited. A killed process is noticed immediately.
- Its process is suspended: there is no heartbeat for session.timeout.ms.
- It has stopped polling: its own process removes it after its rebalance timeout
  (max.poll.interval.ms).

A static member keeps its assignment for session.timeout.ms after its process has exited. The
processes that watch the group count this time.

    Kafka's request              method                        module
    ConsumerGroupHeartbeat (68)  join (epoch 0), heartbeat,    membership.py
                                 leave (epoch -1, -2)
    OffsetCommit (8)             commit_offsets                offsets.py
    TxnOffsetCommit (28)         txn_offset_commit             offsets.py
    OffsetFetch (9)              fetch_offsets                 offsets.py
    OffsetDelete (47)            delete_offsets                offsets.py
    ListGroups (16)              list_groups                   admin.py
    DescribeGroups (15, 69)      describe_group                admin.py
    DeleteGroups (42)            delete_group                  admin.py

All modules share `GroupShards`, the folds of the partitions of `__consumer_offsets`.

Source: Kafka GroupMetadataManager, KIP-848, KIP-345, KIP-62.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import as_items
from eoslog.config.keys import LogConfig
from eoslog.coordinator.groups.admin import GroupAdmin
from eoslog.coordinator.groups.assignors import DEFAULT_ASSIGNOR
from eoslog.coordinator.groups.expiry import OffsetExpiry
from eoslog.coordinator.groups.liveness import GroupLiveness
from eoslog.coordinator.groups.local_members import LocalMembers
from eoslog.coordinator.groups.membership import GroupMembership, Heartbeat
from eoslog.coordinator.groups.offsets import GroupOffsets, OffsetMap
from eoslog.coordinator.groups.shard import GroupShards
from eoslog.coordinator.host import GroupHost, HostLog
from eoslog.descriptions import GroupDescription
from eoslog.model import OffsetAndMetadata, TopicPartition

DEFAULT_TIMEOUT_S = 60.0


@explained_calls()
class GroupCoordinator:
    """Reads and changes the groups of a directory.

    Thread-safe, and safe with any number of processes: the group's partition of
    `__consumer_offsets` orders their changes.
    """

    def __init__(self, host: GroupHost, config: LogConfig | None = None) -> None:
        """Serve the groups of an open directory; `config` has the limits."""
        config = config or LogConfig.of()
        self._shards = shards = GroupShards(host)
        self._members = members = LocalMembers()
        liveness = GroupLiveness(shards)
        self._membership = GroupMembership(shards, liveness, members, config)
        self._offsets = GroupOffsets(shards, members, config.offset_metadata_max_bytes)
        self._admin = GroupAdmin(shards, liveness, self._offsets)
        self._expiry = OffsetExpiry(shards)

    # Membership.

    def join(
        self,
        group_id: str,
        member_id: str | None = None,
        *,
        subscription: Sequence[str] | str | re.Pattern[str],
        assignor: str = DEFAULT_ASSIGNOR,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        instance_id: str | None = None,
        client_id: str = "",
    ) -> str:
        """Join a group, or change a member's subscription.

        A new member has no partitions and epoch 0. Its first heartbeat returns its assignment. If
        another member has the static name, the new member takes over the name and the target.

        Args:
            group_id: the group, which is created if it is new.
            member_id: the member, which is new if the group does not have it; None for a new
                one. A caller that chose the id can remove the member after an interrupt.
            subscription: topic names, or a pattern that must match complete names.
            assignor: one of `assignors.ASSIGNORS`; the group uses the one that most members have.
            session_timeout_ms: the time without a heartbeat after which a process counts as dead.
            rebalance_timeout_ms: the longest time between two polls (max.poll.interval.ms).
            instance_id: the static name (group.instance.id).
            client_id: a name for tools, and the prefix of the member id.

        Returns:
            The member id.

        Raises:
            ConfigError: if the pattern is not a regular expression.
            KafkaError: UNSUPPORTED_ASSIGNOR, INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT,
                GROUP_MAX_SIZE_REACHED.
        """
        return self._membership.join(
            group_id,
            member_id,
            subscription=subscription,
            assignor=assignor,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            instance_id=instance_id,
            client_id=client_id,
        )

    def new_member_id(self, group_id: str, instance_id: str | None, client_id: str) -> str:
        """Choose the id of a member that will join.

        Raises:
            KafkaError: INVALID_GROUP_ID.
        """
        return self._membership.new_member_id(group_id, instance_id, client_id)

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        owned: Collection[TopicPartition],
        *,
        instance_id: str | None = None,
    ) -> Heartbeat:
        """Take the member's next step towards its target, and remove dead members.

        Args:
            group_id: the group.
            member_id: the member.
            member_epoch: the epoch of the last heartbeat, 0 after joining.
            owned: all partitions that the member still reads.
            instance_id: the member's static name, or None.

        Returns:
            The member's epoch, its partitions, and those that it must release.

        Raises:
            UnknownMember: if the member was removed; it has lost its partitions.
            FencedInstanceId: if another member took over the static name.
            FencedMemberEpoch: if the epoch is not the member's; it has lost its partitions.
        """
        held = frozenset(as_items(owned))
        return self._membership.heartbeat(group_id, member_id, member_epoch, held, instance_id)

    def leave(self, group_id: str, member_id: str) -> None:
        """Leave a group; a static member keeps its assignment until its session ends.

        Does nothing if the group has no such member.
        """
        self._membership.leave(group_id, member_id)

    def remove_members(self, group_id: str, member_ids: Collection[str]) -> None:
        """Remove members, static ones too (LeaveGroup by an administrator).

        Raises:
            GroupNotFound: if the group does not exist.
            UnknownMember: if the group has no such member; nothing was changed.
        """
        self._membership.remove(group_id, member_ids)

    def last_poll(self, group_id: str, member_id: str) -> float | None:
        """Seconds since the last poll of a member of this process; else None."""
        local = self._members.find(group_id, member_id)
        return None if local is None else time.monotonic() - local.last_poll

    def tick(self) -> None:
        """Remove members that stopped polling, and dead members of their groups.

        Runs in a thread of its own, so that a long poll loop delays no other member, and a wait for
        the lock of a group's partition delays no heartbeat.
        """
        self._membership.tick()

    # Offsets.

    def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        offsets: OffsetMap,
        *,
        instance_id: str | None = None,
    ) -> None:
        """Commit the positions at which a group resumes reading (OffsetCommit).

        Args:
            group_id: the group.
            member_id: the committing member; "" without membership (manual assignment).
            member_epoch: the member's generation; -1 without membership.
            offsets: the next offset to read of each partition.
            instance_id: the member's static name, or None.

        Raises:
            UnknownMember: if the group has members, and this is not one of them.
            FencedInstanceId: if another member took over the static name.
            StaleMemberEpoch: if the epoch is not the member's, or another member owns a partition.
            IllegalGeneration: if a generation is given, but the group does not exist.
            UnknownTopicOrPartition: if a partition does not exist, or its topic was re-created;
                nothing was committed.
            KafkaError: OFFSET_METADATA_TOO_LARGE; the other offsets were committed.

        Durability:
            The offsets are durable on return.
        """
        self._offsets.commit(group_id, member_id, member_epoch, instance_id, offsets)

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
        also: Collection[TopicPartition] = (),
        on_listed: Callable[[tuple[Any, int]], None] | None = None,
        *,
        forward_only: bool = False,
    ) -> TopicPartition:
        """Commit offsets in a transaction (AddOffsetsToTxn and TxnOffsetCommit).

        The offsets are one transactional batch of the producer in the group's partition. The
        transaction's marker makes them visible or drops them. With member id "" and generation -1
        (a producer that only knows the group's name), the commit is accepted in any state of the
        group, without fencing.

        The record of the coordinator that adds the group's partition to the transaction also adds
        the partitions `also`, where the producer will write. `on_listed` is called with the
        condition for its first append there, as `add_partitions_to_txn` returns it; not if a topic
        of them was deleted, which is left to the producer's own request.

        With `forward_only`, offsets that are not larger than the group's are left out, because the
        group may have gone on since a transaction was staged.

        Returns:
            The partition that now takes part in the transaction, with the batch's base offset. The
            batch has one record for each partition of `offsets`.

        Raises:
            IllegalGeneration: if the generation is not the member's, or another member owns a
                partition.
            UnknownMember, FencedInstanceId: as for `commit_offsets`.
            ProducerFenced, InvalidProducerEpoch, InvalidTxnState: if the transaction is not open
                for this producer.
            TransactionAbortable: if a topic was deleted or re-created.
            KafkaError: OFFSET_METADATA_TOO_LARGE; nothing was written.

        Durability:
            The batch is published on return. The transaction's commit makes it durable.
        """
        return self._offsets.txn_commit(
            group_id, transactional_id, producer_id, producer_epoch, member_id, member_epoch,
            instance_id, offsets, also, on_listed, forward_only=forward_only,
        )  # fmt: skip

    def check_staged_offsets(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        offsets: OffsetMap,
        *,
        token: str | None = None,
    ) -> tuple[HostLog, int]:
        """Check that a staged transaction may commit offsets when it is delivered.

        Its producer calls this before and after it is prepared. A member that joins later finds the
        prepared transaction (`fetch_offsets`). One that joined earlier fails the append, or the
        second call.

        Args:
            group_id: the group.
            member_id: the member that has read the records.
            member_epoch: its generation.
            instance_id: its static name.
            offsets: the offsets.
            token: the token of the transaction itself, once it is prepared.

        Returns:
            (the group's partition, its end): the condition (`expect`) for the append.

        Raises:
            PreparedTransactionPending: if another undecided transaction has one of the offsets.
            EoslogError: as `txn_offset_commit`, for the member, the topics and the metadata.
        """
        return self._offsets.check_staged(
            group_id, member_id, member_epoch, instance_id, offsets, token=token
        )

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
        closing: Callable[[], bool] = bool,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets (OffsetFetch).

        Partitions without an offset are left out.

        Args:
            group_id: the group.
            partitions: some partitions; None means all.
            require_stable: wait until transactions with these offsets are decided, and end those
                that are overdue.
            timeout: the longest wait in seconds.
            closing: returns True if the caller closes, which ends the wait.

        Raises:
            IllegalState: if the caller closes.
            KafkaError: UNSTABLE_OFFSET_COMMIT, if a transaction is still open; retriable. A fixed
                view raises it immediately.

        Durability:
            The returned offsets are durable.
        """
        wanted = None if partitions is None else set(as_items(partitions))
        return self._offsets.fetch(
            group_id, wanted, require_stable=require_stable, timeout=timeout, closing=closing
        )

    def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Delete committed offsets (OffsetDelete), pending ones too.

        Raises:
            GroupNotFound: if the group does not exist.
            KafkaError: GROUP_SUBSCRIBED_TO_TOPIC, if a member is subscribed to one of the topics.

        Durability:
            The deletion is durable on return.
        """
        self._offsets.delete(group_id, partitions)

    def forget_topic(self, topic: str, topic_id: bytes) -> None:
        """Delete all offsets in a deleted topic, so that a new one of its name has none.

        A record is appended in any case, so that a commit which has checked the topic, but is not
        appended yet, must check it again. If a new topic has the name already, nothing is deleted.
        """
        self._expiry.forget_topic(topic, topic_id)

    def expire_offsets(self, retention_ms: int, ids_retention_ms: int = -1) -> int:
        """Delete committed offsets that have expired, and return how many.

        An offset expires at its own expiry time, or `retention_ms` after its commit if no member is
        subscribed to its topic. An offset with a pending transactional replacement does not expire.
        A group that becomes empty is deleted too.

        Args:
            retention_ms: the retention (offsets.retention.minutes); if negative, only explicit
                expiry times apply.
            ids_retention_ms: the same for publishing ids (publishing.id.expiration.ms).

        Source: KIP-211, Kafka OffsetMetadataManager.cleanupExpiredOffsets.
        """
        return self._expiry.expire(retention_ms, ids_retention_ms)

    # Administration.

    def list_groups(self) -> list[str]:
        """The ids of all groups, also of those that only have offsets (ListGroups)."""
        return self._admin.list_groups()

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group's state, members, assignments and visible offsets (DescribeGroups).

        Raises:
            GroupNotFound: if the group does not exist.
        """
        return self._admin.describe_group(group_id)

    def view_group(self, group_id: str) -> GroupDescription:
        """The recorded description, with members of exited processes; writes nothing."""
        return self._admin.view_group(group_id)

    def holders(self, group_id: str) -> list[tuple[str, int | None, list[TopicPartition]]]:
        """(member id, process id or None, its partitions) of each member of a group."""
        return self._admin.holders(group_id)

    def member_processes(self, group_id: str) -> dict[str, tuple[int, int]]:
        """Number and nonce of each member's process; (-1, 0) if it is not eoslog's."""
        return self._admin.member_processes(group_id)

    def subscribed_topics(self, group_id: str) -> set[str]:
        """The topics that the group's partitions are assigned from."""
        return self._admin.subscribed_topics(group_id)

    def is_pending(self, group_id: str, partition: TopicPartition, producer_id: int) -> bool:
        """Whether an offset of a producer is undecided, and was not deleted."""
        return self._admin.is_pending(group_id, partition, producer_id)

    def pending_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """The producers of the group's pending offsets, by partition."""
        return self._admin.pending_offsets(group_id)

    def staged_offsets(self, group_id: str) -> dict[TopicPartition, str]:
        """Return the undecided staged transactions with offsets, as token by partition."""
        return self._offsets.staged(group_id)

    def reset_offsets(
        self,
        group_id: str,
        offsets: OffsetMap,
        *,
        forward_only: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Set the positions at which a group without members resumes reading.

        Args:
            group_id: the group.
            offsets: the next offset to read of each partition.
            forward_only: leave out offsets that are not larger than the group's. The comparison and
                the write are one step. Transactions with offsets of these partitions are waited
                for.
            timeout: the longest wait for such a transaction, in seconds.

        Raises:
            NonEmptyGroup: if the group has members, which would not notice the change.
            PolicyViolation: if the group stores Spark write versions or publishing ids.
            EoslogError: as `commit_offsets`, and `fetch_offsets` with `forward_only`.

        Durability:
            The offsets are durable on return, also those that were larger already.
        """
        self._admin.reset_offsets(group_id, offsets, forward_only=forward_only, timeout=timeout)

    def delete_group(self, group_id: str, *, force: bool = False) -> None:
        """Delete a group and its offsets (DeleteGroups).

        Args:
            group_id: the group.
            force: also delete a group that stores Spark write versions or publishing ids.

        Raises:
            NonEmptyGroup: if the group has members.
            GroupNotFound: if the group does not exist.
            PreparedTransactionPending: if its only offsets are part of a staged transaction.
            PolicyViolation: if the group stores Spark write versions or publishing ids, and
                `force` is False.

        Durability:
            The deletion is durable on return.
        """
        self._admin.delete_group(group_id, force=force)
