"""Kafka's files of one partition, read as they lie there: no Log, no lock, nothing is written.

    NNN.log         record batches, one after another (_core/record_batch.pxi)
    NNN.index       8 bytes an entry: last offset - NNN i32 | position of its batch i32
    NNN.timeindex   12 bytes an entry: greatest timestamp so far i64 | its offset - NNN i32
    NNN.txnindex    34 bytes an entry: version 0 i16 | producer id i64 | first offset i64
                    | offset of the ABORT marker i64 | last stable offset i64
    NNN.snapshot    version 1 i16 | CRC-32C of the rest u32 | count i32 | 46 bytes a producer:
                    id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32
                    | timestamp i64 | coordinator epoch i32 | first offset of its transaction i64

NNN is the base offset in 20 digits (for a snapshot: the end of what it sums up); all numbers are
big-endian. What a crash leaves is read as far as it goes: a partial batch or entry at the end is
passed over, and so are the zeros behind the entries of an index, or behind the batches of the last
segment, that was preallocated. Messages of formats 0 and 1: `legacy_messages.py`.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord, StorageError
from eoslog.storage import files, legacy_messages

__all__ = [
    "AbortedEntry",
    "ProducerEntry",
    "SegmentFiles",
    "Window",
    "feed_transactions",
    "list_segments",
    "list_snapshots",
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


class Window(NamedTuple):
    """Whole batches of a segment, and the byte of its file that the first one begins at."""

    data: Any
    position: int


class AbortedEntry(NamedTuple):
    """One aborted transaction; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerEntry(NamedTuple):
    """One producer in a snapshot; -1 stands for none, `current_txn_first_offset` None for none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int | None


class SegmentFiles:
    """One segment: its `.log`, mapped read-only at first use, and the paths of its indexes.

    Attributes:
        base_offset: the smallest offset that it may hold.
        path: of the `.log` file.
    """

    def __init__(self, path: str, base_offset: int) -> None:
        """Name a segment; nothing is opened."""
        self.path = path
        self.base_offset = base_offset
        self._data: np.ndarray | None = None

    @property
    def data(self) -> np.ndarray:
        """The bytes of the `.log` file, as long as it was at first use."""
        if self._data is None:
            with files.naming(self.path):
                if os.path.getsize(self.path) == 0:  # nothing to map
                    self._data = np.zeros(0, np.uint8)
                else:
                    self._data = np.memmap(self.path, np.uint8, "r")
        return self._data

    def beside(self, suffix: str) -> str:
        """The path of the file with another suffix (`index`, `timeindex`, `txnindex`)."""
        return self.path.removesuffix(".log") + "." + suffix

    def batches(self, position: int = 0) -> Iterator[_core.Batch | legacy_messages.LegacyBatch]:
        """Every whole batch from a byte on, in order, of any format.

        Raises:
            CorruptRecord: at the first position where no batch can be; the message names the file.
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
        """The bytes from a batch on, in pieces of whole batches of about `size` bytes.

        Messages of formats 0 and 1 come as batches of format 2. Where no batch can be the last
        piece goes on to the end of the file: reading it says why.

        Args:
            position: byte of the file.
            size: bytes.
            last: more may have been about to come: a partial batch, or zeros that were
                preallocated, end it silently.
            end: where to stop, at a batch's end; None is the end of the file.

        Raises:
            CorruptRecord: a message of formats 0 or 1 is damaged, or a segment that is not the
                last one ends in bytes that are no whole batch.
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
            if stop == position:  # damage, a cut, or one long batch
                stop = _core.batches_end(data, position, min(len(data), position + _LONGEST_BATCH))
            if stop == position:
                if not self.blank_from(position):
                    self._refuse_hole(position)
                    yield Window(data[position : position + _LONGEST_BATCH], position)
                break
            yield Window(data[position:stop], position)
            position = stop
        if position < len(data) and not last:
            raise self.cut_short(position)

    def _refuse_hole(self, position: int) -> None:
        """What ends here is a tail that was not written to its end, unless batches follow it."""
        length = int.from_bytes(
            self.data[position + 8 : position + 12].tobytes(), "big", signed=True
        )
        if length + 12 <= len(self.data) - position:
            return  # no batch at all: whoever reads it says why
        following = self.next_valid(position)
        if following is not None:
            raise CorruptRecord(
                f"bytes that are no whole batch, yet a valid one follows at position {following}",
                path=self.path,
                position=position,
            )

    def blank_from(self, position: int) -> bool:
        """Whether all bytes from here on are zero, as in a file that was preallocated."""
        data = self.data
        if len(data) - position <= _STEPPED_ON or data[position : position + _STEPPED_ON].any():
            return False  # fewer may be the beginning of a batch: its offset
        step = 1 << 24
        return not any(data[at : at + step].any() for at in range(position, len(data), step))

    def next_valid(self, position: int, after: int = -1) -> int | None:
        """Where, past damage, the next batch of any format begins whose checksum is right.

        Args:
            position: of what is damaged.
            after: the batch must have a larger base offset.
        """
        data = self.data
        for start in range(position + 1, len(data) - _STEPPED_ON, _WINDOW):
            # All that has a believable length, and an offset below 2^48; then one by one.
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
        """A batch at or before the one with this offset, by the offset index where that is true."""
        index = read_offset_index(self.beside("index"), self.base_offset)
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
        """Whether the batch that holds the offset before this one is in the segment."""
        if not len(self.data):
            return offset == self.base_offset
        position = self.position_of(offset - 1)
        first, stop, *_ = _core.walk_batches(self.data, position, offset - 1, offset, 1)
        return bool(stop > first)

    def _past_damage(self, position: int, offset: int) -> int:
        """A place to read from for an offset; damage that lies wholly before it is stepped over."""
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
        """The error for bytes at the end that are no whole batch."""
        rest = len(self.data) - position
        return CorruptRecord(
            f"the last {rest} bytes are no whole batch", path=self.path, position=position
        )


def fault_of(batch: _core.Batch | legacy_messages.LegacyBatch) -> str | None:
    """What is wrong with a whole batch, by its checksum and header; None where nothing is."""
    offsets = f"offsets {batch.base_offset} to {batch.last_offset}"
    if isinstance(batch, legacy_messages.LegacyBatch):
        return None if batch.valid else "CRC does not match"
    if batch.valid:
        room = batch.last_offset - batch.base_offset + 1
        return f"{batch.count} records in {offsets}" if batch.count > room else None
    if _core.crc32c(batch.tobytes()[_CRC_FROM:]) != batch.crc:
        return "CRC does not match"
    if batch.compression.startswith("unknown"):
        codec = batch.compression.removeprefix("unknown-")
        return f"compression codec {codec}, 4 is the highest known"
    return f"{offsets}, {batch.count} records: no batch can have these"


def offset_of_name(path: str) -> int | None:
    """The number that a segment's or snapshot's file name gives, None if it is no such name."""
    match = _NAME.fullmatch(os.path.basename(path))
    return int(match[1]) if match else None


def partition_of_path(path: str) -> tuple[str, int]:
    """Topic and partition from the name of a partition directory; ("", -1) if it is none."""
    topic, dash, number = os.path.basename(os.path.abspath(path)).rpartition("-")
    return (topic, int(number)) if dash and number.isdecimal() else ("", -1)


def _names(directory: str, suffix: str) -> list[str]:
    with files.naming(directory):
        names = os.listdir(directory)
    return sorted(n for n in names if (m := _NAME.fullmatch(n)) and m[2] == suffix)


def list_segments(path: str | os.PathLike[str]) -> list[SegmentFiles]:
    """The segments of a partition directory in order, or the one that a `.log` file is.

    Raises:
        StorageError: there is no such path.
        ConfigError: it is neither a partition directory nor a file.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        found = segments_among(path, _names(path, "log"))
        if not found:
            raise ConfigError(f"{path} holds no .log file: it is no partition directory")
        return found
    if not os.path.exists(path):
        raise StorageError("", errno.ENOENT, path)
    segment = SegmentFiles(path, offset_of_name(path) or 0)
    if offset_of_name(path) is None:
        segment.base_offset = next((b.base_offset for b in segment.batches()), 0)
    return [segment]


def segments_among(directory: str, names: list[str]) -> list[SegmentFiles]:
    """The segments that these names of a partition directory are, in order."""
    logs = sorted(n for n in names if (m := _NAME.fullmatch(n)) and m[2] == "log")
    return [SegmentFiles(os.path.join(directory, n), int(n[:20])) for n in logs]


def last_gap(directory: str) -> int:
    """The base of the last segment that does not begin where the one before it ends, or 0.

    Kafka's cleaner leaves such gaps: it drops the last batch of a segment like any other.
    """
    segments = list_segments(directory) if _names(directory, "log") else []
    gaps = [b.base_offset for a, b in pairwise(segments) if not a.ends_at(b.base_offset)]
    return max(gaps, default=0)


def list_snapshots(directory: str) -> list[str]:
    """Names of the producer snapshots, oldest first."""
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
    """(offset, position) of each entry; none if there is no file."""
    return [(base_offset + offset, at) for offset, at in _entries(path, _OFFSET_ENTRY)]


def read_time_index(path: str, base_offset: int) -> list[tuple[int, int]]:
    """(timestamp in ms, offset) of each entry; none if there is no file."""
    return [(time, base_offset + offset) for time, offset in _entries(path, _TIME_ENTRY)]


def read_txn_index(path: str) -> list[AbortedEntry]:
    """The aborted transactions whose markers lie in the segment; none if there is no file.

    Raises:
        CorruptRecord: an entry of a later version than 0.
    """
    data = _read(path)
    found: list[AbortedEntry] = []
    for version, *entry in _ABORTED_ENTRY.iter_unpack(data[: len(data) - len(data) % 34]):
        if version > 0:
            raise CorruptRecord(f"{path}: entry {len(found)} has version {version}, 0 is known")
        found.append(AbortedEntry(*entry))
    return found


def read_snapshot(path: str) -> list[ProducerEntry]:
    """The producers in a snapshot.

    Raises:
        CorruptRecord: version, checksum or length do not fit.
        FileNotFoundError: there is no such file.
    """
    data = files.read_file(path)
    if len(data) < _SNAPSHOT_HEADER.size:
        raise CorruptRecord(f"{path}: {len(data)} bytes, a snapshot has at least 10")
    version, stored, count = _SNAPSHOT_HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptRecord(f"{path}: snapshot version {version}, 1 is known")
    crc = _core.crc32c(memoryview(data)[_CRC_END:])
    if crc != stored:
        raise CorruptRecord(f"{path}: CRC-32C {crc:08x} of the bytes differs from {stored:08x}")
    body = data[_SNAPSHOT_HEADER.size :]
    if count < 0 or count * _PRODUCER_ENTRY.size != len(body):
        raise CorruptRecord(f"{path}: {count} entries of 46 bytes do not fill {len(body)} bytes")
    return [
        ProducerEntry._make((*entry[:7], None if entry[7] < 0 else entry[7]))
        for entry in _PRODUCER_ENTRY.iter_unpack(body)
    ]


def open_before(segments: list[SegmentFiles]) -> dict[int, int]:
    """Transactions open where the first segment starts, from the snapshot there: {id: offset}."""
    first = segments[0]
    try:
        entries = read_snapshot(first.beside("snapshot"))
    except (FileNotFoundError, CorruptRecord):
        return {}
    return {
        e.producer_id: e.current_txn_first_offset
        for e in entries
        if e.current_txn_first_offset is not None
    }


def feed_transactions(fold: _core.TransactionFold, segments: list[SegmentFiles]) -> None:
    """Fold the segments, in order, from their batches alone.

    Raises:
        CorruptRecord: at a header that makes no sense, or where the batches of a segment end before
            it does and more segments follow; the fold stands there. The message names the file.
    """
    for segment in segments:
        for window in segment.windows(0, _FOLDED_AT_ONCE, last=segment is segments[-1]):
            try:
                fold.feed(window.data, base_position=window.position)
            except CorruptRecord as error:
                raise error.located(segment.path) from error
