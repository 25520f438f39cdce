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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eoslog import _core
from eoslog.errors import (
    CorruptRecord,
    IllegalState,
    InvalidProducerEpoch,
    InvalidTxnState,
    LockTimeout,
    LogPoisoned,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendOrigin, AppendResult, ProducerDescription
from eoslog.storage import files
from eoslog.storage.segments import (
    DELETED,
    INDEX,
    LOG,
    PREPARED,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    file_name,
    offset_of,
    offsets_in,
    write_snapshot,
)
from eoslog.storage.session import POISON_FILE, Session

S = _core.STATUS
LOCK_TIMEOUT_S = 30.0
MAX_REPEATS = 10_000
_WAIT_SLICE_S = 0.05


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole batches of one segment, in order.

    `data` is a view over the mapping or bytes read; `position` is its byte in the segment.
    """

    data: Any
    base_offset: int
    next_offset: int
    position: int
    segment_base: int


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a partition needs of its topic's configuration; sizes in bytes, times in ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    retention_ms: int = -1
    retention_bytes: int = -1
    flush_ms: int = 10
    log_append_time: bool = False

    @classmethod
    def of(cls, config: Mapping[str, str]) -> LogSettings:
        """From a topic's configuration under Kafka's names; unknown ones are the topic's business."""
        numbers = {
            key.replace(".", "_"): int(value)
            for key, value in config.items()
            if key.replace(".", "_") in cls.__dataclass_fields__
        }
        return cls(**numbers, log_append_time=config.get("message.timestamp.type") == "LogAppendTime")


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
        self.path = os.path.join(session.path, f"{topic}-{partition}")
        fd, at = session.append_lock(slot)
        self._flush_at = at + 1
        self._lock_fd = fd
        self.core = _core.Partition(session.control, slot, fd, at, self.path)
        self.configure(settings)
        self._segments: dict[int, Segment] = {}
        self._bases: list[int] = []
        self._segments_version = -1
        self._cursors: dict[int, tuple[int, int]] = {}
        self._dirty_fds: dict[int, tuple[int, int]] = {}  # base -> (descriptor, log end when opened)
        self._retired: list[int] = []
        self._prepare = threading.Lock()
        self._listing = threading.RLock()
        self._flushing = threading.Lock()
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
        return f"PartitionLog({self.topic}-{self.partition}, slot {self.slot})"

    # --- published ends ----------------------------------------------------------------------------

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

    # --- append --------------------------------------------------------------------------------------

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
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, CorruptRecord, RecordTooLarge:
                refused, nothing was written.
            LockTimeout: another process holds the partition's lock.
            DiskFull, StorageError, LogPoisoned, UnknownTopicOrPartition: nothing was published.

        Durability: survives the death of the process on return; power loss only after `flush`.
        Source: protocol.md, Append; Kafka UnifiedLog.append; KIP-98.
        """
        if self.session.read_only:
            raise IllegalState(f"{self.topic}-{self.partition}: the log was opened read_only")
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
            self._resolve(status, error, wait)
        raise LockTimeout(f"{self.topic}-{self.partition}: no append in {MAX_REPEATS} tries")

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

    def _resolve(self, status: int, error: int, wait: float) -> None:
        """Do what the core could not do under the lock, or raise what it found."""
        name = f"{self.topic}-{self.partition}"
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
            raise LogPoisoned(f"{name}: a flush failed; close every handle and open again", path=self.path)
        elif status == S["VOID_SLOT"]:
            raise IllegalState(f"{name}: opened in another session")
        elif status == S["UNVERIFIED"]:
            raise InvalidTxnState(f"{name}: the record is not part of a transaction that its coordinator knows")
        elif status == S["CORRUPT"]:
            base, *_ = self.core.current_files()
            raise CorruptRecord(
                f"{name}: segment {base} is damaged at byte {self.core.segment_position}, offset {self.core.next_offset}"
            )
        elif status == S["IO_FAILED"]:
            raise files.storage_error(OSError(error, os.strerror(error)), self.path)
        elif status == 45:
            raise OutOfOrderSequence(f"{name}: sequence does not follow the last one of its producer")
        elif status == 47:
            raise InvalidProducerEpoch(f"{name}: a newer epoch of this producer has written here")
        elif status == 48:
            raise InvalidTxnState(f"{name}: the batch does not fit its producer's open transaction")
        else:
            raise StorageError(f"{name}: unexpected status {status}", path=self.path)

    # --- what happens outside the lock ---------------------------------------------------------------

    def _open_files(self, base: int) -> tuple[int, int, int, int]:
        segment = os.path.join(self.path, file_name(base, ""))
        fds = [files.open_file(segment + LOG)]
        try:
            fds += [files.open_file(segment + INDEX, create=True), files.open_file(segment + TIME_INDEX, create=True)]
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
            self._dirty_fds.pop(old_base, None)
            self._retired.append(log_fd)
        self._dirty_fds[base] = (fds[0], opened_at)
        self._close_retired()

    def _close_retired(self) -> None:
        """Close what no flush is using: descriptors are closed under the flush mutex only."""
        if self._retired and self._flushing.acquire(blocking=False):
            try:
                while self._retired:
                    files.close(self._retired.pop())
            finally:
                self._flushing.release()

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
            elif self.core.published_segments_version != self._segments_version:
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
        """Keep the sealed segment's descriptor for its flush, write the snapshot at the new base."""
        taken = self.core.take_rolled()
        if taken is None:
            return
        base, new_base, fds, snapshot = taken
        self._dirty_fds.setdefault(base, (fds[0], 0))
        if self.core.segment_base == new_base:
            _, log_fd, *_ = self.core.current_files()
            self._dirty_fds[new_base] = (log_fd, new_base)
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

    # --- durability --------------------------------------------------------------------------------------

    def flush(self, up_to: int | None = None) -> None:
        """Return when everything below `up_to` (default: the log end now) is durable.

        One flush serves all who wait, across threads and processes. In an "os" directory, nothing
        to do. Raises LogPoisoned when a flush failed, for everybody and until all have closed.

        Source: protocol.md, Flush, rows 7, 16, 25.
        """
        if not self.strict:
            return
        target = self.log_end if up_to is None else min(up_to, self.log_end)
        while self.durable_end < target:
            if self.core.poisoned:
                raise LogPoisoned(f"{self.topic}-{self.partition}: a flush failed", path=self.path)
            with self._flushing:
                if self.durable_end < target and not self.core.poisoned:
                    self._flush_or_await(target)

    def _flush_or_await(self, target: int) -> None:
        """Flush, or let another process do it, but not wait for one that was stopped."""
        if not _core.try_lock(self._lock_fd, self._flush_at):
            control = self.session.control
            deadline = time.monotonic() + max(0.005, 2e-9 * self.core.flush_ns)
            while True:
                counters = control.wake_counters((self.slot,))
                left = deadline - time.monotonic()
                if self.durable_end >= target or self.core.poisoned:
                    return
                if left <= 0:
                    break
                control.wait(counters, left)
            self._flush_now()
            return
        try:
            if self.durable_end < target:
                self._flush_now()
        finally:
            _core.unlock(self._lock_fd, self._flush_at)

    def sync(self) -> None:
        """fdatasync what is published, whatever the directory's durability: for a clean close."""
        with self._flushing:
            if self.durable_end < self.log_end:
                self._flush_now()

    def _flush_now(self) -> None:
        started = time.monotonic_ns()
        target, done = self.log_end, self.durable_end
        bases = [base for base in self._covering(done, target)]
        try:
            files.failpoint("flush.before")
            for base in bases:
                fd, opened_at = self._write_fd(base)
                if opened_at > done:
                    self._rewrite(base, fd, done, min(opened_at, target))
                _core.os_sync(fd)
            if any(base >= done for base in bases):
                files.fsync_dir(self.path)
            files.failpoint("flush.after")
        except OSError as error:
            self.core.poison()
            with contextlib.suppress(StorageError):
                self._mark_poisoned()
            raise LogPoisoned(
                f"{self.topic}-{self.partition}: flush failed ({error}); close every handle and open again",
                error.errno or 0,
                self.path,
            ) from error
        self.core.publish_durable(target, time.monotonic_ns() - started)
        current = self.core.segment_base
        for base in [b for b in self._dirty_fds if b < current and b in bases]:
            files.close(self._dirty_fds.pop(base)[0])

    def _mark_poisoned(self) -> None:
        fd = files.open_file(os.path.join(self.session.path, POISON_FILE), create=True)
        try:
            line = f"{self.topic} {self.partition}\n".encode()
            _core.os_pwrite(fd, line, os.fstat(fd).st_size)
            _core.os_sync(fd, data_only=False)
        finally:
            files.close(fd)

    def _covering(self, start: int, end: int) -> list[int]:
        """Bases of the segments that hold offsets of [start, end)."""
        if start >= end:
            return []
        bases = self._refresh_segments(beyond=end)
        first = max((i for i, base in enumerate(bases) if base <= start), default=0)
        return [base for base in bases[first:] if base < end]

    def _write_fd(self, base: int) -> tuple[int, int]:
        held = self._dirty_fds.get(base)
        if held is None:
            opened_at = self.log_end
            held = (files.open_file(os.path.join(self.path, file_name(base, LOG))), opened_at)
            self._dirty_fds[base] = held
        return held

    def _rewrite(self, base: int, fd: int, start: int, end: int) -> None:
        """Write bytes again that are older than the descriptor: a failed writeback of theirs is not
        reported to it (protocol.md row 7)."""
        for part in self.read(start, end, 1 << 30):
            if part.segment_base != base:
                continue
            data = bytes(part.data)
            for batch in _core.iter_batches(data):
                if not batch.valid:
                    raise OSError(5, f"offset {batch.base_offset} does not match its CRC")
            _core.os_pwrite(fd, data, part.position)

    # --- read ----------------------------------------------------------------------------------------------

    def _refresh_segments(self, *, beyond: int = -1) -> list[int]:
        """Bases of the readable segments, listed anew when they changed."""
        with self._listing:
            version = self.core.published_segments_version
            stale = beyond >= 0 and self._bases[-1:] != [self.core.active_base]
            if version != self._segments_version or not self._bases or stale:
                end = self.log_end
                bases = [base for base in offsets_in(self.path, LOG) if base < end or base == 0]
                if version != self._segments_version:
                    self._cursors.clear()
                for base in set(self._segments) - set(bases):
                    del self._segments[base]
                self._bases = bases or offsets_in(self.path, LOG)[:1]
                self._segments_version = version
            return self._bases

    def segment(self, base: int) -> Segment:
        """The segment with this base offset."""
        with self._listing:
            found = self._segments.get(base)
            if found is None:
                found = self._segments[base] = Segment(self.path, base)
            return found

    def _locate(self, offset: int) -> tuple[int, int]:
        """(segment base, position) of a batch boundary at or before `offset`."""
        cursor = self._cursors.get(offset)
        if cursor is not None and self.core.published_segments_version == self._segments_version:
            return cursor
        bases = self._refresh_segments()
        below = [base for base in bases if base <= offset]
        base = below[-1] if below else bases[0]
        return base, self.segment(base).position_of(offset)

    def read(self, start: int, end: int, max_bytes: int = 1 << 20) -> list[Slice]:
        """Whole batches that cover [start, end), or its beginning.

        Args:
            start: offset; the first batch may begin below it.
            end: exclusive, at most the log end; nothing at or past it is looked at.
            max_bytes: where to stop; at least one batch is given.

        Raises:
            OffsetOutOfRange: start lies below the log start or beyond the log end.
            CorruptRecord: no batch where one must be.
        """
        if start < self.log_start or start > self.log_end:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: offset {start}, the log has [{self.log_start}, {self.log_end})"
            )
        end = min(end, self.log_end)
        out: list[Slice] = []
        left = max_bytes
        for attempt in range(3):
            try:
                self._read_into(out, start, end, left)
                break
            except FileNotFoundError as error:
                self._segments_version = -1
                if start < self.log_start or attempt == 2:
                    raise OffsetOutOfRange(
                        f"{self.topic}-{self.partition}: offset {start} was deleted, the log starts at {self.log_start}"
                    ) from error
                out.clear()
        return out

    def _read_into(self, out: list[Slice], start: int, end: int, left: int) -> None:
        base, position = self._locate(start)
        need = 0
        relisted = False
        while start < end and (left > 0 or not out):
            segment = self.segment(base)
            buffer, at, size = segment.view(position, need)
            first, stop, base_offset, next_offset, needed = (
                _core.walk_batches(buffer, at, start, end, left) if size else (at, at, -1, -1, 0)
            )
            if base_offset >= 0:
                found = position + first - at
                out.append(Slice(_sub(buffer, first, stop), base_offset, next_offset, found, base))
                left -= stop - first
                position = found + stop - first
                start = next_offset
                need = 0
                if len(self._cursors) > 64:
                    self._cursors.clear()
                self._cursors[next_offset] = (base, position)
                continue
            position += first - at
            if needed and position + needed <= segment.size():
                need = needed
                continue
            if size and position < segment.size() and not needed:
                need = 0  # the buffer ended between batches
                if first == at:
                    return
                continue
            later = [b for b in self._refresh_segments() if b > base]
            if not later and not relisted:
                relisted = True
                later = [b for b in self._refresh_segments(beyond=end) if b > base]
            if not later:
                return
            base, position, need = later[0], 0, 0

    def batches(self, start: int, end: int) -> Iterator[Any]:
        """Every batch of [start, end), control batches too, in order (for folds)."""
        while start < end:
            parts = self.read(start, end)
            if not parts:
                return
            for part in parts:
                for batch in _core.iter_batches(part.data, base_position=part.position):
                    if batch.last_offset >= start:
                        yield batch
                start = part.next_offset

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """(producer id, first offset, marker offset) of aborted transactions that touch [start, end)."""
        log_end = self.log_end
        bases = self._refresh_segments(beyond=end if not self._bases or end > self._bases[-1] else -1)
        below = [base for base in bases if base <= start]
        first = below[-1] if below else 0
        return [
            entry
            for base in bases
            if base >= first
            for entry in self.segment(base).aborted(log_end)
            if entry[2] >= start and entry[1] < end
        ]

    def offset_for_time(self, timestamp_ms: int, end: int) -> int | None:
        """The first offset below `end` whose timestamp is at or after a time, in ms."""
        log_start = self.log_start
        bases = self._refresh_segments(beyond=end)
        for i, base in enumerate(bases):
            stop = bases[i + 1] if i + 1 < len(bases) else end
            if stop <= log_start:
                continue
            largest, search_from = self.segment(base).time_bounds(timestamp_ms)
            if i + 1 < len(bases) and 0 <= largest < timestamp_ms:
                continue
            start = max(search_from, log_start)
            for batch in self.batches(start, min(stop, end)):
                if batch.control or batch.max_timestamp < timestamp_ms:
                    continue
                for offset, timestamp, *_ in batch.records():
                    if timestamp >= timestamp_ms and log_start <= offset < end:
                        return int(offset)
        return None

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
            if self.strict and of != "log_end" and not self.session.read_only and self.durable_end < self.log_end:
                flush_due = flush_due or now + self.settings.flush_ms / 1000
                if now >= flush_due:
                    self.flush()
                    flush_due = None
                    continue
                pause = min(pause, flush_due - now)
            control.wait(counters, max(pause, 1e-5))

    # --- state -----------------------------------------------------------------------------------------------

    def producer_state(self, producer_id: int) -> ProducerDescription | None:
        """What the partition knows of a producer, up to the published end."""
        self.fold()
        found = self.core.producer(producer_id)
        if found is None:
            return None
        epoch, last_sequence, last_timestamp, coordinator_epoch, first, _ = found
        return ProducerDescription(
            producer_id, epoch, last_sequence, last_timestamp, coordinator_epoch, first if first >= 0 else None
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

    # --- deletion ----------------------------------------------------------------------------------------------

    def delete_records(self, before: int) -> int:
        """Move the log start up; whole segments below it are removed. The new log start."""
        high = self.high_watermark
        if before == -1:
            before = high
        if before < 0 or before > high:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: cannot delete before {before}, the high watermark is {high}"
            )
        self._advance(before)
        return self.log_start

    def apply_retention(self, now_ms: int) -> int:
        """Drop the oldest segments by the topic's retention time and size; bytes freed.

        An open transaction pins its first segment (nothing at or past the last stable offset goes).
        """
        settings, bases = self.settings, self._refresh_segments(beyond=self.log_end)
        sizes = [self.segment(base).size() for base in bases]
        excess = sum(sizes) - settings.retention_bytes if settings.retention_bytes >= 0 else 0
        bound = min(self.last_stable_offset, self.high_watermark)
        freed, start = 0, self.log_start
        for i, base in enumerate(bases):
            last = i + 1 == len(bases)
            end = self.log_end if last else bases[i + 1]
            if end > bound or sizes[i] == 0:
                break
            largest = self.segment(base).time_bounds(0)[0]
            if last or largest < 0:
                largest = max((b.max_timestamp for b in self.batches(max(base, start), end)), default=-1)
            expired = settings.retention_ms >= 0 and 0 <= largest < now_ms - settings.retention_ms
            if not expired and excess < sizes[i] and end > self.log_start:
                break
            if last:
                if not expired:
                    break
                self.roll()
            freed += sizes[i]
            excess -= sizes[i]
            start = end
        if start > self.log_start:
            self._advance(start)
        return freed

    def _advance(self, log_start: int) -> None:
        bases = self._refresh_segments(beyond=self.log_end)
        gone = [base for base, following in zip(bases, bases[1:], strict=False) if following <= log_start]
        self._locked(lambda: self.core.advance_log_start(log_start, bool(gone), LOCK_TIMEOUT_S))
        files.failpoint("log.start.advanced")
        self.on_log_start(self)
        for base in gone:
            self._drop_segment(base)
        self._segments_version = -1

    def on_log_start(self, log: PartitionLog) -> None:
        """Replaced by the engine: write the log-start checkpoint before segments go."""

    def _drop_segment(self, base: int) -> None:
        with self._listing:
            segment = self._segments.pop(base, None)
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, LOG):
            path = os.path.join(self.path, file_name(base, suffix))
            with contextlib.suppress(StorageError):
                if os.path.exists(path):
                    files.rename(path, path + DELETED)
                    files.remove(path + DELETED)
        if segment is not None:
            segment.close()

    def roll(self) -> None:
        """Seal the active segment unless it is empty."""
        self._locked(lambda: self.core.seal(LOCK_TIMEOUT_S))
        self._after_roll()

    def _locked(self, call: Any) -> None:
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
        held = {fd for fd, _ in self._dirty_fds.values()} | set(self._retired)
        if _core.fork_generation() == self.session._generation:
            for fd in {*fds, *held}:
                files.close(fd)
            for name in files.names(self.path) if os.path.isdir(self.path) else ():
                if name.endswith(PREPARED) and name.startswith(f"{self.session.process_number}-"):
                    files.remove(os.path.join(self.path, name))
        for segment in self._segments.values():
            segment.close()
        self._dirty_fds.clear()


def _sub(buffer: Any, first: int, stop: int) -> Any:
    if isinstance(buffer, (bytes, bytearray)):
        return memoryview(buffer)[first:stop]
    return buffer[first:stop]


__all__ = ["LogSettings", "PartitionLog", "Slice", "offset_of"]
