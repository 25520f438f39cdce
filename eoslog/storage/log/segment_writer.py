"""The open files of a partition's writers: the active segment's, and those of the next one.

The core's append opens no files while it holds the append lock. If it needs some, it releases the
lock and returns a status. `WriterFiles.resolve` then does what the status asks for, and the caller
tries again:

| status | what `resolve` does |
|---|---|
| NEXT_SEGMENT | opens the segment that another process has rolled to, and moves the fold there |
| ROLL | creates and syncs the files of the next segment |
| NEED_INDEXES, NEED_TXNINDEX | opens the index files, or creates the abort index |
| REOPEN | rebuilds the fold: segments were deleted or swapped |
| RELOAD, STALE | rebuilds the fold: an append failed halfway |
| FOLD_AGAIN | nothing: the caller folds more without the lock |

A crash leaves prepared files, whose names begin with the number of their process. The next recovery
removes them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from eoslog import _core
from eoslog.errors import CorruptRecord, LockTimeout, StorageError
from eoslog.storage.directory.cleaner_lock import CleanerLock
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.append_errors import append_error
from eoslog.storage.log.append_status import AppendStatus
from eoslog.storage.log.context import LogContext
from eoslog.storage.log.flusher import LogFlusher
from eoslog.storage.log.segment_list import SegmentList
from eoslog.storage.segment import seals
from eoslog.storage.segment.producer_snapshots import newest_snapshot, write_snapshot
from eoslog.storage.segment.segment import (
    INDEX,
    LOG,
    PREPARED,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_path,
)

MAX_REPEATS = 10_000
"""Attempts of one call before it raises LockTimeout."""
_APPENDED = int(AppendStatus.APPENDED)  # bound once: enum lookup shows up in fold profiles


class Prepared:
    """Files of the next segment; the core empties `fds` when it takes them."""

    def __init__(self) -> None:
        """Begin without files."""
        self.fds: list[int] = []
        self.paths: list[str] = []

    @property
    def names(self) -> bytes:
        """The paths, each NUL-ended."""
        return b"".join(os.fsencode(path) + b"\0" for path in self.paths)


class FoldStart(NamedTuple):
    """The point at which this process's fold begins.

    Attributes:
        version: version of the list of segments.
        base: base offset of a segment in that list.
        producers: entries of a producer snapshot at that offset.
    """

    version: int
    base: int
    producers: bytes


class WriterFiles:
    """The descriptors of the fold's segment, and the files of the next segment.

    Invariants:
        - one thread at a time opens, prepares or takes over files;
        - the descriptor of a sealed segment goes to the flusher, and stays open until all bytes of
          the segment are durable.
    """

    def __init__(
        self,
        context: LogContext,
        segments: SegmentList,
        flusher: LogFlusher,
        cleaner_lock: CleanerLock,
    ) -> None:
        """Begin without open files."""
        self._context = context
        self._core = context.core
        self._path = context.path
        self._segments = segments
        self._flusher = flusher
        self._cleaner_lock = cleaner_lock
        self._prepare = threading.RLock()  # re-entrant: a reload may open files again

    # --- the fold, and the statuses of the core ---------------------------------------------------

    def restart_fold(self, start: FoldStart | None = None) -> None:
        """Rebuild this process's producer state from the newest usable snapshot and the log.

        Args:
            start: the snapshot, if recovery has just found it; used only while the list of
                segments has its version.
        """
        while True:
            version, base, entries = start or self._newest_start()
            start = None
            try:
                self.enter(base, producers=entries, version=version)
            except FileNotFoundError:
                if version == self._core.published_segments_version:
                    raise
                continue
            if version == self._core.published_segments_version:
                break  # otherwise the segment was replaced or deleted before it was opened
        if (status := self._core.fold()) != _APPENDED:
            self.finish_fold(status)

    def _newest_start(self) -> FoldStart:
        version, _, listed, _ = self._segments.listing()
        end = self._core.log_end
        bases = [base for base in listed if base <= end] or [0]
        return FoldStart(version, *newest_snapshot(self._path, bases, delete_bad=False))

    def finish_fold(self, status: int) -> None:
        """Bring the fold up to the published end after it stopped with a status.

        Raises:
            LockTimeout: if the fold does not get there. Others as `resolve`.
        """
        for _ in range(MAX_REPEATS):
            self.resolve(status, 0, LOCK_TIMEOUT_S)
            if (status := self._core.fold()) == _APPENDED:
                return
        raise LockTimeout(
            f"{self._context.name}: the fold did not reach the log end in {MAX_REPEATS} attempts, "
            "because other processes changed the partition before each one; retry"
        )

    def resolve(self, status: int, error: int, wait: float) -> None:
        """Do what the core may not do under the lock, or raise the error that a status means.

        Args:
            status: an `AppendStatus`, or Kafka's error code.
            error: errno of a failed call.
            wait: timeout of the lock in seconds, for the message.
        """
        try:
            self._make_ready(status, error, wait)
        except (OSError, CorruptRecord) as error:  # StorageError is an OSError
            if not self._core.deleted:
                raise
            # The topic was deleted. The core may try to open a file before it checks the slot.
            raise append_error(self._context, AppendStatus.GONE, 0, wait) from error
        self._context.check_not_deleted()  # the files may be those of a new topic

    def _make_ready(self, status: int, error: int, wait: float) -> None:
        match status:
            case AppendStatus.NEXT_SEGMENT:
                self.enter_next()
            case AppendStatus.ROLL:
                self.prepare_roll()
            case AppendStatus.NEED_INDEXES:
                self.open_indexes()
            case AppendStatus.NEED_TXNINDEX:
                self.make_txnindex()
            case AppendStatus.REOPEN:
                self.after_roll()
                self.restart_fold()
            case AppendStatus.RELOAD | AppendStatus.STALE:
                self.after_roll()
                self.drop_prepared()
                self.restart_fold()
                if status == AppendStatus.RELOAD and error:
                    raise files.storage_error(OSError(error, os.strerror(error)), self._path)
            case AppendStatus.FOLD_AGAIN:
                pass
            case _:
                raise append_error(self._context, status, error, wait)

    # --- files ------------------------------------------------------------------------------------

    def open(self, base: int) -> tuple[int, int, int, int]:
        """Open a segment's log, offset, time and abort index (-1: it has no abort index)."""
        segment = file_path(self._path, base, "")
        fds = [files.open_file(segment + LOG)]
        try:
            for suffix in (INDEX, TIME_INDEX):
                fd = files.open_or_none(segment + suffix)
                fds.append(fd if fd >= 0 else files.open_file(segment + suffix, create=True))
            fds.append(files.open_or_none(segment + TXN_INDEX))
        except BaseException:
            for fd in fds:
                files.close(fd)
            raise
        return fds[0], fds[1], fds[2], fds[3]

    def enter(
        self, base: int, *, leaving: int = -1, producers: bytes | None = None, version: int = -1
    ) -> None:
        """Open a segment's log and move the fold there; its old segment stays open until durable.

        Args:
            base: base offset of the segment.
            leaving: move the fold only if it is in this segment: another thread may have rolled.
            producers: entries of a snapshot at `base`; the fold restarts there.
            version: version of the list of segments, for a fold that restarts.
        """
        with self._prepare:
            self._finish_roll()
            opened_at = self._core.log_end
            fd = files.open_file(file_path(self._path, base, LOG))
            moved = self._core.use_segment(
                base, fd, leaving=leaving, producers=producers, version=version
            )
            if moved is None:
                files.close(fd)
                return
            left, (log_fd, *others) = moved
            for other in others:
                files.close(other)
            if log_fd >= 0 and left != base and self._core.durable_end < base:
                # The segment was rolled by this process, or the flusher has this descriptor
                # already.
                self._flusher.keep(left, log_fd, left)
            else:
                self._flusher.retire(left, log_fd)
            self._flusher.replace(base, fd, opened_at)

    def open_indexes(self) -> None:
        """Open the indexes of the fold's segment, before this process's first append to it.

        A process that only reads needs one descriptor per partition.
        """
        with self._prepare:
            base, _, index, *_ = self._core.current_files()
            if index >= 0:
                return
            try:
                fds = self.open(base)
            except FileNotFoundError:
                if base == self._core.active_base:
                    raise
                self.restart_fold()  # another process rolled, and the segment was deleted
                return
            files.close(fds[0])
            if not self._core.use_indexes(base, *fds[1:]):  # rolled: the append returns here
                for fd in fds[1:]:
                    files.close(fd)

    def enter_next(self) -> None:
        """Move the fold to the next segment, which another process has rolled to."""
        with self._prepare:
            status = self._core.fold()
            if status in (AppendStatus.FOLD_AGAIN, AppendStatus.STALE):
                return
            if status not in (AppendStatus.NEXT_SEGMENT, AppendStatus.APPENDED):
                raise append_error(self._context, status, 0, 0.0)
            version, _, bases, _ = self._segments.listing()
            current, log_fd, *_ = self._core.current_files()
            offset = self._core.next_offset
            if self._core.segments_version != version and current != self._core.active_base:
                self.restart_fold()  # the next batches may be in a swapped segment
                return
            behind = [base for base in bases if current < base <= offset]
            ahead = [base for base in bases if base > max(current, offset)]
            if log_fd < 0:
                base = current
            elif behind:
                base = behind[-1]
            elif ahead and status == AppendStatus.NEXT_SEGMENT:
                base = ahead[0]  # the fold reached its segment's end before the listing
            else:
                if status == AppendStatus.NEXT_SEGMENT:
                    time.sleep(0.001)  # a roll is being published
                return
            try:
                self.enter(base, leaving=current)
            except FileNotFoundError:
                if self._core.published_segments_version == version:
                    raise
            if (
                self._core.published_segments_version != version
                and self._core.segment_base != self._core.active_base
            ):
                self.restart_fold()  # swapped or deleted after the listing

    def prepare_roll(self) -> None:
        """Create and sync the next segment's files under temporary names (protocol.md, Rolling)."""
        with self._prepare:
            self._finish_roll()
            with self._made(INDEX, TIME_INDEX, LOG) as made:
                self._core.prepare_roll(made.fds, made.names)

    @contextlib.contextmanager
    def prepared_segment(self, log_path: str) -> Iterator[Prepared]:
        """Create empty indexes for a log file that is written already, and move it next to them.

        The log file keeps its new name if the caller fails; `close` removes it at the latest.
        """
        self.after_roll()
        with self._made(INDEX, TIME_INDEX, log_path=log_path) as made:
            yield made

    @contextlib.contextmanager
    def _made(self, *suffixes: str, log_path: str | None = None) -> Iterator[Prepared]:
        """Create files under temporary names, synced; remove them unless the core takes them."""
        self._context.session.directory.require_own()
        own = f"{self._context.session.process_number}-{time.monotonic_ns()}"
        made = Prepared()
        try:
            for suffix in suffixes:
                path = os.path.join(self._path, own + suffix + PREPARED)
                made.fds.append(files.open_file(path, create=True))
                made.paths.append(path)
            files.fsync_dir(self._path)
            if log_path is not None:  # last, so that a failure leaves the log file where it is
                made.paths.append(os.path.join(self._path, own + LOG + PREPARED))
                files.rename(log_path, made.paths[-1])
            yield made
        finally:
            if made.fds:
                for fd in made.fds:
                    files.close(fd)
                for path in made.paths[: len(suffixes)]:
                    with contextlib.suppress(StorageError):  # recovery removes the rest
                        files.remove(path)

    def drop_prepared(self) -> None:
        """Remove the next segment's files after a failed roll, which may have renamed some."""
        with self._prepare:
            fds, paths = self._core.take_prepared()
            for fd in fds:
                files.close(fd)
            for path in paths:
                with contextlib.suppress(StorageError):  # recovery removes the rest
                    files.remove(os.fsdecode(path))

    def after_roll(self) -> None:
        """Complete a roll of this process: see `_finish_roll`."""
        with self._prepare:
            self._finish_roll()

    def _finish_roll(self) -> None:
        """Give the sealed segment to the flusher; write the snapshot and the seal."""
        taken = self._core.take_rolled()
        if taken is None:
            return
        base, new_base, fds, snapshot = taken
        self._flusher.keep(base, fds[0], base)
        if self._core.segment_base == new_base:
            _, log_fd, *_ = self._core.current_files()
            if log_fd >= 0:
                self._flusher.replace(new_base, log_fd, new_base)
        for fd in fds[1:]:
            files.close(fd)
        files.failpoint("log.rolled")
        # Errors are harmless: without a snapshot an open folds more, without a seal a reader scans.
        with (
            contextlib.suppress(StorageError, FileNotFoundError),
            files.opened_dir(self._path) as folder,
        ):
            if self._core.deleted:  # the directory may belong to another topic now
                return
            if snapshot is not None and not self._is_cleaned(new_base):
                write_snapshot(folder, new_base, snapshot)
                if self._is_cleaned(new_base):
                    files.remove(file_path(folder, new_base, SNAPSHOT))
            files.failpoint("log.rolled.snapshot")
            self._seal(folder, base, new_base)

    def _is_cleaned(self, base: int) -> bool:
        """Whether a cleaner went beyond the base of a segment without a snapshot.

        It may have removed markers of transactions that are open there.
        """
        return self._core.cleaned_to > base

    def _seal(self, folder: str, base: int, end: int) -> None:
        """Seal a rolled segment, unless a cleaner works on it: the cleaner seals its result."""
        lock = self._cleaner_lock
        if lock.try_take():
            try:
                seals.seal_files(folder, self._context.topic_id, base, end)
            finally:
                lock.release()

    def make_txnindex(self) -> None:
        """Create the segment's abort index before its first entry."""
        with self._prepare:
            base, _, index, _, txn = self._core.current_files()
            if index >= 0 and txn < 0:  # otherwise another thread moved the fold: append again
                path = file_path(self._path, base, TXN_INDEX)
                with contextlib.ExitStack() as undo:
                    fd = files.open_file(path, create=True)
                    undo.callback(files.close, fd)
                    files.fsync_dir(self._path)
                    if self._core.use_indexes(base, -1, -1, fd):  # False: rolled in between
                        undo.pop_all()

    def close(self) -> None:
        """Close all descriptors, the flusher's too, and remove prepared files without use."""
        session = self._context.session
        if _core.fork_generation() == session._generation:
            log_fd, *indexes = self._core.leave_files()
            prepared, _ = self._core.take_prepared()
            for fd in (*indexes, *prepared):
                files.close(fd)
            self._flusher.close(log_fd)
            # If the topic was deleted, another process may remove the directory at the same time.
            # Recovery removes the rest.
            with contextlib.suppress(StorageError):
                for name in files.names(self._path):
                    if name.endswith(PREPARED) and name.startswith(f"{session.process_number}-"):
                        files.remove(os.path.join(self._path, name))
