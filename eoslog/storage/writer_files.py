"""The files that a partition's writers have open, and those of the next segment.

The core's append may open nothing under the lock: what it will need is made ready here. A crash
leaves prepared files, named after the process that made them; the next recovery removes them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.errors import StorageError
from eoslog.storage import files
from eoslog.storage.refusals import S, refusal
from eoslog.storage.segments import (
    INDEX,
    LOG,
    PREPARED,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    write_snapshot,
)

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog


class Prepared:
    """Files of a segment to come; the core empties `fds` as it takes them."""

    def __init__(self) -> None:
        """None yet."""
        self.fds: list[int] = []
        self.paths: list[str] = []

    @property
    def names(self) -> bytes:
        """The paths, each NUL-ended."""
        return b"".join(os.fsencode(path) + b"\0" for path in self.paths)


class WriterFiles:
    """Descriptors of the segment that the fold is in; the next segment's files.

    Invariants:
        - one thread at a time opens, prepares or takes over files;
        - the descriptor of a sealed segment goes to the flusher, never closed while bytes of it
          may not be durable.
    """

    def __init__(self, log: PartitionLog) -> None:
        """Nothing is open yet."""
        self._log = log
        self._core = log.core
        self._path = log.path
        self._prepare = threading.RLock()  # a reload may come back here

    def open(self, base: int) -> tuple[int, int, int, int]:
        """Descriptors of a segment's log, offset, time and abort index (-1: it has none)."""
        segment = os.path.join(self._path, file_name(base, ""))
        fds = [files.open_file(segment + LOG)]
        try:
            fds.append(files.open_file(segment + INDEX, create=True))
            fds.append(files.open_file(segment + TIME_INDEX, create=True))
            try:
                fds.append(files.open_file(segment + TXN_INDEX))
            except FileNotFoundError:
                fds.append(-1)
        except BaseException:
            for fd in fds:
                files.close(fd)
            raise
        return fds[0], fds[1], fds[2], fds[3]

    def enter(
        self, base: int, *, leaving: int = -1, producers: bytes | None = None, version: int = -1
    ) -> None:
        """Open a segment's log and give it to the fold; what it had is kept until durable.

        Args:
            base: of the segment.
            leaving: only a fold that is in this segment moves; another thread's roll comes first.
            producers: a snapshot's entries at `base`, for a fold that begins anew there.
            version: of the list of segments that it begins anew in.
        """
        with self._prepare:
            self._finish_roll()
            opened_at = self._log.log_end
            fd = files.open_file(os.path.join(self._path, file_name(base, LOG)))
            moved = self._core.use_segment(
                base, fd, leaving=leaving, producers=producers, version=version
            )
            if moved is None:
                files.close(fd)
                return
            left, (log_fd, *others) = moved
            for other in others:
                files.close(other)
            if log_fd >= 0 and left != base and self._log.durable_end < base:
                # Rolled here since the last settling, or known already: then it is the same one.
                self._log.flusher.keep(left, log_fd, left)
            else:
                self._log.flusher.retire(left, log_fd)
            self._log.flusher.replace(base, fd, opened_at)

    def open_indexes(self) -> None:
        """Open the indexes of the segment that the fold is in, before this process's first append.

        A process that only reads has one descriptor a partition.
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
                self._log.reload()  # others rolled, and it was deleted since
                return
            files.close(fds[0])
            if not self._core.use_indexes(base, *fds[1:]):  # rolled: the append asks again
                for fd in fds[1:]:
                    files.close(fd)

    def enter_next(self) -> None:
        """Give the fold the segment that it needs to go on, where another process rolled."""
        with self._prepare:
            status = self._core.fold()
            if status in (S["FOLD_AGAIN"], S["STALE"]):
                return
            if status not in (S["NEXT_SEGMENT"], S["APPENDED"]):
                raise refusal(self._log, status, 0, 0.0)
            version, _, bases = self._log.reader.listing()
            current, log_fd, *_ = self._core.current_files()
            offset = self._core.next_offset
            if self._core.segments_version != version and current != self._core.active_base:
                self._log.reload()  # what comes next may lie in a swapped segment
                return
            behind = [base for base in bases if current < base <= offset]
            ahead = [base for base in bases if base > max(current, offset)]
            if log_fd < 0:
                base = current
            elif behind:
                base = behind[-1]
            elif ahead and status == S["NEXT_SEGMENT"]:
                base = ahead[0]  # the fold had met the segment's end before they were listed
            else:
                if status == S["NEXT_SEGMENT"]:
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
                self._log.reload()  # swapped or deleted between the list and the opening

    def prepare_roll(self) -> None:
        """Make and sync the next segment's files under names of our own (protocol.md, Rolling)."""
        with self._prepare:
            self._finish_roll()
            with self._made(INDEX, TIME_INDEX, LOG) as made:
                self._core.prepare_roll(made.fds, made.names)

    @contextlib.contextmanager
    def prepared_segment(self, log_path: str) -> Iterator[Prepared]:
        """Empty indexes for a log that is written already, which gets a name beside theirs first.

        That stays, whatever comes of it: at the latest `close` removes it.
        """
        self.after_roll()
        with self._made(INDEX, TIME_INDEX, log_path=log_path) as made:
            yield made

    @contextlib.contextmanager
    def _made(self, *suffixes: str, log_path: str | None = None) -> Iterator[Prepared]:
        """Files under names of our own; those made here are synced, and removed unless taken."""
        own = f"{self._log.session.process_number}-{time.monotonic_ns()}"
        made = Prepared()
        try:
            for suffix in suffixes:
                path = os.path.join(self._path, own + suffix + PREPARED)
                made.fds.append(files.open_file(path, create=True))
                made.paths.append(path)
            files.fsync_dir(self._path)
            if log_path is not None:  # last: where it fails, the log lies where it lay
                made.paths.append(os.path.join(self._path, own + LOG + PREPARED))
                files.rename(log_path, made.paths[-1])
            yield made
        finally:
            if made.fds:
                for fd in made.fds:
                    files.close(fd)
                for path in made.paths[: len(suffixes)]:
                    with contextlib.suppress(StorageError):  # recovery removes what stays
                        files.remove(path)

    def drop_prepared(self) -> None:
        """Forget the next segment's files after a roll that failed: some may be renamed."""
        with self._prepare:
            fds, paths = self._core.take_prepared()
            for fd in fds:
                files.close(fd)
            for path in paths:
                with contextlib.suppress(StorageError):  # recovery removes what stays
                    files.remove(os.fsdecode(path))

    def after_roll(self) -> None:
        """Settle what a roll of this process left to do."""
        with self._prepare:
            self._finish_roll()

    def _finish_roll(self) -> None:
        """Keep the sealed segment's descriptor for its flush; write the snapshot at the base."""
        taken = self._core.take_rolled()
        if taken is None:
            return
        base, new_base, fds, snapshot = taken
        self._log.flusher.keep(base, fds[0], base)
        if self._core.segment_base == new_base:
            _, log_fd, *_ = self._core.current_files()
            if log_fd >= 0:
                self._log.flusher.replace(new_base, log_fd, new_base)
        for fd in fds[1:]:
            files.close(fd)
        files.failpoint("log.rolled")
        if snapshot is not None:
            with contextlib.suppress(StorageError):  # an open without it folds more
                write_snapshot(self._path, new_base, snapshot)

    def make_txnindex(self) -> None:
        """Make the segment's abort index before its first entry."""
        with self._prepare:
            base, _, index, _, txn = self._core.current_files()
            if index >= 0 and txn < 0:  # else another thread left the segment: it asks again
                path = os.path.join(self._path, file_name(base, TXN_INDEX))
                with contextlib.ExitStack() as undo:
                    fd = files.open_file(path, create=True)
                    undo.callback(files.close, fd)
                    files.fsync_dir(self._path)
                    if self._core.use_indexes(base, -1, -1, fd):  # else rolled: it asks again
                        undo.pop_all()

    def close(self) -> None:
        """Close what is open here and at the flusher; remove prepared files that were not used."""
        session = self._log.session
        if _core.fork_generation() == session._generation:
            log_fd, *indexes = self._core.leave_files()
            prepared, _ = self._core.take_prepared()
            for fd in (*indexes, *prepared):
                files.close(fd)
            self._log.flusher.close(log_fd)
            # Of a deleted topic, somebody else may take the directory away under this; recovery
            # removes what stays.
            with contextlib.suppress(StorageError):
                for name in files.names(self._path):
                    if name.endswith(PREPARED) and name.startswith(f"{session.process_number}-"):
                        files.remove(os.path.join(self._path, name))
