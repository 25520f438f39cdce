"""The partitions of `__transaction_state`, and the conditional append.

C is such a partition. Its fold (`log_fold.py`) is the only state: a process that makes a change
appends a record and then folds it, as other processes do. (It folds the value that it appended
instead of reading it back.) A change is made as follows:

    end = refresh()
    decide from the folded values
    append(record, end)    returns None if C has changed: start again

A decision or an epoch that is only published may be lost. Call `make_durable` before acting on it.

Source: Kafka `TransactionStateManager`; protocol.md rows 1, 2 and 22.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from eoslog._core import FoldedTransactions, build_batch, transaction_batch, transaction_value
from eoslog.coordinator.host import HostLog, TransactionHost
from eoslog.coordinator.transactions.log_fold import Decision, TransactionLogFold
from eoslog.coordinator.transactions.prepared_records import PreparedEntry, TransactionKey
from eoslog.coordinator.transactions.records import decode_carried, encode_key
from eoslog.coordinator.transactions.state import ONGOING, TransactionMetadata
from eoslog.errors import CorruptRecord
from eoslog.model import AppendOrigin, TopicPartition
from eoslog.storage.segment.carried_batches import CarriedAbove, CarriedBatches

_COORDINATOR = AppendOrigin.COORDINATOR
_Commits = dict[tuple[TopicPartition, bytes], list[tuple["TransactionLog", Decision]]]


class TransactionLog(FoldedTransactions[TransactionMetadata]):
    """One C partition in this process: its log, the fold, and the conditional append.

    Thread-safe. Values of the fold are immutable, so callers decide from them without a lock.
    `append` then checks, under the log's lock, that they are still the newest.
    """

    log: HostLog
    _fold: TransactionLogFold

    def __init__(self, log: HostLog, clock: Callable[[], float] | None = None) -> None:
        """Keep the log; `refresh` reads it."""
        self._clock = clock or time.monotonic
        self._lock = threading.RLock()
        super().__init__(log, TransactionLogFold(), self._clock)

    def _fold_to_end(self) -> int:
        with self._lock:
            while True:
                cleaned = self.log.cleaned_to
                fold, start = self._fold, self._position
                if start < self.log.log_start or (start < cleaned and self._cleaned < cleaned):
                    # The cleaner may have removed tombstones that were not folded: fold all again.
                    fold, start = TransactionLogFold(), self.log.log_start
                end = self.log.log_end
                if end > start:
                    for batch in self.log.batches(start, end):
                        if not batch.control and batch.last_offset >= start:
                            self._take(fold, start, batch)
                cleaned_now = self.log.cleaned_to
                if cleaned_now == cleaned or cleaned_now <= start:
                    # In this order, because readers take no lock.
                    self._fold, self._cleaned, self._position = fold, cleaned, end
                    return end
                # Cleaned during the read: old and new records are mixed.

    def _take(self, fold: TransactionLogFold, start: int, batch: object) -> None:
        for offset, _, key, value, _ in batch.records():  # type: ignore[attr-defined]
            if offset < start:
                continue
            try:
                metadata = fold.apply(offset, key, value)
            except CorruptRecord as error:
                where = f"{self.log.topic}-{self.log.partition}, offset {offset}"
                raise CorruptRecord(f"{where}: {error}") from error
            if metadata is not None:
                self._times.note(metadata)

    def clock_ns(self) -> int:
        """CLOCK_MONOTONIC, which all processes of the machine share."""
        return int(self._clock() * 1e9)

    def seconds_open(self, metadata: TransactionMetadata) -> float:
        """Seconds since the transaction began, or since this process first read it.

        The begin in the record is valid only while the owner is alive, because the machine has not
        restarted then. The caller must check the owner first.
        """
        key = (metadata.producer_id, metadata.producer_epoch)
        now = self._clock()
        since = self._times.opened.get(key, now)
        if metadata.opened_ns >= 0 and metadata.owner is not None:
            since = min(since, metadata.opened_ns / 1e9)
        return now - since

    def seconds_left(self, metadata: TransactionMetadata) -> float:
        """Seconds until the transaction's timeout; negative after it. See `seconds_open`."""
        return metadata.timeout_ms / 1000 - self.seconds_open(metadata)

    def open(self) -> list[TransactionMetadata]:
        """The newest record of every id whose transaction is Ongoing."""
        with self._lock:
            found = [self._of_key(key) for key in self._times.opened]
        return [metadata for metadata in found if metadata is not None]

    def undriven(self) -> list[Decision]:
        """The decisions that are not complete."""
        with self._lock:
            found = [self._fold.decisions.get(key) for key in self._times.decided]
        return [one for one in found if one is not None and not one.complete]

    def _of_key(self, key: TransactionKey) -> TransactionMetadata | None:
        metadata = self._fold.table.get(self._fold.ids.get(key[0], ""))
        if metadata is None or metadata.state is not ONGOING:
            return None
        return metadata if (metadata.producer_id, metadata.producer_epoch) == key else None

    def seconds_decided(self, key: TransactionKey) -> float:
        """Seconds since this process first read the decision."""
        return self._past(self._times.decided, key)

    def _past(self, since: dict[TransactionKey, float], key: TransactionKey) -> float:
        with self._lock:
            now = self._clock()
            return now - since.get(key, now)

    # -- reading the fold

    def values(self) -> list[TransactionMetadata]:
        """Every id's newest record."""
        with self._lock:
            return list(self._fold.table.values())

    def decisions(self) -> list[Decision]:
        """All decisions that are not forgotten."""
        with self._lock:
            return list(self._fold.decisions.values())

    def of_producer(self, producer_id: int) -> TransactionMetadata | None:
        """The transactional id that has a producer id."""
        with self._lock:
            name = self._fold.ids.get(producer_id)
            metadata = self._fold.table.get(name) if name is not None else None
            return (
                metadata if metadata is not None and metadata.producer_id == producer_id else None
            )

    def prepared(self, key: TransactionKey) -> PreparedEntry | None:
        """The prepared transaction of a producer id and epoch; None if it is unknown."""
        with self._lock:
            return self._fold.prepared.entries.get(key)

    def prepared_and_id(
        self, key: TransactionKey
    ) -> tuple[PreparedEntry | None, TransactionMetadata | None]:
        """A prepared transaction and the record of its id, as of the same end of C."""
        with self._lock:
            entry = self._fold.prepared.entries.get(key)
            return entry, None if entry is None else self._fold.table.get(entry.transactional_id)

    def prepared_of(self, transactional_id: str) -> list[PreparedEntry]:
        """The undecided prepared transactions of a transactional id."""
        with self._lock:
            return self._fold.prepared.of_id(transactional_id)

    def prepared_of_group(self, group_id: str) -> list[PreparedEntry]:
        """The staged transactions with offsets of a group that have not ended."""
        with self._lock:
            return self._fold.prepared.of_group(group_id)

    def groups_of_prepared(self) -> set[str]:
        """The groups with offsets in staged transactions that have not ended."""
        with self._lock:
            return self._fold.prepared.groups()

    def prepared_entries(self, *, pending: bool) -> list[PreparedEntry]:
        """All prepared transactions, or those that are undecided or not delivered."""
        with self._lock:
            fold = self._fold.prepared
            return [fold.entries[key] for key in (fold.pending if pending else fold.entries)]

    def prepared_totals(self) -> tuple[int, int]:
        """The number of transactions without an end, and their payload in bytes."""
        fold = self._fold.prepared
        return len(fold.pending), fold.size

    def take_changed(self) -> list[TransactionKey]:
        """The prepared transactions that have changed since the last call."""
        with self._lock:
            changed, self._fold.prepared.changed = self._fold.prepared.changed, {}
            return list(changed)

    def forget(self, key: TransactionKey) -> None:
        """See `TransactionLogFold.forget`."""
        with self._lock:
            self._fold.forget(key)

    # -- writing

    def append(
        self, value: TransactionMetadata, end: int, now_ms: int,
        carried: Sequence[tuple[str, bytes, int, int, bytes]] = (),
    ) -> int | None:  # fmt: skip
        """Append a record if C still ends at `end`.

        Args:
            value: the record.
            end: the expected end of C.
            now_ms: the wall clock.
            carried: the batches that a decision carries, as rows of (topic, topic id, partition,
                first offset, bytes).

        Returns:
            The offset of the record, or None if C has changed; then refresh and decide again.

        Durability:
            The record is published, not durable; see `make_durable`.
        """
        log, batch = self.log, transaction_batch(now_ms, value, carried)
        result = log.append(batch, expect=((log, end),), origin=_COORDINATOR)
        if result is None:
            return None
        offset = result.base_offset
        with self._lock:
            self.take_appended(value, offset)
        return offset

    def append_rows(
        self,
        rows: Iterable[tuple[bytes, bytes | None]],
        end: int,
        now_ms: int,
        *,
        value: TransactionMetadata | None = None,
        expect: Iterable[tuple[HostLog, int]] = (),
    ) -> int | None:
        """Append (key, value) records in one batch, if C still ends at `end`.

        Args:
            rows: the records; None as a value is a tombstone.
            end: the expected end of C.
            now_ms: the wall clock.
            value: the record of an id that comes first in the batch.
            expect: more (log, end) pairs that the caller's decision relies on.

        Returns:
            The offset of the first record, or None if C or a log in `expect` has changed.

        Durability:
            All records are published together, not durable; see `make_durable`.
        """
        every = [(now_ms, key, data, ()) for key, data in rows]
        if value is not None:
            first = (now_ms, encode_key(value.transactional_id), transaction_value(value), ())
            every.insert(0, first)
        return self._append(build_batch(every), end, tuple(expect))

    def append_tombstones(self, ids: Iterable[str], end: int, now_ms: int) -> int | None:
        """Append tombstones for ids, if C still ends at `end`."""
        rows = [(now_ms, encode_key(name), None, ()) for name in ids]
        return self._append(build_batch(rows), end)

    def _append(
        self, batch: bytes | bytearray, end: int, expect: tuple[tuple[HostLog, int], ...] = ()
    ) -> int | None:
        log = self.log
        result = log.append(batch, expect=((log, end), *expect), origin=_COORDINATOR)
        return None if result is None else result.base_offset

    def carried(self, decision: Decision, tp: TopicPartition) -> Iterator[CarriedBatches]:
        """Yield the batches of a partition that a decision carries: one, or none."""
        topic_id = decision.spans[tp].topic_id
        for batch in self.log.batches(decision.offset, decision.offset + 1):
            for offset, _, _, value, _ in batch.records():
                if offset == decision.offset and value is not None:
                    found = decode_carried(value).get((tp, topic_id))
                    if found is not None:
                        yield found

    def is_durable(self, offset: int) -> bool:
        """Whether the record at `offset` is durable, by the durability setting."""
        return self.log.high_watermark > offset

    def make_durable(self, offset: int) -> None:
        """Make the record at `offset` durable."""
        if not self.is_durable(offset):
            self.log.flush(offset + 1)


class TransactionLogs:
    """The C partitions that this process has opened."""

    def __init__(self, host: TransactionHost, clock: Callable[[], float] | None = None) -> None:
        """Start without logs."""
        self._host = host
        self._clock = clock or time.monotonic
        self._lock = threading.Lock()
        self._logs: dict[int, TransactionLog] = {}
        self._cuts = 0  # running snapshots
        self._commits: _Commits | None = None  # of earlier sessions, by what they name

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Keep all decisions inside the `with` block.

        A running snapshot may have read ends below transactions that are settled since.
        """
        with self._lock:
            self._cuts += 1
        try:
            yield
        finally:
            with self._lock:
                self._cuts -= 1

    def forget(self, done: Iterable[tuple[TransactionLog, TransactionKey]]) -> int:
        """Drop settled decisions, unless a snapshot is running; return how many."""
        count = 0
        with self._lock:
            if self._cuts == 0:
                for clog, key in done:
                    clog.forget(key)
                    count += 1
        return count

    def _wrap(self, log: HostLog) -> TransactionLog:
        known = self._logs.get(log.partition)
        if known is not None and known.log is log:
            return known
        with self._lock:
            known = self._logs.get(log.partition)
            if known is None or known.log is not log:
                known = self._logs[log.partition] = TransactionLog(log, self._clock)
            return known

    def of(self, transactional_id: str) -> TransactionLog:
        """The log of an id, not refreshed."""
        return self._wrap(self._host.transaction_partition(transactional_id))

    def at(self, number: int) -> TransactionLog:
        """The log of a C partition that exists, not refreshed."""
        return self._wrap(self._host.transaction_partition_at(number))

    def existing(self, number: int) -> TransactionLog | None:
        """The log of a C partition; None if there is no such partition."""
        if number not in self._logs:
            self.all()  # another process may have created it
        return self.at(number) if number in self._logs else None

    def all(self) -> list[TransactionLog]:
        """The log of every C partition that exists, each refreshed."""
        logs = [self._wrap(log) for log in self._host.transaction_partitions()]
        for log in logs:
            log.refresh()
        return logs

    def cleaned_to(self) -> list[int]:
        """The offset up to which each C partition is cleaned.

        Settled records below may be missing.
        """
        return [log.cleaned_to for log in self._host.transaction_partitions()]

    def decision(self, key: TransactionKey) -> tuple[TransactionLog, Decision] | None:
        """The decision about a transaction, from any C partition, as of the last refresh."""
        for log in self._known():
            decision = log.decision(key)
            if decision is not None:
                return log, decision
        return None

    def of_producer(self, producer_id: int) -> tuple[TransactionLog, TransactionMetadata] | None:
        """The transactional id that has a producer id, as of the last refresh."""
        for log in self._known():
            metadata = log.of_producer(producer_id)
            if metadata is not None:
                return log, metadata
        return None

    def decisions(self) -> Iterator[tuple[TransactionLog, Decision]]:
        """All decisions that are not forgotten, as of the last refresh."""
        for log in self._known():
            for decision in log.decisions():
                yield log, decision

    def carried(self, tp: TopicPartition, topic_id: bytes) -> CarriedAbove:
        """Return what decisions of earlier sessions carry of a partition, as a function.

        The decisions are read at the first call, and their batches by the function, without a lock.
        No decision of this session carries anything of a partition that is not recovered yet.
        """
        if self._commits is None:
            self.all()
            commits: _Commits = {}
            for clog, decision in self.decisions():
                for named, span in decision.spans.items() if decision.commit else ():
                    commits.setdefault((named, span.topic_id), []).append((clog, decision))
            self._commits = commits
        decided = self._commits.get((tp, topic_id), ())

        def above(offset: int) -> list[CarriedBatches]:
            return [
                part
                for clog, decision in decided
                if decision.spans[tp].last >= offset
                for part in clog.carried(decision, tp)
            ]

        return above

    def _known(self) -> list[TransactionLog]:
        with self._lock:
            return list(self._logs.values())
