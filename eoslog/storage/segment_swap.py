"""Putting cleaned segments in the place of old ones, so that a crash leaves all-old or all-new.

    1  NNN.log.cleaned ...           written and flushed; the old segments are untouched
    2  .cleaned -> .swap             the log's file last; directory flushed
    3  the old segments -> .deleted; directory flushed
    4  .swap -> final name           the log's file first; directory flushed
    5  .deleted files are removed

| a crash leaves | what is done |
|---|---|
| a `.cleaned` file, with or without `.swap` beside | all-old: both are removed |
| `.swap` files only | all-new: old segments in their range of offsets go, `.swap` gets its name |
| `.deleted` files only | they are removed |

Steps 3 and 4 happen between two marks in the partition's slot (`cleaned_version` is odd between
them), so that no process takes a list of segments from the middle of it. Whoever finds the mark of
a dead process, and gets the partition's cleaner lock, finishes.

Source: Kafka UnifiedLog.replaceSegments, LogLoader.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.errors import IllegalState, LockTimeout, UnknownTopicOrPartition
from eoslog.storage import files
from eoslog.storage.segment_files import SegmentFiles
from eoslog.storage.segments import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offset_of,
    offsets_in,
)

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog

SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
_CLEANER_AT = 1 << 32
"""Cleaner locks lie behind the append and flush locks of the same file, one byte a slot."""


def check_not_deleted(log: PartitionLog) -> None:
    """Under the cleaner lock, which goes by file names: they may be another topic's by now.

    Raises:
        UnknownTopicOrPartition: the topic was deleted.
    """
    if log.core.deleted:
        raise UnknownTopicOrPartition(f"{log.name}: the topic was deleted")


class CleanerLock:
    """Who changes sealed segments of a partition: one thread of one process at a time.

    Taken before the append lock, never under it (protocol.md, lock order).
    """

    def __init__(self, fd: int, slot: int) -> None:
        """The lock of a slot, in its lock file."""
        self._fd = fd
        self._at = _CLEANER_AT + slot
        self._mutex = threading.Lock()

    def try_take(self) -> bool:
        """Take it if nobody has it."""
        if self._fd < 0 or not self._mutex.acquire(blocking=False):
            return False
        if _core.try_lock(self._fd, self._at):
            return True
        self._mutex.release()
        return False

    def release(self) -> None:
        """Give it back."""
        _core.unlock(self._fd, self._at)
        self._mutex.release()

    @contextlib.contextmanager
    def held(self, what: str, timeout: float) -> Iterator[None]:
        """Hold it.

        Raises:
            LockTimeout: another one has it for `timeout` seconds.
            IllegalState: who opened the log read_only has no such lock.
        """
        if self._fd < 0:
            raise IllegalState(f"{what}: the log was opened read_only")
        pause = threading.Event()
        waited = 0.0
        while not self.try_take():
            if waited >= timeout:
                raise LockTimeout(f"{what}: its segments are being cleaned for {timeout:g} s")
            pause.wait(0.002)
            waited += 0.002
        try:
            yield
        finally:
            self.release()


def swap_in(log: PartitionLog, base: int, old: Sequence[int], cleaned_to: int) -> None:
    """Put the `.cleaned` files of `base`, which are flushed, in the place of the old segments.

    Args:
        log: whose cleaner lock the caller holds.
        base: of the new segment; the first one of `old`.
        old: bases of the segments that it replaces.
        cleaned_to: the offset that the new segment ends at.

    Durability: the new segments are durable on return.
    """
    path = log.path
    present = [s for s in SEGMENT_SUFFIXES if _exists(path, base, s + CLEANED)]
    for suffix in reversed(present):
        _rename(path, base, suffix + CLEANED, suffix + SWAP)
        files.failpoint("clean.swap.made")
    files.fsync_dir(path)
    files.failpoint("clean.swap.durable")
    try:
        log.mark_swap(True, cleaned_to)
    except IllegalState:  # the log is being closed: clean, which a swap is not
        for suffix in present:
            _rename(path, base, suffix + SWAP, suffix + CLEANED)
        raise
    files.failpoint("clean.swap.begun")
    for gone in old:
        suffixes = SEGMENT_SUFFIXES if gone == base else (*SEGMENT_SUFFIXES, SNAPSHOT)
        for suffix in suffixes:
            if _exists(path, gone, suffix):
                _rename(path, gone, suffix, suffix + DELETED)
                files.failpoint("clean.old.renamed")
    # A power cut may keep some renames and lose others, in any order: the new segment's name never
    # comes before the old ones are gone.
    files.fsync_dir(path)
    files.failpoint("clean.old.durable")
    for suffix in present:
        _rename(path, base, suffix + SWAP, suffix)
        files.failpoint("clean.swap.named")
    files.fsync_dir(path)
    files.failpoint("clean.swap.placed")
    log.mark_swap(False, cleaned_to)
    files.failpoint("clean.swap.published")
    _remove_all(path, DELETED)


def finish_dead_swap(log: PartitionLog) -> bool:
    """Finish what a process that died in a swap left; False while somebody is at it."""
    if not log.cleaner_lock.try_take():
        return False
    try:
        finish_swap(log)
        return True
    finally:
        log.cleaner_lock.release()


def finish_swap(log: PartitionLog) -> None:
    """The same for who has the cleaner lock."""
    check_not_deleted(log)
    if log.core.cleaned_version & 1:
        finish_renames(log.path, live=True)
        log.mark_swap(False, 0)


def finish_renames(
    path: str, names: Sequence[str] | None = None, *, as_kafka: bool = False, live: bool = False
) -> bool:
    """Bring `.cleaned`, `.swap` and `.deleted` files to all-old or all-new.

    Args:
        path: the partition's directory.
        names: what lies in it, if that was just listed.
        as_kafka: the snapshot at the base of what is replaced goes too, as when a broker starts.
            It is true all the same, and where the log begins there it is all that is known of
            producers before it: so it stays otherwise.
        live: others append here. An index without a segment may be of one that is being rolled
            into; it stays.

    Returns:
        Whether there was anything to do.
    """
    if not _unfinished(files.names(path) if names is None else names):
        return False
    _remove_all(path, DELETED)
    names = files.names(path)
    cleaned = [o for n in names if n.endswith(CLEANED) and (o := _offset(n, CLEANED)) is not None]
    swaps = {n: o for n in names if n.endswith(SWAP) and (o := _offset(n, SWAP)) is not None}
    for name, offset in list(swaps.items()):
        if cleaned and offset >= min(cleaned):
            files.remove(os.path.join(path, name))
            del swaps[name]
    files.failpoint("clean.finish.judged")
    _remove_all(path, CLEANED)
    logs = {name: offset for name, offset in swaps.items() if name.endswith(LOG + SWAP)}
    if logs:
        ends = [_end_of(os.path.join(path, name), offset) for name, offset in logs.items()]
        _remove_range(path, min(logs.values()), max(ends), first_snapshot=as_kafka)
        files.fsync_dir(path)
    files.failpoint("clean.finish.removed")
    for name in sorted(swaps, key=lambda n: (swaps[n], not n.endswith(LOG + SWAP))):
        files.rename(os.path.join(path, name), os.path.join(path, name.removesuffix(SWAP)))
        files.failpoint("clean.finish.named")
    if not live:
        _remove_lost_indexes(path)
    if swaps or cleaned:
        files.fsync_dir(path)
    return True


def _remove_lost_indexes(path: str) -> None:
    present = set(offsets_in(path, LOG))
    for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
        for offset in offsets_in(path, suffix):
            if offset not in present:
                files.remove(os.path.join(path, file_name(offset, suffix)))


def _unfinished(names: Sequence[str]) -> bool:
    """Whether there is anything to finish, or an index whose segment is gone."""
    logs = {name[:20] for name in names if name[20:] == LOG}
    lost = [n for n in names if n[20:] in (INDEX, TIME_INDEX, TXN_INDEX) and n[:20] not in logs]
    return any(name[:20].isdecimal() for name in lost) or any(
        name.endswith((CLEANED, SWAP, DELETED)) for name in names
    )


def unfinished_swap(names: Sequence[str]) -> str | None:
    """A file that says that a swap has to be finished before the directory can be read, or None."""
    if any(name.endswith(CLEANED) for name in names):
        return None  # the old segments are whole
    return next((name for name in names if name.endswith(SWAP)), None)


def _remove_range(path: str, start: int, end: int, *, first_snapshot: bool) -> None:
    """Remove the old segments that begin in [start, end)."""
    for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
        for offset in offsets_in(path, suffix):
            kept = suffix == SNAPSHOT and offset == start and not first_snapshot
            if start <= offset < end and not kept:
                files.remove(os.path.join(path, file_name(offset, suffix)))


def end_of_swap(path: str) -> int | None:
    """The offset behind the segments that `finish_renames` would put in the place of old ones;
    None if it would put none.
    """
    names = files.names(path)
    if unfinished_swap(names) is None:
        return None
    bases = [(n, _offset(n, SWAP)) for n in names if n.endswith(LOG + SWAP)]
    return max(
        (_end_of(os.path.join(path, n), base) for n, base in bases if base is not None), default=0
    )


def _end_of(path: str, base: int) -> int:
    """The offset behind the last batch of a segment file, of any record format."""
    end = base
    for batch in SegmentFiles(path, base).batches():
        end = batch.last_offset + 1
    return end


def _remove_all(path: str, suffix: str) -> None:
    for name in files.names(path):
        if name.endswith(suffix):
            files.remove(os.path.join(path, name))


def _offset(name: str, suffix: str) -> int | None:
    stem = name.removesuffix(suffix)
    found = (offset_of(stem, s) for s in (*SEGMENT_SUFFIXES, SNAPSHOT))
    return next((offset for offset in found if offset is not None), None)


def _exists(path: str, base: int, suffix: str) -> bool:
    return files.exists(os.path.join(path, file_name(base, suffix)))


def _rename(path: str, base: int, suffix: str, new_suffix: str) -> None:
    files.rename(
        os.path.join(path, file_name(base, suffix)), os.path.join(path, file_name(base, new_suffix))
    )
