"""A consumer's place in its group: joining, following the target, losing it.

All of it happens inside the consumer's own poll: let go (after the listener and a commit), say so,
take over what is granted. Between polls nothing changes hands.

Source: Kafka ConsumerMembershipManager, KIP-848, KIP-429.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from eoslog.client.fetcher import Fetcher
from eoslog.client.subscription import Listener, SubscriptionState
from eoslog.config import ConsumerConfig
from eoslog.errors import (
    CommitFailed,
    FencedInstanceId,
    FencedMemberEpoch,
    NoOffset,
    StaleMemberEpoch,
    UnknownMember,
)
from eoslog.model import GroupMetadata, TopicPartition

logger = logging.getLogger("eoslog.consumer")

_FOLLOW_EVERY_S = 0.1
NO_MEMBER = ""
NO_GENERATION = -1


class Membership:
    """Keeps one consumer in its group; used by one thread at a time, as the consumer is."""

    def __init__(
        self,
        consumer: Any,
        engine: Any,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        fetcher: Fetcher,
        commit: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        """Take part for `consumer`; `commit` commits its progress before partitions go."""
        self._consumer = consumer
        self._groups = engine.groups
        self._config = config
        self._subscription = subscription
        self._fetcher = fetcher
        self._commit = commit
        self._resubscribed = False
        # Something is to be let go as soon as the transaction ends.
        self._held_up = False
        self.telling = False  # a listener is running
        # When to look after the group again (monotonic seconds).
        self.next_step = 0.0
        self.member_id = NO_MEMBER
        self.epoch = 0
        # What a lost membership goes on fencing with, until the next one.
        self._lost: GroupMetadata | None = None
        # Why it does not come in again by itself: it would take its name back from who has it now.
        self._fenced: str | None = None

    @property
    def group_id(self) -> str:
        """The group."""
        return self._config.group_id or ""

    @property
    def joined(self) -> bool:
        """Whether this is a member, as far as it knows."""
        return self.member_id != NO_MEMBER

    @property
    def lost(self) -> bool:
        """Whether this was a member and has not come in again."""
        return self._lost is not None

    def metadata(self) -> GroupMetadata:
        """What fences this member's commits; after a loss still that of the member it was.

        Without a member id nothing would be fenced: what was read before the loss could be
        committed over the progress of who reads there now.
        """
        if self._lost is not None:
            return self._lost
        return GroupMetadata(
            self.group_id,
            self.member_id,
            self.epoch if self.joined else NO_GENERATION,
            self._config.group_instance_id,
        )

    def subscription_changed(self) -> None:
        """The topics are others: tell the group at the next step."""
        self._resubscribed = True
        self._fenced = None
        self.next_step = 0.0

    def due(self, now: float) -> bool:
        """Whether a step is due."""
        return now >= self.next_step

    def step(self, *, may_revoke: bool = True) -> None:
        """Join if need be, and move towards the target as far as it goes at once.

        Args:
            may_revoke: False keeps what shall be let go for now: its records are part of an open
                transaction, whose offsets could not be committed any more.

        Raises:
            CommitFailed: the membership was lost inside an open transaction, which can only be
                aborted now: the group reads again what it has read.
            FencedInstanceId: another consumer took over group.instance.id; at each step until
                the consumer subscribes anew.
        """
        if self._fenced is not None:
            raise FencedInstanceId(self._fenced)
        held = bool(self._subscription.states)
        try:
            self._step(may_revoke)
        except (UnknownMember, StaleMemberEpoch, FencedMemberEpoch) as error:
            logger.warning("group %s: %s; joining again", self.group_id, error)
            member_id = self.member_id
            moved = CommitFailed(f"group {self.group_id!r} moved on: {error}", abortable=True)
            # Before anybody else is asked, who may raise.
            failed = held and not may_revoke and self._consumer.fail_transaction(moved)
            try:
                self.lose()
            finally:
                if not isinstance(error, UnknownMember):
                    # The old membership would hold its partitions as long as this process lives.
                    self._groups.leave(self.group_id, member_id)
            if failed:
                raise moved from error
            self._step(may_revoke)
        except FencedInstanceId as error:
            self._fenced = str(error)
            if held and not may_revoke:
                self._consumer.fail_transaction(error)
            self.lose()
            raise
        if not self._held_up:
            interval = self._config.heartbeat_interval_ms / 1000
            self.next_step = time.monotonic() + min(_FOLLOW_EVERY_S, interval)

    def _step(self, may_revoke: bool) -> None:
        if not self.joined or self._resubscribed:
            self._join()
        owned = set(self._subscription.states)
        answer = self._heartbeat(owned)
        self._held_up = bool(answer.to_revoke) and not may_revoke
        if answer.to_revoke and may_revoke:
            self._let_go(sorted(answer.to_revoke & owned))
            owned = set(self._subscription.states)
            answer = self._heartbeat(owned)
        self._take_over(sorted(answer.assigned - owned))

    def _join(self) -> None:
        config = self._config
        assert self._subscription.topics is not None
        known = self.member_id
        self.member_id = self._groups.join(
            self.group_id,
            known or None,
            subscription=self._subscription.topics,
            assignor=config.partition_assignment_strategy[0],
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            instance_id=config.group_instance_id,
            client_id=config.client_id,
        )
        self._resubscribed = False
        self._lost = None
        if not known:
            self.epoch = 0

    def _heartbeat(self, owned: set[TopicPartition]) -> Any:
        answer = self._groups.heartbeat(
            self.group_id,
            self.member_id,
            self.epoch,
            owned,
            instance_id=self._config.group_instance_id,
        )
        self.epoch = answer.member_epoch
        return answer

    def _let_go(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        self._commit(partitions)
        self._tell(self._subscription.on_revoke, partitions)
        self._subscription.remove(partitions)

    def _take_over(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        self._subscription.add(partitions)
        # The listener first: it may know the starting points from elsewhere.
        self._tell(self._subscription.on_assign, partitions)
        with contextlib.suppress(NoOffset):  # Raised when a record of it is asked for.
            states = self._subscription.states
            self._fetcher.locate([states[p] for p in partitions if p in states])

    def lose(self) -> None:
        """The group went on without this member: nothing of it may be committed."""
        partitions = sorted(self._subscription.states)
        self._lost = self.metadata()
        self.member_id = NO_MEMBER
        self.epoch = 0
        self.next_step = 0.0
        lost = self._subscription.on_lost or self._subscription.on_revoke
        try:
            if partitions:
                self._tell(lost, partitions)
        finally:  # whatever the listener says: they are another's
            self._subscription.remove(partitions)

    def leave(self) -> None:
        """Commit, let go of everything, and leave the group."""
        self._lost = self._fenced = None
        if not self.joined:
            return
        member_id = self.member_id
        try:
            self._let_go(sorted(self._subscription.states))
        finally:
            self.member_id = NO_MEMBER
            self.epoch = 0
            self._subscription.remove(list(self._subscription.states))
            self._groups.leave(self.group_id, member_id)

    def _tell(self, listener: Listener | None, partitions: list[TopicPartition]) -> None:
        if listener is None:
            return
        self.telling = True
        try:
            listener(self._consumer, list(partitions))
        finally:
            self.telling = False
