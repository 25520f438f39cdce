"""Reading Kafka's files of one partition directly: without a Log, without locks, read-only.

    NNN.log         record batches, one after another (_core/format/record_batch.pxi)
    NNN.index       8 bytes per entry: last offset - NNN i32 | position of its batch i32
    NNN.timeindex   12 bytes per entry: greatest timestamp so far i64 | its offset - NNN i32
    NNN.txnindex    34 bytes per entry: version 0 i16 | producer id i64 | first offset i64
                    | offset of the ABORT marker i64 | last stable offset i64
    NNN.snapshot    version 1 i16 | CRC-32C of the rest u32 | count i32 | 46 bytes per producer:
                    id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32
                    | timestamp i64 | coordinator epoch i32 | first offset of its transaction i64

NNN is the base offset in 20 digits (for a snapshot: its end offset). All numbers are big-endian. A
partial batch or entry at the end, left by a crash, is ignored. So are zeros after the entries of an
index, or after the batches of a preallocated last segment. Formats 0 and 1: `legacy_messages.py`.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord, StorageError
from eoslog.storage.format import legacy_messages
from eoslog.storage.fs import files
from eoslog.storage.segment import kept_copies, seals
from eoslog.storage.segment.scans import is_blank

__all__ = [
    "AbortedEntry",
    "ProducerEntry",
    "SegmentFiles",
    "Window",
    "feed_transactions",
    "list_segments",
    "list_snapshots",
    "log_bytes",
    "offset_of_name",
    "open_before",
    "partition_of_path",
    "read_offset_index",
    "read_snapshot",
    "read_time_index",
    "read_txn_index",
    "segments_among",
]

_NAME = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")
_CRC_FROM = 21
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_HEADER = struct.Struct(">hIi")
_PRODUCER_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_CRC_END = 6
_WINDOW = 1 << 20
_LONGEST_BATCH = (1 << 31) - 1
_STEPPED_ON = 17  # bytes to the end of a magic
_FOLDED_AT_ONCE = 64 << 20
_LARGEST_COPY = 16 << 20
_ATTEMPTS = 10


class Window(NamedTuple):
    """Complete batches of a segment, and the byte of the file at which the first one begins."""

    data: Any
    position: int


class AbortedEntry(NamedTuple):
    """One aborted transaction; `last_offset` is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerEntry(NamedTuple):
    """One producer in a snapshot; -1 means none, as does a `current_txn_first_offset` of None."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int | None


def log_bytes(path: str) -> tuple[np.ndarray, int]:
    """Return a log file's bytes without zeros after its batches, and its size.

    A roll and a close truncate preallocated space, and the process dies if it reads truncated pages
    of a mapping. So the zeros are not mapped, and of a small file that ends in zeros, nothing is.
    """
    with files.naming(path):
        fd = files.open_file(path, read_only=True)
        try:
            end = size = os.fstat(fd).st_size
            tail = max(0, size - _STEPPED_ON)
            if size and not bytes(_core.os_pread(fd, size - tail, tail)).strip(b"\0"):
                end = _end_of_batches(fd, size)
                if end <= _LARGEST_COPY:
                    data = np.frombuffer(_core.os_pread(fd, end, 0), np.uint8)
                    data.flags.writeable = False
                    return data, size
        finally:
            files.close(fd)
        if size == 0:  # nothing to map
            return np.zeros(0, np.uint8), 0
        return np.memmap(path, np.uint8, "r", shape=(end,)), size


def _end_of_batches(fd: int, size: int) -> int:
    """Return where a file's batches end, if only zeros follow; otherwise its size."""
    position, window = 0, _WINDOW
    while position < size:
        data = np.frombuffer(_core.os_pread(fd, min(window, size - position), position), np.uint8)
        if legacy_messages.is_legacy(data, 0):
            return size
        used = _core.batches_end(data)
        if used:
            position, window = position + used, _WINDOW
        elif not data[:_STEPPED_ON].any():
            for _ in range(_ATTEMPTS):
                if is_blank(fd, position, size):
                    return position
                if bytes(_core.os_pread(fd, _STEPPED_ON, position)).strip(b"\0"):
                    break  # a batch was appended
            else:
                return size
        elif position + len(data) < size and window < _LONGEST_BATCH:
            window *= 8
        else:
            return size
    return position


class SegmentFiles:
    """One segment: its `.log`, mapped read-only at first use, and the paths of its indexes.

    Attributes:
        base_offset: the smallest offset that the segment may contain.
        path: path of the `.log` file.
    """

    def __init__(self, path: str, base_offset: int) -> None:
        """Name a segment, without opening it."""
        self.path = path
        self.base_offset = base_offset

    @cached_property
    def _content(self) -> tuple[np.ndarray, int]:
        return log_bytes(self.path)

    @property
    def data(self) -> np.ndarray:
        """The file's bytes at the first use, without zeros after its batches."""
        return self._content[0]

    @property
    def size(self) -> int:
        """The file's size at the first use, with those zeros."""
        return self._content[1]

    def with_suffix(self, suffix: str) -> str:
        """Return the path of the file with another suffix (`index`, `timeindex`, `txnindex`)."""
        return self.path.removesuffix(".log") + "." + suffix

    def batches(self, position: int = 0) -> Iterator[_core.Batch | legacy_messages.LegacyBatch]:
        """Yield every complete batch from a byte on, in order, of any format.

        Raises:
            CorruptRecord: at the first bytes that cannot be a batch; the message names the file.
        """
        data, window = self.data, _WINDOW
        while position < len(data):
            if legacy_messages.is_legacy(data, position):
                start = position
                try:
                    for message in legacy_messages.batches(data, position, len(data)):
                        yield message
                        position = message.position + message.size
                except CorruptRecord as error:
                    raise error.located(self.path) from error
                if position == start:
                    return
                continue
            end = min(len(data), position + window)
            try:
                found = _core.iter_batches(data, position, end, strict=False)
            except CorruptRecord as error:
                if self.blank_from(position):
                    return
                raise error.located(self.path) from error
            if not found:
                if end == len(data):
                    return
                window *= 4  # one batch is longer than that
                continue
            yield from found
            position = found[-1].position + found[-1].size

    def windows(
        self, position: int, size: int, *, last: bool = True, end: int | None = None
    ) -> Iterator[Window]:
        """Yield the bytes from a batch on, in windows of complete batches of about `size` bytes.

        Messages of formats 0 and 1 are converted to batches of format 2. If some bytes cannot be a
        batch, the last window includes them, so that reading it raises the error.

        Args:
            position: byte of the file.
            size: bytes of a window.
            last: the segment is the last one; a partial batch or zeros at its end are ignored.
            end: byte to stop at, the end of a batch; None: the end of the file.

        Raises:
            CorruptRecord: if a message of formats 0 or 1 is damaged, or a segment that is not the
                last one ends with an incomplete batch.
        """
        data = self.data if end is None else self.data[:end]
        while position < len(data):
            if legacy_messages.is_legacy(data, position):
                try:
                    made, stop = legacy_messages.as_v2(data, position, size)
                except CorruptRecord as error:
                    raise error.located(self.path) from error
                if stop == position:
                    self._refuse_hole(position)
                    break
                yield Window(np.frombuffer(made, np.uint8), position)
                position = stop
                continue
            stop = _core.batches_end(data, position, min(len(data), position + size))
            if stop == position:  # damage, a truncated batch, or one long batch
                stop = _core.batches_end(data, position, min(len(data), position + _LONGEST_BATCH))
            if stop == position:
                if not self.blank_from(position):
                    self._refuse_hole(position)
                    yield Window(data[position : position + _LONGEST_BATCH], position)
                break
            yield Window(data[position:stop], position)
            position = stop
        if position < (self.size if end is None else end) and not last:
            raise self.cut_short(position)

    def _refuse_hole(self, position: int) -> None:
        """Raise CorruptRecord if an incomplete batch is followed by a valid one."""
        length = int.from_bytes(
            self.data[position + 8 : position + 12].tobytes(), "big", signed=True
        )
        if length + 12 <= len(self.data) - position:
            return  # not a batch at all: the caller's read raises
        following = self.next_valid(position)
        if following is not None:
            raise CorruptRecord(
                f"bytes are not a complete batch, but a valid one follows at position {following}",
                path=self.path,
                position=position,
            )

    def blank_from(self, position: int) -> bool:
        """Whether all bytes from a position on are zero, as in a preallocated file."""
        data = self.data
        if self.size - position <= _STEPPED_ON or data[position : position + _STEPPED_ON].any():
            return False  # fewer may be the beginning of a batch: its offset
        step = 1 << 24
        return not any(data[at : at + step].any() for at in range(position, len(data), step))

    def next_valid(self, position: int, after: int = -1) -> int | None:
        """Find the next valid batch after damage, of any format. Returns its position, or None.

        Args:
            position: position of the damage.
            after: the batch must have a larger base offset.
        """
        data = self.data
        for start in range(position + 1, len(data) - _STEPPED_ON, _WINDOW):
            # First find candidates with a possible length and an offset below 2^48, then parse
            # each.
            head = data[start : start + _WINDOW + _STEPPED_ON]
            count = len(head) - _STEPPED_ON
            magic = head[legacy_messages.MAGIC_AT : legacy_messages.MAGIC_AT + count]
            marks = np.flatnonzero((magic <= 2) & (head[:count] == 0) & (head[1 : 1 + count] == 0))
            lengths = np.zeros(len(marks), np.int64)
            for byte in range(8, 12):
                lengths = lengths << 8 | head[marks + byte]
            marks = marks[(lengths >= 14) & (lengths <= len(data) - start - marks - 12)]
            for at in (start + marks).tolist():
                try:
                    found = next(self.batches(at), None)
                except CorruptRecord:
                    continue
                if found is not None and found.base_offset > after and found.valid:
                    return at
        return None

    def position_of(self, offset: int) -> int:
        """Return the position of a batch at or before an offset, from the offset index if valid."""
        index = read_offset_index(self.with_suffix("index"), self.base_offset)
        for last_offset, position in reversed(index):
            if last_offset <= offset:
                try:
                    found = _core.iter_batches(self.data, position, strict=False, limit=1)
                except CorruptRecord:
                    break
                # A batch, or the last one of an append of several, ends at the entry's offset.
                if found and found[0].base_offset <= last_offset:
                    return self._past_damage(position, offset)
                break
        return self._past_damage(0, offset)

    def ends_at(self, offset: int) -> bool:
        """Whether the segment has the batch with the offset before this one."""
        if not len(self.data):
            return offset == self.base_offset
        position = self.position_of(offset - 1)
        first, stop, *_ = _core.walk_batches(self.data, position, offset - 1, offset, 1)
        return bool(stop > first)

    def _past_damage(self, position: int, offset: int) -> int:
        """Return a position to read an offset from, after damage that is entirely before it."""
        while offset > self.base_offset:
            try:
                first, stop, *_ = _core.walk_batches(self.data, position, offset, offset + 1, 1)
                if stop > first:
                    return first
                bad = first
            except CorruptRecord:
                bad = _core.batches_end(self.data, position)
            found = self.next_valid(bad) if bad < len(self.data) else None
            if found is None or next(self.batches(found)).base_offset > offset:
                return position
            position = found
        return position

    def cut_short(self, position: int) -> CorruptRecord:
        """Return the error for an incomplete batch at the end."""
        rest = self.size - position
        return CorruptRecord(
            f"the last {rest} bytes are not a complete batch", path=self.path, position=position
        )


def fault_of(batch: _core.Batch | legacy_messages.LegacyBatch) -> str | None:
    """Return what is wrong with a complete batch, by its checksum and header; None if nothing."""
    if isinstance(batch, legacy_messages.LegacyBatch):
        return batch.fault
    offsets = f"offsets {batch.base_offset} to {batch.last_offset}"
    if batch.valid:
        room = batch.last_offset - batch.base_offset + 1
        return f"{batch.count} records in {offsets}" if batch.count > room else None
    if _core.crc32c(batch.tobytes()[_CRC_FROM:]) != batch.crc:
        return "CRC does not match"
    if batch.compression.startswith("unknown"):
        codec = batch.compression.removeprefix("unknown-")
        return f"compression codec is {codec}, expected 0 to 4"
    return f"{offsets} cannot belong to a batch of {batch.count} records"


def offset_of_name(path: str) -> int | None:
    """Return the offset in the name of a segment's or snapshot's file, None for other names."""
    match = _NAME.fullmatch(os.path.basename(path))
    return int(match[1]) if match else None


def partition_of_path(path: str) -> tuple[str, int]:
    """Return topic and partition from the name of a partition directory, ("", -1) for others."""
    topic, dash, number = os.path.basename(os.path.abspath(path)).rpartition("-")
    return (topic, int(number)) if dash and number.isdecimal() else ("", -1)


def _names(directory: str, suffix: str) -> list[str]:
    with files.naming(directory):
        names = os.listdir(directory)
    return sorted(n for n in names if (m := _NAME.fullmatch(n)) and m[2] == suffix)


def list_segments(path: str | os.PathLike[str]) -> list[SegmentFiles]:
    """Return the segments of a partition directory, in order; or the one of a `.log` file.

    Raises:
        StorageError: if there is no such path.
        ConfigError: if the path is neither a partition directory nor a file.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        found = segments_among(path, _names(path, "log"))
        if not found:
            raise ConfigError(f"{path} is not a partition directory: it contains no .log file")
        return found
    if not os.path.exists(path):
        raise StorageError("", errno.ENOENT, path)
    base = offset_of_name(kept_copies.name_without_mark(os.path.basename(path)))
    segment = SegmentFiles(path, base or 0)
    if base is None:
        segment.base_offset = next((b.base_offset for b in segment.batches()), 0)
    return [segment]


def segments_among(directory: str, names: list[str]) -> list[SegmentFiles]:
    """Return the segments among names in a partition directory, in order."""
    logs = sorted(n for n in names if (m := _NAME.fullmatch(n)) and m[2] == "log")
    return [SegmentFiles(os.path.join(directory, n), int(n[:20])) for n in logs]


def last_gap(directory: str) -> int:
    """Return the base of the last segment that does not begin where the previous one ends, or 0.

    Kafka's cleaner leaves such gaps, because it may remove the last batch of a segment.
    """
    segments = list_segments(directory) if _names(directory, "log") else []
    gaps = [b.base_offset for a, b in pairwise(segments) if not a.ends_at(b.base_offset)]
    return max(gaps, default=0)


def list_snapshots(directory: str) -> list[str]:
    """Return the names of the producer snapshots, oldest first."""
    return _names(directory, "snapshot")


def _read(path: str) -> bytes:
    try:
        return files.read_file(path)
    except FileNotFoundError:
        return b""


def _entries(path: str, entry: struct.Struct) -> list[tuple[int, ...]]:
    data = _read(path)
    data = data[: len(data) - len(data) % entry.size]
    used = len(data.rstrip(b"\0"))  # preallocated indexes end in zeros
    return list(entry.iter_unpack(data[: -(-used // entry.size) * entry.size]))


def read_offset_index(path: str, base_offset: int) -> list[tuple[int, int]]:
    """Return (offset, position) of each entry; an empty list if there is no file."""
    return [(base_offset + offset, at) for offset, at in _entries(path, _OFFSET_ENTRY)]


def read_time_index(path: str, base_offset: int) -> list[tuple[int, int]]:
    """Return (timestamp in ms, offset) of each entry; an empty list if there is no file."""
    return [(time, base_offset + offset) for time, offset in _entries(path, _TIME_ENTRY)]


def read_txn_index(path: str) -> list[AbortedEntry]:
    """Return the aborted transactions with markers in the segment; [] if there is no file.

    Raises:
        CorruptRecord: if an entry has a later version than 0.
    """
    data = _read(path)
    found: list[AbortedEntry] = []
    for version, *entry in _ABORTED_ENTRY.iter_unpack(data[: len(data) - len(data) % 34]):
        if version > 0:
            raise CorruptRecord(f"{path}: entry {len(found)} has version {version}, expected 0")
        found.append(AbortedEntry(*entry))
    return found


def read_snapshot(path: str) -> list[ProducerEntry]:
    """Return the producers in a snapshot.

    Raises:
        CorruptRecord: if version, checksum or length are wrong.
        FileNotFoundError: if there is no such file.
    """
    data = files.read_file(path)
    if len(data) < _SNAPSHOT_HEADER.size:
        raise CorruptRecord(f"{path}: snapshot has {len(data)} bytes, expected at least 10")
    version, stored, count = _SNAPSHOT_HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptRecord(f"{path}: snapshot has version {version}, expected 1")
    crc = _core.crc32c(memoryview(data)[_CRC_END:])
    if crc != stored:
        raise CorruptRecord(
            f"{path}: CRC-32C of the snapshot is {crc:08x}, but its header says {stored:08x}"
        )
    body = data[_SNAPSHOT_HEADER.size :]
    if count < 0 or count * _PRODUCER_ENTRY.size != len(body):
        raise CorruptRecord(f"{path}: {len(body)} bytes of entries, expected {count} times 46")
    return [
        ProducerEntry._make((*entry[:7], None if entry[7] < 0 else entry[7]))
        for entry in _PRODUCER_ENTRY.iter_unpack(body)
    ]


def open_before(segments: list[SegmentFiles]) -> dict[int, int]:
    """Return the transactions open at the first segment's base, {id: offset}, from its snapshot."""
    first = segments[0]
    try:
        entries = read_snapshot(first.with_suffix("snapshot"))
    except (FileNotFoundError, CorruptRecord):
        return {}
    return {
        e.producer_id: e.current_txn_first_offset
        for e in entries
        if e.current_txn_first_offset is not None
    }


def feed_transactions(
    fold: _core.TransactionFold, segments: list[SegmentFiles], cleaned_to: int | None = None
) -> None:
    """Fold the segments, in order, from their batches alone.

    Args:
        fold: the fold.
        segments: segments of one partition.
        cleaned_to: the offset from which on gaps between segments are errors, because no broker's
            cleaner has worked there; None: gaps are never errors.

    Raises:
        CorruptRecord: if a header is invalid, a seal contradicts its file, or a segment that is not
            the last one ends with an incomplete batch. The message names the file, and the fold
            ends there.
    """
    for segment, following in zip_longest(segments, segments[1:]):
        end = max(fold.next_offset, segments[0].base_offset)
        if end > segment.base_offset:
            raise CorruptRecord(
                f"segment begins at offset {segment.base_offset}, but the segment before it ends "
                f"at {end}",
                path=segment.path,
                position=0,
            )
        if cleaned_to is not None and end < segment.base_offset > cleaned_to:
            raise CorruptRecord(
                f"offsets {end} to {segment.base_offset - 1}, before this segment, are missing, "
                "and compaction did not remove them",
                path=segment.path,
                position=0,
            )
        if following is not None:
            wrong = seals.refuted(segment.path, segment.base_offset, following.base_offset)
            if wrong is not None:
                raise wrong
        for window in segment.windows(0, _FOLDED_AT_ONCE, last=following is None):
            try:
                fold.feed(window.data, base_position=window.position)
            except CorruptRecord as error:
                raise error.located(segment.path) from error
