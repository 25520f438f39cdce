"""PartitionLog: one partition of an open directory, for readers, writers and coordinators.

Appends go through the core's conditional append; this file makes ready what that call may not do
under the lock (files of the next segment, memory, folding) and reads below the published ends.
What a crash leaves and who repairs it: `log_loader.py`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eoslog import _core
from eoslog.errors import (
    CorruptRecord,
    IllegalState,
    InvalidProducerEpoch,
    InvalidTxnState,
    LockTimeout,
    LogPoisoned,
    OutOfOrderSequence,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendOrigin, AppendResult, ProducerDescription
from eoslog.storage import files
from eoslog.storage.log_flusher import LogFlusher
from eoslog.storage.log_reader import LogReader, Slice
from eoslog.storage.log_settings import LogSettings
from eoslog.storage.retention import apply_retention, delete_records
from eoslog.storage.segments import (
    INDEX,
    LOG,
    PREPARED,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    file_name,
    offsets_in,
    write_snapshot,
)
from eoslog.storage.session import Session

S = _core.STATUS
LOCK_TIMEOUT_S = 30.0
MAX_REPEATS = 10_000
OUT_OF_ORDER = 45
"""Kafka's code of the refusal, which the core returns as its status."""
_WAIT_SLICE_S = 0.05

__all__ = ["LOCK_TIMEOUT_S", "LogSettings", "PartitionLog", "S", "Slice"]


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
        self.flusher = LogFlusher(self, fd, at + 1)
        self._prepare = threading.Lock()
        self._closed = False
        self.on_append: Any = None  # the engine's note that something waits to be flushed

    def configure(self, settings: LogSettings) -> None:
        """Take changed topic settings."""
        self.settings = settings
        self.core.configure(
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms,
            index_interval_bytes=settings.index_interval_bytes,
            segment_index_bytes=settings.segment_index_bytes,
            leader_epoch=self.leader_epoch,
        )

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, slot {self.slot})"

    # --- published ends -------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """First offset that may be read."""
        return int(self.core.log_start)

    @property
    def log_end(self) -> int:
        """Offset of the next record to be appended."""
        return int(self.core.log_end)

    @property
    def stable_end(self) -> int:
        """First offset of the earliest open transaction, else the log end."""
        return int(self.core.stable_end)

    @property
    def durable_end(self) -> int:
        """Everything below has been through fdatasync."""
        return int(self.core.durable_end)

    @property
    def high_watermark(self) -> int:
        """The durable end, or the log end in an "os" directory."""
        return self.durable_end if self.strict else self.log_end

    @property
    def last_stable_offset(self) -> int:
        """The bound of read_committed: min of stable end and high watermark.

        A marker counts as soon as it is published (its decision is durable), so the durable end
        bounds only what lies below the stable end (protocol.md rows 23, 24).
        """
        return min(self.stable_end, self.high_watermark)

    # --- append ---------------------------------------------------------------------------------

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        *,
        expect: Sequence[tuple[PartitionLog, int]] = (),
        origin: AppendOrigin = AppendOrigin.CLIENT,
        timeout: float | None = None,
    ) -> AppendResult | None:
        """Append whole v2 batches; offsets and the leader epoch are stamped.

        Args:
            batch: one or more complete batches; several must continue each other's sequence.
            expect: (log, end) pairs that the caller's decision rests on.
            origin: a coordinator may append markers and skips the sequence check.
            timeout: seconds to wait for the partition's lock (30 by default).

        Returns:
            Where the records are, or None when an expected end has moved: nothing was appended.

        Raises:
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
        data = batch if isinstance(batch, bytearray) else bytearray(batch)
        client = origin is AppendOrigin.CLIENT
        expected = [(log.core, end) for log, end in expect]
        limit = self.settings.max_message_bytes if client else 1 << 30
        stamp = int(time.time() * 1000) if self.settings.log_append_time else -1
        wait = LOCK_TIMEOUT_S if timeout is None else timeout
        for _ in range(MAX_REPEATS):
            status, base, last, timestamp, error, rolled = self.core.append(
                data, client, expected, wait, limit, stamp
            )
            if rolled:
                self._after_roll()
            if status == S["APPENDED"]:
                if self.on_append is not None:
                    self.on_append(self)
                return AppendResult(base, last, False, timestamp)
            if status == S["CHANGED"]:
                return None
            if status == S["REPEATED"]:
                return self._duplicate(data, base, last, timestamp, origin)
            if status == OUT_OF_ORDER:
                raise self._out_of_order(data)
            self._resolve(status, error, wait)
        raise LockTimeout(f"{self.name}: no append in {MAX_REPEATS} tries")

    def _duplicate(
        self, data: bytearray, base: int, last: int, timestamp: int, origin: AppendOrigin
    ) -> AppendResult:
        """The first batch is stored already; what follows it is judged batch by batch."""
        size = int.from_bytes(data[8:12], "big") + 12
        if size < len(data):
            rest = self.append(data[size:], origin=origin)
            if rest is not None:
                last = rest.last_offset
        return AppendResult(base, last, True, timestamp)

    def _out_of_order(self, data: bytearray) -> OutOfOrderSequence:
        batch = _core.iter_batches(data)[0]
        known = self.core.producer(batch.producer_id)
        last = "unknown" if known is None else f"{known[1]} in epoch {known[0]}"
        return OutOfOrderSequence(
            f"{self.topic}-{self.partition}: producer {batch.producer_id} sent sequence "
            f"{batch.base_sequence} in epoch {batch.producer_epoch}, its last one here is {last}"
        )

    def _resolve(self, status: int, error: int, wait: float) -> None:
        """Do what the core could not do under the lock, or raise what it found."""
        name = self.name
        if status == S["NEXT_SEGMENT"]:
            self._enter_next_segment()
        elif status == S["ROLL"]:
            self._prepare_roll()
        elif status == S["NEED_TXNINDEX"]:
            self._make_txnindex()
        elif status in (S["REOPEN"], S["RELOAD"]):
            self._after_roll()
            self.reload()
            if status == S["RELOAD"] and error:
                raise files.storage_error(OSError(error, os.strerror(error)), self.path)
        elif status == S["FOLD_AGAIN"]:
            return
        elif status == S["LOCKED_OUT"]:
            view = self.session.control.slot_view(self.slot)
            age = (time.monotonic_ns() - view["holder_since_ns"]) / 1e9
            raise LockTimeout(
                f"{name}: append lock not free within {wait:g} s; held by process "
                f"{view['holder_pid']} for {age:.1f} s",
            )
        elif status == S["GONE"]:
            raise UnknownTopicOrPartition(f"{name}: the topic was deleted")
        elif status == S["POISONED"]:
            raise LogPoisoned(
                f"{name}: a flush failed; close every handle and open again", path=self.path
            )
        elif status == S["VOID_SLOT"]:
            raise IllegalState(f"{name}: opened in another session")
        elif status == S["UNVERIFIED"]:
            raise InvalidTxnState(
                f"{name}: the record is not part of a transaction that its coordinator knows"
            )
        elif status == S["CORRUPT"]:
            base, *_ = self.core.current_files()
            raise CorruptRecord(
                f"{name}: segment {base} is damaged at byte {self.core.segment_position}, "
                f"offset {self.core.next_offset}"
            )
        elif status == S["IO_FAILED"]:
            raise files.storage_error(OSError(error, os.strerror(error)), self.path)
        elif status == 47:
            raise InvalidProducerEpoch(f"{name}: a newer epoch of this producer has written here")
        elif status == 48:
            raise InvalidTxnState(f"{name}: the batch does not fit its producer's open transaction")
        else:
            raise StorageError(f"{name}: unexpected status {status}", path=self.path)

    # --- what happens outside the lock ----------------------------------------------------------

    def _open_files(self, base: int) -> tuple[int, int, int, int]:
        segment = os.path.join(self.path, file_name(base, ""))
        fds = [files.open_file(segment + LOG)]
        try:
            fds += [
                files.open_file(segment + INDEX, create=True),
                files.open_file(segment + TIME_INDEX, create=True),
            ]
            try:
                fds.append(files.open_file(segment + TXN_INDEX))
            except FileNotFoundError:
                fds.append(-1)
        except BaseException:
            for fd in fds:
                files.close(fd)
            raise
        return fds[0], fds[1], fds[2], fds[3]

    def enter_segment(self, base: int) -> None:
        """Open a segment's files and give them to the fold; what it had is kept until durable."""
        opened_at = self.log_end
        fds = self._open_files(base)
        old_base, *_ = self.core.current_files()
        log_fd, *others = self.core.use_segment(base, *fds)
        for fd in others:
            files.close(fd)
        if old_base == base or self.durable_end >= base:
            self.flusher.retire(old_base, log_fd)
        self.flusher.replace(base, fds[0], opened_at)

    def _enter_next_segment(self) -> None:
        with self._prepare:
            status = self.core.fold()
            if status not in (S["NEXT_SEGMENT"], S["APPENDED"]):
                self._resolve(status, 0, LOCK_TIMEOUT_S)
                return
            current, log_fd, *_ = self.core.current_files()
            offset = self.core.next_offset
            bases = offsets_in(self.path, LOG)
            behind = [base for base in bases if current < base <= offset]
            ahead = [base for base in bases if base > max(current, offset)]
            if log_fd < 0:
                self.enter_segment(current)
            elif behind:
                self.enter_segment(behind[-1])
            elif ahead and offset < self.log_end:
                self.enter_segment(ahead[0])
            elif self.core.published_segments_version != self.reader.version:
                self.reload()
            elif status == S["NEXT_SEGMENT"]:
                time.sleep(0.001)  # a roll is being published

    def _prepare_roll(self) -> None:
        """Make and sync the next segment's files under names of our own (protocol.md, Rolling)."""
        with self._prepare:
            self._finish_roll()
            stem = os.path.join(self.path, f"{self.session.process_number}-{time.monotonic_ns()}")
            paths = [stem + suffix + PREPARED for suffix in (INDEX, TIME_INDEX, LOG)]
            fds = [files.open_file(path, create=True) for path in paths]
            files.fsync_dir(self.path)
            names = b"".join(os.fsencode(path) + b"\0" for path in paths)
            if not self.core.prepare_roll(fds[2], fds[0], fds[1], names):
                for fd, path in zip(fds, paths, strict=True):
                    files.close(fd)
                    files.remove(path)

    def _after_roll(self) -> None:
        with self._prepare:
            self._finish_roll()

    def _finish_roll(self) -> None:
        """Keep the sealed segment's descriptor for its flush; write the snapshot at the base."""
        taken = self.core.take_rolled()
        if taken is None:
            return
        base, new_base, fds, snapshot = taken
        self.flusher.keep(base, fds[0], 0)
        if self.core.segment_base == new_base:
            _, log_fd, *_ = self.core.current_files()
            self.flusher.replace(new_base, log_fd, new_base)
        for fd in fds[1:]:
            files.close(fd)
        files.failpoint("log.rolled")
        if snapshot is not None:
            with contextlib.suppress(StorageError):  # an open without it folds more
                write_snapshot(self.path, new_base, snapshot)

    def _make_txnindex(self) -> None:
        with self._prepare:
            base, _, _, _, txn = self.core.current_files()
            if txn < 0:
                path = os.path.join(self.path, file_name(base, TXN_INDEX))
                fd = files.open_file(path, create=True)
                files.fsync_dir(self.path)
                self.core.use_txnindex(fd)

    def reload(self) -> None:
        """Rebuild the fold from the newest snapshot and the log (own state is no longer true)."""
        from eoslog.storage.log_loader import start_fold

        start_fold(self)

    def fold(self) -> None:
        """Bring this process's producer state up to the published end; a reader keeps none."""
        if self.session.read_only:
            return
        for _ in range(MAX_REPEATS):
            status = self.core.fold()
            if status == S["APPENDED"]:
                return
            self._resolve(status, 0, LOCK_TIMEOUT_S)

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

    def on_log_start(self, log: PartitionLog) -> None:
        """Replaced by the engine: write the log-start checkpoint before segments go."""

    def wait(self, beyond: int, timeout: float, *, of: str = "last_stable_offset") -> bool:
        """Block until a published end is past an offset; False on timeout (s).

        Who waits for durability pays for it: when the bytes are there and nobody flushes within
        the topic's `flush.ms`, this call does.
        """
        control = self.session.control
        deadline = time.monotonic() + timeout
        flush_due: float | None = None
        while True:
            counters = control.wake_counters((self.slot,))
            if getattr(self, of) > beyond:
                return True
            now = time.monotonic()
            if now >= deadline:
                return False
            pause = min(deadline - now, _WAIT_SLICE_S)
            if (
                self.strict
                and of != "log_end"
                and not self.session.read_only
                and self.durable_end < self.log_end
            ):
                flush_due = flush_due or now + self.settings.flush_ms / 1000
                if now >= flush_due:
                    self.flush()
                    flush_due = None
                    continue
                pause = min(pause, flush_due - now)
            control.wait(counters, max(pause, 1e-5))

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

    def roll(self) -> None:
        """Seal the active segment unless it is empty."""
        self._locked(lambda: self.core.seal(LOCK_TIMEOUT_S))
        self._after_roll()

    def _locked(self, call: Callable[[], int]) -> None:
        for _ in range(MAX_REPEATS):
            status = call()
            if status == S["APPENDED"]:
                return
            self._resolve(status, 0, LOCK_TIMEOUT_S)

    def write_snapshot(self) -> None:
        """Write the producer snapshot at the log end (clean close)."""
        self.fold()
        offset, entries = self.core.export_producers()
        write_snapshot(self.path, offset, entries)

    def close(self) -> None:
        """Close descriptors; views that were handed out live on."""
        if self._closed:
            return
        self._closed = True
        _, *fds = self.core.current_files()
        held = self.flusher.descriptors()
        if _core.fork_generation() == self.session._generation:
            for fd in {*fds, *held}:
                files.close(fd)
            for name in files.names(self.path) if os.path.isdir(self.path) else ():
                if name.endswith(PREPARED) and name.startswith(f"{self.session.process_number}-"):
                    files.remove(os.path.join(self.path, name))
        self.reader.close()
