"""Prepared transactions: durable, undecided, and decided once, by any process.

`prepare` makes the data of a transaction durable, and then the fact that it is prepared. After that
only `resolve` ends it: no timeout, no death of its owner, no recovery and no plain init. `resolve`
is a compare-and-set on C, the `__transaction_state` partition that has the transaction's record:

    1 read the record                    unknown: UnknownToken
    2 decided already                    the same way: success; the other way: OutcomeConflict
    3 append the decision, if C has not changed since 1; else start again
    4 make it durable                    <- decided
    5 inline: write the markers; staged: deliver (`engine/staged_transactions.py`)

There are two modes. The records of an *inline* transaction are in their topics, so readers with
`read_committed` wait for the decision. Its id stays in PREPARED or PARKED, and the decision appends
PREPARE_* of the id and the outcome in one batch. The records of a *staged* transaction are in
`__staged_transactions`. Their topics are untouched, and the id is free for its next transaction.

A new producer that keeps the inline transaction of its id takes it over: one batch writes the id
and the transaction's record, with `takeovers` one higher. The epoch is that of the data and stays.
So `takeovers` fences earlier producers of the id. After the decision, the last one initialises.

Source: across systems, protocol D: the decision is durable in the log or in the database, never in
a process; KIP-939; RocketMQ's half messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from eoslog.coordinator.host import HeldOffset, HostLog, TransactionHost
from eoslog.coordinator.retry import again
from eoslog.coordinator.transactions.commit import Claimed, Endings
from eoslog.coordinator.transactions.log import TransactionLog, TransactionLogs
from eoslog.coordinator.transactions.prepared_index import (
    PreparedIndex,
    ended_elsewhere,
    waits_for_decision,
)
from eoslog.coordinator.transactions.prepared_records import (
    INLINE,
    NEVER,
    STAGED,
    PreparedEntry,
    check_key,
    check_value,
    entry_row,
    staged_id,
    token_key,
)
from eoslog.coordinator.transactions.resolver import Resolver
from eoslog.coordinator.transactions.state import (
    ONGOING,
    PARKED,
    PREPARED,
    TransactionMetadata,
    TransactionState,
)
from eoslog.errors import (
    ConcurrentTransactions,
    IllegalState,
    InvalidTxnState,
    OutcomeConflict,
    PreparedTransactionPending,
    ProducerFenced,
    UnknownToken,
)
from eoslog.model import (
    OWN_GROUPS,
    STAGED_TRANSACTIONS_TOPIC,
    OffsetAndMetadata,
    Outcome,
    TopicPartition,
)
from eoslog.storage.fs.files import failpoint

Identify = Callable[[str, TransactionMetadata | None, int, int], TransactionMetadata]
_FORGET_AT_ONCE = 1000
"""The most tombstones in one batch, so that it stays far below the limits of a batch."""
_NONE: frozenset[TopicPartition] = frozenset()
OUTCOME_RETENTION_MS = 7 * 24 * 3600 * 1000


class StagedPayload(Protocol):
    """The payload of staged transactions; `engine.staged_transactions` implements it."""

    def deliver(self, entry: PreparedEntry, number: int, /) -> None:
        """Append the records to their topics; `number` is that of the C partition."""

    def check(self, entry: PreparedEntry, /) -> None:
        """Check that all records are there, before they are committed.

        Raises:
            CorruptRecord: if some are missing or damaged.
        """

    def forget(self, entry: PreparedEntry, /) -> None:
        """Free the payload of an aborted transaction."""


class PreparedTransactions:
    """Prepares and decides transactions; `index` finds them.

    Thread-safe, and safe with any number of processes.
    """

    def __init__(
        self,
        host: TransactionHost,
        logs: TransactionLogs,
        endings: Endings,
        resolver: Resolver,
        identify: Identify,
        *,
        cluster_id: str,
        staged: StagedPayload | None,
        outcome_retention_ms: int = OUTCOME_RETENTION_MS,
    ) -> None:
        """Keep the coordinator's parts.

        Args:
            host: the engine.
            logs: the coordinator's logs.
            endings: decides transactions of ids.
            resolver: ends overdue transactions.
            identify: checks that a request has the current producer id and epoch of its id.
            cluster_id: the id of the directory; tokens begin with it.
            staged: delivers the records of staged transactions; None if there are none.
            outcome_retention_ms: outcome.retention.ms; -1 keeps outcomes forever.
        """
        self._host = host
        self._logs = logs
        self._endings = endings
        self._resolver = resolver
        self._identify = identify
        self.index = PreparedIndex(logs, cluster_id)
        self._staged = staged
        self._retention_ms = outcome_retention_ms

    def outcome(self, token: str) -> Outcome | None:
        """Return the decision; UNKNOWN while there is none, None for an unknown token.

        Durability:
            A decision that is returned is durable.
        """
        try:
            clog, entry = self.index.find(token)
        except UnknownToken:
            return None
        if not self._is_final(clog, entry):
            return Outcome.UNKNOWN
        return Outcome.COMMIT if entry.commit else Outcome.ABORT

    def _is_final(self, clog: TransactionLog, entry: PreparedEntry) -> bool:
        """Whether it is decided; makes the decision durable if this process may write."""
        if entry.commit is None:
            return False
        if not clog.is_durable(entry.offset):
            if self._host.read_only:
                return False
            clog.make_durable(entry.offset)
        return True

    # -- preparing

    def prepare(
        self, transactional_id: str, producer_id: int, producer_epoch: int, spans: Claimed, *,
        resolver: str | None = None, meta: bytes | None = None, due_at_ms: int = NEVER,
    ) -> tuple[str, PreparedEntry]:  # fmt: skip
        """Prepare the open transaction of an id, inline.

        Args:
            transactional_id: the producer's transactional id.
            producer_id: the producer's current id.
            producer_epoch: the producer's current epoch.
            spans: the first and last offset that the producer wrote to each partition.
            resolver: the name of the resolver that is asked for the outcome.
            meta: the application's value.
            due_at_ms: the time of the first check; -1: as the resolver was registered.

        Returns:
            The token and the record. A retry returns the same ones.

        Raises:
            ProducerFenced, InvalidTxnState, InvalidProducerIdMapping, ConcurrentTransactions: as
                `TransactionCoordinator.end_txn`; nothing is prepared.

        Durability:
            The data and then the fact that it is prepared are durable on return.
        """
        clog = self._logs.of(transactional_id)
        key = (producer_id, producer_epoch)
        attempts = None
        while True:
            end = clog.refresh()
            current = self._identify(
                transactional_id, clog.get(transactional_id), producer_id, producer_epoch
            )
            known = clog.prepared(key)
            if current.state.undecided and known is not None:
                self._check_last(clog, known, 0)
                clog.make_durable(end - 1)
                return self.index.token_of(known, clog), known
            if self._resolver.end_overdue(clog, current):
                continue
            if current.state is not ONGOING and not (
                current.state is TransactionState.EMPTY or current.state.complete
            ):
                raise InvalidTxnState(
                    f"transactional id {transactional_id!r}: the transaction of epoch "
                    f"{producer_epoch} cannot be prepared, because the state is "
                    f"{current.state.wire_name}; close this producer and create a new one"
                )
            claimed = current if current.state is ONGOING else current._replace(partitions=_NONE)
            found, written = self._endings.spans(claimed, True, spans)
            if self._endings.flush(written):
                continue  # the flush took time: read the newest state again
            now = self._host.clock_ms()
            owner = (self._host.process_number, self._host.process_nonce)
            entry = PreparedEntry(
                key, INLINE, PREPARED, transactional_id, resolver, meta, now, due_at_ms,
                owner=owner,
                spans=tuple((tp, span) for tp, span in found.items() if not span.empty),
            )  # fmt: skip
            record = claimed.undecided(PREPARED, now, owner)
            failpoint("prepare.flushed")
            offset = clog.append_rows([entry_row(entry)], end, now, value=record)
            if offset is None:
                attempts = again(attempts, "prepare of", transactional_id)
                continue
            failpoint("prepare.appended")
            clog.make_durable(offset + 1)
            failpoint("prepare.durable")
            clog.refresh()
            return self.index.token_of(entry, clog), entry

    def stage(
        self, transactional_id: str, producer_id: int, producer_epoch: int, entry: PreparedEntry,
        conditions: Callable[[], Iterable[tuple[HostLog, int]]] = tuple,
    ) -> tuple[str, PreparedEntry]:  # fmt: skip
        """Write the record of a staged transaction, whose payload is durable already.

        Args:
            transactional_id: the producer's transactional id.
            producer_id: the producer's current id.
            producer_epoch: the producer's current epoch.
            entry: the record.
            conditions: checks the members of its groups, and returns (log, end) pairs that must
                still hold at the append.

        Raises:
            ProducerFenced, InvalidProducerIdMapping: if another producer has taken over the id.

        Durability:
            The record is durable on return.
        """
        home = self._logs.of(transactional_id)
        clog = self._logs.of(staged_id(entry.key))
        attempts = None
        while True:
            end = clog.refresh()
            known = clog.prepared(entry.key)
            if known is not None:  # a retry: it may be decided since
                clog.make_durable(known.offset)
                return self.index.token_of(known, clog), known
            # The id is read last: a fence after that fails the append.
            home_end = end if home is clog else home.refresh()
            failpoint("stage.identified")
            self._identify(
                transactional_id, home.get(transactional_id), producer_id, producer_epoch
            )
            expect = [*conditions()] if home is clog else [(home.log, home_end), *conditions()]
            failpoint("stage.payload_durable")
            offset = clog.append_rows([entry_row(entry)], end, self._host.clock_ms(), expect=expect)
            if offset is not None:
                failpoint("stage.appended")
                clog.make_durable(offset)
                failpoint("stage.durable")
                clog.refresh()
                return self.index.token_of(entry, clog), entry
            attempts = again(attempts, "prepare of", transactional_id)

    def withdraw(self, entry: PreparedEntry) -> None:
        """Abort a staged transaction whose `stage` has failed, and free its payload.

        Raises:
            OutcomeConflict: if it was prepared, and another process has committed it.
        """
        clog = self._logs.of(staged_id(entry.key))
        try:
            self.resolve(self.index.token_of(entry, clog), False)
        except UnknownToken:
            self._staged_part(entry).forget(entry)

    # -- deciding

    def resolve(self, token: str, commit: bool, takeovers: int | None = None) -> None:
        """Decide a prepared transaction, or complete a decided one.

        Args:
            token: the transaction.
            commit: True commits, False aborts.
            takeovers: the number of take-overs up to that of the calling producer; None: any
                process may decide.

        Raises:
            UnknownToken: if this directory knows no such transaction.
            ProducerFenced: if a later producer has taken over the transaction.
            OutcomeConflict: if it was decided the other way.
            ConcurrentTransactions: if it is decided as requested, but markers are missing, or
                another process delivers it; retriable.
            CommitOutcomeUnknown: if the decision to commit may not be durable. Call again.
            InvalidTxnState, CorruptRecord: if records that should be committed are missing or
                damaged. It stays undecided.

        Durability:
            The decision is durable on return.
        """
        attempts = None
        while True:
            clog, entry = self.index.find(token)
            if takeovers is not None:
                self._check_last(clog, entry, takeovers)
            if entry.commit is not None:
                clog.make_durable(entry.offset)
                if entry.commit != commit:
                    raise OutcomeConflict(
                        f"token {token!r}: the transaction was decided to "
                        f"{'commit' if entry.commit else 'abort'}, and this decision stands; let "
                        "the other system agree with it"
                    )
                self._finish(clog, entry)
                return
            if entry.mode == INLINE:
                decided = self._decide_inline(clog, entry, commit)
            else:
                decided = self._decide_staged(clog, entry, commit)
            if not decided:
                attempts = again(attempts, "decision of", token)

    def _decide_inline(self, clog: TransactionLog, entry: PreparedEntry, commit: bool) -> bool:
        def still(current: TransactionMetadata) -> bool:
            now = clog.prepared(entry.key)
            return now == entry and waits_for_decision(now, current)

        try:
            record = self._endings.end(
                clog,
                entry.transactional_id,
                commit,
                may=still,
                claimed={tp: (s.first, s.last, s.topic_id) for tp, s in entry.spans},
                also=lambda now: [entry_row(replace(entry, spans=()).decided(commit, now))],
            )
        except InvalidTxnState:
            # Another process may have decided it since, and written markers.
            if self._newest_changed(clog, entry):
                return False
            raise
        return record is not None

    def _newest_changed(self, clog: TransactionLog, entry: PreparedEntry) -> bool:
        clog.refresh()
        return self.index.newest(clog, entry.key) != entry

    def _decide_staged(self, clog: TransactionLog, entry: PreparedEntry, commit: bool) -> bool:
        if commit and self._staged is not None:
            self._staged.check(entry)
        end = clog.refresh()
        if clog.prepared(entry.key) != entry:
            return False
        now = self._host.clock_ms()
        offset = clog.append_rows([entry_row(entry.decided(commit, now))], end, now)
        if offset is None:
            return False
        failpoint("resolve.appended")
        clog.make_durable(offset)
        failpoint("resolve.durable")
        clog.refresh()
        if not commit and self._staged is not None:
            self._staged.forget(entry)
        return True

    def _staged_part(self, entry: PreparedEntry) -> StagedPayload:
        if self._staged is None:
            raise IllegalState(
                f"staged transaction of producer {entry.key[0]}: this coordinator delivers none"
            )
        return self._staged

    def _finish(self, clog: TransactionLog, entry: PreparedEntry) -> None:
        """Complete a transaction whose decision is durable."""
        if entry.mode == STAGED:
            if entry.state is TransactionState.PREPARE_COMMIT and not self.waits(entry):
                self._staged_part(entry).deliver(entry, clog.log.partition)
            return
        decision = clog.decision(entry.key)
        if decision is None or decision.complete:
            return
        if not self._resolver.drive(clog, entry.key):
            raise ConcurrentTransactions(
                f"transactional id {entry.transactional_id!r}: the prepared transaction of epoch "
                f"{entry.key[1]} is decided, but markers are missing, because a partition is "
                "locked or fails; retry"
            )

    def waits(self, entry: PreparedEntry) -> bool:
        """Whether the time of delivery is in the future."""
        return entry.deliver_at_ms > self._host.clock_ms()

    def deliver(self, token: str) -> bool:
        """Deliver a staged transaction that is decided to commit, if its time has come.

        Returns:
            Whether it is delivered.

        Raises:
            EoslogError: if a topic rejects the records; a later call tries again.
        """
        clog, entry = self.index.find(token)
        if entry.state is TransactionState.PREPARE_COMMIT and not self.waits(entry):
            clog.make_durable(entry.offset)
            self._finish(clog, entry)
            entry = clog.prepared(entry.key) or entry
        return entry.state is TransactionState.COMPLETE_COMMIT

    # -- offsets of groups

    def held_offsets(self, group_id: str) -> list[HeldOffset]:
        """Return a group's offsets in staged transactions that are not delivered.

        Publishing ids are left out: their producers wait for the decision themselves.

        Durability:
            A decision that is returned is durable.
        """
        if not self._has_offsets(group_id):
            return []
        found = []
        for clog in self._logs.all():
            for entry in clog.prepared_of_group(group_id):
                decided = self._is_final(clog, entry)
                token = self.index.token_of(entry, clog)
                # By partition, because the last offset of one counts.
                newest = {
                    TopicPartition(one.topic, one.partition): one
                    for one in entry.offsets
                    if one.group_id == group_id
                }
                found += [
                    HeldOffset(
                        tp, one.topic_id,
                        OffsetAndMetadata(one.offset, one.leader_epoch, one.metadata),
                        token, decided,
                    )
                    for tp, one in newest.items()
                ]  # fmt: skip
        return found

    def groups_with_held_offsets(self) -> set[str]:
        """Return the groups for which `held_offsets` may find offsets."""
        if not self._host.has_internal_topic(STAGED_TRANSACTIONS_TOPIC):
            return set()
        found = set().union(*(clog.groups_of_prepared() for clog in self._logs.all()))
        return {group_id for group_id in found if not group_id.startswith(OWN_GROUPS)}

    def await_appends(self, group_id: str, timeout_s: float) -> bool:
        """Wait until the appends to C that are under way have ended.

        A member that was given partitions calls this before it reads their offsets. Such an append
        may be of a staged transaction with these offsets, and may have checked the group before the
        change. An append that begins later finds that the group has changed (see `stage`).

        Args:
            group_id: the group.
            timeout_s: the longest wait in seconds.

        Returns:
            False if one of them has not ended: its process may be suspended.
        """
        if self._host.read_only or not self._has_offsets(group_id):
            return True
        deadline = time.monotonic() + timeout_s
        return all(log.await_append(deadline) for log in self._host.transaction_partitions())

    def _has_offsets(self, group_id: str) -> bool:
        """Whether there may be a staged transaction with offsets of a group."""
        return not group_id.startswith(OWN_GROUPS) and self._host.has_internal_topic(
            STAGED_TRANSACTIONS_TOPIC
        )

    # -- checks

    def note_check(
        self, token: str, seen: PreparedEntry, checks: int, due_at_ms: int, *, parked: bool
    ) -> bool:
        """Note the checks of an undecided transaction, if it has not changed.

        Args:
            token: the transaction.
            seen: its record, as the caller read it.
            checks: how often its resolver has answered.
            due_at_ms: the time of the next check.
            parked: whether no more checks follow.

        Returns:
            False if the transaction has changed.

        Durability:
            The record is published, not durable: a lost one repeats a check.
        """
        state = PARKED if parked else PREPARED
        while True:
            clog, entry = self.index.find(token)
            end = clog.refresh()
            if entry != seen or not entry.pending or clog.prepared(entry.key) != entry:
                return False
            now = self._host.clock_ms()
            rows = [(check_key(entry.key), check_value(due_at_ms, checks, state))]
            value = None
            if entry.mode == INLINE and state is not entry.state:
                current = clog.get(entry.transactional_id)
                if current is None or not current.state.undecided:
                    return False
                value = current.undecided(state, now, current.owner)
            offset = clog.append_rows(rows, end, now, value=value)
            if offset is not None:
                clog.refresh()
                return True

    def recheck(self, token: str) -> bool:
        """Make a parked transaction prepared again, with no checks and one due now.

        Returns:
            Whether it is undecided.

        Raises:
            UnknownToken: if this directory knows no such transaction.
        """
        while True:
            _, entry = self.index.find(token)
            if not entry.pending:
                return False
            if self.note_check(token, entry, 0, self._host.clock_ms(), parked=False):
                return True

    # -- ids

    def check_none(self, transactional_id: str, current: TransactionMetadata) -> None:
        """Check that an id has no undecided inline transaction.

        Raises:
            PreparedTransactionPending: if it has one; the message has its token.
        """
        if not current.state.undecided:
            return
        clog = self._logs.of(transactional_id)
        entry = clog.prepared((current.producer_id, current.producer_epoch))
        token = "" if entry is None else f" {self.index.token_of(entry, clog)!r}"
        raise PreparedTransactionPending(
            f"transactional id {transactional_id!r}: its prepared transaction{token} is not "
            "decided; decide it with log.resolve(token, outcome), or call "
            "init_transactions(keep_prepared=True) and decide it later"
        )

    def _check_last(self, clog: TransactionLog, entry: PreparedEntry, takeovers: int) -> None:
        """Check that no producer has taken over a transaction after the calling one."""
        if entry.takeovers > takeovers:
            raise ProducerFenced(
                f"transactional id {entry.transactional_id!r} is fenced: a later producer has "
                f"taken over its prepared transaction {self.index.token_of(entry, clog)!r}; close "
                "this producer and create a new one"
            )

    def identity_after(
        self, transactional_id: str, producer_id: int, producer_epoch: int, takeovers: int
    ) -> tuple[int, int]:
        """Return the identity that follows a prepared transaction.

        Args:
            transactional_id: the id.
            producer_id: the producer id of its data.
            producer_epoch: the epoch of its data.
            takeovers: the number of take-overs up to that of the calling producer.

        Raises:
            PreparedTransactionPending: if it is undecided.
            ProducerFenced: if a later producer has taken over the transaction or the id.
            ConcurrentTransactions: if markers are missing; retriable.
        """
        clog = self._logs.of(transactional_id)
        while True:
            clog.refresh()
            current = clog.get(transactional_id)
            # Read after the id: if that is decided, no take-over follows.
            entry = clog.prepared((producer_id, producer_epoch))
            if entry is not None:
                self._check_last(clog, entry, takeovers)
            if current is not None:
                self.check_none(transactional_id, current)
                if current.state.preparing:
                    assert current.decided is not None
                    if not self._resolver.drive(clog, current.decided.key):
                        raise ConcurrentTransactions(
                            f"transactional id {transactional_id!r}: its prepared transaction is "
                            "decided, but not complete; retry"
                        )
                    continue
                if current.is_retry_of(producer_id, producer_epoch):
                    return current.producer_id, current.producer_epoch
            self._identify(transactional_id, current, producer_id, producer_epoch)
            return producer_id, producer_epoch

    def take_over(self, transactional_id: str) -> tuple[str, PreparedEntry] | None:
        """Take over an id's undecided inline transaction for a new producer.

        Earlier producers of the id are fenced; see `takeovers` of the record.

        Returns:
            The token and the record; None if the id has no such transaction.

        Durability:
            The record is durable on return.
        """
        clog = self._logs.of(transactional_id)
        attempts = None
        owner = (self._host.process_number, self._host.process_nonce)
        while True:
            end = clog.refresh()
            current = clog.get(transactional_id)
            if current is None or not current.state.undecided:
                return None
            entry = clog.prepared((current.producer_id, current.producer_epoch))
            if entry is None:
                return None
            now = self._host.clock_ms()
            taken = replace(entry, takeovers=entry.takeovers + 1)
            record = current.undecided(current.state, now, owner)
            failpoint("takeover.read")
            offset = clog.append_rows([entry_row(taken)], end, now, value=record)
            if offset is not None:
                failpoint("takeover.appended")
                clog.make_durable(offset + 1)
                failpoint("takeover.durable")
                return self.index.token_of(taken, clog), taken
            attempts = again(attempts, "init of", transactional_id)

    # -- expiry

    def expire(self) -> int:
        """Forget the outcomes that are older than outcome.retention.ms; return how many."""
        if self._retention_ms < 0:
            return 0
        return sum(self._expire_in(clog) for clog in self._logs.all())

    def _expire_in(self, clog: TransactionLog) -> int:
        count, attempts = 0, None
        while True:
            end = clog.refresh()
            now = self._host.clock_ms()
            done = [
                entry.key
                for known in clog.prepared_entries(pending=False)
                if (entry := ended_elsewhere(known, clog.get(known.transactional_id)))
                and entry.state.complete
                and entry.decided_at_ms <= now - self._retention_ms
                and not _fences(entry, clog.get(known.transactional_id))
            ][:_FORGET_AT_ONCE]
            if not done:
                return count
            rows: list[tuple[bytes, bytes | None]] = []
            for key in done:
                rows += [(token_key(key), None), (check_key(key), None)]
            if clog.append_rows(rows, end, now) is None:
                attempts = again(attempts, "expiry of outcomes")
            else:
                count += len(done)


def _fences(entry: PreparedEntry, current: TransactionMetadata | None) -> bool:
    """Return whether the record of a transaction must fence earlier producers.

    Once a producer has raised the epoch of the id, that epoch fences them.
    """
    return entry.takeovers > 0 and current is not None and current.is_retry_of(*entry.key)
