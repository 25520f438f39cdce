"""The group coordinator: who is in a group, and who reads what.

Whoever joins, leaves, or finds a dead member computes the new target and writes it with a new
generation. Each member then moves towards it at its own heartbeat: it lets go first, its epoch
advances, and it is granted what nobody else holds. No call waits for another member.

A member lives as long as its process: a killed process is noticed at once, a hung one after
session.timeout.ms without a beat. A member that stops polling is taken out by its own process
after its rebalance timeout (max.poll.interval.ms). A static member keeps its place for
session.timeout.ms after its process has gone, counted by whoever watches.

    Kafka's request              here
    ConsumerGroupHeartbeat (68)  join (epoch 0), heartbeat, leave (epoch -1, -2)
    OffsetCommit (8)             commit_offsets
    TxnOffsetCommit (28)         txn_offset_commit
    OffsetFetch (9)              fetch_offsets
    OffsetDelete (47)            delete_offsets
    ListGroups (16)              list_groups
    DescribeGroups (15, 69)      describe_group
    DeleteGroups (42)            delete_group

Source: Kafka GroupMetadataManager, KIP-848, KIP-345, KIP-62.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eoslog.config import LogConfig
from eoslog.coordinator import group_rebalance as rebalance
from eoslog.coordinator.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from eoslog.coordinator.group_admin import GroupAdmin
from eoslog.coordinator.group_offsets import check_member
from eoslog.coordinator.group_rebalance import Change
from eoslog.coordinator.group_records import (
    STATIC_LEAVE_EPOCH,
    MemberMetadata,
    Owned,
)
from eoslog.coordinator.group_state import Group, GroupTable, reconcile
from eoslog.errors import (
    ConfigError,
    EoslogError,
    ErrorCode,
    FencedInstanceId,
    FencedMemberEpoch,
    UnknownMember,
    error_for,
)
from eoslog.model import TopicPartition

_WATCH_INTERVAL_S = 0.1
_TICK_S = 1.0


class Heartbeat(NamedTuple):
    """What a member may do now.

    `assigned` is what it may read from; it must let go of `to_revoke` and say so by the next
    heartbeat, whose `owned` is without them.
    """

    member_epoch: int
    assigned: frozenset[TopicPartition]
    to_revoke: frozenset[TopicPartition]


@dataclass(slots=True)
class _LocalMember:
    """A member that lives in this process; times are monotonic seconds."""

    last_poll: float
    max_poll_interval: float


class GroupCoordinator(GroupAdmin):
    """The groups of a directory, as this process sees and changes them.

    Thread-safety: any thread. Process-safety: any number of processes; the group's partition of
    `__consumer_offsets` orders their changes.
    """

    def __init__(self, host: Any, config: LogConfig | None = None) -> None:
        """Serve the groups of a directory open in this process, within its limits."""
        super().__init__(host, config)
        self._local: dict[tuple[str, str], _LocalMember] = {}
        self._next_watch: dict[str, float] = {}
        self._ticking = False
        self._mutex = threading.Lock()

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
        """Enter a group, or change a member's subscription.

        A member that comes in holds nothing and has epoch 0; its first heartbeat says what it
        may read. A static name that another member holds is taken over, place and target.

        Args:
            group_id: the group, made if it is new.
            member_id: a member's own id to change its subscription; None to come in.
            subscription: topic names, or a pattern that must match whole names.
            assignor: one of `assignors.ASSIGNORS`; the group uses what most members ask for.
            session_timeout_ms: a process silent for longer counts as dead.
            rebalance_timeout_ms: longest time between two heartbeats (max.poll.interval.ms).
            instance_id: static name.
            client_id: for show, and the beginning of the member id.

        Returns:
            The member id.

        Raises:
            ConfigError: the pattern is no regular expression.
            KafkaError: UNSUPPORTED_ASSIGNOR, INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT,
                GROUP_MAX_SIZE_REACHED.
        """
        if assignor not in ASSIGNORS:
            raise error_for(ErrorCode.UNSUPPORTED_ASSIGNOR, f"assignor {assignor!r}")
        self._check_session_timeout(session_timeout_ms)
        topics, pattern = _split_subscription(subscription)
        metadata = MemberMetadata(
            instance_id=instance_id,
            client_id=client_id,
            topics=topics,
            regex=pattern,
            rebalance_timeout_ms=rebalance_timeout_ms,
            assignor=assignor,
            process_number=self._host.process_number,
            process_nonce=self._host.process_nonce & 0xFFFFFFFFFFFFFFFF,
            session_timeout_ms=session_timeout_ms,
        )
        prefix = instance_id or client_id or "consumer"
        new_id = member_id or f"{prefix}-{uuid.uuid4()}"
        catalogue = self._catalogue()
        full = True

        def decide(table: GroupTable) -> Change:
            nonlocal full
            full = False
            group = table.groups.get(group_id) or Group(group_id)
            if new_id in group.members:
                if group.members[new_id].metadata == metadata:
                    return []
                return rebalance.resubscribe(group, new_id, metadata, catalogue)
            holder = None if instance_id is None else group.by_instance(instance_id)
            if holder is not None:
                return rebalance.take_over(group, holder, new_id, metadata, catalogue)
            full = len(group.members) >= self._config.group_max_size
            if full:  # unless members are dead
                return self._look_after(group, None, catalogue) or self._refuse_full(group)
            return rebalance.join(group, new_id, metadata, catalogue)

        shard = self._shard(group_id)
        while full:
            shard.change(decide)
        self._remember(group_id, new_id, rebalance_timeout_ms)
        return new_id

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        owned: Collection[TopicPartition],
        *,
        instance_id: str | None = None,
    ) -> Heartbeat:
        """Take the member's next step towards its target; also looks after the other members.

        Args:
            group_id: the group.
            member_id: the member.
            member_epoch: its epoch as of the last heartbeat, 0 after joining.
            owned: every partition it still reads from.
            instance_id: its static name, if it has one.

        Raises:
            UnknownMember: it was removed; what it owns is lost.
            FencedInstanceId: its static name was taken over.
            FencedMemberEpoch: the epoch is not the member's; what it owns is lost.
        """
        self._touch(group_id, member_id)
        owned = frozenset(owned)
        watch = self._watch_due(group_id)
        catalogue = self._catalogue() if watch else None
        answer: Heartbeat | None = None

        def decide(table: GroupTable) -> Change:
            nonlocal answer
            answer = None
            group = self._joined(table, group_id, member_id, instance_id)
            held = self._owned_ids(group, member_id, owned)
            self._check_epoch(group, member_id, member_epoch, held)
            if catalogue is not None and (change := self._look_after(group, member_id, catalogue)):
                return change
            current = group.members[member_id].current
            step = reconcile(group, member_id, held)
            assigned = self._named(group, step.assigned)
            answer = Heartbeat(step.epoch, assigned, self._named(group, step.pending))
            return [] if step == current else rebalance.current_record(group_id, member_id, step)

        shard = self._shard(group_id)
        try:
            while answer is None:
                shard.change(decide)
        except (UnknownMember, FencedInstanceId):
            self._forget(group_id, member_id)
            raise
        return answer

    def leave(self, group_id: str, member_id: str) -> None:
        """Leave a group; a static member keeps its place until its session ends.

        Leaving a group that one is not in does nothing.
        """

        def decide(table: GroupTable) -> Change:
            group = table.groups.get(group_id)
            if group is None or member_id not in group.members:
                return []
            member = group.members[member_id]
            if member.metadata.instance_id is None:
                return rebalance.remove(group, [member_id], catalogue)
            if member.current.epoch == STATIC_LEAVE_EPOCH:
                return []
            return rebalance.leave_for_a_while(group, member_id)

        catalogue = self._catalogue()
        self._shard(group_id).change(decide)
        # Only now: a member whose leaving failed is taken out when it has not polled for long.
        self._forget(group_id, member_id)

    def remove_members(self, group_id: str, member_ids: Collection[str]) -> None:
        """Take members out for good, static ones too (an administrator's LeaveGroup).

        Raises:
            GroupNotFound, UnknownMember: nothing was changed.
        """
        catalogue = self._catalogue()

        def decide(table: GroupTable) -> Change:
            group = self._known(table, group_id)
            missing = [m for m in member_ids if m not in group.members]
            if missing:
                raise UnknownMember(f"group {group_id} has no member {missing[0]!r}")
            return rebalance.remove(group, set(member_ids), catalogue)

        self._shard(group_id).change(decide)

    # Inside.

    def _check_session_timeout(self, timeout_ms: int) -> None:
        least = self._config.group_min_session_timeout_ms
        most = self._config.group_max_session_timeout_ms
        if not least <= timeout_ms <= most:
            raise error_for(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session.timeout.ms is {timeout_ms}, group.min.session.timeout.ms {least} and "
                f"group.max.session.timeout.ms {most}",
            )

    def _refuse_full(self, group: Group) -> Change:
        raise error_for(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"group {group.group_id} has {len(group.members)} members, group.max.size is "
            f"{self._config.group_max_size}",
        )

    def _joined(
        self, table: GroupTable, group_id: str, member_id: str, instance_id: str | None
    ) -> Group:
        group = table.groups.get(group_id)
        if group is None:
            raise UnknownMember(f"no group {group_id!r}, heartbeat is by {member_id!r}")
        check_member(group, member_id, instance_id)
        return group

    @staticmethod
    def _check_epoch(group: Group, member_id: str, epoch: int, held: Owned) -> None:
        current = group.members[member_id].current
        if current.epoch == epoch:
            return
        # The answer to the previous heartbeat may have been lost in an exception.
        if current.previous_epoch == epoch and held <= current.assigned:
            return
        raise FencedMemberEpoch(
            f"group {group.group_id}: member {member_id} is at epoch {current.epoch}, "
            f"its heartbeat at {epoch}"
        )

    def _owned_ids(self, group: Group, member_id: str, owned: Collection[TopicPartition]) -> Owned:
        current = group.members[member_id].current
        names = self._names(group)
        return frozenset(
            (topic_id, partition)
            for topic_id, partition in current.assigned | current.pending
            if topic_id in names and TopicPartition(names[topic_id], partition) in owned
        )

    def _watch_due(self, group_id: str) -> bool:
        now = time.monotonic()
        if now < self._next_watch.get(group_id, 0.0):
            return False
        self._next_watch[group_id] = now + _WATCH_INTERVAL_S
        return True

    # Members of this process.

    def _remember(self, group_id: str, member_id: str, rebalance_timeout_ms: int) -> None:
        interval = rebalance_timeout_ms / 1000 if rebalance_timeout_ms > 0 else float("inf")
        with self._mutex:
            self._local[group_id, member_id] = _LocalMember(time.monotonic(), interval)
            start, self._ticking = not self._ticking, True
        if start:
            self._host.schedule("groups", _TICK_S, self.tick)

    def _touch(self, group_id: str, member_id: str) -> None:
        with self._mutex:
            local = self._local.get((group_id, member_id))
            if local is not None:
                local.last_poll = time.monotonic()

    def _forget(self, group_id: str, member_id: str) -> None:
        with self._mutex:
            self._local.pop((group_id, member_id), None)

    def tick(self) -> None:
        """Take out members of this process that stopped polling, and look after their groups.

        Runs on a thread of its own: a long poll loop delays no one else, and what waits here for
        the lock of a group's partition holds up no heartbeat.
        """
        now = time.monotonic()
        with self._mutex:
            members = dict(self._local)
        for (group_id, member_id), local in members.items():
            if now - local.last_poll > local.max_poll_interval:
                self._attempt(self.leave, group_id, member_id)
        for group_id in {group_id for group_id, _ in members}:
            self._attempt(self._look_after_group, group_id)

    @staticmethod
    def _attempt(call: Any, *arguments: str) -> None:
        # What fails here fails again, and is raised, where the member itself polls.
        try:
            call(*arguments)
        except EoslogError:
            pass


def _split_subscription(
    subscription: Sequence[str] | str | re.Pattern[str],
) -> tuple[tuple[str, ...], str | None]:
    """Topic names, and one pattern for everything that is a pattern or begins with ^."""
    if isinstance(subscription, re.Pattern):
        return (), _pattern_text(subscription)
    if isinstance(subscription, str):
        return (), _checked(subscription)
    names = {name for name in subscription if not name.startswith("^")}
    patterns = [_checked(name) for name in subscription if name.startswith("^")]
    return tuple(sorted(names)), "|".join(f"(?:{p})" for p in patterns) or None


def _pattern_text(pattern: re.Pattern[str]) -> str:
    letters = "".join(c for c in "imsx" if pattern.flags & getattr(re, c.upper()))
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern


def _checked(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"subscription {pattern!r}: {error}") from None
    return pattern
