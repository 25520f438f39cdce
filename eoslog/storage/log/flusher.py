"""Flushing a partition: one fdatasync for all waiting threads of all processes (group commit).

A thread that needs its bytes durable first joins a round that is under way. Otherwise it tries the
process's mutex and the partition's flush lock. With both it is the leader: it begins a round, syncs
every segment that is not durable yet, and publishes the durable end. Without them it sleeps until a
round covers its bytes, or until it is woken to lead the next round.

A leader can be killed or suspended. Its waiters continue without it after about twice the time that
a flush takes, and one of them flushes without the lock. That is safe: two flushes at the same time
sync the same files, and the durable end never falls.

A failed fdatasync is final. The kernel reports the error once, so a second attempt would succeed in
spite of lost bytes. The flusher therefore poisons the partition: every process rejects appends and
flushes until all have closed the log, and the next session recovers it.

Source: protocol.md, Flush, rows 7, 8, 16, 25.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import TypeVar

from eoslog import _core
from eoslog.errors import (
    CorruptRecord,
    EoslogError,
    LockTimeout,
    LogPoisoned,
    OffsetOutOfRange,
    TooManyOpenFiles,
)
from eoslog.storage.directory.session import POISON_FILE
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import SLICE_S
from eoslog.storage.log.context import LogContext
from eoslog.storage.log.reader import LogReader, Slice
from eoslog.storage.log.segment_list import SegmentList, SwapUnderWay
from eoslog.storage.segment.segment import (
    INDEX,
    LOG,
    TIME_INDEX,
    TXN_INDEX,
    file_path,
    offsets_in,
)

_REREAD_BYTES = 64 << 20
_JOIN_S = 0.005
"""Longest wait for a round before the locks are tried: its leader may have died."""
_LISTINGS = 8
"""Attempts of one flush, each with a new list of segments because some were removed or replaced."""


T = TypeVar("T")
Steps = Generator[int, None, T]
"""The steps of a flush. It yields each descriptor that must be synced before the next step. The
caller syncs it, and throws an OSError into the generator if that fails."""


class _ReadOtherwise(OSError):
    """Read bytes differ from the written ones, or a cleaned segment has the file name now."""


class LogFlusher:
    """The descriptors of segments that are not durable yet, and their flush.

    Invariants:
        - a descriptor is closed only with the mutex held, so that no flush uses a reused number
        - each descriptor has the log end at its opening: the kernel does not report write errors of
          older bytes through it
    """

    def __init__(
        self,
        context: LogContext,
        segments: SegmentList,
        reader: LogReader,
        lock_fd: int,
        lock_at: int,
    ) -> None:
        """Flush a partition; its flush lock is byte `lock_at` of the file `lock_fd`."""
        self._context = context
        self._session = context.session
        self._segments = segments
        self._reader = reader
        self._core = context.core
        self._lock_fd = lock_fd
        self._flush_at = lock_at
        self._fds: dict[int, tuple[int, int]] = {}  # base -> (descriptor, log end when opened)
        self._entered = -1  # base of the newest segment with a writer's descriptor
        self._retired: list[int] = []
        self._closed = False
        self._flushing = threading.Lock()
        self._met = False  # a thread found the mutex taken and may sleep: its owner wakes one
        self._changing = (
            threading.Lock()
        )  # guards `_fds` and `_retired`: the fold must not move while descriptors are closed

    def keep(self, base: int, fd: int, opened_at: int) -> None:
        """Flush the segment through this descriptor; of two, keep the older one."""
        with self._changing:
            if self._closed:  # `close` has closed it, or gets it from the fold
                return
            held = self._fds.setdefault(base, (fd, opened_at))
            if held[0] == fd:
                return
            if opened_at < held[1]:
                self._fds[base] = (fd, opened_at)
                fd = held[0]
        self._close_later(fd)

    def replace(self, base: int, fd: int, opened_at: int) -> None:
        """Use a writer's descriptor for the segment that the fold is in."""
        with self._changing:
            if self._closed:
                return
            held = self._fds.get(base)
            self._fds[base] = (fd, opened_at)
            self._entered = max(self._entered, base)
        if held is not None and held[0] != fd:
            self._close_later(held[0])

    def retire(self, base: int, fd: int) -> None:
        """Stop using a descriptor of a segment, and close it when no flush uses it."""
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
        """The number of segments with a descriptor."""
        return len(self._fds)

    def _close_later(self, fd: int) -> None:
        with self._changing:
            self._retired.append(fd)
        self.close_retired()

    def close_retired(self) -> None:
        """Close the retired descriptors, unless a flush is running: it closes them when it ends."""
        if not self._retired:
            return
        with _core.TryMutex(self._flushing) as mine:
            while mine and (fd := self._next_retired()) >= 0:
                files.close(fd)
        self._pass_on()

    def _next_retired(self) -> int:
        with self._changing:
            return self._retired.pop() if self._retired else -1

    def close(self, log_fd: int) -> None:
        """Close all descriptors, the fold's own included, each of them once.

        Another thread may still use the partition, if its topic was deleted. A running flush uses
        the descriptors, and closes them itself when it ends.
        """
        with self._changing:
            self._closed = True
            held = {log_fd, *self._retired, *(fd for fd, _ in self._fds.values())} - {-1}
            self._retired = list(held)
            self._fds.clear()
        self.close_retired()

    def flush(self, target: int) -> None:
        """Return when everything below `target` is durable.

        Raises:
            LogPoisoned: if a flush has failed; every process gets it until all have closed the log.
            TooManyOpenFiles: if no descriptor was free; nothing is lost, so the caller can retry.
            UnknownTopicOrPartition: if the topic was deleted in the meantime.

        Durability: everything below `target` survives power loss on return.
        Source: protocol.md, Flush, rows 7, 16, 25.
        """
        if self._core.join_flush(target, _JOIN_S):
            return
        deadline, before = 0.0, -1
        owes = False  # this thread had the flush lock: it must wake a thread that sleeps for it
        try:
            while (durable := self._core.durable_end) < target:
                if self._core.poisoned:
                    self._session.directory.refuse()
                    raise self._poisoned()
                now = time.monotonic()
                if durable != before:  # some leader makes progress: give the next one as long
                    deadline, before = now + max(0.005, 2e-9 * self._core.flush_ns), durable
                counters = self._core.flush_counters
                late = now >= deadline
                taken = False
                for _ in range(2):
                    with _core.TryMutex(self._flushing) as mine:
                        if mine:
                            owes = True
                            if taken := self._flush_one():
                                owes = False  # it has woken the next one
                            else:
                                taken = owes = self._run(self._flush_if_free(target, late=late))
                    if mine:
                        break
                    self._met = True  # then try again: the owner may have read `_met` before this
                if taken:
                    if owes or self._met:
                        owes = self._met = False
                        self._core.pass_flush_on()
                    continue
                # Never flush past a thread of this process, because it uses the descriptors.
                left = SLICE_S if late else deadline - now
                self._core.await_flush(target, counters, min(left, SLICE_S))
        finally:
            if self._closed:  # while this flush was running
                self.close_retired()
            if owes or self._met:
                self._met = False
                self._core.pass_flush_on()

    def _flush_one(self) -> bool:
        """Flush if that takes one sync of a descriptor that this process has.

        The caller holds the mutex. Returns False if the flush needs more than that, or the flush
        lock is taken: nothing was done.
        """
        base = self._core.active_base
        held = self._fds.get(base)
        if held is None:
            return False
        try:
            done = self._core.lead_flush(
                self._lock_fd, self._flush_at, base, *held, files.failpoint
            )
        except TooManyOpenFiles:
            raise  # no disk error: the caller can retry
        except OSError as error:
            if self._core.deleted:
                raise self._context.topic_deleted() from error
            raise self.poison(error) from error
        if done:
            self._release(self._core.durable_end)
        return done

    def try_flush(self, target: int) -> None:
        """Join a flush, or flush if `_flush_one` can; `flush` does the rest.

        Called as soon as records are appended, before the work that precedes `flush`. Raises no
        error: `flush` does.
        """
        if self._core.join_flush(target, _JOIN_S):
            return
        mine = False
        try:
            with _core.TryMutex(self._flushing) as mine:
                if mine:
                    with contextlib.suppress(EoslogError):
                        self._flush_one()
        finally:
            if self._closed:  # while this flush was running
                self.close_retired()
            if mine and self._met:
                self._met = False
                self._core.pass_flush_on()

    def lead(self, target: int) -> Steps[None]:
        """Flush if both locks are free now; otherwise do nothing.

        Never waits for a lock, because the caller may have the locks of other partitions.
        """
        mine = False
        try:
            with _core.TryMutex(self._flushing) as mine:
                if mine:
                    with _core.TryFileLock(self._lock_fd, self._flush_at) as free:
                        if free and self._core.durable_end < target:
                            with contextlib.suppress(SwapUnderWay):
                                yield from self._flush_now(leads=True)
        finally:
            if self._closed:  # while this flush was running
                self.close_retired()
            if mine:
                self._met = False
                self._core.pass_flush_on()

    def _run(self, steps: Steps[T]) -> T:
        """Sync what a flush yields, one file after another."""
        with contextlib.closing(steps):  # an interrupt ends the flush before its locks are free
            try:
                fd = next(steps)
                while True:
                    try:
                        self._core.sync(fd)
                    except OSError as error:
                        fd = steps.throw(error)
                    else:
                        fd = next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def _flush_if_free(self, target: int, *, late: bool) -> Steps[bool]:
        """Flush if the flush lock is free; if `late`, flush anyway, because its holder may be
        suspended.

        Returns whether this call flushed, or waited for a swap of segments.
        """
        with _core.TryFileLock(self._lock_fd, self._flush_at) as free:
            if not free:
                if late:
                    yield from self._flush_now()
                return late
            try:
                if self._core.durable_end < target:
                    yield from self._flush_now(leads=True)
                return True
            except SwapUnderWay:
                pass
        self._segments.listing()  # waits for the swap's end, or finishes it under the cleaner lock
        return True

    def sync(self) -> None:
        """Flush everything published, also in an "os" directory: for a clean close."""
        try:
            with self._flushing:
                if self._core.durable_end < self._core.log_end:
                    self._run(self._flush_now())
        finally:
            if self._closed:  # while this flush was running
                self.close_retired()
        self._core.pass_flush_on()  # to a thread that found the mutex taken

    def sync_sealed(self, old_point: int, new_point: int) -> None:
        """Make the segments durable that end between an old and a new recovery point.

        Recovery scans segments from the recovery point on, and repairs these only. If an abort
        index below that point were lost, readers would see aborted records. If a log file got its
        preallocated space back, which the roll truncated, readers would find zeros.

        Raises:
            LogPoisoned: if a sync failed; the next one would succeed in spite of lost bytes.
            TooManyOpenFiles: if no descriptor was free; nothing is lost, so the caller can retry.
            UnknownTopicOrPartition: if the topic was deleted.
        """
        try:
            bases = offsets_in(self._context.path, LOG)  # the empty active one as well
            self._sync_sealed(bases, old_point, new_point)
        except OSError as error:
            if self._core.deleted:
                raise self._context.topic_deleted() from error
            raise

    def _sync_sealed(self, bases: list[int], old_point: int, new_point: int) -> None:
        sealed = [b for b, end in pairwise(bases) if old_point <= end <= new_point]
        try:
            for base in sealed:
                for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
                    self._sync_file(file_path(self._context.path, base, suffix))
            if sealed:
                files.fsync_dir(self._context.path)
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
            return  # a segment without aborted transactions has no abort index
        try:
            self._core.sync(fd)
        finally:
            files.close(fd)

    def _flush_now(self, *, leads: bool = False) -> Steps[None]:
        try:
            yield from self._flush_all(leads)
        except OSError as error:
            if self._core.deleted:
                raise self._context.topic_deleted() from error
            raise
        if not leads:  # this flush belongs to no round: wake the waiters of both
            self._session.control.wake(self._context.slot)

    def _flush_all(self, leads: bool) -> Steps[None]:
        if self._core.poisoned:  # the kernel reports an error once: the next sync would succeed
            self._session.directory.refuse()
            raise self._poisoned()
        started = time.monotonic_ns()
        target, done = self._core.log_end, max(self._core.durable_end, self._core.log_start)
        try:
            if leads:
                self._core.begin_flush(target)
            yield from self._flush_remaining(done, target, wait=not leads)
            self._core.publish_durable(target, time.monotonic_ns() - started)
        except BaseException:
            if leads:
                self._core.give_up_flush()
            raise
        self._release(target)

    def _flush_remaining(self, done: int, target: int, *, wait: bool) -> Steps[None]:
        """Flush [done, target), except for what others have made durable or deleted in the
        meantime.

        Retention and compaction may remove segments while a flush is suspended. That loses nothing,
        so the flush starts again with the new list. Only a failed write or sync poisons the
        partition.
        """
        for turn in range(_LISTINGS):
            version = self._core.published_segments_version
            bases = self._covering(done, target, wait)
            try:
                yield from self._flush_segments(bases, done, target, wait)
                return
            except (TooManyOpenFiles, LockTimeout):
                raise  # no disk error: the caller can retry
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
            self._segments.outdate()
            done = max(self._core.durable_end, self._core.log_start)
            if done >= target:
                return

    def _flush_segments(self, bases: list[int], done: int, target: int, wait: bool) -> Steps[None]:
        files.failpoint("flush.before")
        for base, end in zip(bases, [*bases[1:], target], strict=False):
            fd, opened_at = self._write_fd(base)
            if self._core.deleted:  # the file name may belong to another topic now
                raise self._context.topic_deleted()
            begin, older = max(base, done), min(opened_at, end)
            if older > begin:
                self._rewrite(base, fd, begin, older, wait)
            yield fd
            if older > begin:
                self._read_back(base, fd, begin, older, wait)
        if (
            bases and bases[-1] >= done
        ):  # created since the last flush: its name must be durable too
            files.fsync_dir(self._context.path)
        files.failpoint("flush.after")

    def _release(self, durable: int) -> None:
        """Close the descriptors of segments that are entirely below `durable`.

        The fold's segment stays open, even if other processes have rolled since, because the fold
        reads it. So does a segment that was sealed just now: `WriterFiles` still has to give its
        descriptor.
        """
        if len(self._fds) <= 1:
            return
        with self._changing:
            current = min(self._core.segment_base, self._entered)
            for base, following in pairwise(sorted({*self._fds, current})):
                if base < current and following <= durable and base in self._fds:
                    files.close(self._fds.pop(base)[0])

    def holds_below(self, offset: int) -> bool:
        """Whether any but the last segment has a descriptor and begins below an offset."""
        return len(self._fds) > 1 and min(list(self._fds), default=offset) < offset

    def settle(self) -> None:
        """Close the descriptors that no flush needs: of segments that are durable or below the log
        start.
        """
        with _core.TryMutex(self._flushing) as mine:
            if mine:
                self._release(max(self._core.durable_end, self._core.log_start))
        self._pass_on()
        self.close_retired()

    def _pass_on(self) -> None:
        """Wake a thread that found the mutex taken. Read-only processes have none."""
        if not self._session.read_only:
            self._core.pass_flush_on()

    def _poisoned(self) -> LogPoisoned:
        return LogPoisoned(
            f"{self._context.name}: a flush failed, so the partition rejects writes; close the log "
            "in every process, then open it again",
            path=self._context.path,
        )

    def poison(self, error: OSError) -> LogPoisoned:
        """Reject appends and flushes in every process until all have closed. Returns the error to
        raise.
        """
        self._core.poison()
        if self._session.directory.own:  # do not write into another log at the same path
            with contextlib.suppress(OSError):  # the marker may be on the disk that failed
                self._mark_poisoned()
        return LogPoisoned(
            f"{self._context.name}: flush failed ({error}), so the partition rejects writes; close "
            "the log in every process, then open it again",
            error.errno or 0,
            self._context.path,
        )

    def _mark_poisoned(self) -> None:
        path = os.path.join(self._session.path, POISON_FILE)
        fd = files.open_file(path, create=True, append=True)  # processes append without a lock
        try:
            # Begin on a new line: a full disk may have taken only a part of the line before.
            line = f"\n{self._context.topic} {self._context.partition}\n".encode()
            _core.os_pwrite(fd, line, os.fstat(fd).st_size)
            _core.os_sync(fd, data_only=False)
        finally:
            files.close(fd)

    def _covering(self, start: int, end: int, wait: bool) -> list[int]:
        """Return the bases of the segments with offsets of [start, end), all of them published."""
        if start >= end:
            return []
        active = self._core.active_base
        if active < start:  # segments rolled since begin at `end` or after it
            return [active]
        # The first records of a segment make the end of the segment before it durable too. Its
        # preallocated space was truncated by the roll, and may be there again after a power loss.
        bases = self._segments.bases(wait=wait)
        first = max((i for i, base in enumerate(bases) if base < start), default=0)
        return [base for base in bases[first:] if base < end]

    def _write_fd(self, base: int) -> tuple[int, int]:
        held = self._fds.get(base)
        if held is None:
            opened_at = self._core.log_end
            path = file_path(self._context.path, base, LOG)
            held = (files.open_file(path), opened_at)
            with self._changing:
                if self._closed:
                    self._retired.append(held[0])
                else:
                    self._fds[base] = held
        return held

    def _rewrite(self, base: int, fd: int, start: int, end: int, wait: bool) -> None:
        """Write bytes again that are older than the descriptor: the kernel does not report their
        failed writeback through it (protocol.md row 7).
        """
        for part in self._parts(base, start, end, wait):
            data = bytes(part.data)
            for batch in _core.iter_batches(data):
                if not batch.valid:
                    raise _ReadOtherwise(
                        5, f"batch at offset {batch.base_offset} does not match its CRC"
                    )
            _core.os_pwrite(fd, data, part.position)

    def _read_back(self, base: int, fd: int, start: int, end: int, wait: bool) -> None:
        """Check that the disk has the bytes: some file systems drop pages after a failed write."""
        read = _core.os_pread if files.forget_cached(fd) else files.read_past_cache
        for part in self._parts(base, start, end, wait):
            data = bytes(read(fd, len(part.data), part.position))
            if any(not batch.valid for batch in _core.iter_batches(data)):
                raise _ReadOtherwise(5, f"the disk did not keep the bytes from offset {start}")

    def _parts(self, base: int, start: int, end: int, wait: bool) -> Iterator[Slice]:
        """Yield all batches that a segment has of [start, end), in as many reads as that takes."""
        while start < end:
            parts = self._reader.read(start, end, _REREAD_BYTES, wait=wait)
            if not parts:
                return
            yield from (part for part in parts if part.segment_base == base)
            start = parts[-1].next_offset
