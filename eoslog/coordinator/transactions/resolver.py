"""The resolver: ends transactions whose producer will not end them.

These are transactions of dead processes, transactions that timed out, and decided transactions
without all of their markers. There are three callers:

- the recovery of a partition at the start of a session (`recover_partition`);
- a reader that is blocked at the last stable offset (`resolve_blockers`);
- the background sweep (`sweep`), which also retries what a recovery could not complete.

This is done with an open transaction (producer id, epoch) of a partition:

| State in C (`__transaction_state`) | Action |
|---|---|
| decided | write its marker, even if an earlier one was lost |
| Ongoing; owner dead, or timed out | append PREPARE_ABORT for its id |
| Ongoing otherwise | nothing: its producer is working on it |
| id known, but not Ongoing | complete its last decision, then append PREPARE_ABORT for its id |
| unknown | append PREPARE_ABORT for the reserved id `__recovery-<producer id>` |

In the fourth case, a power loss took the transaction's Ongoing record.

Presumed abort always appends a durable PREPARE_ABORT with a raised epoch to C. It never writes a
marker alone.

The owner is the process that initialised the id. It is dead if its lock is free; a suspended
process keeps its lock. A timeout counts on the monotonic clock from the begin in the transaction's
record while the owner is alive. Otherwise it counts from when this process first read the record,
so it may come late, but not early.

Source: protocol.md "Recovery", rows 17, 21, 22, 31, 39.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from eoslog.coordinator.host import HostLog, TransactionHost
from eoslog.coordinator.retry import again
from eoslog.coordinator.transactions.commit import Endings
from eoslog.coordinator.transactions.log import TransactionLog, TransactionLogs
from eoslog.coordinator.transactions.log_fold import RECOVERY_PREFIX, Decision
from eoslog.coordinator.transactions.markers import MarkerDriver, open_span
from eoslog.coordinator.transactions.prepared_records import TransactionKey
from eoslog.coordinator.transactions.state import (
    MAX_EPOCH,
    ONGOING,
    Cause,
    OffsetSpan,
    TransactionMetadata,
    TransactionState,
)
from eoslog.errors import (
    ConcurrentTransactions,
    EoslogError,
    IllegalState,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    TransactionalIdNotFound,
)
from eoslog.model import TopicPartition

GRACE_S = 0.05
"""Seconds that other threads and processes leave to the decider before they write its markers."""
_RECOVERY_TIMEOUT_MS = 60_000
_TIMED_OUT = Cause.TIMED_OUT  # bound once, because each commit compares with it


class Resolver:
    """Ends transactions that are overdue or decided. Thread-safe."""

    def __init__(
        self, host: TransactionHost, logs: TransactionLogs, driver: MarkerDriver, endings: Endings
    ) -> None:
        """Keep the coordinator's parts."""
        self._host = host
        self._logs = logs
        self._driver = driver
        self._endings = endings
        self._recovering = threading.local()

    def due(self, clog: TransactionLog, metadata: TransactionMetadata) -> Cause | None:
        """The reason to abort an Ongoing transaction now, or None."""
        if metadata.state is not ONGOING:
            return None
        if metadata.owner is not None and not self._host.process_alive(*metadata.owner):
            return Cause.OWNER_DEAD
        if clog.seconds_open(metadata) * 1000 > metadata.timeout_ms:
            return Cause.TIMED_OUT
        return None

    def end_overdue(self, clog: TransactionLog, metadata: TransactionMetadata | None) -> bool:
        """Abort an id's transaction if it has timed out.

        Returns:
            Whether it had timed out; then the caller must read the id's state again.
        """
        if metadata is None or self.due(clog, metadata) is not _TIMED_OUT:
            return False
        self.abort(clog, metadata, _TIMED_OUT)
        return True

    def drive(self, clog: TransactionLog, key: TransactionKey) -> bool:
        """Write the missing markers of a decision, and return whether it is complete."""
        return self._driver.drive(clog, key)

    def abort(
        self, clog: TransactionLog, metadata: TransactionMetadata, cause: Cause,
        extra: dict[TopicPartition, OffsetSpan] | None = None, *, goes_on: bool = True,
    ) -> bool:  # fmt: skip
        """Abort a transaction, unless its id has changed since `metadata` was read.

        Returns:
            Whether this call decided it.
        """
        key = (metadata.producer_id, metadata.producer_epoch)

        def still(current: TransactionMetadata) -> bool:
            same = (current.producer_id, current.producer_epoch) == key
            # A living process may have taken over the id since.
            orphan = cause is not Cause.OWNER_DEAD or current.owner == metadata.owner
            return same and orphan and current.state is metadata.state

        record = self._endings.end(
            clog,
            metadata.transactional_id,
            False,
            may=still,
            cause=cause,
            extra=extra,
            goes_on=goes_on,
        )
        return record is not None

    # -- one open transaction of one partition

    def resolve_blockers(self, log: HostLog, *, grace_s: float = GRACE_S) -> int:
        """End the due transactions that block a partition's last stable offset.

        Args:
            log: the partition.
            grace_s: seconds that a new decision is left to its decider.

        Returns:
            The number of transactions that are no longer open in the partition.
        """
        if self._host.read_only:
            return 0
        rows = log.open_transactions()
        if not rows and log.stable_end < log.log_end:
            log.repair()  # the writer of the last marker died before it published the stable end
        return sum(self.resolve(log, pid, epoch, grace_s) for pid, epoch, _, _ in rows)

    def recover_partition(self, log: HostLog) -> int:
        """End the open transactions of a partition at the start of a session.

        There is no grace time.

        The engine calls this after the recovery of a log and before the first append to it.
        Completing a transaction may open further partitions, whose recovery calls this method
        again. Those are queued, because recursion could exceed the stack.
        """
        waiting = getattr(self._recovering, "waiting", None)
        if waiting is not None:
            waiting.append(log)
            return 0
        waiting = self._recovering.waiting = [log]
        try:
            resolved = 0
            while waiting:
                resolved += self.resolve_blockers(waiting.pop(), grace_s=0.0)
            return resolved
        finally:
            self._recovering.waiting = None

    def resolve(self, log: HostLog, producer_id: int, epoch: int, grace_s: float = GRACE_S) -> bool:
        """End a transaction of a partition if it is due; return whether it has ended."""
        # Read C first, then the partition. A decision is dropped from C only after its markers are
        # published, so if C no longer has the decision, the partition shows the marker.
        self._logs.all()
        return self._resolve(log, (producer_id, epoch), grace_s)

    def _resolve(self, log: HostLog, key: TransactionKey, grace_s: float) -> bool:
        """Do the work of `resolve`; C was folded after the transaction was seen open."""
        producer_id, epoch = key
        span = self._open(log, producer_id, epoch)
        if span is None:
            return True
        tp = TopicPartition(log.topic, log.partition)
        decided = self._logs.decision(key)
        if decided is not None:
            return self._drive(log, *decided, tp, grace_s)
        known = self._logs.of_producer(producer_id)
        if known is not None and known[1].producer_epoch == epoch:
            clog, metadata = known
            if metadata.state.preparing and metadata.decided is not None:
                # A power loss took this transaction's Ongoing and the COMPLETE_* before it.
                self._driver.drive(clog, metadata.decided.key)
                clog.refresh()
                driven = clog.get(metadata.transactional_id)
                if driven is None or driven.state.preparing or driven.producer_epoch != epoch:
                    return False
                metadata = driven
            cause = self.due(clog, metadata)
            if cause is None and metadata.state.expirable:
                cause = Cause.RECOVERY
            if cause is None:
                return False
            self.abort(clog, metadata, cause, {tp: span})
        else:
            self._abort_unknown(key, tp, span)
        return self._open(log, producer_id, epoch) is None

    @staticmethod
    def _open(log: HostLog, producer_id: int, epoch: int) -> OffsetSpan | None:
        found = open_span(log, producer_id)
        return found[1] if found is not None and found[0] == epoch else None

    def _drive(
        self,
        log: HostLog,
        clog: TransactionLog,
        decision: Decision,
        tp: TopicPartition,
        grace_s: float,
    ) -> bool:
        key = decision.decided.key
        if not decision.complete:
            if self._left_to_its_owner(clog, decision.prepared, grace_s):
                return False
            self._driver.drive(clog, key)
        if self._open(log, *key) is not None:
            # Complete, but still open in this partition: a power loss took the marker; or the
            # Ongoing record was lost, so the abort does not name this partition.
            clog.make_durable(decision.offset)
            self._driver.mark(clog, key, tp)
        return self._open(log, *key) is None

    def _left_to_its_owner(
        self, clog: TransactionLog, prepared: TransactionMetadata, grace_s: float
    ) -> bool:
        """Whether a decision is so new that its living owner is probably completing it."""
        assert prepared.decided is not None
        if clog.seconds_decided(prepared.decided.key) >= grace_s:
            return False
        return prepared.owner is not None and self._host.process_alive(*prepared.owner)

    def _abort_unknown(self, key: TransactionKey, tp: TopicPartition, span: OffsetSpan) -> None:
        name = f"{RECOVERY_PREFIX}{key[0]}"
        clog = self._logs.of(name)
        attempts = None
        while True:
            end = clog.refresh()
            current = clog.get(name)
            if current is not None and current.state.preparing and current.decided is not None:
                if not self._driver.drive(clog, current.decided.key):
                    return  # an earlier transaction of this id is incomplete; readers retry later
                continue
            if clog.decision(key) is not None:
                return
            now = self._host.clock_ms()
            record = TransactionMetadata(name, *key, _RECOVERY_TIMEOUT_MS).prepared(
                False, {tp: span}, now, cause=Cause.RECOVERY
            )
            offset = clog.append(record, end, now)
            if offset is not None:
                self._endings.settle(clog, record, offset)
                return
            attempts = again(attempts, "abort of open data of producer", key[0])

    # -- operators

    def end_by_hand(
        self, producer_id: int, producer_epoch: int, commit: bool, tp: TopicPartition
    ) -> KafkaError | None:
        """End a transaction in one partition; return the error or None.

        Kafka's WriteTxnMarkers.
        """
        try:
            log = self._host.partition(tp.topic, tp.partition)
            found = open_span(log, producer_id)
            if found is None:
                return None
            if found[0] > producer_epoch:
                raise InvalidProducerEpoch(
                    f"{tp}: epoch {producer_epoch} of producer {producer_id} is older than its "
                    f"open transaction, which has epoch {found[0]}"
                )
            self._end_open(log, (producer_id, found[0]), commit)
        except KafkaError as error:
            return error
        return None

    def _end_open(self, log: HostLog, key: TransactionKey, commit: bool) -> None:
        self._logs.all()
        decided = self._logs.decision(key)
        if commit != (decided is not None and decided[1].commit):
            known = "was not decided to commit" if commit else "was decided to commit"
            raise InvalidTxnState(
                f"{log.topic}-{log.partition}: the transaction of producer {key[0]}, epoch "
                f"{key[1]}, {known}; {'abort' if commit else 'commit'} it instead"
            )
        named = self._logs.of_producer(key[0])
        if decided is None and named is not None and named[1].producer_epoch == key[1]:
            clog, metadata = named
            if metadata.state is TransactionState.ONGOING:
                self.abort(clog, metadata, Cause.OPERATOR)
        if not self.resolve(log, *key, grace_s=0.0):
            raise ConcurrentTransactions(
                f"{log.topic}-{log.partition}: the transaction of producer {key[0]}, epoch "
                f"{key[1]}, is still open; retry"
            )

    def abort_by_hand(self, transactional_id: str) -> bool:
        """See `TransactionCoordinator.abort_transaction`."""
        clog = self._logs.of(transactional_id)
        while True:
            clog.refresh()
            current = clog.get(transactional_id)
            if current is None:
                raise TransactionalIdNotFound(
                    f"transactional id {transactional_id!r} does not exist; "
                    "log.transactions(open_only=False) lists all ids"
                )
            if current.state.preparing:
                self._driver.await_completion(clog, current)
            ongoing = current.state is TransactionState.ONGOING
            if not ongoing or current.producer_epoch >= MAX_EPOCH:
                return False
            if self.abort(clog, current, Cause.OPERATOR):
                return True

    # -- all of them

    def sweep(self, on_error: Callable[[str, EoslogError], None]) -> int:
        """Abort overdue transactions, and complete decided ones, in every C partition.

        Then end open transactions in the open partitions of this process that C does not list: the
        process that recovered such a partition may have died or failed before it ended them.

        Args:
            on_error: called with the name and the error of each transaction that fails; the others
                are not affected.

        Returns:
            The number of aborted transactions.
        """
        aborted = 0
        for clog in self._logs.all():
            for metadata in clog.values():
                try:
                    if metadata.state.preparing and metadata.decided is not None:
                        if not self._left_to_its_owner(clog, metadata, GRACE_S):
                            self._driver.drive(clog, metadata.decided.key)
                        continue
                    cause = self.due(clog, metadata)
                    if cause is not None:
                        aborted += self.abort(clog, metadata, cause)
                except IllegalState:
                    raise
                except EoslogError as error:
                    on_error(metadata.transactional_id, error)
        self._sweep_logs(on_error)
        return aborted

    def _sweep_logs(self, on_error: Callable[[str, EoslogError], None]) -> None:
        logs = self._host.open_logs()
        held = [log for log in logs if log.stable_end < log.high_watermark]
        seen = [(log, row[:2]) for log in held for row in log.open_transactions()]
        if seen:
            self._logs.all()
        for log, key in seen:
            try:
                self._resolve(log, key, GRACE_S)
            except IllegalState:
                raise
            except EoslogError as error:
                on_error(f"{log.topic}-{log.partition}", error)
