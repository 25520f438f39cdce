"""The marker driver: completes a decided transaction.

Completing means: append one marker to each partition of the transaction, then append COMPLETE_* to
C, the `__transaction_state` partition of the transactional id.

**Drivers.** Any process may complete a decided transaction. These do: the producer that asked for
the decision, the next producer with the same transactional id, a reader that the transaction
blocks, and the background sweep. Several drivers may work on one transaction at the same time.

**The driver rule.** A driver may be suspended for an hour between reading the decision and
appending a marker. The marker must not end a later transaction of the same producer then. So each
marker is a conditional append: under the lock of the data partition, C must still end where it
ended when the driver read the decision. A later transaction of the producer publishes its Ongoing
record in C before its first batch, so the condition fails after that. The driver then reads C
again, and checks again whether the transaction is still open in the partition.

**After a crash**, some partitions have a marker and others do not, or a power loss has removed a
marker that was published. Any driver repairs that. It skips partitions where the transaction is no
longer open.

Source: Kafka `TransactionMarkerChannelManager`; KIP-890, KIP-1228; protocol.md rows 1, 4, 14, 19.
"""

from __future__ import annotations

import threading

from eoslog._core import build_marker
from eoslog.coordinator.host import HostLog, TransactionHost
from eoslog.coordinator.retry import again
from eoslog.coordinator.trace import Trace
from eoslog.coordinator.transactions.log import TransactionLog
from eoslog.coordinator.transactions.log_fold import Decision
from eoslog.coordinator.transactions.prepared_records import TransactionKey
from eoslog.coordinator.transactions.state import (
    TRANSACTION_VERSION,
    OffsetSpan,
    TransactionMetadata,
)
from eoslog.errors import (
    ConcurrentTransactions,
    CorruptRecord,
    EoslogError,
    IllegalState,
    InvalidProducerEpoch,
    LockTimeout,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendOrigin, TopicPartition
from eoslog.storage.fs.files import failpoint

_LOCK_S = 5.0
"""The longest wait of a second thread of this process for the first driver of a transaction."""
_PATIENCE_S = (0.2, 5.0)
"""The longest wait for a partition's lock: in the first pass, and for locked ones in the second."""
_COORDINATOR = AppendOrigin.COORDINATOR
Entry = tuple[int, int, int, int]
"""The state of a producer in a partition: see `HostLog.producer_entry`."""
_new = tuple.__new__  # creates a named tuple without its slower constructor
_UNKNOWN: Entry = (-1, -1, -1, -1)


def open_span(log: HostLog, producer_id: int) -> tuple[int, OffsetSpan] | None:
    """Return (epoch, span) of a producer's open transaction in a partition, or None."""
    found = log.open_transaction(producer_id)
    if found is None:
        return None
    epoch, first, last = found
    return epoch, _new(OffsetSpan, (first, last, log.topic_id))


class MarkerDriver:
    """Writes markers and COMPLETE_* records.

    Thread-safe. Any number of processes may have a driver for the same transaction.
    """

    def __init__(self, host: TransactionHost, events: Trace) -> None:
        """Keep the engine and the trace of requests."""
        self._host = host
        self._events = events
        self._lock = threading.Lock()
        self._drivers: dict[TransactionKey, int] = {}  # threads of this process
        self._ended = threading.Condition(self._lock)  # notified when one of them is done
        self._waiting = 0  # threads that wait for it
        self._failures: dict[TransactionKey, dict[TopicPartition | None, EoslogError]] = {}

    def drive(self, clog: TransactionLog, key: TransactionKey) -> bool:
        """Write the missing markers of a decided transaction, then COMPLETE_*.

        An error in one partition does not stop the others. It is kept for `failure`, and COMPLETE_*
        is not written, so a later driver tries again. Until then, readers of that partition wait at
        its last stable offset.

        Args:
            clog: the log with the decision.
            key: the decided transaction.

        Returns:
            Whether the transaction is complete.

        Raises:
            StorageError: if the decision cannot be made durable. No marker is written then.

        Durability:
            The decision is durable before the first marker is appended. Markers and COMPLETE_* are
            published, not durable: recovery writes them again from the decision.
        """
        self._open_logs(clog.decision(key))
        if not self._begin(key):
            # Re-entrant: this thread already drives the transaction, and opening a partition led
            # back to this method.
            return False
        try:
            clog.refresh()
            decision = clog.decision(key)
            if decision is None or decision.complete:
                return True
            clog.make_durable(decision.offset)
            failures: dict[TopicPartition | None, EoslogError] = {}
            todo = sorted(decision.spans)
            for patience_s in _PATIENCE_S:
                for tp in todo:
                    try:
                        self.mark(clog, key, tp, timeout_s=patience_s)
                    except IllegalState:
                        raise  # the log is closed, or was inherited through a fork
                    except EoslogError as error:
                        failures[tp] = error
                    else:
                        failpoint("txn.marked")
                        if failures:
                            failures.pop(tp, None)
                if not failures:
                    break
                # Retry locked partitions after all others have their markers.
                todo = [tp for tp in todo if isinstance(failures.get(tp), LockTimeout)]
            if not failures:
                try:
                    self._complete(clog, decision)
                except IllegalState:
                    raise
                except EoslogError as error:
                    failures[None] = error
            if failures or key in self._failures:
                with self._lock:
                    if failures:
                        self._failures[key] = failures
                    else:
                        self._failures.pop(key, None)
            return not failures
        finally:
            self._end(key)

    def await_completion(self, clog: TransactionLog, current: TransactionMetadata) -> None:
        """Complete a decided transaction, or raise ConcurrentTransactions.

        Kafka uses that error to make clients wait.

        Raises:
            ConcurrentTransactions: if markers are still missing; retriable.
        """
        assert current.decided is not None
        key = current.decided.key
        if not self.drive(clog, key):
            raise ConcurrentTransactions(
                f"transactional id {current.transactional_id!r}: {current.state.wire_name} of "
                f"epoch {key[1]} is not complete, retry later: {self.failure(key)}"
            )

    def _open_logs(self, decision: Decision | None) -> None:
        """Open and recover the partitions of a decision, before taking its lock.

        Recovery of a partition ends transactions that it finds open there, and may need to drive
        this decision for it. That is so if a power loss took the Ongoing record of the next
        transaction of the same producer: recovery completes this transaction first.
        """
        for tp in decision.spans if decision is not None and not decision.complete else ():
            try:
                self._host.partition(tp.topic, tp.partition)
            except EoslogError:
                continue  # `mark` encounters the error again, and `drive` keeps it

    def failure(self, key: TransactionKey) -> str:
        """The errors of the last `drive` of a transaction; empty if it is complete."""
        with self._lock:
            failures = self._failures.get(key, {})
        return "; ".join(f"{tp or 'COMPLETE'}: {error}" for tp, error in failures.items())

    def mark(
        self,
        clog: TransactionLog,
        key: TransactionKey,
        tp: TopicPartition,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Append the marker of one partition by the driver rule, if it is missing.

        If the decision does not name the partition, the marker aborts: open data that no decision
        commits is aborted.

        Args:
            clog: the log with the decision.
            key: the decided transaction.
            tp: the partition.
            timeout_s: the longest wait for the partition's lock; None means storage's own limit.

        Raises:
            CorruptRecord: if the decision is to commit, and the partition lacks records that it
                names.
            LockTimeout: if the partition's lock is held for too long.
        """
        attempts = None
        while True:
            end = clog.refresh()
            decision = clog.decision(key)
            if decision is None:
                return  # it is complete, and no longer kept
            try:
                log = self._host.partition(tp.topic, tp.partition)
            except UnknownTopicOrPartition:
                return
            named = decision.spans.get(tp)
            span = named if named is not None else OffsetSpan()
            if span.topic_id != log.topic_id and any(span.topic_id):
                return  # the topic was deleted with the records, and re-created
            commit = decision.commit and named is not None
            entry = log.producer_entry(key[0]) or _UNKNOWN
            epoch = self._epoch_to_write(log, entry, decision, span, commit)
            if epoch is None:
                return
            marker = build_marker(
                key[0], epoch, commit, timestamp=self._host.clock_ms(),
                # Kafka rejects markers of an older coordinator, and an imported log may have a
                # marker with a coordinator epoch above 0.
                coordinator_epoch=max(0, entry[1]),
            )  # fmt: skip
            try:
                result = log.append(
                    marker, expect=((clog.log, end),), origin=_COORDINATOR, timeout=timeout_s
                )
            except InvalidProducerEpoch:
                entry = log.producer_entry(key[0]) or _UNKNOWN
                if self._epoch_to_write(log, entry, decision, span, commit) is None:
                    return  # another driver was faster
                raise
            if result is not None:
                if self._events.heard:
                    self._events.emit(
                        "WriteTxnMarkers",
                        decision.prepared.transactional_id,
                        producer_id=key[0],
                        producer_epoch=epoch,
                        commit=commit,
                        partition=tp,
                        offset=result.base_offset,
                        error=None,
                    )
                return
            attempts = again(attempts, "marker of producer", key[0], "in", tp)

    def _epoch_to_write(
        self, log: HostLog, entry: Entry, decision: Decision, span: OffsetSpan, commit: bool
    ) -> int | None:
        """Return the epoch of the marker, or None if the partition needs no marker."""
        prepared, (producer_id, data_epoch) = decision.prepared, decision.key
        found, _, first, last = entry
        if first >= 0 and found == data_epoch:
            if commit:
                self._check_data(log, span, last)
            # One above the epoch that it ends, even if Kafka (before version 2) decided without
            # raising the epoch.
            return max(prepared.producer_epoch, data_epoch + 1)
        if first >= 0 and found > data_epoch:
            return None
        if first >= 0 and (commit or prepared.client_version >= TRANSACTION_VERSION):
            # The marker would also end an older transaction, perhaps with the wrong result.
            raise ConcurrentTransactions(
                f"{log.topic}-{log.partition}: the transaction of producer {producer_id}, epoch "
                f"{found}, is still open and must end before that of epoch {data_epoch}; retry"
            )
        if commit and not span.empty and log.log_end <= span.last:
            self._check_data(log, span, span.last)
        if found > data_epoch:
            return None
        # Added but never written to: the marker still publishes the new epoch in the partition.
        return max(prepared.producer_epoch, data_epoch + 1)

    @staticmethod
    def _check_data(log: HostLog, span: OffsetSpan, last: int) -> None:
        """Check that the partition has all of the span, and make it durable up to `last`.

        Args:
            log: the partition.
            span: the offsets that the decision names.
            last: the last offset of the transaction in the partition.

        Raises:
            CorruptRecord: if the log ends before the span does.
        """
        if not span.empty and log.log_end <= span.last:
            raise CorruptRecord(
                f"{log.topic}-{log.partition}: records of a committed transaction are missing, run "
                "`eoslog check`",
                expected=f"offsets up to {span.last}",
                found=f"log end {log.log_end}",
            )
        if log.high_watermark <= last:
            # A late batch of the producer came after the decision. Or the decision carries the
            # data, and the process that decided died before it could raise the high watermark.
            log.flush(last + 1)

    def _complete(self, clog: TransactionLog, decision: Decision) -> None:
        name, mine = decision.prepared.transactional_id, decision.decided
        attempts = None
        while True:
            end = clog.refresh()
            current = clog.get(name)
            if current is None or not current.state.preparing:
                return  # another driver has completed it
            decided = current.decided
            if decided is not mine and (decided is None or decided.key != mine.key):
                return
            now = self._host.clock_ms()
            if clog.append(current.completed(now), end, now) is not None:
                failpoint("txn.completed")
                return
            attempts = again(attempts, "completion of", name)

    def _begin(self, key: TransactionKey) -> bool:
        """Wait until no other thread of this process drives the transaction.

        The waiting threads then usually find it complete.

        Returns:
            False if this thread drives the transaction already.
        """
        me = threading.get_ident()
        with self._lock:
            driver = self._drivers.get(key)
            if driver is not None:
                if driver == me:
                    return False
                self._waiting += 1
                try:
                    if not self._ended.wait_for(lambda: key not in self._drivers, _LOCK_S):
                        return True  # drive it too, because the other thread takes too long
                finally:
                    self._waiting -= 1
            self._drivers[key] = me
        return True

    def _end(self, key: TransactionKey) -> None:
        with self._lock:
            if self._drivers.get(key) == threading.get_ident():
                del self._drivers[key]
                if self._waiting:
                    self._ended.notify_all()
