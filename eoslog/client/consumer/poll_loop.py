"""The loop of a poll: auto-commit, group membership, reading, waiting.

Each pass of the loop has four steps:

1. Commit the positions, if auto-commit is due.
2. Take a step of the group membership, if one is due. It may revoke and assign partitions.
3. Collect records. If there are any, return them.
4. Wait for new records, for at most 50 ms. The wait also completes transactions that block reading.

Source: Kafka KafkaConsumer.poll.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from eoslog import _core
from eoslog._util.arguments import as_seconds
from eoslog.client.consumer.blocked_partitions import BlockedPartitions
from eoslog.client.consumer.fetcher import Fetcher
from eoslog.client.consumer.membership import Membership
from eoslog.client.consumer.offset_commits import OffsetCommits
from eoslog.client.consumer.subscription import SubscriptionState
from eoslog.client.transaction_link import ConsumerLink
from eoslog.errors import IllegalState
from eoslog.storage.fs.timeouts import SLICE_S

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["PollLoop"]

T = TypeVar("T")


class PollLoop:
    """The poll loop of one consumer; used by one thread at a time, like the consumer.

    Attributes:
        handed_out: whether the last `find` returned records.
        next_duty: until this time (monotonic, s) a poll only needs to return fetched records.
    """

    def __init__(
        self,
        engine: Engine,
        use: _core.OneThread,
        subscription: SubscriptionState,
        fetcher: Fetcher,
        membership: Membership,
        commits: OffsetCommits,
        link: ConsumerLink,
        blocked: BlockedPartitions,
    ) -> None:
        """Keep the consumer's parts; an interrupt of `use` ends the loop."""
        self._engine = engine
        self._use = use
        self._subscription = subscription
        self._fetcher = fetcher
        self._membership = membership
        self._commits = commits
        self._link = link
        self._blocked = blocked
        self.handed_out = False
        self.next_duty = 0.0

    def find(
        self,
        collect: Callable[[int], T],
        limit: int,
        timeout: float | None,
        wait: Callable[[float], None] | None = None,
    ) -> T | None:
        """Run the loop until `collect(limit)` returns records.

        Args:
            collect: returns available records; its result is falsy or None without records.
            limit: the most records to return.
            timeout: the longest wait in seconds; None waits until a record comes.
            wait: waits for new records, at most a number of seconds; None means the fetcher's.

        Returns:
            The result of `collect`; None after the timeout or an interrupt.

        Raises:
            IllegalState: if nothing is subscribed or assigned.
        """
        if not self._subscription.subscribed and not self._subscription.states:
            raise IllegalState(
                "poll: the consumer is neither subscribed nor assigned; call subscribe() or "
                "assign() first"
            )
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + as_seconds("timeout", timeout)
        use = self._use
        wait = wait or self._fetcher.wait
        self.handed_out = False
        while True:
            now = time.monotonic()
            if not use.interrupted:
                self._keep_up(now)
            if use.interrupted:
                use.woken = False
                return None
            found = self._commit_then(collect, limit) if self._commits.first else collect(limit)
            if found:
                self.handed_out = True
                return found
            if use.interrupted:
                continue
            self._engine.refuse_outdated()
            left = SLICE_S if deadline is None else deadline - now
            if left <= 0:
                return None
            wait(left)

    def _commit_then(self, collect: Callable[[int], T], limit: int) -> T:
        """Collect, and commit the new positions before the caller gets the records.

        This is the at-most-once guarantee.
        """
        states = self._subscription.states.values()
        before = [(state, state.place()) for state in states]
        found = collect(limit)
        if found:
            moved = [state.partition for state, place in before if state.position != place[0]]
            try:
                self._commits.commit_positions(self._subscription.states, moved)
            except BaseException:
                # The caller does not get the records, so a later poll must return them.
                for state, place in before:
                    state.put_back(*place)
                raise
        return found

    def _keep_up(self, now: float) -> None:
        commits, membership = self._commits, self._membership
        if now >= commits.next_due:
            commits.auto_commit(self._subscription.states)
        subscribed = self._subscription.subscribed
        if subscribed and membership.due(now):
            # Keep partitions while an open transaction processes their records, because it must
            # commit their offsets. At the start of a transaction, no records are unfinished, so a
            # consumer that polls only inside transactions releases partitions then.
            # The same holds for records whose offsets a database must store.
            processing = self._link.in_transaction or self._link.stored_elsewhere
            free = not processing or not self._subscription.unfinished
            membership.step(may_revoke=free)
        if now >= self._blocked.next_look:
            self._blocked.look(now)
        if not commits.first:
            next_step = membership.next_step if subscribed else math.inf
            self.next_duty = min(commits.next_due, next_step)
