"""Translation of offsets into byte ranges of segment files.

A reader stays below the ends that the planner found. It locks and writes nothing, so it works on
any host that sees the files: with `pread`, or through a mapping if the files are local. Retention
and compaction delete or replace complete files. A reader notices this and lists the files again.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eoslog.connector import (
    AbortedTransactions,
    Batch,
    LegacyBatch,
    SegmentFiles,
    batches_end,
    close_file,
    fault_of,
    is_legacy,
    iter_batches,
    legacy_as_v2,
    naming,
    open_file,
    os_pread,
    read_file,
    read_partition_metadata,
    refuted_by_seal,
    settled_segments,
)
from eoslog.errors import CorruptRecord, UnknownTopicOrPartition

WINDOW = 256 << 10
"""Bytes that a planner reads at a time."""
READ_BYTES = 1 << 20
"""Bytes that a task reads at a time: they stay in a core's cache until they are decoded."""
MAPPED_BYTES = 16 << 20
"""Bytes that a task maps at a time: to release a mapping interrupts the other cores."""
LONGEST_WINDOW = (1 << 31) - 1
RELISTINGS = 16
"""How often a planner or a task lists the segments again after one was replaced."""
INDEX_ENTRY = 8
NO_BOUND = (1 << 63) - 1
_HEAD = 17  # bytes to the end of a magic
_POPULATE_READ = 22  # MADV_POPULATE_READ


@dataclass(frozen=True)
class ByteRange:
    """Complete batches of one segment file, in plain values.

    Attributes:
        base: Base offset of the segment, which names its file.
        position, end: Bytes, end exclusive.
        inode: Inode of the file. A file with another inode comes from the cleaner and has other
            bytes.
        first: Base offset of the batch at `position`, -1 if that is the file's first byte. It
            confirms the inode, because a file system reuses a freed inode for the next new file.
        bound: The base of the next segment, which no batch of this one reaches.
    """

    base: int
    position: int
    end: int
    inode: int
    first: int = -1
    bound: int = NO_BOUND


@dataclass(frozen=True)
class FilePosition:
    """The segment, position, size and base offset of a batch."""

    segment: int
    position: int
    size: int
    base_offset: int


class PartitionFiles:
    """The segment files of one partition directory, listed once outside of swaps.

    Each name refers to the same file at every access. If the cleaner has replaced a file since
    the first access, the next access raises FileNotFoundError.

    Args:
        directory: Path of the partition directory.

    Raises:
        LockTimeout: if a swap of segments remains incomplete.
        StorageError: if the directory does not exist.
        ConfigError: if the directory contains no segment.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.segments = settled_segments(directory)
        self.bases = [one.base_offset for one in self.segments]
        self._indexes: dict[int, np.ndarray] = {}
        self._inodes: dict[int, int] = {}

    def path(self, base: int) -> str:
        """Return the path of a segment's log file."""
        return log_path(self.directory, base)

    def spans(self, start: int, end: int) -> list[ByteRange]:
        """Return the byte ranges that hold `[start, end)`, segment by segment.

        Args:
            start: First offset wanted.
            end: Published end offset, exclusive. Nothing after the batch of `end - 1` is read.
        """
        found = []
        first = self.locate(start, end)
        last = self.locate(end - 1, end)
        if first is None:
            return []
        for number in range(first.segment, len(self.bases)):
            base = self.bases[number]
            if base >= end:
                break
            position = first.position if number == first.segment else 0
            size = self._size(base)
            if last is not None and number == last.segment:
                stop = last.position + (last.size if last.base_offset < end else 0)
            elif last is not None and number > last.segment:
                break
            else:
                stop = size
            if stop > position:
                begins = first.base_offset if position else -1
                found.append(
                    ByteRange(base, position, stop, self._inodes[base], begins, self._bound(base))
                )
        return found

    def size(self, start: int, end: int) -> int:
        """Return the total size in bytes of the batches that hold `[start, end)`."""
        return (
            sum(span.end - span.position for span in self.spans(start, end)) if end > start else 0
        )

    def locate(self, offset: int, end: int) -> FilePosition | None:
        """Find the first batch that holds `offset` or a later offset.

        Returns:
            None if no such batch begins below `end`.
        """
        number = max(bisect.bisect_right(self.bases, offset) - 1, 0)
        for segment in range(number, len(self.bases)):
            base = self.bases[segment]
            if base >= end and segment > number:
                return None
            position = self._indexed(segment, offset) if segment == number else 0
            batches = self.batches(base, position)
            for batch in batches:
                if batch.last_offset >= offset:
                    next(batches, None)  # the next base offset confirms the offsets of this batch
                    return FilePosition(segment, batch.position, batch.size, batch.base_offset)
                if batch.last_offset >= end - 1:
                    return None
        return None

    def advance(self, start: int, end: int, max_bytes: int, *, at_least_one: bool = True) -> int:
        """Return the offset up to which complete batches from `start` fit in `max_bytes`.

        Args:
            start: First offset; the batch that holds it counts with its full size.
            end: End offset, exclusive.
            max_bytes: Most bytes of batches.
            at_least_one: Accept a first batch that does not fit, so that a caller makes progress.
        """
        place = self.locate(start, end)
        if place is None:
            return end
        left = max_bytes
        position = place.position
        for segment in range(place.segment, len(self.bases)):
            base = self.bases[segment]
            if base >= end:
                return end
            size = self._size(base) - position
            last_segment = segment + 1 == len(self.bases) or self.bases[segment + 1] >= end
            if size <= left and not last_segment:
                left -= size
                position = 0
                continue
            near = self._indexed_position(segment, position + left)
            for batch in self.batches(base, max(near, position)):
                beyond = batch.position + batch.size - position > left
                first = segment == place.segment and batch.position == place.position
                if batch.base_offset >= end:
                    return end
                if beyond and not first:
                    return max(min(batch.base_offset, end), start + 1)
                if beyond:
                    return min(batch.last_offset + 1, end) if at_least_one else start
            left -= size
            position = 0
        return end

    def advance_records(
        self, start: int, end: int, most: int, aborted: AbortedTransactions | None
    ) -> tuple[int, int]:
        """Return the offset up to which there are at most `most` visible records.

        Returns:
            That offset, and the number of visible records from `start` up to it.
        """
        place = self.locate(start, end)
        if place is None:
            return end, 0
        left = most
        for segment in range(place.segment, len(self.bases)):
            base = self.bases[segment]
            if base >= end:
                return end, most - left
            position = place.position if segment == place.segment else 0
            for batch in self.batches(base, position, window=1 << 20):
                if batch.base_offset >= end:
                    return end, most - left
                if batch.control or (
                    aborted is not None
                    and batch.transactional
                    and (batch.producer_id, batch.base_offset) in aborted
                ):
                    continue
                # A batch cut at its start or its end counts by offsets: at most one each.
                whole = batch.base_offset >= start and batch.last_offset < end
                low = max(start, batch.base_offset)
                count = batch.count if whole else min(end, batch.last_offset + 1) - low
                if count > left:
                    return low + left, most
                left -= count
        return end, most - left

    def _size(self, base: int) -> int:
        """Return the current size of a segment in bytes.

        Raises:
            FileNotFoundError: if the file was deleted or replaced since the first access.
            CorruptRecord: if the file does not match its seal.
        """
        path = self.path(base)
        status = os.stat(path)
        if base not in self._inodes and base != self.bases[-1]:
            wrong = refuted_by_seal(path, base, self._bound(base))
            if wrong is not None:
                raise wrong
        if self._inodes.setdefault(base, status.st_ino) != status.st_ino:
            raise FileNotFoundError(f"{path}: the file was replaced since its first access")
        return status.st_size

    def _bound(self, base: int) -> int:
        """Return the base offset of the next segment."""
        later = bisect.bisect_right(self.bases, base)
        return self.bases[later] if later < len(self.bases) else NO_BOUND

    def _indexed(self, segment: int, offset: int) -> int:
        """Look up a batch at or before the one that holds `offset`; return its position."""
        index = self._index(segment)
        relative = offset - self.bases[segment]
        number = int(np.searchsorted(index[:, 0], relative, side="right")) - 1
        return self._checked(segment, number)

    def _indexed_position(self, segment: int, position: int) -> int:
        """Return the position of an indexed batch at or before a byte."""
        index = self._index(segment)
        return self._checked(segment, int(np.searchsorted(index[:, 1], position, "right")) - 1)

    def _checked(self, segment: int, number: int) -> int:
        """Return an entry's position if a batch there ends at its offset, else 0."""
        if number < 0:
            return 0
        relative, position = (int(value) for value in self._index(segment)[number])
        base = self.bases[segment]
        try:
            found = next(self.batches(base, position), None)
        except CorruptRecord:
            return 0
        if found is None or found.last_offset != base + relative:
            return 0
        return position if fault_of(found) is None else 0

    def _index(self, segment: int) -> np.ndarray:
        """Return the (relative last offset, position) of each entry."""
        base = self.bases[segment]
        found = self._indexes.get(base)
        if found is None:
            try:
                raw = read_file(self.path(base).removesuffix("log") + "index")
            except FileNotFoundError:
                raw = b""
            entries = np.frombuffer(raw[: len(raw) // INDEX_ENTRY * INDEX_ENTRY], ">i4")
            found = entries.reshape(-1, 2)
            # A preallocated index ends in zeros.
            used = np.flatnonzero(found.any(axis=1))
            found = self._indexes[base] = found[: used[-1] + 1 if len(used) else 0]
        return found

    def batches(
        self, base: int, position: int, window: int = WINDOW
    ) -> Iterator[Batch | LegacyBatch]:
        """Yield `_whole_batches` and check that their offsets increase.

        They must also stay below the next segment. No CRC covers a base offset.

        Raises:
            CorruptRecord: if an offset is out of order, or as `_whole_batches` raises it.
        """
        bound = self._bound(base)
        least = base
        for batch in self._whole_batches(base, position, window):
            first = batch.base_offset
            if first < least or batch.last_offset >= bound:
                raise CorruptRecord(
                    f"{self.path(base)}: byte {batch.position}: base offset {first}, expected "
                    f"{least} to {bound - 1}"
                )
            yield batch
            least = batch.last_offset + 1

    def _whole_batches(
        self, base: int, position: int, window: int
    ) -> Iterator[Batch | LegacyBatch]:
        """Yield the batches of a segment from a batch boundary.

        Raises:
            CorruptRecord: if the bytes are not a batch, or if complete batches end before the end
                of the file. Only the last segment may have a tail that is not written yet.
        """
        path = self.path(base)
        size = self._size(base)
        inode = self._inodes[base]
        for start, data in windows(path, position, None, window, inode, as_v2=False):
            if is_legacy(data, 0):
                yield from SegmentFiles(path, base).batches(start)
                return
            try:
                found = iter_batches(data, base_position=start, strict=False)
            except CorruptRecord as error:
                if base == self.bases[-1] and not bytes(data[:_HEAD]).strip(b"\0"):
                    if not np.frombuffer(data, np.uint8).any():
                        return  # preallocated space
                    if _begins_otherwise(path, start):  # a batch was appended, or the zeros are cut
                        yield from self._whole_batches(base, start, window)
                        return
                raise type(error)(f"{path}: {error}") from error
            yield from found
            position = found[-1].position + found[-1].size if found else start
        if position < size and base != self.bases[-1]:
            raise CorruptRecord(
                f"{path}: no complete batch at byte {position}, expected {size} bytes; "
                "run `eoslog check`"
            )


def _begins_otherwise(path: str, position: int) -> bool:
    """Whether a file has no zeros at a position, or ends there."""
    fd = open_file(path, read_only=True)
    try:
        with naming(path):
            now = bytes(os_pread(fd, _HEAD, position))
    finally:
        close_file(fd)
    return len(now) < _HEAD or bool(now.strip(b"\0"))


def open_partition(directory: str, topic_id: bytes | None) -> PartitionFiles:
    """List the files of a partition, which must still be of the planned topic.

    Args:
        directory: Path of the partition directory.
        topic_id: Topic id that the directory must have; None if it is not known.

    Raises:
        UnknownTopicOrPartition: if the topic was deleted, and perhaps re-created.
        StorageError: if this host does not see the parent directory either.
        ConfigError: if the directory contains no segment.
    """
    name = os.path.basename(directory)
    if not os.path.isdir(directory) and os.path.isdir(os.path.dirname(directory)):
        raise UnknownTopicOrPartition(
            f"{name} was deleted after the read was planned; plan the read again"
        )
    found = PartitionFiles(directory)
    # Check after the listing: a directory that belongs to the topic now belonged to it before.
    if not is_of_topic(directory, topic_id):
        raise UnknownTopicOrPartition(
            f"{name} was deleted and re-created after the read was planned, and now holds the "
            "records of another topic; plan the read again"
        )
    return found


def is_of_topic(directory: str, topic_id: bytes | None) -> bool:
    """Return whether a partition directory still belongs to that topic."""
    return topic_id is None or read_partition_metadata(directory) == topic_id


def log_path(directory: str, base: int) -> str:
    """Return the path of the segment file with this base offset."""
    return os.path.join(directory, f"{base:020d}.log")


def windows(
    path: str,
    position: int,
    end: int | None,
    window: int = READ_BYTES,
    inode: int | None = None,
    *,
    first: int = -1,
    as_v2: bool = True,
    mapped: bool = False,
) -> Iterator[tuple[int, memoryview]]:
    """Yield (position, bytes) from a batch boundary, each with complete batches.

    Args:
        path: Path of the segment file.
        position: Byte at which to begin.
        end: Byte to stop at, at the end of a complete batch. None is the end of the file; bytes
            there that are not a complete batch are yielded unchanged.
        window: Approximate size of each window in bytes.
        inode: Inode that the file must have; None for any.
        first: Base offset of the batch at `position` in that file; -1 for any.
        as_v2: Return messages of formats 0 and 1 as batches of format 2.
        mapped: Map the file, `MAPPED_BYTES` at a time. Allowed only if no process can truncate the
            file during the read.

    Raises:
        FileNotFoundError: if retention deleted the file, or a file with another inode replaced it.
        CorruptRecord: if the file is shorter than `end`, or has an incomplete batch before `end`.
    """
    fd = open_file(path, read_only=True)
    try:
        status = os.fstat(fd)
        size = status.st_size
        if inode not in (None, status.st_ino):
            raise FileNotFoundError(f"{path}: inode is {status.st_ino}, but {inode} was planned")
        if first >= 0 and os_pread(fd, 8, position) != first.to_bytes(8, "big"):
            raise FileNotFoundError(f"{path}: no batch of offset {first} at byte {position}")
        if end is not None and size < end:
            raise CorruptRecord(f"{path}: {size} bytes on {os.uname().nodename}, expected {end}")
        planned = end is not None
        end = size if end is None else end
        window = MAPPED_BYTES if mapped else window
        wanted = window
        while position < end:
            size = min(wanted, end - position)
            with naming(path):
                found = _mapping(fd, position, size) if mapped else None
                data = memoryview(os_pread(fd, size, position)) if found is None else found
            if not len(data):  # a process has truncated the file since
                if planned:
                    raise CorruptRecord(
                        f"{path}: ends before byte {position}, expected {end} bytes"
                    )
                break
            if as_v2 and is_legacy(data, 0):
                made, used = legacy_as_v2(np.frombuffer(data, np.uint8), 0, len(data))
                piece = memoryview(made)
            else:
                used = batches_end(data)
                piece = data[: used or len(data)]
            if used == 0 and position + len(data) < end and wanted < LONGEST_WINDOW:
                wanted = min(wanted * 8, LONGEST_WINDOW)
                continue
            if used == 0 and planned:
                raise CorruptRecord(
                    f"{path}: no complete batch at byte {position}, expected {end} bytes; "
                    "run `eoslog check`"
                )
            yield position, piece
            position += used or len(data)
            wanted = window
    finally:
        close_file(fd)


def _mapping(fd: int, position: int, size: int) -> memoryview | None:
    """Map bytes of a file and load all of them into memory.

    If a page were loaded at its first access instead, a disk error would kill the process.

    Returns:
        None if the caller must read in another way: the kernel is older than 5.14, memory is
        short, or the disk fails. A disk error then comes from that read.
    """
    try:
        with open(fd, "rb", buffering=0, closefd=False) as file:
            found: Any = np.memmap(file, np.uint8, "r", position, (size,))
        found.base.madvise(_POPULATE_READ)
    except (OSError, ValueError):
        return None
    return memoryview(found)
