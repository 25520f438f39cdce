"""Group membership: join, heartbeat, leave, and eviction.

Every call that adds or removes a member computes the group's new target, and writes it with a new
generation. Each member then moves towards the target at its own heartbeats. No call waits for
another member.

Source: Kafka GroupMetadataManager, KIP-848, KIP-345, KIP-62.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from eoslog.config.keys import LogConfig
from eoslog.coordinator.groups import rebalance
from eoslog.coordinator.groups.assignors import ASSIGNORS
from eoslog.coordinator.groups.liveness import GroupLiveness
from eoslog.coordinator.groups.local_members import LocalMembers
from eoslog.coordinator.groups.rebalance import Change
from eoslog.coordinator.groups.records import STATIC_LEAVE_EPOCH, MemberMetadata, Owned
from eoslog.coordinator.groups.shard import GroupShards
from eoslog.coordinator.groups.state import Group, GroupTable, reconcile
from eoslog.coordinator.groups.validation import (
    MAX_ID_BYTES,
    MAX_NAME_BYTES,
    check_epoch,
    check_group_id,
    check_member,
    check_name,
    known_group,
)
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
from eoslog.shown_paths import get_logger

logger = get_logger("eoslog.groups")

_TICK_S = 1.0


class Heartbeat(NamedTuple):
    """The answer to a heartbeat.

    Attributes:
        member_epoch: the member's epoch.
        assigned: the partitions that the member can read.
        to_revoke: the partitions that the member must release. The `owned` of its next heartbeat
            must be without them.
    """

    member_epoch: int
    assigned: frozenset[TopicPartition]
    to_revoke: frozenset[TopicPartition]


class GroupMembership:
    """Adds, moves and removes members of groups. Thread-safe."""

    def __init__(
        self, shards: GroupShards, liveness: GroupLiveness, members: LocalMembers, config: LogConfig
    ) -> None:
        """Serve the groups of a directory, within its limits."""
        self._shards = shards
        self._host = shards.host
        self._liveness = liveness
        self._members = members
        self._config = config
        self._mutex = threading.Lock()
        self._ticking = False

    def join(
        self,
        group_id: str,
        member_id: str | None,
        *,
        subscription: Sequence[str] | str | re.Pattern[str],
        assignor: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        instance_id: str | None,
        client_id: str,
    ) -> str:
        """See `GroupCoordinator.join`."""
        if assignor not in ASSIGNORS:
            raise error_for(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"assignor {assignor!r}: expected one of {', '.join(ASSIGNORS)}",
            )
        self._check_session_timeout(session_timeout_ms)
        for what, text, most in (
            ("member id", member_id, MAX_ID_BYTES),
            ("group.instance.id", instance_id, MAX_NAME_BYTES),
            ("client.id", client_id, MAX_NAME_BYTES),
        ):
            check_name(what, text, most)
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
        new_id = member_id or self.new_member_id(group_id, instance_id, client_id)
        catalogue = self._shards.catalogue()
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
            if full:  # dead members are removed first
                return self._liveness.change(group, None, catalogue) or self._refuse_full(group)
            return rebalance.join(group, new_id, metadata, catalogue)

        shard = self._shards.of(group_id)
        self._start_ticking()
        known = self._members.find(group_id, new_id)
        joined = known is not None and not known.leaving
        # Before the append: an interrupt after it leaves a member that does not poll.
        self._members.add(group_id, new_id, rebalance_timeout_ms, session_timeout_ms)
        try:
            while full:
                shard.change(decide)
        except BaseException:
            if not joined:  # `tick` removes it, also if the append is in the log
                self._members.mark_leaving(group_id, new_id)
            raise
        self._members.add(group_id, new_id, rebalance_timeout_ms, session_timeout_ms)
        return new_id

    def new_member_id(self, group_id: str, instance_id: str | None, client_id: str) -> str:
        """See `GroupCoordinator.new_member_id`."""
        check_group_id(group_id)
        return f"{instance_id or client_id or 'consumer'}-{uuid.uuid4()}"

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        owned: Collection[TopicPartition],
        instance_id: str | None,
    ) -> Heartbeat:
        """See `GroupCoordinator.heartbeat`."""
        last_poll = self._members.touch(group_id, member_id)
        watch = self._liveness.due(group_id)
        catalogue = self._shards.catalogue() if watch else None
        answer: Heartbeat | None = None

        def decide(table: GroupTable) -> Change:
            nonlocal answer
            answer = None
            group = self._joined(table, group_id, member_id, instance_id)
            held = self._owned_ids(group, member_id, owned)
            check_epoch(group, member_id, member_epoch, held)
            if catalogue is not None and (
                change := self._liveness.change(group, member_id, catalogue)
            ):
                return change
            current = group.members[member_id].current
            step = reconcile(group, member_id, held)
            assigned = self._shards.named(group, step.assigned)
            answer = Heartbeat(step.epoch, assigned, self._shards.named(group, step.pending))
            return [] if step == current else rebalance.current_record(group_id, member_id, step)

        shard = self._shards.of(group_id)
        try:
            while answer is None:
                shard.change(decide)
        except (UnknownMember, FencedMemberEpoch) as error:
            self._members.note_silence(group_id, member_id, last_poll)
            if isinstance(error, UnknownMember):
                self._members.remove(group_id, member_id)
            raise self._members.explained(error, group_id, member_id) from None
        except FencedInstanceId:
            self._members.remove(group_id, member_id)
            raise
        return answer

    def leave(self, group_id: str, member_id: str) -> None:
        """See `GroupCoordinator.leave`."""
        self._members.mark_leaving(group_id, member_id)  # if the append fails, `tick` tries again
        self._leave(group_id, member_id)

    def _leave(self, group_id: str, member_id: str) -> bool:
        """Have a member leave, and return whether the group had it."""

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

        catalogue = self._shards.catalogue()
        left = self._shards.of(group_id).change(decide)
        self._members.remove(group_id, member_id)
        return left is not None

    def remove(self, group_id: str, member_ids: Collection[str]) -> None:
        """See `GroupCoordinator.remove_members`."""
        catalogue = self._shards.catalogue()

        def decide(table: GroupTable) -> Change:
            group = known_group(table, group_id)
            missing = [m for m in member_ids if m not in group.members]
            if missing:
                raise UnknownMember(
                    f"group {group_id!r} has no member {missing[0]!r}; log.describe_group() lists "
                    "the members"
                )
            return rebalance.remove(group, set(member_ids), catalogue)

        self._shards.of(group_id).change(decide)

    # Members of this process that stop polling.

    def tick(self) -> None:
        """See `GroupCoordinator.tick`."""
        members = self._members.all()
        for (group_id, member_id), local in members.items():
            if local.overdue:
                _attempt(self._evict, group_id, member_id)
        for group_id in {group_id for group_id, _ in members}:
            _attempt(self._liveness.look_after, group_id)
        member, idle_s = self._members.idlest()
        self._host.note_idle_member(member, self._host.clock_ms() - int(idle_s * 1000))

    def _start_ticking(self) -> None:
        with self._mutex:
            if not self._ticking:
                self._host.schedule("groups", _TICK_S, self.tick)
                self._ticking = True

    def _evict(self, group_id: str, member_id: str) -> None:
        local = self._members.find(group_id, member_id)
        if local is None or not local.overdue:
            return  # the member has left, or polls again
        if local.leaving:
            self._leave(group_id, member_id)
            return
        passed = time.monotonic() - local.last_poll
        # Note it first: the member may get the error before this call returns.
        why = self._members.note_slow(group_id, member_id, local)
        if self._leave(group_id, member_id):
            logger.warning(
                "group %s: member %s removed, its last poll was %.1f s ago: %s",
                group_id, member_id, passed, why,
            )  # fmt: skip

    # Helpers.

    def _check_session_timeout(self, timeout_ms: int) -> None:
        least = self._config.group_min_session_timeout_ms
        most = self._config.group_max_session_timeout_ms
        if not least <= timeout_ms <= most:
            raise error_for(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session.timeout.ms: expected {least} to {most} (group.min.session.timeout.ms to "
                f"group.max.session.timeout.ms), got {timeout_ms}",
            )

    def _refuse_full(self, group: Group) -> Change:
        raise error_for(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"group {group.group_id!r} is full: it has {len(group.members)} members, and "
            f"group.max.size is {self._config.group_max_size}; stop a member, or raise "
            "group.max.size",
        )

    def _joined(
        self, table: GroupTable, group_id: str, member_id: str, instance_id: str | None
    ) -> Group:
        group = table.groups.get(group_id)
        if group is None:
            raise UnknownMember(
                f"group {group_id!r} does not exist, so {member_id!r} is not a member; join again"
            )
        check_member(group, member_id, instance_id)
        return group

    def _owned_ids(self, group: Group, member_id: str, owned: Collection[TopicPartition]) -> Owned:
        current = group.members[member_id].current
        names = self._shards.names(group)
        return frozenset(
            (topic_id, partition)
            for topic_id, partition in current.assigned | current.pending
            if topic_id in names and TopicPartition(names[topic_id], partition) in owned
        )


def _attempt(call: Callable[[str], None] | Callable[[str, str], None], *arguments: str) -> None:
    # The error is ignored, because it occurs again and is raised when the member itself polls.
    try:
        call(*arguments)
    except EoslogError:
        pass


def _split_subscription(
    subscription: Sequence[str] | str | re.Pattern[str],
) -> tuple[tuple[str, ...], str | None]:
    """Split into topic names and one pattern, which joins all patterns.

    A name that begins with ^ is a pattern.
    """
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
        raise ConfigError(
            f"subscription {pattern!r} is not a valid regular expression: {error}"
        ) from None
    return pattern
