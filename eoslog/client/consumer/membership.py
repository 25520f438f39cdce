"""A consumer's membership in its group: joining, rebalancing, losing it.

All of it happens inside the consumer's poll. The member first releases partitions, after a commit
and the listener. It then reports this to the coordinator, and takes the partitions that are granted
to it. Between polls, the assignment does not change.

Source: Kafka ConsumerMembershipManager, KIP-848, KIP-429.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any

from eoslog.client.consumer.fetcher import Fetcher
from eoslog.client.consumer.idle_member import IdleMember
from eoslog.client.consumer.member_identity import MemberIdentity
from eoslog.client.consumer.offset_commits import OffsetCommits
from eoslog.client.consumer.subscription import Listener, SubscriptionState, Topics
from eoslog.client.transaction_link import ConsumerLink
from eoslog.config.keys import ConsumerConfig
from eoslog.errors import (
    CommitFailed,
    DatabaseUnavailable,
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalState,
    NoOffset,
    StaleMemberEpoch,
    UnknownMember,
    UnknownTopicOrPartition,
)
from eoslog.model import TopicPartition
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

logger = get_logger("eoslog.consumer")

_FOLLOW_EVERY_S = 0.1


class Membership:
    """Keeps one consumer in its group; used by one thread at a time."""

    def __init__(
        self,
        consumer: Any,
        engine: Engine,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        fetcher: Fetcher,
        member: MemberIdentity,
        link: ConsumerLink,
        commits: OffsetCommits,
    ) -> None:
        """Take part as `member`; listeners get `consumer`."""
        # Weak: with a cycle, a dropped consumer would wait for the garbage collector.
        self._consumer = weakref.ref(consumer)
        self._engine = engine
        self._groups = engine.groups
        self._config = config
        self._subscription = subscription
        self._fetcher = fetcher
        self._member = member
        self._link = link
        self._commits = commits
        self._resubscribed = False
        # Partitions must be released as soon as the open transaction ends.
        self._held_up = False
        self._notifying = False  # a listener is running
        # When the next step is due (monotonic seconds).
        self.next_step = 0.0
        self._idle = IdleMember(engine)

    def subscribe(self, topics: Topics, *listeners: Listener | None) -> None:
        """Have the group assign partitions of the topics; see `Consumer.subscribe`."""
        if self._engine.read_only:
            raise IllegalState(
                "subscribe: joining a group writes, but the log was opened with read_only=True; "
                "call assign(), which also starts at the group's committed offsets"
            )
        self._subscription.subscribe(topics, *listeners)
        self._resubscribed = True  # the next step sends it to the group
        self._member.fenced = None
        self.next_step = 0.0
        for topic in topics if isinstance(topics, list) else []:
            try:
                if not topic.startswith("^"):
                    self._engine.topic(topic)
            except UnknownTopicOrPartition:
                logger.warning("topic %r: subscribed but missing, waiting for its creation", topic)

    def due(self, now: float) -> bool:
        """Whether a step is due."""
        return now >= self.next_step

    def step(self, *, may_revoke: bool = True) -> None:
        """Join if needed, and change the assignment towards the target.

        Args:
            may_revoke: False keeps partitions that should be released, because an open transaction
                has processed their records and could not commit their offsets afterwards.

        Raises:
            CommitFailed: if the membership was lost during an open transaction. The transaction
                must abort, because another member reads the same records again.
            FencedInstanceId: if another consumer took over the `group.instance.id`. Every step
                raises it until the consumer subscribes again.
        """
        if self._member.fenced is not None:
            raise FencedInstanceId(self._member.fenced)
        held = bool(self._subscription.states)
        group_id = self._member.group_id
        try:
            self._step(may_revoke)
        except (UnknownMember, StaleMemberEpoch, FencedMemberEpoch) as error:
            logger.warning("group %s: membership lost, rejoining: %s", group_id, error)
            self._member.lost_why = str(error)
            moved = CommitFailed(
                f"group {group_id!r} rebalanced ({error}); abort the transaction", abortable=True
            )
            # First fail the transaction: the steps below may raise.
            failed = held and not may_revoke and self._link.lost(moved)
            try:
                self.lose()
            finally:
                # A member with another epoch would keep its partitions while this process runs.
                self._remove_member()
            if failed:
                raise moved from error
            self._step(may_revoke)
        except FencedInstanceId as error:
            self._member.fenced = str(error)
            if held and not may_revoke:
                self._link.lost(error)
            self.lose()
            self._member.removed()
            raise
        if not self._held_up:
            interval = self._config.heartbeat_interval_ms / 1000
            self.next_step = time.monotonic() + min(_FOLLOW_EVERY_S, interval)

    def _step(self, may_revoke: bool) -> None:
        if not self._member.joined or self._resubscribed:
            self._join()
        owned = set(self._subscription.states)
        answer = self._heartbeat(owned)
        self._held_up = bool(answer.to_revoke) and not may_revoke
        if answer.to_revoke and may_revoke:
            self._revoke(sorted(answer.to_revoke & owned))
            owned = set(self._subscription.states)
            answer = self._heartbeat(owned)
        self._take_over(sorted(answer.assigned - owned))
        self._idle.look(
            self._member.group_id,
            self._member.member_id,
            assigned=bool(self._subscription.states),
        )

    def _join(self) -> None:
        config, member = self._config, self._member
        assert self._subscription.topics is not None
        if not member.joined:
            self._remove_member()  # an interrupt may have hidden that it has joined
            # Before the member exists, so that this consumer can remove it in any case.
            member.place.member_id = self._groups.new_member_id(
                member.group_id, config.group_instance_id, config.client_id
            )
        self._groups.join(
            member.group_id,
            member.place.member_id,
            subscription=self._subscription.topics,
            assignor=config.partition_assignment_strategy[0],
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            instance_id=config.group_instance_id,
            client_id=config.client_id,
        )
        member.join()
        self._resubscribed = False

    def _heartbeat(self, owned: set[TopicPartition]) -> Any:
        member = self._member
        answer = self._groups.heartbeat(
            member.group_id, member.member_id, member.epoch, owned, instance_id=member.instance_id
        )
        member.epoch = answer.member_epoch
        return answer

    def _revoke(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        self._commits.before_loss(partitions)
        self._notify(self._subscription.on_revoke, partitions)
        self._subscription.remove(partitions)

    def _take_over(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        self._subscription.add(partitions)
        # The listener comes first, because it may seek to positions that it keeps elsewhere.
        self._notify(self._subscription.on_assign, partitions)
        # The next read of a partition raises these.
        with contextlib.suppress(NoOffset, DatabaseUnavailable):
            states = self._subscription.states
            self._fetcher.locate([states[p] for p in partitions if p in states])

    def lose(self) -> None:
        """Drop all partitions without a commit, because the group removed this member."""
        partitions = sorted(self._subscription.states)
        self._member.lose()
        self.next_step = 0.0
        lost = self._subscription.on_lost or self._subscription.on_revoke
        try:
            if partitions:
                self._notify(lost, partitions)
        finally:  # even if the listener raises: other members own the partitions
            self._subscription.remove(partitions)

    def leave(self) -> None:
        """Commit if auto-commit is on, leave the group, and drop all partitions."""
        try:
            if self._subscription.subscribed:
                self._leave_group()
            elif self._subscription.manual:
                self._commits.before_loss(list(self._subscription.states))
        finally:
            self._subscription.clear()

    def hand_over(self) -> None:
        """Have the background thread remove a member that `leave` could not remove."""
        place = self._member.place
        if place.member_id:
            self._engine.dropped.note(place.group_id, place.member_id, False)
            self._member.removed()

    def _leave_group(self) -> None:
        member = self._member
        member.fenced = None
        if not member.joined:
            member.leave()
            return
        try:
            self._revoke(sorted(self._subscription.states))
        finally:
            member.leave()
            self._subscription.remove(list(self._subscription.states))
            self._remove_member()

    def _remove_member(self) -> None:
        """Remove the member that this consumer is no longer."""
        place = self._member.place
        if place.member_id:
            self._groups.leave(place.group_id, place.member_id)
            self._member.removed()

    def refuse_in_listener(self, call: str) -> None:
        """Raise IllegalState if a listener is running."""
        if self._notifying:
            raise IllegalState(
                f"{call}: called inside a rebalance listener; call it after the poll"
            )

    def _notify(self, listener: Listener | None, partitions: list[TopicPartition]) -> None:
        if listener is None:
            return
        self._notifying = True
        try:
            listener(self._consumer(), list(partitions))
        finally:
            self._notifying = False
