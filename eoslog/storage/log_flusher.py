"""Making a partition durable: one fdatasync for all who wait, across threads and processes.

Source: protocol.md, Flush, rows 7, 8, 16, 25.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.errors import (
    CorruptRecord,
    LockTimeout,
    LogPoisoned,
    OffsetOutOfRange,
    TooManyOpenFiles,
    UnknownTopicOrPartition,
)
from eoslog.storage import files
from eoslog.storage.log_reader import SwapUnderWay
from eoslog.storage.segments import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name, offsets_in
from eoslog.storage.session import POISON_FILE

if TYPE_CHECKING:
    from eoslog.storage.log_reader import Slice
    from eoslog.storage.partition_log import PartitionLog

_REREAD_BYTES = 64 << 20
_SLICE_S = 0.05
"""A wait in the core is no longer than this: in between, signals are heard."""
_JOIN_S = 0.005
"""How long the round's word is believed before the locks are tried: who began it may have died."""
_LISTINGS = 8
"""How often segments may be taken from under one flush."""


class _ReadOtherwise(OSError):
    """Bytes are not what was written; or they are, and a cleaned segment has got the name."""


class LogFlusher:
    """The descriptors of segments that are not durable yet, and their flush.

    Invariants:
        - a descriptor is closed under the mutex only, so that no flush meets a reused number
        - each remembers the log end at its opening: an error of older bytes is not reported to it
    """

    def __init__(self, log: PartitionLog, lock_fd: int, lock_at: int) -> None:
        """Flush `log` under byte lock_at of its lock file."""
        self._log = log
        self._core = log.core
        self._lock_fd = lock_fd
        self._flush_at = lock_at
        self._fds: dict[int, tuple[int, int]] = {}  # base -> (descriptor, log end when opened)
        self._entered = -1  # base of the newest segment that a writer's descriptor was given for
        self._retired: list[int] = []
        self._closed = False
        self._flushing = threading.Lock()
        self._met = False  # a thread met the mutex and may sleep: who leaves wakes one
        self._changing = (
            threading.Lock()
        )  # `_fds`, `_retired`: no fold goes back while some are let go

    def keep(self, base: int, fd: int, opened_at: int) -> None:
        """Flush the segment through this descriptor; of two the one that was opened first stays."""
        with self._changing:
            if self._closed:  # `close` had it, or has it from the fold
                return
            held = self._fds.setdefault(base, (fd, opened_at))
            if held[0] == fd:
                return
            if opened_at < held[1]:
                self._fds[base] = (fd, opened_at)
                fd = held[0]
        self._close_later(fd)

    def replace(self, base: int, fd: int, opened_at: int) -> None:
        """Take a writer's descriptor for the segment that the fold is in."""
        with self._changing:
            if self._closed:
                return
            held = self._fds.get(base)
            self._fds[base] = (fd, opened_at)
            self._entered = max(self._entered, base)
        if held is not None and held[0] != fd:
            self._close_later(held[0])

    def retire(self, base: int, fd: int) -> None:
        """The descriptor of a segment is needed no more."""
        with self._changing:
            if self._closed:
                return
            held = self._fds.get(base)
            if held is not None and held[0] == fd:
                del self._fds[base]
        if fd >= 0:
            self._close_later(fd)

    @property
    def held(self) -> int:
        """How many segments have a descriptor here."""
        return len(self._fds)

    def _close_later(self, fd: int) -> None:
        with self._changing:
            self._retired.append(fd)
        self.close_retired()

    def close_retired(self) -> None:
        """Close what is not needed, unless a flush is under way: it comes by later."""
        if not self._retired:
            return
        with _core.TryMutex(self._flushing) as mine:
            while mine and (fd := self._next_retired()) >= 0:
                files.close(fd)
        self._core.pass_flush_on()  # to a thread that met the mutex

    def _next_retired(self) -> int:
        with self._changing:
            return self._retired.pop() if self._retired else -1

    def close(self, log_fd: int) -> None:
        """Close what is open here, and the fold's own descriptor, each of them once: another thread
        may be at the partition of a deleted topic yet. A flush that is under way writes through
        them: where there is one, it closes them.
        """
        with self._changing:
            self._closed = True
            held = {log_fd, *self._retired, *(fd for fd, _ in self._fds.values())} - {-1}
            self._retired = list(held)
            self._fds.clear()
        self.close_retired()

    def flush(self, target: int) -> None:
        """Return when everything below `target` is durable.

        One flush serves all who wait, across threads and processes. In an "os" directory, nothing
        to do.

        Raises:
            LogPoisoned: a flush failed, for everybody and until all have closed.
            TooManyOpenFiles: no descriptor was free; nothing is lost, it can be tried again.
            UnknownTopicOrPartition: the topic was deleted meanwhile.

        Source: protocol.md, Flush, rows 7, 16, 25.
        """
        if self._core.join_flush(target, _JOIN_S):
            return
        deadline, before = 0.0, -1
        owes = False  # had the flush lock, for which others sleep
        try:
            while (durable := self._core.durable_end) < target:
                if self._core.poisoned:
                    raise LogPoisoned(f"{self._log.name}: a flush failed", path=self._log.path)
                now = time.monotonic()
                if durable != before:  # nobody was stopped
                    deadline, before = now + max(0.005, 2e-9 * self._core.flush_ns), durable
                counters = self._core.flush_counters
                late = now >= deadline
                taken = False
                for _ in range(2):
                    with _core.TryMutex(self._flushing) as mine:
                        if mine:
                            owes = True
                            taken = owes = self._flush_if_free(target, late=late)
                    if mine:
                        break
                    self._met = True  # and only then once more: who has it looks behind it
                if taken:
                    owes = self._met = False
                    self._core.pass_flush_on()
                    continue
                # A thread of this process is not overtaken: it holds the descriptors.
                left = _SLICE_S if late else deadline - now
                self._core.await_flush(target, counters, min(left, _SLICE_S))
        finally:
            if self._closed:  # under way
                self.close_retired()
            if owes or self._met:
                self._met = False
                self._core.pass_flush_on()

    def _flush_if_free(self, target: int, *, late: bool) -> bool:
        """Flush, unless another process does so, and not `late`: it may have been stopped."""
        reader = self._log.reader
        with _core.TryFileLock(self._lock_fd, self._flush_at) as free:
            if not free:
                if late:
                    self._flush_now()
                return late
            try:
                reader.impatient = threading.get_ident()
                if self._core.durable_end < target:
                    self._flush_now(leads=True)
                return True
            except SwapUnderWay:
                pass
            finally:
                reader.impatient = 0
        reader.listing()  # waits for its end, or brings it about, which needs the cleaner lock
        return True

    def sync(self) -> None:
        """Fdatasync what is published, whatever the directory's durability: for a clean close."""
        try:
            with self._flushing:
                if self._log.durable_end < self._log.log_end:
                    self._flush_now()
        finally:
            if self._closed:  # under way
                self.close_retired()
        self._core.pass_flush_on()  # to a thread that met the mutex

    def sync_indexes(self, old_point: int, new_point: int) -> None:
        """Make the index files durable of segments that a risen recovery point leaves behind.

        Recovery rebuilds the indexes of what it scans, and it scans from the recovery point on. An
        abort index that was lost below it would show aborted records.

        Raises:
            LogPoisoned: a sync failed. The next one would succeed over what was lost.
            TooManyOpenFiles: nothing is lost; it can be tried again.
            UnknownTopicOrPartition: the topic was deleted, and its files go.
        """
        try:
            bases = offsets_in(self._log.path, LOG)  # the empty active one as well
            self._sync_indexes(bases, old_point, new_point)
        except OSError as error:
            if self._core.deleted:
                raise self._gone() from error
            raise

    def _gone(self) -> UnknownTopicOrPartition:
        return UnknownTopicOrPartition(f"{self._log.name}: the topic was deleted")

    def _sync_indexes(self, bases: list[int], old_point: int, new_point: int) -> None:
        sealed = [b for b, end in pairwise(bases) if old_point <= end <= new_point]
        try:
            for base in sealed:
                for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
                    self._sync_file(os.path.join(self._log.path, file_name(base, suffix)))
            if sealed:
                files.fsync_dir(self._log.path)
        except TooManyOpenFiles:
            raise
        except OSError as error:
            if self._core.deleted:
                raise
            raise self.poison(error) from error

    def _sync_file(self, path: str) -> None:
        try:
            fd = files.open_file(path)
        except FileNotFoundError:
            return  # there are no aborts in it
        try:
            self._core.sync(fd)
        finally:
            files.close(fd)

    def _flush_now(self, *, leads: bool = False) -> None:
        try:
            self._flush_all(leads)
        except OSError as error:
            if self._core.deleted:
                raise self._gone() from error
            raise
        if not leads:  # it serves whatever round they wait for
            self._log.session.control.wake(self._log.slot)

    def _flush_all(self, leads: bool) -> None:
        if self._core.poisoned:  # the kernel tells a descriptor once: the next sync would succeed
            raise LogPoisoned(f"{self._log.name}: a flush failed", path=self._log.path)
        started = time.monotonic_ns()
        target, done = self._core.log_end, max(self._core.durable_end, self._core.log_start)
        try:
            if leads:
                self._core.begin_flush(target)
            self._flush_what_stands(done, target)
            self._core.publish_durable(target, time.monotonic_ns() - started)
        except BaseException:
            if leads:
                self._core.give_up_flush()
            raise
        self._let_go(target)

    def _flush_what_stands(self, done: int, target: int) -> None:
        """Flush [done, target), except for what others made durable, or deleted, meanwhile.

        Retention and compaction take segments from under a flush that stands still: only a failed
        write or sync loses anything.
        """
        for turn in range(_LISTINGS):
            version = self._core.published_segments_version
            bases = self._covering(done, target)
            try:
                self._flush_segments(bases, done, target)
                return
            except (TooManyOpenFiles, LockTimeout):
                raise  # the disk refused nothing: whoever tries again begins anew
            except (OSError, OffsetOutOfRange, CorruptRecord) as error:
                if self._core.deleted:
                    raise
                moved = version != self._core.published_segments_version
                taken = isinstance(error, (FileNotFoundError, OffsetOutOfRange)) or (
                    moved and isinstance(error, (_ReadOtherwise, CorruptRecord))
                )
                if not taken or turn + 1 == _LISTINGS:
                    if isinstance(error, OSError):
                        raise self.poison(error) from error
                    raise
            self._log.forget_segments()
            done = max(self._core.durable_end, self._core.log_start)
            if done >= target:
                return

    def _flush_segments(self, bases: list[int], done: int, target: int) -> None:
        files.failpoint("flush.before")
        for base, end in zip(bases, [*bases[1:], target], strict=False):
            fd, opened_at = self._write_fd(base)
            if self._core.deleted:  # what has the name may be another topic's by now
                raise UnknownTopicOrPartition(f"{self._log.name}: the topic was deleted")
            begin, older = max(base, done), min(opened_at, end)
            if older > begin:
                self._rewrite(base, fd, begin, older)
            self._core.sync(fd)
            if older > begin:
                self._read_back(base, fd, begin, older)
        if bases and bases[-1] >= done:  # made since the last flush
            files.fsync_dir(self._log.path)
        files.failpoint("flush.after")

    def _let_go(self, durable: int) -> None:
        """Close what no flush needs any more. What a held segment holds lies below the next one's
        base, so it may have been durable before it was sealed. The one that the fold is in stays
        open, also where other processes have rolled on: the fold reads it. So does one that was
        sealed just now: `WriterFiles` has not handed its descriptor over yet.
        """
        if len(self._fds) <= 1:
            return
        with self._changing:
            current = min(self._core.segment_base, self._entered)
            for base, following in pairwise(sorted({*self._fds, current})):
                if base < current and following <= durable and base in self._fds:
                    files.close(self._fds.pop(base)[0])

    def poison(self, error: OSError) -> LogPoisoned:
        """Nobody appends, flushes or acknowledges here until all have closed; what to raise."""
        self._core.poison()
        with contextlib.suppress(OSError):  # the marker may lie on the disk that fails
            self._mark_poisoned()
        return LogPoisoned(
            f"{self._log.name}: flush failed ({error}); close every handle and open again",
            error.errno or 0,
            self._log.path,
        )

    def _mark_poisoned(self) -> None:
        path = os.path.join(self._log.session.path, POISON_FILE)
        fd = files.open_file(path, create=True, append=True)  # others write theirs without a lock
        try:
            # Not behind half a line, which is all that a full disk may have taken of another.
            line = f"\n{self._log.topic} {self._log.partition}\n".encode()
            _core.os_pwrite(fd, line, os.fstat(fd).st_size)
            _core.os_sync(fd, data_only=False)
        finally:
            files.close(fd)

    def _covering(self, start: int, end: int) -> list[int]:
        """Bases of the segments that hold offsets of [start, end), which are published."""
        if start >= end:
            return []
        active = self._core.active_base
        if active <= start:  # what was rolled since begins at `end` or behind it
            return [active]
        bases = self._log.reader.bases()
        first = max((i for i, base in enumerate(bases) if base <= start), default=0)
        return [base for base in bases[first:] if base < end]

    def _write_fd(self, base: int) -> tuple[int, int]:
        held = self._fds.get(base)
        if held is None:
            opened_at = self._log.log_end
            held = (files.open_file(os.path.join(self._log.path, file_name(base, LOG))), opened_at)
            with self._changing:
                if self._closed:
                    self._retired.append(held[0])
                else:
                    self._fds[base] = held
        return held

    def _rewrite(self, base: int, fd: int, start: int, end: int) -> None:
        """Write bytes again that are older than the descriptor: a failed writeback of theirs is not
        reported to it (protocol.md row 7).
        """
        for part in self._parts(base, start, end):
            data = bytes(part.data)
            for batch in _core.iter_batches(data):
                if not batch.valid:
                    raise _ReadOtherwise(5, f"offset {batch.base_offset} does not match its CRC")
            _core.os_pwrite(fd, data, part.position)

    def _read_back(self, base: int, fd: int, start: int, end: int) -> None:
        """Whether the disk has it: some file systems keep what failed once as never written."""
        files.forget_cached(fd)
        for part in self._parts(base, start, end):
            data = bytes(_core.os_pread(fd, len(part.data), part.position))
            if any(not batch.valid for batch in _core.iter_batches(data)):
                raise _ReadOtherwise(5, f"the disk does not keep offsets from {start}")

    def _parts(self, base: int, start: int, end: int) -> Iterator[Slice]:
        """What a segment holds of [start, end): all of it, however much one reading gives."""
        while start < end:
            parts = self._log.reader.read(start, end, _REREAD_BYTES)
            if not parts:
                return
            yield from (part for part in parts if part.segment_base == base)
            start = parts[-1].next_offset
