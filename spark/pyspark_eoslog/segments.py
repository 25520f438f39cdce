"""Where the batches of a partition lie, byte by byte: from offsets to ranges of segment files.

Read below the ends that the planner found, nothing is locked or written, so it works on any host
that sees the files: with `pread`, and through a mapping where they are local. Retention and
compaction take away or replace whole files, which a reader notices and looks again.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eoslog import _core
from eoslog.errors import CorruptRecord, UnknownTopicOrPartition
from eoslog.storage import checkpoints, files, legacy_messages, segment_files, settled_listing
from eoslog.storage.legacy_messages import LegacyBatch, is_legacy

WINDOW = 256 << 10
"""Bytes that a planner reads at once."""
READ_BYTES = 1 << 20
"""Bytes that a task reads at once: they stay in a core's cache until they are decoded."""
MAPPED_BYTES = 16 << 20
"""Bytes that it maps at once: letting go of a mapping interrupts the other cores."""
LONGEST_WINDOW = (1 << 31) - 1
RELISTINGS = 16
"""How often a planner or a task looks again for segments that were replaced under it."""
INDEX_ENTRY = 8
_POPULATE_READ = 22  # MADV_POPULATE_READ


@dataclass(frozen=True)
class Span:
    """Whole batches of one segment file; plain values.

    Attributes:
        base: Base offset of the segment, which names its file.
        position, end: Bytes, end exclusive.
        inode: Of the file; another one has other bytes, the cleaner made it.
        first: Base offset of the batch at `position`, -1 where that is the file's first byte. A
            file system gives an inode that was freed to the next file that is made.
    """

    base: int
    position: int
    end: int
    inode: int
    first: int = -1


@dataclass(frozen=True)
class Place:
    """A batch and where it lies."""

    segment: int
    position: int
    size: int
    base_offset: int


class PartitionFiles:
    """The segment files of one partition directory, listed once, not in the middle of a swap.

    Each file is one and the same at every look: where the cleaner put another one in its place
    meanwhile, a look ends in FileNotFoundError.

    Args:
        directory: Of the partition.

    Raises:
        LockTimeout: A swap of segments stays half done.
        StorageError: There is no such directory.
        ConfigError: It holds no segment.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.segments = settled_listing.settled_segments(directory)
        self.bases = [one.base_offset for one in self.segments]
        self._indexes: dict[int, np.ndarray] = {}
        self._inodes: dict[int, int] = {}

    def path(self, base: int) -> str:
        """Of a segment's log file."""
        return log_path(self.directory, base)

    def spans(self, start: int, end: int) -> list[Span]:
        """The bytes that hold `[start, end)`, segment by segment.

        Args:
            start: First offset wanted.
            end: Exclusive, published: nothing behind the batch of `end - 1` is looked at.
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
                found.append(Span(base, position, stop, self._inodes[base], begins))
        return found

    def size(self, start: int, end: int) -> int:
        """Bytes of the batches that hold `[start, end)`."""
        return (
            sum(span.end - span.position for span in self.spans(start, end)) if end > start else 0
        )

    def locate(self, offset: int, end: int) -> Place | None:
        """The first batch that holds `offset` or what follows it, None where none begins below
        `end`.
        """
        number = max(bisect.bisect_right(self.bases, offset) - 1, 0)
        for segment in range(number, len(self.bases)):
            base = self.bases[segment]
            if base >= end and segment > number:
                return None
            position = self._indexed(segment, offset) if segment == number else 0
            for batch in self._batches(base, position):
                if batch.last_offset >= offset:
                    return Place(segment, batch.position, batch.size, batch.base_offset)
                if batch.last_offset >= end - 1:
                    return None
        return None

    def advance(self, start: int, end: int, max_bytes: int, *, at_least_one: bool = True) -> int:
        """The offset up to which whole batches from `start` on fit in `max_bytes`.

        Args:
            start: First offset; a batch that holds it counts whole.
            end: Exclusive.
            max_bytes: Of batches.
            at_least_one: Take a first batch that does not fit, so that a caller moves on.
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
            for batch in self._batches(base, max(near, position)):
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
        self, start: int, end: int, most: int, aborted: _core.AbortedTransactions | None
    ) -> tuple[int, int]:
        """The offset up to which at most `most` records that a reader sees lie from `start` on,
        and how many lie there.
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
            for batch in self._batches(base, position, window=1 << 20):
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
        """Bytes of a segment, as long as it is now.

        Raises:
            FileNotFoundError: It is gone, or another file since the first look at it.
        """
        path = self.path(base)
        status = os.stat(path)
        if self._inodes.setdefault(base, status.st_ino) != status.st_ino:
            raise FileNotFoundError(f"{path}: was replaced since it was looked at first")
        return status.st_size

    def _indexed(self, segment: int, offset: int) -> int:
        """Position of a batch at or before the one that holds `offset`, by the offset index."""
        index = self._index(segment)
        relative = offset - self.bases[segment]
        number = int(np.searchsorted(index[:, 0], relative, side="right")) - 1
        return self._checked(segment, number)

    def _indexed_position(self, segment: int, position: int) -> int:
        """Position of an indexed batch at or before a byte."""
        index = self._index(segment)
        return self._checked(segment, int(np.searchsorted(index[:, 1], position, "right")) - 1)

    def _checked(self, segment: int, number: int) -> int:
        """An index is a hint: it counts where a batch ends with the offset that it names."""
        if number < 0:
            return 0
        relative, position = (int(value) for value in self._index(segment)[number])
        base = self.bases[segment]
        try:
            found = next(self._batches(base, position), None)
        except CorruptRecord:
            return 0
        return position if found is not None and found.last_offset == base + relative else 0

    def _index(self, segment: int) -> np.ndarray:
        """(relative last offset, position) of each entry."""
        base = self.bases[segment]
        found = self._indexes.get(base)
        if found is None:
            try:
                raw = files.read_file(self.path(base).removesuffix("log") + "index")
            except FileNotFoundError:
                raw = b""
            entries = np.frombuffer(raw[: len(raw) // INDEX_ENTRY * INDEX_ENTRY], ">i4")
            found = entries.reshape(-1, 2)
            # A preallocated index ends in zeros.
            used = np.flatnonzero(found.any(axis=1))
            found = self._indexes[base] = found[: used[-1] + 1 if len(used) else 0]
        return found

    def _batches(
        self, base: int, position: int, window: int = WINDOW
    ) -> Iterator[_core.Batch | LegacyBatch]:
        """Batches of a segment from a boundary on.

        Raises:
            CorruptRecord: Where no batch can be, or where whole ones end too early: what is behind
                them is only in the last segment not there yet.
        """
        path = self.path(base)
        size = self._size(base)
        inode = self._inodes[base]
        for start, data in windows(path, position, None, window, inode, as_v2=False):
            if is_legacy(data, 0):
                yield from segment_files.SegmentFiles(path, base).batches(start)
                return
            try:
                found = _core.iter_batches(data, base_position=start, strict=False)
            except CorruptRecord as error:
                raise type(error)(f"{path}: {error}") from error
            yield from found
            position = found[-1].position + found[-1].size if found else start
        if position < size and base != self.bases[-1]:
            raise CorruptRecord(f"{path}: byte {position}: no whole batch, and {size} expected")


def open_partition(directory: str, topic_id: bytes | None) -> PartitionFiles:
    """The files of a partition, which must still be of the topic that was planned.

    Args:
        directory: Of the partition.
        topic_id: What it must say of itself; None where that is not known.

    Raises:
        UnknownTopicOrPartition: The topic was deleted, and perhaps made anew.
        StorageError: The directory it lay in can't be seen from here either.
        ConfigError: It holds no segment.
    """
    name = os.path.basename(directory)
    if not os.path.isdir(directory) and os.path.isdir(os.path.dirname(directory)):
        raise UnknownTopicOrPartition(f"{name} is gone, it was deleted since the read was planned")
    found = PartitionFiles(directory)
    # After the listing: a directory that is still the topic's now was it then.
    if not is_of_topic(directory, topic_id):
        raise UnknownTopicOrPartition(
            f"{name} was deleted and made anew since the read was planned, "
            "what there is now are the records of another topic"
        )
    return found


def is_of_topic(directory: str, topic_id: bytes | None) -> bool:
    """Whether a partition directory is still that topic's."""
    return topic_id is None or checkpoints.read_partition_metadata(directory) == topic_id


def log_path(directory: str, base: int) -> str:
    """Path of the segment file with this base offset."""
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
    """(position, bytes) from a batch boundary on, each of whole batches, about `window` long.

    Args:
        path: Of the segment.
        position: Byte of the file.
        end: Byte to stop at, behind a whole batch; None is the end of the file, where what is no
            whole batch comes as it is.
        window: Bytes.
        inode: What the file must be; None for any.
        first: Base offset of the batch at `position` in that file; -1 for any.
        as_v2: Give messages of formats 0 and 1 as batches of format 2.
        mapped: Map the file, `MAPPED_BYTES` at a time: where nobody may cut it short meanwhile.

    Raises:
        FileNotFoundError: Retention took the file, or another one (`inode`) is in its place.
        CorruptRecord: The file is shorter than `end`, or not of whole batches up to there.
    """
    fd = files.open_file(path, read_only=True)
    try:
        status = os.fstat(fd)
        size = status.st_size
        if inode not in (None, status.st_ino):
            raise FileNotFoundError(f"{path}: inode {status.st_ino}, planned was {inode}")
        if first >= 0 and _core.os_pread(fd, 8, position) != first.to_bytes(8, "big"):
            raise FileNotFoundError(f"{path}: no batch of offset {first} at byte {position}")
        if end is not None and size < end:
            raise CorruptRecord(f"{path}: {size} bytes on {os.uname().nodename}, {end} expected")
        planned = end is not None
        end = size if end is None else end
        window = MAPPED_BYTES if mapped else window
        wanted = window
        while position < end:
            size = min(wanted, end - position)
            with files.naming(path):
                found = _mapping(fd, position, size) if mapped else None
                data = memoryview(_core.os_pread(fd, size, position) if found is None else found)
            if as_v2 and is_legacy(data, 0):
                made, used = legacy_messages.as_v2(np.frombuffer(data, np.uint8), 0, len(data))
                piece = memoryview(made)
            else:
                used = _core.batches_end(data)
                piece = data[: used or len(data)]
            if used == 0 and position + len(data) < end and wanted < LONGEST_WINDOW:
                wanted = min(wanted * 8, LONGEST_WINDOW)
                continue
            if used == 0 and planned:
                raise CorruptRecord(f"{path}: byte {position}: no whole batch, and {end} expected")
            yield position, piece
            position += used or len(data)
            wanted = window
    finally:
        files.close(fd)


def _mapping(fd: int, position: int, size: int) -> np.memmap | None:
    """Bytes of a file, all of them in memory; None where they are to be read in another way: the
    kernel is older than 5.14, memory is short, or the disk fails, which reading then tells.

    Touched one by one, a page that the disk does not give would end the process.
    """
    try:
        with open(fd, "rb", buffering=0, closefd=False) as file:
            found = np.memmap(file, np.uint8, "r", position, (size,))
        found.base.madvise(_POPULATE_READ)
    except (OSError, ValueError):
        return None
    return found
