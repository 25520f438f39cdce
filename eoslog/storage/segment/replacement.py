"""Finishing or undoing an interrupted segment swap, from the file names alone.

The result is all-old or all-new. For the steps of a swap, see `segment_swap.py`.

Source: Kafka UnifiedLog.replaceSegments, LogLoader.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from eoslog.storage.fs import files
from eoslog.storage.segment.segment import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEAL,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    PartitionNames,
    file_path,
    is_of_a_partition,
    offset_of,
    offsets_in,
)
from eoslog.storage.segment.segment_files import SegmentFiles

__all__ = ["SEGMENT_SUFFIXES", "end_of_swap", "finish_renames", "remove_all", "unfinished_swap"]

SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)


def finish_renames(
    path: str, found: PartitionNames | None = None, *, as_kafka: bool = False, live: bool = False
) -> bool:
    """Finish or undo a swap, according to the `.cleaned`, `.swap` and `.deleted` files.

    Args:
        path: the partition's directory.
        found: the names in it, if just listed.
        as_kafka: also remove the snapshot at the base of the replaced segments, as a broker does
            when it starts. By default it stays: it is still valid and, if the log begins there,
            the only record of earlier producers.
        live: other processes may append. Keep an index without a segment, which may belong to a
            roll that is under way.

    Returns:
        Whether there was anything to do.
    """
    if not _unfinished(found or PartitionNames.listed(path)):
        return False
    remove_all(path, DELETED)
    names = files.names(path)
    cleaned = [o for n in names if n.endswith(CLEANED) and (o := _offset(n, CLEANED)) is not None]
    swaps = {n: o for n in names if n.endswith(SWAP) and (o := _offset(n, SWAP)) is not None}
    for name, offset in list(swaps.items()):
        if cleaned and offset >= min(cleaned):
            files.remove(os.path.join(path, name))
            del swaps[name]
    files.failpoint("clean.finish.judged")
    remove_all(path, CLEANED)
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
                files.remove(file_path(path, offset, suffix))


def _unfinished(found: PartitionNames) -> bool:
    """Whether there is a swap to finish, or an index without its segment."""
    offsets = found.offsets
    indexed = {*offsets[INDEX], *offsets[TIME_INDEX], *offsets[TXN_INDEX]}
    return not indexed.issubset(offsets[LOG]) or any(
        name.endswith((CLEANED, SWAP, DELETED)) and is_of_a_partition(name) for name in found.others
    )


def unfinished_swap(names: Sequence[str]) -> str | None:
    """Return a file of a swap that must be finished before the directory can be read, or None."""
    ours = [name for name in names if name.endswith((CLEANED, SWAP)) and is_of_a_partition(name)]
    if any(name.endswith(CLEANED) for name in ours):
        return None  # the old segments are complete
    return next((name for name in ours if name.endswith(SWAP)), None)


def _remove_range(path: str, start: int, end: int, *, first_snapshot: bool) -> None:
    """Remove the old segments that begin in [start, end)."""
    for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT, SEAL):
        for offset in offsets_in(path, suffix):
            kept = suffix in (SNAPSHOT, SEAL) and offset == start and not first_snapshot
            if start <= offset < end and not kept:
                files.remove(file_path(path, offset, suffix))


def end_of_swap(path: str) -> int | None:
    """Return the end offset of the segments that `finish_renames` would put in place; or None."""
    names = files.names(path)
    if unfinished_swap(names) is None:
        return None
    bases = [(n, _offset(n, SWAP)) for n in names if n.endswith(LOG + SWAP)]
    return max(
        (_end_of(os.path.join(path, n), base) for n, base in bases if base is not None), default=0
    )


def _end_of(path: str, base: int) -> int:
    """Return the offset after the last batch of a segment file, of any record format."""
    end = base
    for batch in SegmentFiles(path, base).batches():
        end = batch.last_offset + 1
    return end


def remove_all(path: str, suffix: str) -> None:
    """Remove the files with this suffix from a partition's directory."""
    for name in files.names(path):
        if name.endswith(suffix) and is_of_a_partition(name):
            files.remove(os.path.join(path, name))


def _offset(name: str, suffix: str) -> int | None:
    stem = name.removesuffix(suffix)
    found = (offset_of(stem, s) for s in (*SEGMENT_SUFFIXES, SNAPSHOT, SEAL))
    return next((offset for offset in found if offset is not None), None)
