"""The checks of offsets that staged transactions commit.

A member reads on before its staged transaction is decided. If that is aborted, its records are read
again, so no later transaction of the same groups may commit before the decision. And only the owner
of a partition may prepare an offset of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from eoslog.client.consumer_registry import ConsumerRegistry
from eoslog.client.producer.transactions.coordinator_calls import CoordinatorCalls
from eoslog.client.producer.transactions.staging_buffer import StagingBuffer
from eoslog.coordinator.host import HostLog
from eoslog.descriptions import GroupMetadata
from eoslog.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    EoslogError,
    FencedMemberEpoch,
    IllegalGeneration,
    PolicyViolation,
    PreparedTransactionPending,
    StaleMemberEpoch,
    UnknownMember,
    UnknownTopicOrPartition,
)
from eoslog.model import OffsetAndMetadata, Outcome, TopicPartition

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["GROUP_MOVED_ON", "NOT_OFFSETS", "StagedOffsets", "moved_on", "with_topic_ids"]

GROUP_MOVED_ON = (UnknownMember, IllegalGeneration, StaleMemberEpoch, FencedMemberEpoch)
"""Errors of a member whose partitions another one may own now."""
NOT_OFFSETS = (CommitOutcomeUnknown, UnknownTopicOrPartition)
"""Errors of offsets that are raised at once: waiting creates no topic."""
_PARTITIONS_MAX = 6
"""Partitions of groups that one append can be conditional on, of 8.

The others are those of the producer's id and of the prepared transaction.
"""

_Sent = Sequence[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]]


class StagedOffsets:
    """The checks of one producer's transactions."""

    def __init__(
        self, engine: Engine, consumers: ConsumerRegistry, calls: CoordinatorCalls
    ) -> None:
        """Start before the first transaction; `consumers` keep what was staged."""
        self._engine = engine
        self._consumers = consumers
        self._calls = calls
        self._aborts = 0  # `ConsumerRegistry.aborts` at the begin

    def begin(self, deadline: float) -> None:
        """Begin a transaction, with what was decided before it."""
        if self._consumers.waiting:
            self._settle(deadline, "begin_transaction")
        self._aborts = self._consumers.aborts

    def prepared(self, token: str, sent: _Sent) -> None:
        """Keep the offsets of a prepared transaction until it is decided."""
        if sent:
            self._consumers.staged(token, tuple(sent))

    def _settle(self, deadline: float, what: str) -> None:
        """Notify the consumers of staged transactions that were decided since."""
        outcome = self._engine.transactions.prepared.outcome
        self._calls.until(partial(self._consumers.settle, outcome), deadline, what)

    def check_earlier(self, sent: _Sent, deadline: float, what: str) -> None:
        """Check that earlier staged transactions of the same groups are committed.

        Raises:
            CommitFailed: if one was aborted: its records must be read again.
            PreparedTransactionPending: if one is undecided.
        """
        if not sent:
            return
        if self._consumers.waiting:
            self._settle(deadline, what)
        found = self._consumers.earlier(sent, self._aborts)
        if found is None:
            return
        token, outcome = found
        if outcome is Outcome.UNKNOWN:
            raise PreparedTransactionPending(
                f"the prepared transaction {token!r} has earlier offsets of the same group and is "
                "not decided; decide it with log.resolve(token, outcome), then send the offsets "
                "again"
            )
        raise CommitFailed(
            f"the staged transaction {token!r} with earlier offsets of the same group was aborted; "
            "abort this transaction: its records will be read again",
            abortable=True,
        )

    def check_members(
        self, staging: StagingBuffer, token: str | None, deadline: float
    ) -> list[tuple[HostLog, int]]:
        """Check the members whose offsets a staged transaction commits.

        Returns:
            (partition, end) for each partition of the groups, as `check_staged_offsets`.

        Raises:
            CommitFailed: if a member is not the owner of its partitions any more.
            PolicyViolation: if the groups are in too many partitions of `__consumer_offsets`.
        """
        ends: dict[HostLog, int] = {}
        for group, offsets in staging.groups:
            check = partial(
                self._engine.groups.check_staged_offsets,
                group.group_id, group.member_id, group.generation_id, group.instance_id, offsets,
                token=token,
            )  # fmt: skip
            try:
                log, end = self._calls.until(
                    check, deadline, "prepare_transaction", final=NOT_OFFSETS
                )
            except GROUP_MOVED_ON as error:
                raise moved_on(group, error) from error
            # The first end: a member that moved since the first check must fail the append.
            ends.setdefault(log, end)
        if len(ends) > _PARTITIONS_MAX:
            raise PolicyViolation(
                f"prepare_transaction: {len({group.group_id for group, _ in staging.groups})} "
                f"groups keep their offsets in {len(ends)} partitions of __consumer_offsets, at "
                f"most {_PARTITIONS_MAX} are allowed in a staged transaction; abort it, and send "
                f'offsets of at most {_PARTITIONS_MAX} groups, or begin it with mode="inline"'
            )
        return [*ends.items()]


def with_topic_ids(
    engine: Engine, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets, each with the id of its topic.

    An offset without one counts in the topic that has the name now.

    Raises:
        UnknownTopicOrPartition: if such a topic does not exist.
    """
    return {
        tp: one if one.topic_id else replace(one, topic_id=engine.topic(tp.topic).topic_id)
        for tp, one in offsets.items()
    }


def moved_on(group: GroupMetadata, error: EoslogError) -> CommitFailed:
    """Return the error of a transaction whose member lost its partitions."""
    return CommitFailed(
        f"group {group.group_id!r} rebalanced ({error}); abort the transaction", abortable=True
    )
