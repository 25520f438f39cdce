"""One partition of an open directory, for readers, writers and coordinators.

`PartitionLog` combines the parts of a partition. The compiled core appends (`_core/partition/`),
`segment_writer.py` opens and creates the files that an append needs, `flusher.py` makes records
durable, and `reader.py` reads below the published ends. For recovery after a crash, see
`loader.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence

from eoslog import _core
from eoslog.descriptions import ProducerDescription
from eoslog.errors import EoslogError, ErrorCode, IllegalState, LockTimeout, RecordTooLarge
from eoslog.model import AppendOrigin, AppendResult
from eoslog.storage.directory.cleaner_lock import CleanerLock
from eoslog.storage.directory.session import Session
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.append_errors import out_of_order
from eoslog.storage.log.append_status import AppendStatus
from eoslog.storage.log.context import LogContext
from eoslog.storage.log.flusher import LogFlusher
from eoslog.storage.log.published_end import PublishedEnd
from eoslog.storage.log.reader import LogReader, Slice
from eoslog.storage.log.segment_list import SegmentList
from eoslog.storage.log.segment_writer import MAX_REPEATS, WriterFiles
from eoslog.storage.log.settings import LogSettings
from eoslog.storage.log.validator import conforming, demands
from eoslog.storage.log.waiter import wait_any
from eoslog.storage.segment import leader_epochs, seals
from eoslog.storage.segment.carried_batches import CarriedBatches
from eoslog.storage.segment.producer_snapshots import write_snapshot
from eoslog.storage.segment.replacement import finish_renames
from eoslog.storage.segment.segment import LOG, Segment, file_path

_NO_LIMIT = 1 << 30  # bytes
_REPEATS = range(MAX_REPEATS)
_CARRIED_BYTES = 256 << 10
"""Bytes that decisions carry between two flushes; the decisions are kept until the second one."""
_WRITEBACK_BYTES = 1 << 20
"""Unflushed bytes after which the disk begins to write, while the producer encodes more."""
_PAUSE_S = 0.0005
_CLIENT, _COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR  # bound once: hot path
_APPENDED = int(AppendStatus.APPENDED)
_new = tuple.__new__  # makes a named tuple from all its fields, without its slower constructor

__all__ = ["LogSettings", "PartitionLog", "Slice"]


def _ignore(log: PartitionLog, log_start: int) -> None:
    """Ignore a moved log start."""


class PartitionLog:
    """One partition, shared by the threads of this process.

    Thread-safe. Other processes may append to and read the partition at the same time.

    Invariants:
        - published ends never fall within a session;
        - the layers above return no record above `high_watermark` to a reader;
        - descriptors of sealed segments stay open until their bytes are durable.
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
        on_append: Callable[[PartitionLog], None] | None = None,
        on_log_start: Callable[[PartitionLog, int], None] = _ignore,
    ) -> None:
        """Connect the parts; `loader.open_partition` recovers the partition.

        Args:
            session: session of the directory in this process.
            topic: topic name.
            partition: partition number.
            slot: number of its slot in the control file.
            topic_id: id of the topic.
            strict: whether acknowledged records must be durable.
            settings: settings of the topic.
            leader_epoch: leader epoch for appended batches.
            on_append: called after an append that its caller does not flush.
            on_log_start: called before the log start moves and files are deleted.
        """
        self.session = session
        self.topic = topic
        self.partition = partition
        self.slot = slot
        self.topic_id = topic_id
        self.strict = strict
        self.leader_epoch = leader_epoch
        self.name = f"{topic}-{partition}"
        self.path = os.path.join(session.path, self.name)
        self.on_append = on_append
        self.on_log_start = on_log_start
        fd, at = session.append_lock(slot)
        self.core = _core.Partition(session.control, slot, fd, at, self.path)
        self.context = context = LogContext(
            session, self.core, topic, partition, topic_id, slot, self.name, self.path, strict,
            settings,
        )  # fmt: skip
        self.configure(settings)
        self.cleaner_lock = CleanerLock(session, slot)
        self.segments = (
            SegmentList(context)
            if session.read_only
            else SegmentList(context, self._finish_dead_swap)
        )
        self.reader = LogReader(context, self.segments)
        self.flusher = LogFlusher(context, self.segments, self.reader, fd, at + 1)
        self.writer_files = WriterFiles(context, self.segments, self.flusher, self.cleaner_lock)
        self._closed = False
        self._carried_since, self._carried = -1, 0
        self._last_end = -1, -1, -1  # segment base, offset and position; see `_note_growth`

    @functools.cached_property
    def leader_epochs(self) -> _core.LeaderEpochs:
        """The leader epochs of the batches, from the checkpoint."""
        return leader_epochs.of_log(self.path, self.name, self.leader_epoch)

    def configure(self, settings: LogSettings) -> None:
        """Apply changed topic settings."""
        self.context.settings = settings
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
            preallocates=self.strict and settings.preallocate,
        )

    @property
    def settings(self) -> LogSettings:
        """The topic's settings, as this process knows them."""
        return self.context.settings

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, slot {self.slot})"

    # --- published ends -------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """The first offset that may be read."""
        return self.core.log_start

    @property
    def log_end(self) -> int:
        """The offset of the next record to be appended."""
        return self.core.log_end

    @property
    def stable_end(self) -> int:
        """The first offset of the earliest open transaction, or the log end."""
        return self.core.stable_end

    @property
    def durable_end(self) -> int:
        """The offset below which a flush has made everything durable."""
        return self.core.durable_end

    @property
    def flushed_end(self) -> int:
        """The durable end, or the log end in an "os" directory."""
        return self.core.durable_end if self.strict else self.core.log_end

    @property
    def high_watermark(self) -> int:
        """The end of what a power loss leaves, or the log end in an "os" directory.

        It is the end of the flushed records, or of those that a durable decision carries.
        """
        return self.core.covered_end if self.strict else self.core.log_end

    @property
    def last_stable_offset(self) -> int:
        """The bound of read_committed: the lower of stable end and high watermark.

        A marker counts as soon as it is published, because the transaction's decision is already
        durable (protocol.md rows 23, 24). If records of an open transaction were deleted, the bound
        is the log start. Retention and compaction use `stable_end`, which ignores the log start.
        """
        return max(min(self.stable_end, self.high_watermark), self.log_start)

    @property
    def unflushed(self) -> bool:
        """Whether something published is not durable yet."""
        return self.durable_end < self.log_end

    # --- append ---------------------------------------------------------------------------------

    def checked(self, data: memoryview) -> memoryview:
        """Check batches as `append` does, and return them in the topic's codec.

        Raises:
            InvalidRecord, KafkaError, RecordTooLarge: as `append`.
        """
        if self.looks_at_records:
            data = conforming(self.context, data, self.producer_state)
        for batch in _core.iter_batches(data):
            if batch.size > self._size_max:
                raise RecordTooLarge(
                    f"{self.name}: a batch of {batch.size} bytes is larger than max.message.bytes "
                    f"({self._size_max}); send smaller records, or raise that key of the topic"
                )
        return data

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        *,
        expect: Sequence[tuple[PartitionLog, int]] = (),
        origin: AppendOrigin = AppendOrigin.CLIENT,
        timeout: float | None = None,
        flushes: bool = False,
    ) -> AppendResult | None:
        """Append complete v2 batches, if the log ends in `expect` have not moved.

        Args:
            batch: one or more batches, whose sequences must be consecutive. Offsets and the leader
                epoch are written into them, in place if the buffer is writable.
            expect: (log, end) pairs that the caller's decision relies on.
            origin: COORDINATOR allows control batches and skips the sequence check. DELIVERY skips
                `checked`, except for the size.
            timeout: seconds to wait for the append lock; None means 30.
            flushes: the caller flushes immediately, so the background flush is not needed.

        Returns:
            The offsets of the records, or None if an expected end has moved: nothing was appended.

        Raises:
            InvalidRecord: if a record for a compacted topic has no key.
            KafkaError: INVALID_TIMESTAMP, if a timestamp is out of the topic's bounds.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, CorruptRecord,
            RecordTooLarge:
                if the batches are rejected; nothing was written.
            LockTimeout: if another process holds the append lock.
            DiskFull, StorageError, LogPoisoned, UnknownTopicOrPartition: nothing was published.

        Durability: survives a crash of the process on return, and power loss after `flush`.
        Source: protocol.md, Append; Kafka UnifiedLog.append; KIP-98.
        """
        if self.session.read_only:
            raise IllegalState(f"{self.name}: the log was opened read_only; open it for writing")
        client = origin is not _COORDINATOR
        data: bytes | bytearray | memoryview = batch
        if self.looks_at_records and origin is _CLIENT:
            data = conforming(self.context, memoryview(batch), self.producer_state)
        limit = self._size_max if client else _NO_LIMIT
        stamp = int(time.time() * 1000) if self._stamps else -1
        wait = LOCK_TIMEOUT_S if timeout is None else timeout
        for _ in _REPEATS:
            status, base, last, timestamp, error, rolled = self.core.append(
                data, client, expect, wait, limit, stamp
            )
            if rolled:
                self.writer_files.after_roll()
            if status == _APPENDED:
                if error:  # from a writeback
                    self.flusher.poison(OSError(error, os.strerror(error)))
                if self.on_append is not None and not flushes:
                    self.on_append(self)
                return _new(AppendResult, (base, last, False, timestamp))
            if status == AppendStatus.CHANGED:
                return None
            if status == AppendStatus.REPEATED:
                return self._duplicate(memoryview(data), base, last, timestamp, origin)
            if status == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise out_of_order(self.context, memoryview(data))
            self.writer_files.resolve(status, error, wait)
        raise LockTimeout(f"{self.name}: nothing was appended in {MAX_REPEATS} attempts; retry")

    def await_append(self, deadline: float) -> bool:
        """Wait until the append that is under way, in any process, has ended.

        An append that begins later checks its `expect` after this call.

        Args:
            deadline: the end of the wait, by `time.monotonic`.

        Returns:
            False if the append has not ended by then.
        """
        core, end = self.core, self.core.log_end
        while core.append_under_way and core.log_end == end:  # published: it has ended
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _duplicate(
        self, data: memoryview, base: int, last: int, timestamp: int, origin: AppendOrigin
    ) -> AppendResult:
        """Answer for a first batch that is stored already, and append the following batches."""
        size = int.from_bytes(data[8:12], "big") + 12
        if size < len(data):
            rest = self.append(data[size:], origin=origin)
            if rest is not None:
                last = rest.last_offset
        return AppendResult(base, last, True, timestamp)

    # --- fold -----------------------------------------------------------------------------------

    def fold(self) -> None:
        """Bring this process's producer state up to the published end.

        Read-only logs have none.
        """
        if self.session.read_only or (status := self.core.fold()) == _APPENDED:
            return
        self.writer_files.finish_fold(status)

    # --- durability, reading, deletion: see flusher.py, reader.py, retention.py ------------------

    def flush(self, up_to: int | None = None) -> None:
        """Return when everything below `up_to` (default: the current log end) is durable.

        Does nothing in an "os" directory. Raises LogPoisoned if a flush has failed.
        """
        if self.strict:
            self.flusher.flush(self.log_end if up_to is None else min(up_to, self.log_end))

    def try_flush(self, up_to: int) -> None:
        """Flush without waiting for a lock, if that is possible; `flush` reports errors."""
        if self.strict:
            self.flusher.try_flush(up_to)

    def flush_later(self) -> None:
        """Have the background thread flush appended records within `flush.ms`."""
        if self.on_append is not None:
            self.on_append(self)

    def sync(self) -> None:
        """Flush everything published, also in an "os" directory: for a clean close."""
        self.flusher.sync()

    def carry(self, end: int, most: int) -> CarriedBatches | None:
        """Return the batches from the high watermark to `end`, for a decision.

        Returns:
            None if they must be flushed instead: they are larger than `most` bytes, too much was
            carried since the last flush, the partition is poisoned, or they cannot be read.
        """
        core, first, durable = self.core, self.core.covered_end, self.core.durable_end
        if durable != self._carried_since:
            self._carried_since, self._carried = durable, 0
        most = min(most, _CARRIED_BYTES - self._carried)
        if core.poisoned or most <= 0:
            return None
        data = core.carry(first, end, most)
        if data is None:
            if self._note_growth(first, end) > most:
                return None
            try:
                parts = self.reader.read(first, end, most)
            except EoslogError:
                return None  # the flush meets the error again, and reports it
            data = b"".join(bytes(part.data) for part in parts)
            if not parts or len(data) > most:
                return None
            place = parts[-1].segment_base, parts[-1].position + len(parts[-1].data)
            if not core.keep_carried(data, first, end, *place):
                return None
        self._carried += len(data)
        return _new(CarriedBatches, (first, data))

    def _note_growth(self, first: int, end: int) -> int:
        """Keep where the log ends; return the bytes appended since the last call, 0 if unknown.

        Large transactions that follow one another are then not read in vain. If another process
        appends too, the number may be too large: the caller then flushes what it could carry.
        """
        core, (base, offset, position) = self.core, self._last_end
        self._last_end = new_base, new_end, new_position = (
            core.active_base, core.log_end, core.end_position,
        )  # fmt: skip
        known = base == new_base and first <= offset and end == new_end
        return new_position - position if known else 0

    def count_carried(self, end: int) -> None:
        """Raise the high watermark to `end`, because a decision carries the rest."""
        self.core.publish_carried(end)

    def segment(self, base: int) -> Segment:
        """Return the segment with this base offset."""
        return self.segments.segment(base)

    def read(self, start: int, end: int, max_bytes: int = 1 << 20) -> list[Slice]:
        """Read complete batches that cover [start, end), or its beginning; see `LogReader.read`."""
        return self.reader.read(start, end, max_bytes)

    def batches(self, start: int, end: int) -> Iterator[_core.Batch]:
        """Yield every batch of [start, end) in order, including control batches (for folds)."""
        return self.reader.batches(start, end)

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (producer id, first, marker offset) of aborted transactions in [start, end)."""
        return self.reader.aborted(start, end)

    def offset_for_time(self, timestamp_ms: int, end: int) -> int | None:
        """Find the first offset below `end` whose timestamp (ms) is at or after a time."""
        self.session.refuse_outdated()
        return self.reader.offset_for_time(timestamp_ms, end)

    def publish_log_start(self, log_start: int, *, segments_changed: bool) -> None:
        """Raise the published log start under the append lock."""
        self._locked(
            lambda: self.core.advance_log_start(log_start, segments_changed, LOCK_TIMEOUT_S)
        )

    def repair(self) -> None:
        """Repair what a process left that died with the append lock."""
        self.publish_log_start(0, segments_changed=False)

    def expire_producers(self, below: int, before_ms: int) -> None:
        """Expire inactive producers, in all processes.

        Both bounds only rise. A producer with an open transaction does not expire.

        Args:
            below: expire producers whose last batch is below this offset.
            before_ms: expire producers that have only markers left, the last one older than this.
        """
        self._locked(lambda: self.core.expire_producers(below, before_ms, LOCK_TIMEOUT_S))

    def mark_swap(self, begins: bool, cleaned_to: int) -> None:
        """Publish the beginning or the end of a segment swap; see `segment_swap`."""
        self._locked(lambda: self.core.mark_swap(begins, cleaned_to, LOCK_TIMEOUT_S))

    def finish_swap(self) -> None:
        """Finish the segment swap of a dead process. The caller holds the cleaner lock.

        Raises:
            UnknownTopicOrPartition: if the topic was deleted.
        """
        self.context.check_not_deleted()
        if self.core.cleaned_version & 1:
            finish_renames(self.path, live=True)
            self.mark_swap(False, 0)

    def _finish_dead_swap(self) -> bool:
        """Finish a swap without holding the lock; False while another process holds it."""
        if not self.cleaner_lock.try_take():
            return False
        try:
            self.finish_swap()
            return True
        finally:
            self.cleaner_lock.release()

    @property
    def holds_removed(self) -> bool:
        """Whether this process has segments open that were removed or replaced."""
        core = self.core
        if core.cleaned_version & 1:
            return False  # during a swap
        if self.segments.holds_removed() or self.flusher.holds_below(core.log_start):
            return True
        return self._folds_in_removed()

    def _folds_in_removed(self) -> bool:
        """Whether the fold may be in a segment that was removed or replaced."""
        core = self.core
        behind = core.segments_version != core.published_segments_version
        return behind and core.segment_base != core.active_base and not self.session.read_only

    def release_removed(self) -> None:
        """List the segments again, and move the fold to the active one."""
        if self.segments.holds_removed():
            self.segments.outdate()
            self.segments.bases()
        self.fold()
        if self._folds_in_removed():  # at the log end, a fold does not enter the next segment
            self.writer_files.enter_next()
        self.flusher.settle()

    @property
    def cleaned_to(self) -> int:
        """The offset below which a fold must restart if it began before this offset rose."""
        return self.core.cleaned_to

    @property
    def cleaned_version(self) -> int:
        """A number that changes with each segment swap."""
        return self.core.cleaned_version

    def wait(
        self,
        beyond: int,
        timeout: float,
        *,
        of: PublishedEnd = PublishedEnd.LAST_STABLE_OFFSET,
    ) -> bool:
        """Wait until a published end is past an offset. Returns False on timeout (s).

        A call that waits for a durable end flushes itself if no other thread does within the
        topic's `flush.ms`.
        """
        return wait_any([(self, beyond)], timeout, of=of)

    # --- state ----------------------------------------------------------------------------------

    def producer_state(self, producer_id: int) -> ProducerDescription | None:
        """Return the state of a producer at the published end, None if it is unknown."""
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
        """Return the state of every producer that the partition knows."""
        self.fold()
        found = (self.producer_state(producer_id) for producer_id in self.core.producer_ids())
        return [description for description in found if description is not None]

    def open_transactions(self) -> list[tuple[int, int, int, int]]:
        """Return (producer id, epoch, first offset, last data offset) of each, by first offset."""
        self.fold()
        return list(self.core.open_transactions())

    def open_transaction(self, producer_id: int) -> tuple[int, int, int] | None:
        """Return (epoch, first offset, last data offset) of a producer's open transaction."""
        self.fold()
        found = self.core.producer(producer_id)
        return None if found is None or found[4] < 0 else (found[0], found[4], found[5])

    def producer_entry(self, producer_id: int) -> tuple[int, int, int, int] | None:
        """Return (epoch, coordinator epoch, first and last offset in a transaction, or -1)."""
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
            if status == _APPENDED:
                return
            self.writer_files.resolve(status, error, LOCK_TIMEOUT_S)
        raise LockTimeout(f"{self.name}: nothing was changed in {MAX_REPEATS} attempts; retry")

    def write_snapshot(self) -> None:
        """Write the producer snapshot at the log end, and seal the active segment (clean close).

        Durability: the active segment ends with its last batch, and so does the one before it.
        """
        self.fold()
        with contextlib.suppress(FileNotFoundError):  # the next session reports a missing file
            self._trim()
        offset, entries = self.core.export_producers()
        write_snapshot(self.path, offset, entries)
        if offset > self.core.active_base:  # otherwise it would be the previous segment's seal
            with contextlib.suppress(FileNotFoundError):
                seals.seal_files(self.path, self.topic_id, self.core.active_base, offset)

    def _trim(self) -> None:
        """Truncate the preallocated space; no process writes any more."""
        active, end = self.core.active_base, self.core.end_position
        path = file_path(self.path, active, LOG)
        size = files.size(path)
        bases = self.segments.bases()
        if size == end and (end or len(bases) == 1):
            return  # the flush of its first records has synced the segment before it
        for base in bases[-2:]:
            path = file_path(self.path, base, LOG)
            fd = files.open_file(path)
            try:
                with files.naming(path):
                    if base == active and os.fstat(fd).st_size > end:
                        _core.os_truncate(fd, end)
                    _core.os_sync(fd)
            finally:
                files.close(fd)

    def close(self, *, deleted: bool = False) -> None:
        """Close descriptors. Views that reads have returned stay valid.

        Args:
            deleted: only the topic was deleted, and the directory stays open. Threads may still be
                reading, so each descriptor is closed with its last user.
        """
        if self._closed:
            return
        self._closed = True
        if not (deleted or self.session.read_only or self.core.deleted):
            self.reader.derived.write_again(self.cleaner_lock)
        self.writer_files.close()
        if deleted:
            self.segments.clear()
        else:
            self.segments.close()
