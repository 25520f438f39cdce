"""Scanning the segments of a partition, from a producer snapshot on, without changing a file.

A scan computes the derived files of each segment from its batches. Verified reads, rebuilt indexes
and missing producer snapshots use it. Recovery has its own loop, because it also repairs and
truncates (`storage/log/loader.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.storage.fs import files
from eoslog.storage.segment.segment import LOG, file_path

_BLANK_STEP = 1 << 16


class Gap(NamedTuple):
    """Offsets that no batch of a segment contains.

    Attributes:
        position: byte at which the batch after the gap begins.
        begin: the first missing offset.
        end: the base offset of the batch after the gap.
    """

    position: int
    begin: int
    end: int


@dataclass(slots=True)
class SegmentScan:
    """The result of scanning one segment; the fold is where the scan ended.

    Attributes:
        base: base offset of the segment.
        path: path of its log file.
        size: bytes of that file.
        position: the byte at which the scan ended.
        offset: the offset at which the scan ended.
        offset_index: content of the offset index, up to there.
        times: content of the time index; without its last entry while the segment is active.
        aborted: content of the abort index.
        fault: why the scan ended before the end of the file, None if it did not.
        gap: the last gap before that offset, None if offsets are contiguous.
        blank: whether only zeros follow, as in a preallocated file.
    """

    base: int
    path: str
    size: int
    position: int
    offset: int
    offset_index: bytes
    times: bytes
    aborted: bytes
    fault: str | None
    gap: Gap | None = None
    blank: bool = False


def is_blank(fd: int, position: int, end: int) -> bool:
    """Whether all bytes of a file in [position, end) are zero."""
    for at in range(position, end, _BLANK_STEP):
        if bytes(_core.os_pread(fd, min(_BLANK_STEP, end - at), at)).strip(b"\0"):
            return False
    return True


def zeros_are_space(offset: int, following: int | None, *, durable: int, clean: bool) -> bool:
    """Whether zeros after batches are preallocated space, and not lost batches.

    They are the end of the last segment unless batches there were durable. In an earlier segment
    they are the end if the next one begins there: a roll truncates the file before the next log
    has its name, and a power loss may undo that. A clean close truncates them.

    Args:
        offset: the end of the batches.
        following: base of the next segment; None: the segment is the last one.
        durable: the offset up to which the partition is known to be flushed.
        clean: whether the last session closed cleanly.
    """
    return not clean and (offset >= durable if following is None else offset == following)


def raised_base(name: str, path: str, gap: Gap) -> CorruptRecord:
    """Return the error for the batch after a gap that compaction did not leave.

    Args:
        name: name of the partition.
        path: path of the segment's log file.
        gap: the gap in that segment.
    """
    return CorruptRecord(
        f"{name}: the base offset of the batch at byte {gap.position} is damaged: expected "
        f"{gap.begin}, got {gap.end}; nothing was changed, run `eoslog repair`",
        path=path,
        position=gap.position,
    )


def scan_open_segment(
    fold: _core.Partition, base: int, path: str, fd: int, *, verify: bool
) -> SegmentScan:
    """Scan one segment whose log file is open and was given to the fold.

    Args:
        fold: a fold at the end of the segment before.
        base: base offset of the segment.
        path: path of its log file.
        fd: descriptor of that file.
        verify: compare each batch with its CRC.
    """
    size = os.fstat(fd).st_size
    found = fold.scan_segment(size, verify)
    gap = None if found[6] is None else Gap(*found[6])
    blank = found[5] is not None and is_blank(fd, found[0], size)
    return SegmentScan(base, path, size, *found[:6], gap, blank)


def scan_segments(
    fold: _core.Partition,
    directory: str,
    bases: Sequence[int],
    *,
    active: int = -1,
    verify: bool = True,
) -> Iterator[SegmentScan]:
    """Scan segments one after another, up to the first fault.

    Args:
        fold: a fold loaded at the first base.
        directory: the partition's directory.
        bases: bases of the segments, ascending.
        active: base of the active segment, whose time index has no last entry.
        verify: compare each batch with its CRC.

    Raises:
        FileNotFoundError: if a segment was deleted in the meantime.
        StorageError: if a segment cannot be read.
    """
    for base in bases:
        path = file_path(directory, base, LOG)
        fd = files.open_file(path, read_only=True)
        try:
            fold.use_segment(base, fd)
            with files.naming(path):
                scan = scan_open_segment(fold, base, path, fd, verify=verify)
            if base != active:
                scan.times += fold.final_time_entry()
        finally:
            fold.use_segment(base, -1)
            files.close(fd)
        yield scan
        if scan.fault is not None:
            return
