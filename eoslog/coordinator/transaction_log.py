"""The table that the records of `__transaction_state` add up to, and the conditional append to it.

Live state and replayed state are the same fold: a process that makes a change appends its record,
and folds what it appended like everybody else. It spares itself the reading: what the bytes of a
value decode to is the value (`transaction_records.py`).

    decide:  end = refresh();  look at the values;  append(record, end)
             None: somebody was faster, so refresh and decide again

A value is what its id's newest record says. A decision (PREPARE_*) outlives it: it is kept by
(producer id, epoch of the data) until the markers it demands are durable, because the next
transaction of the same id may be decided and flushed while they are still in the page cache.
Nobody acts on a decision or an epoch that is only published: `make_durable` first.

Source: Kafka `TransactionStateManager`; protocol.md rows 1, 2 and 22.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from eoslog._core import build_batch, transaction_batch
from eoslog.coordinator.host import Host, HostLog
from eoslog.coordinator.transaction_records import (
    decode_key,
    decode_value,
    encode_key,
)
from eoslog.coordinator.transaction_state import (
    ONGOING,
    Decided,
    Span,
    TransactionMetadata,
)
from eoslog.errors import CorruptRecord
from eoslog.model import AppendOrigin, TopicPartition

RECOVERY_PREFIX = "__recovery-"
"""Ids under which recovery aborts open data that no transactional id answers for."""

_COORDINATOR = AppendOrigin.COORDINATOR
Key = tuple[int, int]
"""(producer id, epoch of the data): names one transaction for ever."""


@dataclass(slots=True)
class Decision:
    """A decided transaction, kept until nothing depends on it any more.

    `complete` says that COMPLETE_* was read: each partition has its marker, or had it when a power
    cut came. `closed` holds, per partition, a log end at which this process saw it ended there in
    this session, so no marker of it lies at or behind that.
    """

    prepared: TransactionMetadata
    decided: Decided
    closed: dict[TopicPartition, int] = field(default_factory=dict)
    complete: bool = False

    @property
    def commit(self) -> bool:
        """Whether it commits."""
        return self.decided.commit

    @property
    def spans(self) -> Mapping[TopicPartition, Span]:
        """What it is about."""
        return self.prepared.spans

    @property
    def offset(self) -> int:
        """Where C holds it: it counts once that is durable."""
        return self.prepared.offset


class TransactionFold:
    """The table that the records of one C partition add up to. Reads no clock and no other log.

    Invariants:
        * `table[id]` is what the newest record of the id states.
        * `decisions` has every PREPARE_* read, until `forget`.
        * `ids[producer id]` is the transactional id that bears it, recovery's own ids apart.
    """

    def __init__(self) -> None:
        """Nothing read yet."""
        self.table: dict[str, TransactionMetadata] = {}
        self.decisions: dict[Key, Decision] = {}
        self.ids: dict[int, str] = {}

    def apply(
        self, offset: int, key: bytes | None, value: bytes | None
    ) -> TransactionMetadata | None:
        """Take one record in; what it states, or None if it is none of ours or a tombstone.

        Raises:
            CorruptRecord: the record is no transaction record.
        """
        transactional_id = decode_key(key) if key is not None else None
        if transactional_id is None:
            return None
        if value is None:
            gone = self.table.pop(transactional_id, None)
            if gone is not None and self.ids.get(gone.producer_id) == transactional_id:
                del self.ids[gone.producer_id]
            return None
        return self.state(decode_value(transactional_id, value, offset))

    def state(self, metadata: TransactionMetadata) -> TransactionMetadata:
        """Take in what the record at `metadata.offset` states."""
        name, state, decided = metadata.transactional_id, metadata.state, metadata.decided
        self.table[name] = metadata
        if not name.startswith(RECOVERY_PREFIX):
            self.ids[metadata.producer_id] = name
        if state.preparing and decided is not None:
            self.decisions[decided.key] = Decision(metadata, decided)
        elif state.complete:
            self._complete(metadata, decided)
        return metadata

    def _complete(self, metadata: TransactionMetadata, decided: Decided | None) -> None:
        if decided is not None:
            key = decided.key
            decision = self.decisions.get(key)
            if decision is None:
                return
            decision.complete = True
            if not decision.spans:
                del self.decisions[key]
            return
        # Kafka's own COMPLETE: its markers were replicated before it, nothing is left to keep.
        name = metadata.transactional_id
        for key in [k for k, d in self.decisions.items() if d.prepared.transactional_id == name]:
            del self.decisions[key]

    def forget(self, key: Key) -> None:
        """Drop a decision whose markers are all durable and that no snapshot needs."""
        self.decisions.pop(key, None)


class TransactionLog:
    """One C partition in this process: its log, the fold of it, and the conditional append to it.

    Thread-safe. Values read from the fold are immutable, so decisions are made on them without a
    lock; whether they still hold is checked by `append`, under the log's.
    """

    def __init__(self, log: HostLog, clock: Callable[[], float] | None = None) -> None:
        """Nothing is read before `refresh`."""
        self.log = log
        self._clock = clock or time.monotonic
        self._lock = threading.RLock()
        self._fold = TransactionFold()
        self._position = log.log_start
        self._cleaned = log.cleaned_to
        # When this process first read of a transaction or a decision: the base of its deadlines,
        # so that no jump of a wall clock can make one due early.
        self._open_since: dict[Key, float] = {}
        self._decided_since: dict[Key, float] = {}

    def refresh(self) -> int:
        """Fold up to the published end, and return that end."""
        # Nearly always: an own append is folded already. Whoever folds just now moves the position
        # last, and who reads the table then waits for the lock.
        position = self._position
        if self.log.log_end == position and self.log.cleaned_to == self._cleaned:
            return position
        with self._lock:
            while True:
                cleaned = self.log.cleaned_to
                behind = self._position < cleaned and self._cleaned < cleaned
                if behind or self._position < self.log.log_start:
                    # Tombstones between here and there may be gone: only a whole fold is right.
                    self._fold = TransactionFold()
                    self._position = self.log.log_start
                self._cleaned = cleaned
                start, end = self._position, self.log.log_end
                if end > start:
                    for batch in self.log.batches(start, end):
                        if not batch.control and batch.last_offset >= start:
                            self._take(batch)
                    self._position = end
                if self.log.cleaned_to == cleaned:
                    return end
                if start < self.log.cleaned_to:
                    self._position = start  # cleaned meanwhile: half old, half new

    def _take(self, batch: object) -> None:
        for offset, _, key, value, _ in batch.records():  # type: ignore[attr-defined]
            if offset < self._position:
                continue
            try:
                metadata = self._fold.apply(offset, key, value)
            except CorruptRecord as error:
                where = f"{self.log.topic}-{self.log.partition}, offset {offset}"
                raise CorruptRecord(f"{where}: {error}") from error
            if metadata is not None:
                self._note(metadata)

    def _note(self, metadata: TransactionMetadata) -> None:
        state, decided = metadata.state, metadata.decided
        if state is ONGOING:
            key = (metadata.producer_id, metadata.producer_epoch)
            self._open_since.setdefault(key, self._clock())
        elif decided is not None:
            key = decided.key
            if state.preparing:
                self._open_since.pop(key, None)
                self._decided_since.setdefault(key, self._clock())
            else:
                self._decided_since.pop(key, None)

    def seconds_open(self, metadata: TransactionMetadata) -> float:
        """Seconds since this process first read that the transaction is Ongoing."""
        return self._past(self._open_since, (metadata.producer_id, metadata.producer_epoch))

    def seconds_decided(self, key: Key) -> float:
        """Seconds since this process first read the decision."""
        return self._past(self._decided_since, key)

    def _past(self, since: dict[Key, float], key: Key) -> float:
        with self._lock:
            now = self._clock()
            return now - since.get(key, now)

    # -- reading the fold

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        """What the id's newest folded record states."""
        with self._lock:
            return self._fold.table.get(transactional_id)

    def values(self) -> list[TransactionMetadata]:
        """Every id's newest record."""
        with self._lock:
            return list(self._fold.table.values())

    def decision(self, key: Key) -> Decision | None:
        """The decision about a transaction, if one was read and is still kept."""
        with self._lock:
            return self._fold.decisions.get(key)

    def decisions(self) -> list[Decision]:
        """Every decision that is kept."""
        with self._lock:
            return list(self._fold.decisions.values())

    def of_producer(self, producer_id: int) -> TransactionMetadata | None:
        """The transactional id that bears a producer id."""
        with self._lock:
            name = self._fold.ids.get(producer_id)
            metadata = self._fold.table.get(name) if name is not None else None
            return (
                metadata if metadata is not None and metadata.producer_id == producer_id else None
            )

    def forget(self, key: Key) -> None:
        """See `TransactionFold.forget`."""
        with self._lock:
            self._fold.forget(key)

    # -- writing

    def append(self, value: TransactionMetadata, end: int, now_ms: int) -> int | None:
        """Append a record if C still ends at `end`.

        Returns:
            Its offset; None if C has moved: refresh and decide again.

        **Durability**: published, not durable; see `make_durable`.
        """
        offset = self._append(transaction_batch(now_ms, value), end)
        if offset is not None:
            with self._lock:
                if self._position == offset:  # else `refresh` took it already, or lags behind
                    self._note(self._fold.state(value.placed(offset)))
                    self._position = offset + 1
        return offset

    def append_tombstones(self, ids: Iterable[str], end: int, now_ms: int) -> int | None:
        """Forget ids, if C still ends at `end`."""
        rows = [(now_ms, encode_key(name), None, ()) for name in ids]
        return self._append(build_batch(rows), end)

    def _append(self, batch: bytes | bytearray, end: int) -> int | None:
        log = self.log
        result = log.append(batch, expect=((log, end),), origin=_COORDINATOR)
        return None if result is None else result.base_offset

    def is_durable(self, offset: int) -> bool:
        """Whether the record at `offset` counts as durable in this directory."""
        return self.log.high_watermark > offset

    def make_durable(self, offset: int) -> None:
        """The record at `offset` is durable on return."""
        if not self.is_durable(offset):
            self.log.flush(offset + 1)


class TransactionLogs:
    """Every C partition that this process has met."""

    def __init__(self, host: Host, clock: Callable[[], float] | None = None) -> None:
        """Open nothing yet."""
        self._host = host
        self._clock = clock or time.monotonic
        self._lock = threading.Lock()
        self._logs: dict[int, TransactionLog] = {}
        self._cuts = 0  # snapshots under way

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Forget nothing inside: a snapshot may have read ends below what is settled since."""
        with self._lock:
            self._cuts += 1
        try:
            yield
        finally:
            with self._lock:
                self._cuts -= 1

    def forget(self, done: Iterable[tuple[TransactionLog, Key]]) -> int:
        """Drop settled decisions, unless a snapshot is under way; how many."""
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

    def all(self) -> list[TransactionLog]:
        """The log of every C partition that exists, each refreshed."""
        logs = [self._wrap(log) for log in self._host.transaction_partitions()]
        for log in logs:
            log.refresh()
        return logs

    def cleaned_to(self) -> list[int]:
        """Up to where each C partition was cleaned: what was settled may be missing below."""
        return [log.cleaned_to for log in self._host.transaction_partitions()]

    def decision(self, key: Key) -> tuple[TransactionLog, Decision] | None:
        """The decision about a transaction, wherever it lies, as of the last refresh."""
        for log in self._known():
            decision = log.decision(key)
            if decision is not None:
                return log, decision
        return None

    def of_producer(self, producer_id: int) -> tuple[TransactionLog, TransactionMetadata] | None:
        """The transactional id that bears a producer id, as of the last refresh."""
        for log in self._known():
            metadata = log.of_producer(producer_id)
            if metadata is not None:
                return log, metadata
        return None

    def decisions(self) -> Iterator[tuple[TransactionLog, Decision]]:
        """Every decision that is kept, as of the last refresh."""
        for log in self._known():
            for decision in log.decisions():
                yield log, decision

    def _known(self) -> list[TransactionLog]:
        with self._lock:
            return list(self._logs.values())
