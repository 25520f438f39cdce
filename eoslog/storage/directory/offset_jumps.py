"""Checking where a log ends, against a damaged base offset or a missing file.

No CRC covers the base offset and the length of a batch, and after the last batch nothing in the log
contradicts them. But a clean close records the end of each log (eoslog's and a broker's), and the
recovery point the offset up to which it is durable.

The active segment is never compacted. In an eoslog directory, where appends leave no gaps, a gap in
that segment means a damaged base offset. A broker that is a follower may have copied gaps; there, a
batch is damaged if it ends beyond the recorded end of a clean close. The gaps of an adopted log are
below its offset in `cleaner-offset-checkpoint`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from eoslog.errors import CorruptRecord
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.closed_metadata import durable_ends
from eoslog.storage.directory.session import SESSION_FILE
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.segment import seals
from eoslog.storage.segment.scans import Gap, raised_base, zeros_are_space
from eoslog.storage.segment.segment import LOG, file_path, offsets_in
from eoslog.storage.segment.segment_files import (
    SegmentFiles,
    fault_of,
    list_segments,
    partition_of_path,
)

__all__ = [
    "damage_at_end",
    "fault_at_end",
    "gap_before",
    "gap_before_damage",
    "gaps_in",
    "gaps_to",
    "jump_past",
]


def gaps_in(segment: SegmentFiles, begin: int) -> Iterator[Gap]:
    """Yield the gaps between the batches of a segment, in order.

    Args:
        segment: the segment, of which only headers are read.
        begin: the offset at which its first batch must begin.

    Raises:
        CorruptRecord: as `SegmentFiles.batches`.
    """
    for batch in segment.batches():
        if batch.base_offset > begin:
            yield Gap(batch.position, begin, batch.base_offset)
        begin = max(begin, batch.last_offset + 1)


def gap_before(directory: str, base: int, position: int) -> int:
    """Return the end offset of the last gap in a segment before a byte; 0 if there is none."""
    segment = SegmentFiles(file_path(directory, base, LOG), base)
    end = 0
    with contextlib.suppress(CorruptRecord):
        for gap in gaps_in(segment, base):
            if gap.position >= position:
                break
            end = gap.end
    return end


def gap_before_damage(directory: str) -> int:
    """Return `gap_before` the first damaged byte in a sealed segment; 0 if none is damaged.

    Truncating the log there makes the sealed segment the last one.
    """
    for base in offsets_in(directory, LOG)[:-1]:
        segment = SegmentFiles(file_path(directory, base, LOG), base)
        position = 0
        with contextlib.suppress(CorruptRecord):
            for batch in segment.batches():
                if fault_of(batch) is not None:
                    break
                position = batch.position + batch.size
        if position < segment.size:
            return gap_before(directory, base, position)
    return 0


def gaps_to(root: str, key: tuple[str, int]) -> int | None:
    """Return the offset up to which the last segment of a partition may have gaps.

    None if unknown, because the root is not an eoslog directory.
    """
    if not files.exists(os.path.join(root, SESSION_FILE)):
        return None
    return offset_checkpoints.read(root, checkpoints.CLEANER_CHECKPOINT).get(key, 0)


def jump_past(segment: SegmentFiles, closed_at: int) -> tuple[int, CorruptRecord] | None:
    """Find a batch in the last segment that ends beyond the offset at which the log was closed.

    Returns:
        (end of the valid part, the damage), or None.
    """
    expected = segment.base_offset
    name = os.path.basename(os.path.dirname(segment.path))
    for batch in segment.batches():
        if batch.base_offset > expected and batch.last_offset >= closed_at:
            return expected, CorruptRecord(
                f"{name}: the base offset of the batch after offset {expected - 1} is damaged: it "
                f"is {batch.base_offset}, but the log was closed at offset {closed_at}. Nothing "
                "was changed; run `eoslog repair`",
                path=segment.path,
                position=batch.position,
            )
        expected = batch.last_offset + 1
    return None


def fault_at_end(directory: str) -> tuple[int, CorruptRecord] | None:
    """Check that a partition directory ends where its log directory says.

    A clean close records where the log ends. While the log directory is in use, and after an
    unclean end, the recovery point is the lowest offset at which the log can end. In an eoslog
    directory the last segment has no gaps above `gaps_to`.

    Returns:
        (end of the valid part, the damage); None if nothing is wrong, or nothing is recorded.
    """
    root = os.path.dirname(os.path.abspath(directory))
    mark = os.path.join(root, checkpoints.CLEAN_SHUTDOWN)
    clean = files.exists(mark)
    allowed = gaps_to(root, partition_of_path(directory))
    recorded = clean or offset_checkpoints.is_recorded(root)
    known = _recovery_point(root, directory) if recorded else 0
    if known <= 0 and allowed is None:
        return None
    last = list_segments(directory)[-1]
    gap = None
    try:
        found = jump_past(last, known) if clean and allowed is None else None
        if found is not None:
            return found if files.exists(mark) else None  # otherwise it was opened in between
        end, position = last.base_offset, 0
        for batch in last.batches():
            if allowed is not None and batch.base_offset > max(end, allowed):
                gap = Gap(batch.position, end, batch.base_offset)
                break
            end, position = batch.last_offset + 1, batch.position + batch.size
    except CorruptRecord:
        return None  # the reader raises this error
    if gap is not None:
        # Check again: a cleaner may rewrite the segment as soon as another one follows it.
        if list_segments(directory)[-1].base_offset != last.base_offset:
            return None
        return gap.begin, raised_base(os.path.basename(directory), last.path, gap)
    # Check again: the partition may have been deleted and re-created in the meantime.
    if end >= known or _recovery_point(root, directory) < known:
        return None
    how = "closed at" if clean else "durable up to"
    return end, _ends_early(directory, end, f"{how} offset {known}", last, position)


def _ends_early(
    directory: str, end: int, was: str, last: SegmentFiles, position: int
) -> CorruptRecord:
    return CorruptRecord(
        f"{directory}: the log ends at offset {end}, but it was {was}: a batch or a "
        "segment file is damaged, truncated or missing; run `eoslog repair`",
        path=last.path,
        position=position,
    )


def _recovery_point(root: str, directory: str) -> int:
    """Return the offset below which a partition's log is durable, 0 if not recorded."""
    points = offset_checkpoints.read(root, checkpoints.RECOVERY_POINT_CHECKPOINT)
    return points.get(partition_of_path(directory), 0)


def damage_at_end(directory: str) -> tuple[int, CorruptRecord] | None:
    """Check as `fault_at_end`, for zeros, and for another last log file."""
    other = _other_file_at_end(directory)
    if other is None:
        other = fault_at_end(directory)
    return _lost_to_zeros(directory) if other is None else other


def _lost_to_zeros(directory: str) -> tuple[int, CorruptRecord] | None:
    """Check that zeros at the end of a log are not in place of durable batches.

    Returns:
        (end of the valid part, the damage); None if there are no zeros, or nothing is wrong.
    """
    root = os.path.dirname(os.path.abspath(directory))
    last = list_segments(directory)[-1]
    if last.size == len(last.data) or gaps_to(root, partition_of_path(directory)) is None:
        return None
    try:
        topic_id = checkpoints.read_partition_metadata(directory)
        durable = durable_ends(root).get(partition_of_path(directory), 0)
        last = list_segments(directory)[-1]  # after the durable end, which may have been raised
        end, position = last.base_offset, 0
        for batch in last.batches():
            end, position = batch.last_offset + 1, batch.position + batch.size
        same = checkpoints.read_partition_metadata(directory) == topic_id  # not re-created
    except CorruptRecord:
        return None  # the reader raises the error of a batch
    space = zeros_are_space(end, None, durable=durable, clean=False)
    if space or not same or not last.blank_from(position):
        return None
    return end, _ends_early(directory, end, f"durable up to offset {durable}", last, position)


def _other_file_at_end(directory: str) -> tuple[int, CorruptRecord] | None:
    """Check that the last log file is the one that was closed.

    Returns:
        (end of the valid part, the damage); None if nothing is wrong, or the log directory was not
        closed cleanly, or there is no seal.
    """
    root = os.path.dirname(os.path.abspath(directory))
    mark = os.path.join(root, checkpoints.CLEAN_SHUTDOWN)
    if not files.exists(mark):
        return None
    last = list_segments(directory)[-1]
    wrong = seals.refuted(last.path, last.base_offset, _recovery_point(root, directory))
    if wrong is None or not files.exists(mark):  # without the mark it was opened in between
        return None
    return last.base_offset, wrong
