"""The segment files of one partition: names, reading through a mapping, index lookups.

    NNNNNNNNNNNNNNNNNNNN.log .index .timeindex .txnindex     N = base offset, 20 digits
    NNNNNNNNNNNNNNNNNNNN.snapshot .seal                      N = end offset of what they summarize

A sealed segment is one read-only memmap. The active one is a memmap up to the published end at the
time of mapping. Later bytes are read with pread, until there are `REMAP_SIZE` of them and a new
memmap replaces the old one. Unpublished bytes are never mapped. A live view keeps its mapping.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

import numpy as np

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.shown_paths import get_logger
from eoslog.storage.fs import files
from eoslog.storage.fs.file_cache import ReadFile, admit

logger = get_logger("eoslog.storage")

LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, SEAL = (
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    ".seal",
)
DELETED, CLEANED, SWAP, PREPARED = ".deleted", ".cleaned", ".swap", ".next"
REMAP_SIZE = 4 << 20
TAIL_READ_SIZE = 256 << 10
LEAST_READ_SIZE = 16 << 10
TIMES_AT_ONCE = 1024  # entries of a time index
_INDEXED = struct.Struct(">ii")
_TIMED = 12  # bytes of a time index's entry: i64 time, i32 offset from the base
_ABORTED = struct.Struct(">hqqqq")
_BATCH_HEAD = struct.Struct(">qi")  # base offset, length of what follows
HEADER_SIZE = 61
"""Bytes of a batch before its records."""
_LONGEST_VERIFIED = 64 << 20
_SNAPSHOT_ENTRY = np.dtype([("producer_id", ">i8"), ("rest", "V38")])


_OF_A_PARTITION = re.compile(
    r"\d{20}\.(log|index|timeindex|txnindex|snapshot|seal)"
    r"(\.deleted|\.cleaned|\.swap|(\.[0-9a-f]+)?\.tmp|\.cut-\d+(\.tmp)?)?"
    r"|\d+-\d+\.(log|index|timeindex)\.next"
    r"|(leader-epoch-checkpoint|partition\.metadata)(\.tmp)?"
)


def is_of_a_partition(name: str) -> bool:
    """Whether eoslog or Kafka gives this name to a file in a partition's directory.

    All other files belong to other programs and are left alone.
    """
    return _OF_A_PARTITION.fullmatch(name) is not None


def file_name(offset: int, suffix: str) -> str:
    """Return a file name, such as `00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


def file_path(directory: str, offset: int, suffix: str) -> str:
    """Return the path of a file in a partition's directory."""
    if directory and not directory.endswith("/"):
        directory += "/"
    return f"{directory}{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """Return the offset in a file's name, or None for another kind of file."""
    return next(iter(offsets_among((name,), suffix)), None)


def offsets_in(directory: str, suffix: str) -> list[int]:
    """Return the offsets of all files with a suffix, ascending."""
    return offsets_among(files.names(directory), suffix)


def offsets_among(names: Iterable[str], suffix: str) -> list[int]:
    """Return the offsets of those of the names that have a suffix, ascending."""
    return sorted([int(n[:20]) for n in names if n[20:] == suffix and n[:20].isdecimal()])


class PartitionNames(NamedTuple):
    """The names in a partition's directory, sorted by kind.

    Attributes:
        offsets: the offsets of segments, indexes, snapshots and seals, ascending, by suffix.
        others: all other names: unfinished files, checkpoints, files of other programs.
    """

    offsets: dict[str, list[int]]
    others: list[str]

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Sort ascending names in one pass: every opening of a partition does it."""
        offsets: dict[str, list[int]] = {
            LOG: [], INDEX: [], TIME_INDEX: [], TXN_INDEX: [], SNAPSHOT: [], SEAL: []
        }  # fmt: skip
        others = []
        for name in names:
            stem, suffix = name[:20], name[20:]
            if suffix in offsets and stem.isdecimal():
                offsets[suffix].append(int(stem))
            else:
                others.append(name)
        return cls(offsets, others)

    @classmethod
    def listed(cls, directory: str) -> Self:
        """List a directory."""
        return cls.of(files.names(directory))


class Segment:
    """One segment for readers, opened at its first use. Safe for concurrent readers."""

    def __init__(self, directory: str, base_offset: int) -> None:
        """Name the files, without opening them."""
        self.base_offset = base_offset
        self._stem = file_path(directory, base_offset, "")
        self.file: ReadFile | None = None
        self._index: bytes | None = None
        self._index_size = -1
        self._warned = False
        self._aborted: list[tuple[int, int, int]] = []
        self._aborted_size = 0
        self._times: bytes | None = None
        self.scanned: tuple[bytes, bytes, bytes, int, bool] | None = None
        self.identified = False
        self.end = -1  # byte after the last batch, if a private scan has found it

    def path(self, suffix: str = LOG) -> str:
        """Return the path of one of the segment's files."""
        return self._stem + suffix

    def opened(self) -> ReadFile:
        """Return the open log file; it stays open as long as the caller keeps the object."""
        file = self.file
        if file is None:
            file = self.file = ReadFile(self.path())
            admit(self)
        else:
            file.again = True
        return file

    def size(self) -> int:
        """Return the size of the log file, up to the end that a private scan found.

        Raises:
            FileNotFoundError: if the file was deleted.
        """
        return self._size(self.opened())

    def _size(self, file: ReadFile) -> int:
        with files.naming(self.path()):
            size = os.fstat(file.fd).st_size
        return size if self.end < 0 else min(size, self.end)

    def _whole(self, file: ReadFile, size: int) -> np.memmap | None:
        """Map the first `size` bytes; None if the file is shorter now, truncated by a repair.

        Maps the open file, not the path: after a swap another file may have the name.
        """
        with files.naming(self.path()), os.fdopen(os.dup(file.fd), "rb") as copy:
            try:
                return np.memmap(copy, dtype=np.uint8, mode="r", shape=(size,))
            except ValueError:
                return None

    def view(
        self, position: int, at_least: int, at_most: int, published: Callable[[], int | None]
    ) -> tuple[object, int, int]:
        """Return bytes from a position on: (buffer, index of the position in it, buffer size).

        Returns at least `at_least` bytes, unless the published bytes end before. If the file is not
        mapped, copies not many more than `at_most`. Bytes beyond `published` (None: no limit) are
        not read: if their writer is dead, the next one truncates them, even under a mapping.
        """
        file = self.opened()
        size = -1
        if position + max(at_least, 1) > file.mapped:
            end = published()
            size = self._size(file) if end is None else end
            if size - file.mapped >= REMAP_SIZE or (file.map is None and size >= REMAP_SIZE):
                found = self._whole(file, size)
                if found is not None:
                    file.map, file.mapped = found, size
        if position + max(at_least, 1) <= file.mapped and file.map is not None:
            return file.map, position, file.mapped
        if position >= size:
            return b"", 0, 0
        wanted = max(at_least, LEAST_READ_SIZE, min(at_most, TAIL_READ_SIZE))
        try:  # not `naming`: each fold of a few new records gets here
            data = _core.os_pread(file.fd, min(wanted, size - position), position)
        except OSError as error:
            raise files.storage_error(error, self.path()) from error
        return data, 0, len(data)

    def position_of(self, target: int, log_end: int) -> int:
        """Return a batch boundary at or before the batch that contains `target` or follows it.

        Index entries above the published end are not used: if their writer dies, there may be no
        batch at that position.
        """
        if target <= self.base_offset:
            return 0
        if self._index_size >= 0 or self._index is None:
            found = files.status(self.path(INDEX))
            if found is None:
                return 0
            if found.st_size != self._index_size:
                try:
                    data = files.read_file(self.path(INDEX))
                except FileNotFoundError:
                    return 0
                size = len(data) // _INDEXED.size * _INDEXED.size
                while size and self._last_offset(data, size) >= log_end:
                    size -= _INDEXED.size
                self._index, self._index_size = data[:size], size
        # Look up one offset before: an index entry has the last offset of a batch, and the caller
        # compares the base offset of the target's batch with the batch before it.
        position = int(_core.find_in_index(self._index, self.base_offset, target - 1))
        if not position or self._leads_to(position, target):
            return position
        # An index has no checksum. A scan from the first batch on finds every offset.
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: index names byte %d for offset %d, where no earlier batch begins; scanning "
                "the segment instead (`eoslog check --fix-indexes` writes the index again)",
                self.path(INDEX), position, target - 1,
            )  # fmt: skip
        return 0

    def _leads_to(self, position: int, target: int) -> bool:
        """Whether a valid batch that ends below an offset begins at a byte of the log."""
        if position < 0:
            return False
        file = self.opened()
        with files.naming(self.path()):
            head = _core.os_pread(file.fd, HEADER_SIZE, position)
            if len(head) < HEADER_SIZE:
                return False
            base, length = _BATCH_HEAD.unpack_from(head)
            if not self.base_offset <= base < target or not 0 < length <= _LONGEST_VERIFIED:
                return False
            data = _core.os_pread(file.fd, length + _BATCH_HEAD.size, position)
        try:
            found = _core.iter_batches(data, strict=False, limit=1)
        except CorruptRecord:
            return False
        return bool(found) and found[0].valid and found[0].last_offset < target

    def _last_offset(self, index: bytes, size: int) -> int:
        """Return the last offset in the index entry before byte `size`."""
        return int(self.base_offset + _INDEXED.unpack_from(index, size - _INDEXED.size)[0])

    def use_index(
        self, index: bytes, times: bytes, aborted: bytes, end: int, unfinished: bool
    ) -> None:
        """Use indexes made by a private scan instead of the files.

        Args:
            index: content of the offset index.
            times: content of the time index.
            aborted: content of the abort index.
            end: offset at which the scan ended.
            unfinished: whether a transaction was open at that offset.
        """
        self._index, self._index_size = index, -1
        self.scanned = index, times, aborted, end, unfinished
        self._times = times
        self._aborted = [(p, f, last) for _, p, f, last, _ in _ABORTED.iter_unpack(aborted)]
        self._aborted_size = -1

    def time_bounds(self, timestamp_ms: int) -> tuple[int, int]:
        """Return (largest timestamp in the time index or -1, offset to search from for a time).

        Only for the active segment: its time index is from recovery and this session's writers.
        """
        if self._times is not None:
            times = self._times
            largest = int.from_bytes(times[-_TIMED:][:8] or b"\xff", "big", signed=True)
            return largest, int(_core.find_in_time_index(times, self.base_offset, timestamp_ms))
        path = self.path(TIME_INDEX)
        try:
            fd = files.open_file(path, read_only=True)
        except FileNotFoundError:
            return -1, self.base_offset

        def entries(first: int, behind: int) -> bytearray:
            return _core.os_pread(fd, (behind - first) * _TIMED, first * _TIMED)

        def time_of(number: int) -> int:  # -1: entry of a dead writer, truncated in the meantime
            return int.from_bytes(entries(number, number + 1)[:8] or b"\xff", "big", signed=True)

        try:
            with files.naming(path):
                low, high = 0, os.fstat(fd).st_size // _TIMED
                largest = time_of(high - 1) if high else -1
                while high - low > TIMES_AT_ONCE:
                    middle = (low + high) // 2
                    if time_of(middle) <= timestamp_ms:
                        low = middle
                    else:
                        high = middle
                found = entries(low, high)
        finally:
            os.close(fd)
        return largest, int(_core.find_in_time_index(found, self.base_offset, timestamp_ms))

    def aborted(self, log_end: int) -> list[tuple[int, int, int]]:
        """Return (producer id, first, marker offset) of aborted transactions with markers here.

        Only for the active segment: its abort index is from recovery and this session's writers.
        Entries above the published end are left out.
        """
        if self._aborted_size < 0:
            return self._aborted
        found = files.status(self.path(TXN_INDEX))
        if found is None:
            return []
        if found.st_size != self._aborted_size:
            try:
                data = files.read_file(self.path(TXN_INDEX))
            except FileNotFoundError:
                return []  # removed by a swap: the caller compares versions afterwards
            entries = _ABORTED.iter_unpack(data[: len(data) // _ABORTED.size * _ABORTED.size])
            self._aborted = [(p, f, last) for _, p, f, last, _ in entries if last < log_end]
            self._aborted_size = len(self._aborted) * _ABORTED.size
        return self._aborted

    def close(self) -> None:
        """Close the file. A mapping stays until its last view is dropped."""
        file, self.file = self.file, None
        if file is not None:
            file.close()


def read_snapshot(path: str) -> bytes | None:
    """Return the 46-byte entries of a snapshot file, or None if it is not valid."""
    return snapshot_entries(files.read_file(path))


def snapshot_entries(data: bytes) -> bytes | None:
    """Return the 46-byte entries of a snapshot's content, or None if it is not valid."""
    if len(data) < 10:
        return None
    version, crc, count = struct.unpack_from(">hIi", data)
    if version != 1 or crc != _core.crc32c(data[6:]) or len(data) != 10 + 46 * count:
        return None
    if count > 1:
        ids = np.frombuffer(data[10:], _SNAPSHOT_ENTRY)["producer_id"]
        if len(np.unique(ids)) != count:
            return None
    return data[10:]
