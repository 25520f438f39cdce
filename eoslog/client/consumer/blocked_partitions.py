"""A warning about partitions whose records are blocked by another process.

A suspended process can keep a transaction open, or hold a lock in the middle of an append. Readers
then wait without an error, because the process may resume at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eoslog.client.consumer.partition_state import TopicPartitionState
from eoslog.client.consumer.subscription import SubscriptionState
from eoslog.descriptions import Blocker
from eoslog.engine.blocking.blockers import blockers
from eoslog.errors import EoslogError, GroupNotFound
from eoslog.model import TopicPartition
from eoslog.shown_paths import get_logger
from eoslog.storage.log.published_end import PublishedEnd

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

logger = get_logger("eoslog.consumer")

_EVERY_S = 1.0
_AFTER_S = 5.0
"""A wait that a running process causes is shorter, except for long transactions."""
_AGAIN_S = 20.0
"""The longest time between two looks for a cause, each of which reads `/proc`."""
_PATIENT_S = 60.0
"""The time that a running process has for its transaction, as in `blocked_warnings`."""
_CERTAIN = ("poisoned_partition", "damaged_partition")
_OTHER = ("idle_member", "partition_held", "directory_lock")  # these block no owner of a partition
_NAMED = 3


@dataclass(slots=True)
class _Wait:
    """A wait of one partition; times are monotonic seconds.

    Attributes:
        position: where the reader waits; None if it waits for the committed offset.
        since: when the wait was first seen.
        due: when to look for the cause.
        told: whether a warning has named the cause.
    """

    position: int | None
    since: float
    due: float
    told: bool = False


class BlockedPartitions:
    """Logs what blocks the partitions of a consumer, once per wait.

    Use it in one thread at a time.

    Attributes:
        next_look: when the next look is due (monotonic, s).
    """

    def __init__(
        self,
        engine: Engine,
        group_id: str | None,
        subscription: SubscriptionState,
        end: PublishedEnd,
    ) -> None:
        """Watch the partitions of a subscription, which are read up to `end`."""
        self._engine = engine
        self._group_id = group_id
        self._subscription = subscription
        self._end = end
        self._waits: dict[TopicPartition, _Wait] = {}
        self.next_look = 0.0

    def look(self, now: float) -> None:
        """Check all partitions, and warn about those that have waited for long."""
        self.next_look = now + _EVERY_S
        before, self._waits = self._waits, {}
        for tp, state in self._subscription.states.items():
            if self._blocked(state):
                wait = before.get(tp)
                if wait is None or wait.position != state.position:
                    wait = _Wait(state.position, now, now + _AFTER_S)
                self._waits[tp] = wait
        due = {tp: w for tp, w in self._waits.items() if not w.told and now >= w.due}
        if due and not self._engine.is_fixed:  # a fixed view has warned when it opened them
            for wait in due.values():
                wait.due = now + min(now - wait.since, _AGAIN_S)
            self._warn(due, now)

    def _blocked(self, state: TopicPartitionState) -> bool:
        if state.paused or state.fetched or state.reset is not None:
            return False
        if state.position is None:
            return True
        log = state.log
        return log is not None and self._end.of(log) <= state.position < log.log_end

    def _warn(self, waits: dict[TopicPartition, _Wait], now: float) -> None:
        causes: dict[tuple[object, ...], list[TopicPartition]] = {}
        found: dict[tuple[object, ...], Blocker] = {}
        blocking = self._blockers(list(waits))
        for tp, wait in waits.items():
            for blocker in blocking:
                if _explains(blocker, tp, wait, now - wait.since):
                    # The same cause in several partitions differs in its sentence only.
                    key = (
                        wait.position is None, blocker.kind, blocker.pid, blocker.transactional_id,
                        blocker.token,
                    )  # fmt: skip
                    found.setdefault(key, blocker)
                    causes.setdefault(key, []).append(tp)
                    wait.told = True
                    break
        for cause, partitions in causes.items():
            wait = waits[partitions[0]]
            waited_for = f"the records from offset {wait.position}"
            if wait.position is None:
                waited_for = f"the committed offset of group {self._group_id!r}"
            logger.warning(
                "%s: no records for %.0f s, waiting for %s: %s; to end the wait, run: %s",
                _names(partitions), now - wait.since, waited_for,
                found[cause].reason, found[cause].remedy,
            )  # fmt: skip

    def _blockers(self, partitions: list[TopicPartition]) -> list[Blocker]:
        try:
            try:
                return blockers(self._engine, self._group_id, partitions=partitions)
            except GroupNotFound:  # it has neither members nor offsets
                return blockers(self._engine, partitions=partitions)
        except EoslogError:
            return []  # the next read raises it


def _explains(blocker: Blocker, tp: TopicPartition, wait: _Wait, waited_s: float) -> bool:
    """Whether a blocker is the cause of a wait, and one to warn about now."""
    if blocker.topic is None or blocker.kind in _OTHER:
        return False
    here = blocker.topic == tp.topic and blocker.partition == tp.partition
    if wait.position is None:
        here = here or blocker.topic.startswith("__")  # what the committed offset depends on
    elif blocker.kind == "prepared_transaction":
        return False  # `blocked_warnings` warns about these
    return here and (blocker.stopped is True or blocker.kind in _CERTAIN or waited_s >= _PATIENT_S)


def _names(partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, partitions[:_NAMED]))
    more = len(partitions) - _NAMED
    return names if more <= 0 else f"{names} and {more} more"
