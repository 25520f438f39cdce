"""PartitionLog: one partition of an open directory, for readers, writers and coordinators.

Appends go through the core's conditional append; `writer_files.py` makes ready what that call may
not do under the lock, `log_flusher.py` makes durable, `log_reader.py` reads below published ends.
What a crash leaves and who repairs it: `log_loader.py`.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence

from eoslog import _core
from eoslog.errors import ErrorCode, IllegalState, LockTimeout
from eoslog.model import AppendOrigin, AppendResult, ProducerDescription
from eoslog.storage import checkpoints, files
from eoslog.storage.adoption import StagedSegment, adopt
from eoslog.storage.incoming import conforming, demands
from eoslog.storage.log_flusher import LogFlusher
from eoslog.storage.log_reader import LogReader, Slice
from eoslog.storage.log_settings import LogSettings
from eoslog.storage.log_wait import wait_any
from eoslog.storage.refusals import S, out_of_order, refusal
from eoslog.storage.retention import apply_retention, delete_records
from eoslog.storage.segment_swap import CleanerLock, finish_dead_swap
from eoslog.storage.segments import Segment, write_snapshot
from eoslog.storage.session import Session
from eoslog.storage.writer_files import WriterFiles

LOCK_TIMEOUT_S = 30.0
MAX_REPEATS = 10_000
_NO_LIMIT = 1 << 30  # bytes
_WRITEBACK_BYTES = 1 << 20
"""Appended without a flush, the disk begins with them: it works while more is encoded."""
_CLIENT, _APPENDED = AppendOrigin.CLIENT, S["APPENDED"]  # looked up at each append
_new = tuple.__new__  # of a named tuple whose fields are all there

__all__ = ["LOCK_TIMEOUT_S", "LogSettings", "PartitionLog", "S", "Slice"]


def _ignore(log: PartitionLog) -> None:
    """Until somebody listens."""


class PartitionLog:
    """One partition, shared by the threads of this process.

    Thread-safe; other processes append to and read the same partition at the same time.

    Invariants:
        - published ends never fall within a session;
        - nothing above `high_watermark` is handed to a reader by the floors above;
        - descriptors of sealed segments stay until their bytes are durable.
    """

    def __init__(
        self,
        session: Session,
        topic: str,
        partition: int,
        *,
        slot: int,
        topic_id: bytes,
        strict: bool,
        settings: LogSettings,
        leader_epoch: int = 0,
    ) -> None:
        """Wire it; `log_loader.open_partition` recovers and fills it."""
        self.session = session
        self.topic = topic
        self.partition = partition
        self.slot = slot
        self.topic_id = topic_id
        self.strict = strict
        self.leader_epoch = leader_epoch
        self.name = f"{topic}-{partition}"
        self.path = os.path.join(session.path, self.name)
        fd, at = session.append_lock(slot)
        self.core = _core.Partition(session.control, slot, fd, at, self.path)
        self.configure(settings)
        self.reader = LogReader(self.name, self.path, self.core)
        self.reader.cleaned_to = self._cleaned_by_a_broker
        self.reader.refuse_outdated = session.refuse_outdated
        self.flusher = LogFlusher(self, fd, at + 1)
        self.writer_files = WriterFiles(self)
        self.cleaner_lock = CleanerLock(fd, slot)
        if not session.read_only:
            self.reader.finish_swap = lambda: finish_dead_swap(self)
        self._closed = False
        # Whoever opens it listens: something waits to be flushed; segments are about to go.
        self.on_append: Callable[[PartitionLog], None] | None = None
        self.on_log_start: Callable[[PartitionLog], None] = _ignore

    def configure(self, settings: LogSettings) -> None:
        """Take changed topic settings."""
        self.settings = settings
        self.looks_at_records = demands(settings)
        self._stamps = settings.log_append_time
        self._size_max = settings.max_message_bytes
        jitter = min(settings.segment_jitter_ms, settings.segment_ms)
        self.core.configure(
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms - (random.randrange(jitter) if jitter else 0),
            index_interval_bytes=settings.index_interval_bytes,
            segment_index_bytes=settings.segment_index_bytes,
            leader_epoch=self.leader_epoch,
            writeback_bytes=_WRITEBACK_BYTES if self.strict else 0,
        )

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, slot {self.slot})"

    # --- published ends -------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """First offset that may be read."""
        return self.core.log_start

    @property
    def log_end(self) -> int:
        """Offset of the next record to be appended."""
        return self.core.log_end

    @property
    def stable_end(self) -> int:
        """First offset of the earliest open transaction, else the log end."""
        return self.core.stable_end

    @property
    def durable_end(self) -> int:
        """Everything below has been through fdatasync."""
        return self.core.durable_end

    @property
    def high_watermark(self) -> int:
        """The durable end, or the log end in an "os" directory."""
        return self.core.durable_end if self.strict else self.core.log_end

    @property
    def last_stable_offset(self) -> int:
        """The bound of read_committed: min of stable end and high watermark.

        A marker counts as soon as it is published (its decision is durable), so the durable end
        bounds only what lies below the stable end (protocol.md rows 23, 24).
        """
        return min(self.stable_end, self.high_watermark)

    @property
    def unflushed(self) -> bool:
        """Whether something published is not durable yet."""
        return self.durable_end < self.log_end

    # --- append ---------------------------------------------------------------------------------

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        *,
        expect: Sequence[tuple[PartitionLog, int]] = (),
        origin: AppendOrigin = AppendOrigin.CLIENT,
        timeout: float | None = None,
        flushes: bool = False,
    ) -> AppendResult | None:
        """Append whole v2 batches; offsets and the leader epoch are stamped.

        Args:
            batch: one or more complete batches; several must continue each other's sequence. A
                writable buffer is stamped in place.
            expect: (log, end) pairs that the caller's decision rests on.
            origin: a coordinator may append markers and skips the sequence check.
            timeout: seconds to wait for the partition's lock (30 by default).
            flushes: the caller flushes at once; nobody else need do so within `flush.ms`.

        Returns:
            Where the records are, or None when an expected end has moved: nothing was appended.

        Raises:
            InvalidRecord: a record without a key for a compacted topic.
            KafkaError: INVALID_TIMESTAMP, a record's time is out of the topic's bounds.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, CorruptRecord,
            RecordTooLarge:
                refused, nothing was written.
            LockTimeout: another process holds the partition's lock.
            DiskFull, StorageError, LogPoisoned, UnknownTopicOrPartition: nothing was published.

        Durability: survives the death of the process on return; power loss only after `flush`.
        Source: protocol.md, Append; Kafka UnifiedLog.append; KIP-98.
        """
        if self.session.read_only:
            raise IllegalState(f"{self.name}: the log was opened read_only")
        client = origin is _CLIENT
        data = conforming(self, memoryview(batch)) if client and self.looks_at_records else batch
        limit = self._size_max if client else _NO_LIMIT
        stamp = int(time.time() * 1000) if self._stamps else -1
        wait = LOCK_TIMEOUT_S if timeout is None else timeout
        for _ in range(MAX_REPEATS):
            status, base, last, timestamp, error, rolled = self.core.append(
                data, client, expect, wait, limit, stamp
            )
            if rolled:
                self.writer_files.after_roll()
            if status == _APPENDED:
                if error:  # of a writeback
                    self.flusher.poison(OSError(error, os.strerror(error)))
                if self.on_append is not None and not flushes:
                    self.on_append(self)
                return _new(AppendResult, (base, last, False, timestamp))
            if status == S["CHANGED"]:
                return None
            if status == S["REPEATED"]:
                return self._duplicate(memoryview(data), base, last, timestamp, origin)
            if status == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise out_of_order(self, memoryview(data))
            self.resolve(status, error, wait)
        raise LockTimeout(f"{self.name}: no append in {MAX_REPEATS} tries")

    def adopt(
        self,
        segment: StagedSegment,
        *,
        expect: Sequence[tuple[PartitionLog, int]] = (),
        timeout: float | None = None,
    ) -> AppendResult | None:
        """Make a staged file the next segment instead of appending its batches; see `adoption`."""
        if self.session.read_only:
            raise IllegalState(f"{self.name}: the log was opened read_only")
        return adopt(self, segment, expect, LOCK_TIMEOUT_S if timeout is None else timeout)

    def _duplicate(
        self, data: memoryview, base: int, last: int, timestamp: int, origin: AppendOrigin
    ) -> AppendResult:
        """The first batch is stored already; what follows it is judged batch by batch."""
        size = int.from_bytes(data[8:12], "big") + 12
        if size < len(data):
            rest = self.append(data[size:], origin=origin)
            if rest is not None:
                last = rest.last_offset
        return AppendResult(base, last, True, timestamp)

    def resolve(self, status: int, error: int, wait: float) -> None:
        """Do what the core could not do under the lock, or raise what it found."""
        try:
            self._make_ready(status, error, wait)
        except OSError as error:  # StorageError is one
            if error.errno != errno.ENOENT or not self.core.deleted:
                raise
            # The core may look for the files before it looks at the slot.
            raise refusal(self, S["GONE"], 0, wait) from error

    def _make_ready(self, status: int, error: int, wait: float) -> None:
        if status == S["NEXT_SEGMENT"]:
            self.writer_files.enter_next()
        elif status == S["ROLL"]:
            self.writer_files.prepare_roll()
        elif status == S["NEED_INDEXES"]:
            self.writer_files.open_indexes()
        elif status == S["NEED_TXNINDEX"]:
            self.writer_files.make_txnindex()
        elif status in (S["REOPEN"], S["RELOAD"], S["STALE"]):
            self.writer_files.after_roll()
            if status != S["REOPEN"]:
                self.writer_files.drop_prepared()
            self.reload()
            if status == S["RELOAD"] and error:
                raise files.storage_error(OSError(error, os.strerror(error)), self.path)
        elif status != S["FOLD_AGAIN"]:
            raise refusal(self, status, error, wait)

    # --- fold -----------------------------------------------------------------------------------

    def reload(self) -> None:
        """Rebuild the fold from the newest snapshot and the log (own state is no longer true)."""
        from eoslog.storage.log_loader import start_fold

        start_fold(self)

    def fold(self) -> None:
        """Bring this process's producer state up to the published end; a reader keeps none."""
        if self.session.read_only or (status := self.core.fold()) == _APPENDED:
            return
        for _ in range(MAX_REPEATS):
            self.resolve(status, 0, LOCK_TIMEOUT_S)
            if (status := self.core.fold()) == _APPENDED:
                return
        raise LockTimeout(f"{self.name}: the fold did not reach the log end in {MAX_REPEATS} steps")

    # --- durability, reading, deletion: see log_flusher, log_reader, retention ------------------

    def flush(self, up_to: int | None = None) -> None:
        """Return when everything below `up_to` (default: the log end now) is durable.

        In an "os" directory, nothing to do. Raises LogPoisoned when a flush failed, for everybody
        and until all have closed.
        """
        if self.strict:
            self.flusher.flush(self.log_end if up_to is None else min(up_to, self.log_end))

    def sync(self) -> None:
        """Flush what is published, whatever the directory's durability: for a clean close."""
        self.flusher.sync()

    def segment(self, base: int) -> Segment:
        """The segment with this base offset."""
        return self.reader.segment(base)

    def read(self, start: int, end: int, max_bytes: int = 1 << 20) -> list[Slice]:
        """Whole batches that cover [start, end), or its beginning; see `LogReader.read`."""
        return self.reader.read(start, end, max_bytes)

    def batches(self, start: int, end: int) -> Iterator[_core.Batch]:
        """Every batch of [start, end), control batches too, in order (for folds)."""
        return self.reader.batches(start, end)

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """(producer id, first offset, marker offset) of aborted transactions in [start, end)."""
        return self.reader.aborted(start, end)

    def offset_for_time(self, timestamp_ms: int, end: int) -> int | None:
        """The first offset below `end` whose timestamp is at or after a time, in ms."""
        self.session.refuse_outdated()
        return self.reader.offset_for_time(timestamp_ms, end)

    def delete_records(self, before: int) -> int:
        """Move the log start up; whole segments below it are removed. The new log start."""
        return delete_records(self, before)

    def apply_retention(self, now_ms: int) -> int:
        """Drop the oldest segments by the topic's retention time and size; bytes freed."""
        return apply_retention(self, now_ms)

    def publish_log_start(self, log_start: int, *, segments_changed: bool) -> None:
        """Raise the published log start under the lock."""
        self._locked(
            lambda: self.core.advance_log_start(log_start, segments_changed, LOCK_TIMEOUT_S)
        )

    def repair(self) -> None:
        """Undo or finish what a process left that died with the append lock."""
        self.publish_log_start(0, segments_changed=False)

    def expire_producers(self, below: int, before_ms: int) -> None:
        """Forget, in all processes, the producers that have not written for long.

        Args:
            below: those whose last batch lies below this offset,
            before_ms: and those of whom only markers are left, the last one older than this.
                Both only rise. Open transactions keep their producer.
        """
        self._locked(lambda: self.core.expire_producers(below, before_ms, LOCK_TIMEOUT_S))

    def mark_swap(self, begins: bool, cleaned_to: int) -> None:
        """Publish the begin or the end of a swap of segments; see `segment_swap`."""
        self._locked(lambda: self.core.mark_swap(begins, cleaned_to, LOCK_TIMEOUT_S))

    def forget_segments(self) -> None:
        """List and open segments again."""
        self.reader.forget_all()

    @property
    def cleaned_to(self) -> int:
        """A fold that stands below this offset, and began before it rose, must begin anew."""
        return self.core.cleaned_to

    def _cleaned_by_a_broker(self) -> int:
        path = os.path.join(self.session.path, checkpoints.CLEANER_CHECKPOINT)
        return checkpoints.read_offsets(path, lenient=True).get((self.topic, self.partition), 0)

    @property
    def cleaned_version(self) -> int:
        """Changes with each swap of cleaned segments."""
        return self.core.cleaned_version

    def wait(self, beyond: int, timeout: float, *, of: str = "last_stable_offset") -> bool:
        """Block until a published end is past an offset; False on timeout (s).

        Who waits for durability pays for it: when the bytes are there and nobody flushes within
        the topic's `flush.ms`, this call does.
        """
        return wait_any([(self, beyond)], timeout, of=of)

    # --- state ----------------------------------------------------------------------------------

    def producer_state(self, producer_id: int) -> ProducerDescription | None:
        """What the partition knows of a producer, up to the published end."""
        self.fold()
        found = self.core.producer(producer_id)
        if found is None:
            return None
        epoch, last_sequence, last_timestamp, coordinator_epoch, first, _ = found
        return ProducerDescription(
            producer_id,
            epoch,
            last_sequence,
            last_timestamp,
            coordinator_epoch,
            first if first >= 0 else None,
        )

    def producers(self) -> list[ProducerDescription]:
        """Every producer that the partition knows."""
        self.fold()
        found = (self.producer_state(producer_id) for producer_id in self.core.producer_ids())
        return [description for description in found if description is not None]

    def open_transactions(self) -> list[tuple[int, int, int, int]]:
        """(producer id, epoch, first offset, last data offset), by first offset."""
        self.fold()
        return list(self.core.open_transactions())

    def open_transaction(self, producer_id: int) -> tuple[int, int, int] | None:
        """(epoch, first offset, last data offset) of what a producer has open here."""
        self.fold()
        found = self.core.producer(producer_id)
        return None if found is None or found[4] < 0 else (found[0], found[4], found[5])

    def producer_entry(self, producer_id: int) -> tuple[int, int, int, int] | None:
        """(epoch, coordinator epoch, first, last data offset of what it has open: -1, nothing)."""
        self.fold()
        found = self.core.producer(producer_id)
        return None if found is None else (found[0], found[3], found[4], found[5])

    def roll(self) -> None:
        """Seal the active segment unless it is empty."""
        self._locked(lambda: self.core.seal(LOCK_TIMEOUT_S))
        self.writer_files.after_roll()

    def _locked(self, call: Callable[[], tuple[int, int]]) -> None:
        for _ in range(MAX_REPEATS):
            status, error = call()
            if status == S["APPENDED"]:
                return
            self.resolve(status, error, LOCK_TIMEOUT_S)
        raise LockTimeout(f"{self.name}: not done in {MAX_REPEATS} tries")

    def write_snapshot(self) -> None:
        """Write the producer snapshot at the log end (clean close)."""
        self.fold()
        offset, entries = self.core.export_producers()
        write_snapshot(self.path, offset, entries)

    def close(self, *, deleted: bool = False) -> None:
        """Close descriptors; views that were handed out live on.

        Args:
            deleted: the directory goes on: threads may be reading, and the number of a descriptor
                that is closed under them may be another file's; each closes with its last user.
        """
        if self._closed:
            return
        self._closed = True
        self.writer_files.close()
        if deleted:
            self.reader.begin_anew()
        else:
            self.reader.close()
