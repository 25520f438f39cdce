"""Driving a decided transaction to its end: one marker in each partition, then COMPLETE.

Whoever meets a decided transaction may drive it: the producer that asked for it, the next instance
of its id, a reader that is held up by it, the sweep. What keeps a driver that was stopped for an
hour from doing harm when it wakes is the **driver rule**: a marker is appended only if, under the
data partition's lock, C still ends where the decision was read. If C has moved, the driver reads it
again and looks again whether the transaction is still open in the partition; a later transaction of
the same producer cannot be touched, because its Ongoing had to be published in C first.

What a crash leaves: markers in some partitions and none in others, or a marker that was published
and lost. Who repairs it: any driver; a second marker for a transaction that is no longer open
changes nothing.

Source: Kafka `TransactionMarkerChannelManager`; KIP-890, KIP-1228; protocol.md rows 1, 4, 14, 19.
"""

from __future__ import annotations

import threading

from eoslog._core import build_marker
from eoslog.coordinator.attempts import Attempts
from eoslog.coordinator.host import Host, HostLog
from eoslog.coordinator.trace import Trace
from eoslog.coordinator.transaction_log import Decision, Key, TransactionLog
from eoslog.coordinator.transaction_state import TRANSACTION_VERSION, Span
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
from eoslog.storage.files import failpoint

_TURN_S = 5.0
"""How long a second driver of the same transaction in this process waits for the first."""
_PATIENCE_S = (0.2, 5.0)
"""How long to wait for a partition's lock: first for all of them, then for those it was held of."""
_COORDINATOR = AppendOrigin.COORDINATOR
Entry = tuple[int, int, int, int]
"""What a partition knows of a producer: see `HostLog.producer_entry`."""
_UNKNOWN: Entry = (-1, -1, -1, -1)


def open_span(log: HostLog, producer_id: int) -> tuple[int, Span] | None:
    """(epoch, span) of the transaction that a producer has open in a partition."""
    found = log.open_transaction(producer_id)
    return None if found is None else (found[0], Span(found[1], found[2], log.topic_id))


class MarkerDriver:
    """Writes markers and COMPLETE records. Thread-safe; many processes may drive at once."""

    def __init__(self, host: Host, events: Trace) -> None:
        """Nothing to drive yet."""
        self._host = host
        self._events = events
        self._lock = threading.Lock()
        self._turns: dict[Key, _Turn] = {}
        self._failures: dict[Key, dict[TopicPartition | None, EoslogError]] = {}

    def drive(self, clog: TransactionLog, key: Key) -> bool:
        """Write every marker that a decision still demands, then COMPLETE.

        A partition that fails holds no other up: its error is kept for `failure`, the decision
        stays for later drivers, and readers of that partition wait at its last stable offset.

        Returns:
            Whether the transaction is complete.

        Raises:
            StorageError: the decision cannot be made durable, so nobody may act on it.

        **Durability**: the decision is durable before the first marker; markers and COMPLETE are
        published only, recovery derives them again.
        """
        self._open_logs(clog.decision(key))
        turn = self._take_turn(key)
        if turn is None:
            return False  # this thread is at it already, and met it again while opening a log
        try:
            clog.refresh()
            decision = clog.decision(key)
            if decision is None or decision.complete:
                return True
            clog.make_durable(decision.offset)
            failures: dict[TopicPartition | None, EoslogError] = {}
            markers: dict[TopicPartition, int] = {}
            todo = sorted(decision.spans)
            for patience_s in _PATIENCE_S:
                for tp in todo:
                    try:
                        offset = self.mark(clog, key, tp, timeout_s=patience_s)
                    except IllegalState:
                        raise  # this handle is closed, or a fork's
                    except EoslogError as error:
                        failures[tp] = error
                    else:
                        failpoint("txn.marked")
                        if failures:
                            failures.pop(tp, None)
                        if offset is not None:
                            markers[tp] = offset
                if not failures:
                    break
                # A partition whose lock is held comes again after the others have theirs.
                todo = [tp for tp in todo if isinstance(failures.get(tp), LockTimeout)]
            if not failures:
                try:
                    self._complete(clog, decision, markers)
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
            self._leave_turn(key, turn)

    def _open_logs(self, decision: Decision | None) -> None:
        """Have recovered what the decision names, before the turn is taken.

        Recovery settles what it finds open, and may need this very drive for it: of the next
        transaction, whose Ongoing a power cut took, it ends this one first.
        """
        for tp in decision.spans if decision is not None and not decision.complete else ():
            try:
                self._host.partition(tp.topic, tp.partition)
            except EoslogError:
                continue  # met again, and kept, where it is marked

    def failure(self, key: Key) -> str:
        """Why the last drive of a transaction did not complete it; empty if it did."""
        with self._lock:
            failures = self._failures.get(key, {})
        return "; ".join(f"{tp or 'COMPLETE'}: {error}" for tp, error in failures.items())

    def mark(
        self, clog: TransactionLog, key: Key, tp: TopicPartition, *, timeout_s: float | None = None
    ) -> int | None:
        """Append one partition's marker unless it is there already (the driver rule).

        An abort is also carried into a partition that the decision does not name: open data that
        no commit speaks of is aborted.

        Args:
            clog: where the decision lies.
            key: the decided transaction.
            tp: the partition.
            timeout_s: how long to wait for the partition's lock; None: storage's own limit.

        Returns:
            An offset that the marker does not lie above; None if the partition is gone.

        Raises:
            CorruptRecord: the decision is commit, and the partition lacks records it names.
            LockTimeout: the partition's lock is held.
        """
        attempts = Attempts("marker of producer", key[0], "in", tp)
        while True:
            end = clog.refresh()
            decision = clog.decision(key)
            if decision is None:
                return -1
            try:
                log = self._host.partition(tp.topic, tp.partition)
            except UnknownTopicOrPartition:
                return None
            named = decision.spans.get(tp)
            span = named if named is not None else Span()
            if span.topic_id != log.topic_id and any(span.topic_id):
                return None  # deleted and made again: its records are gone with the old one
            commit = decision.commit and named is not None
            entry = log.producer_entry(key[0]) or _UNKNOWN
            epoch = self._epoch_to_write(log, entry, decision, span, commit)
            if epoch is None:
                return int(log.log_end) - 1
            marker = build_marker(
                key[0], epoch, commit, timestamp=self._host.clock_ms(),
                # Kafka fences an older coordinator's markers; an imported log may hold a newer's.
                coordinator_epoch=max(0, entry[1]),
            )  # fmt: skip
            try:
                result = log.append(
                    marker,
                    expect=[(clog.log, end)],
                    origin=_COORDINATOR,
                    timeout=timeout_s,
                )
            except InvalidProducerEpoch:
                entry = log.producer_entry(key[0]) or _UNKNOWN
                if self._epoch_to_write(log, entry, decision, span, commit) is None:
                    return int(log.log_end) - 1  # another driver was faster
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
                return int(result.base_offset)
            attempts.again()

    def _epoch_to_write(
        self, log: HostLog, entry: Entry, decision: Decision, span: Span, commit: bool
    ) -> int | None:
        """The epoch for the marker, or None if the partition needs none (any more)."""
        prepared, (producer_id, data_epoch) = decision.prepared, decision.decided.key
        found, _, first, last = entry
        if first >= 0 and found == data_epoch:
            if commit:
                self._check_data(log, span, last)
            # One above what it ends, also where Kafka before version 2 decided with the same one.
            return max(prepared.producer_epoch, data_epoch + 1)
        if first >= 0 and found > data_epoch:
            return None
        if first >= 0 and (commit or prepared.client_version >= TRANSACTION_VERSION):
            # This marker would end the older one as well, and perhaps the wrong way.
            raise ConcurrentTransactions(
                f"{log.topic}-{log.partition}: epoch {found} of producer {producer_id} is still "
                f"open, epoch {data_epoch} cannot be ended before it"
            )
        if commit and not span.empty and log.log_end <= span.last:
            self._check_data(log, span, span.last)
        if found > data_epoch:
            return None
        # Added but never written to: the marker teaches the partition the new epoch all the same.
        return max(prepared.producer_epoch, data_epoch + 1)

    @staticmethod
    def _check_data(log: HostLog, span: Span, last: int) -> None:
        """The partition holds all of the span, and is durable up to `last`, what it has of it."""
        if not span.empty and log.log_end <= span.last:
            raise CorruptRecord(
                f"{log.topic}-{log.partition} lacks records of a committed transaction",
                expected=f"offsets up to {span.last}",
                found=f"log end {log.log_end}",
            )
        if last > span.last and log.high_watermark <= last:
            # A straggler of the producer got in after the flush: durable before it is committed.
            log.flush(last + 1)

    def _complete(
        self, clog: TransactionLog, decision: Decision, markers: dict[TopicPartition, int]
    ) -> None:
        name, key = decision.prepared.transactional_id, decision.decided.key
        attempts = Attempts("completion of", name)
        while True:
            end = clog.refresh()
            current = clog.get(name)
            if (
                current is None
                or not current.state.preparing
                or current.decided is None
                or current.decided.key != key
            ):
                return  # somebody else has completed it
            now = self._host.clock_ms()
            if clog.append(current.completed(markers, now), end, now) is not None:
                failpoint("txn.completed")
                return
            attempts.again()

    def _take_turn(self, key: Key) -> _Turn | None:
        """One driver of a transaction in this process at a time: the others find it complete.

        None for a thread that drives it already.
        """
        me = threading.get_ident()
        with self._lock:
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = _Turn(me)
                return turn
            if turn.driver == me:
                return None
            turn.users += 1
        if turn.lock.acquire(timeout=_TURN_S):
            turn.driver = me
        return turn

    def _leave_turn(self, key: Key, turn: _Turn) -> None:
        if turn.driver == threading.get_ident():
            turn.driver = None
            turn.lock.release()
        with self._lock:
            turn.users -= 1
            if turn.users == 0:
                del self._turns[key]


class _Turn:
    """Who drives a transaction in this process, and how many want to."""

    __slots__ = ("driver", "lock", "users")

    def __init__(self, driver: int) -> None:
        self.driver: int | None = driver
        self.lock = threading.Lock()
        self.lock.acquire()
        self.users = 1
