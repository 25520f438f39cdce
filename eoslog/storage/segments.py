"""The segment files of one partition: names, reading through a mapping, index look-ups.

    NNNNNNNNNNNNNNNNNNNN.log .index .timeindex .txnindex .snapshot     N = base offset, 20 digits

A sealed segment is one read-only memmap. The active one is a memmap up to the published end seen
then; what was appended since is read with pread until it is `REMAP_SIZE`, then a new memmap
replaces it. Nothing is mapped that is not published. A live view keeps its mapping.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from eoslog import _core
from eoslog.errors import CorruptRecord, StorageError
from eoslog.storage import files
from eoslog.storage.read_files import ReadFile, admit

LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = (
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
)
DELETED, CLEANED, SWAP, PREPARED = ".deleted", ".cleaned", ".swap", ".next"
REMAP_SIZE = 4 << 20
TAIL_READ_SIZE = 256 << 10
LEAST_READ_SIZE = 16 << 10
TIMES_AT_ONCE = 1024  # entries of a time index
_INDEXED = struct.Struct(">ii")
_TIMED = 12  # bytes of a time index's entry: i64 time, i32 offset from the base
_ABORTED = struct.Struct(">hqqqq")
_SNAPSHOT_ENTRY = np.dtype([("producer_id", ">i8"), ("rest", "V38")])


def file_name(offset: int, suffix: str) -> str:
    """`00000000000000000042.log`, say."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name, or None for another kind of file."""
    return next(iter(offsets_among((name,), suffix)), None)


def offsets_in(directory: str, suffix: str) -> list[int]:
    """The offsets of all files of a kind, ascending."""
    return offsets_among(files.names(directory), suffix)


def offsets_among(names: Iterable[str], suffix: str) -> list[int]:
    """The same for names that are listed already."""
    stems = [name[:20] for name in names if name[20:] == suffix]
    return sorted([int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal()])


class Doubt(NamedTuple):
    """An aborted transaction of a producer of which a segment alone can't say where it begins.

    With `confirmed` the snapshot at the segment's base says that it was open there, and no batch
    of that producer's may lie in [low, high); without, no end of a transaction of its.
    """

    producer_id: int
    first_offset: int
    low: int
    high: int
    confirmed: bool


class Segment:
    """One segment as readers see it. Opened at first touch; safe for concurrent readers."""

    def __init__(self, directory: str, base_offset: int) -> None:
        """Name the files; nothing is opened."""
        self.base_offset = base_offset
        self._stem = os.path.join(directory, file_name(base_offset, ""))
        self.file: ReadFile | None = None
        self._index: bytes | None = None
        self._index_size = -1
        self._aborted: list[tuple[int, int, int]] = []
        self._aborted_size = 0
        self._judged = False
        self._latest_time: int | None = None
        self._times: bytes | None = None

    def path(self, suffix: str = LOG) -> str:
        """Path of one of the segment's files."""
        return self._stem + suffix

    def _open(self) -> ReadFile:
        """Its log file, for as long as the caller keeps it; it may be let go meanwhile."""
        file = self.file
        if file is None:
            file = self.file = ReadFile(self.path())
            admit(self)
        else:
            file.again = True
        return file

    def size(self) -> int:
        """Bytes in the log file now. Raises FileNotFoundError when retention took it."""
        return self._size(self._open())

    def _size(self, file: ReadFile) -> int:
        with files.naming(self.path()):
            return os.fstat(file.fd).st_size

    def _whole(self, file: ReadFile, size: int) -> np.memmap | None:
        """A mapping of the first `size` bytes; None when it was cut meanwhile (a dead writer's).

        Of the very file that is open: after a swap another one may have its name.
        """
        with files.naming(self.path()), os.fdopen(os.dup(file.fd), "rb") as copy:
            try:
                return np.memmap(copy, dtype=np.uint8, mode="r", shape=(size,))
            except ValueError:
                return None

    def view(
        self, position: int, at_least: int, at_most: int, published: Callable[[], int | None]
    ) -> tuple[object, int, int]:
        """Bytes from a position on: (buffer, where in it the position is, size of the buffer).

        At least `at_least` bytes unless what is published ends before; not many more than `at_most`
        are copied where the file is not mapped. What is not `published` (None: all is) is not
        looked at: its writer may be dead, and the next one cuts it off under a mapping.
        """
        file = self._open()
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
        with files.naming(self.path()):
            data = _core.os_pread(file.fd, min(wanted, size - position), position)
        return data, 0, len(data)

    def position_of(self, target: int, log_end: int) -> int:
        """A batch boundary at or before the first batch that holds `target` or what follows it.

        Entries above the published end belong to an append that is not published: left out, for
        its writer may die, and no batch begin there then.
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
        # One offset before: the index names where a batch ends, and the batch that begins at the
        # target is to be seen by whoever compares its base offset with what lies before it.
        return int(_core.find_in_index(self._index, self.base_offset, target - 1))

    def _last_offset(self, index: bytes, size: int) -> int:
        """Of the batch that the entry before byte `size` of the index is for."""
        return int(self.base_offset + _INDEXED.unpack_from(index, size - _INDEXED.size)[0])

    def use_index(self, index: bytes, times: bytes, aborted: bytes) -> None:
        """Take indexes made by a private scan instead of the files (read-only, unclean)."""
        self._index, self._index_size = index, -1
        self._times = times
        self._aborted = [(p, f, last) for _, p, f, last, _ in _ABORTED.iter_unpack(aborted)]
        self._aborted_size = -1

    def latest_time(self) -> int:
        """The largest timestamp of a sealed segment as its time index says; the largest of all
        integers where that says nothing.
        """
        if self._latest_time is None:
            largest = self.time_bounds(0)[0]
            self._latest_time = largest if largest >= 0 else (1 << 63) - 1
        return self._latest_time

    def time_bounds(self, timestamp_ms: int) -> tuple[int, int]:
        """(largest timestamp in the time index or -1, offset to search from for a time)."""
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

        def time_of(number: int) -> int:  # -1: a dead writer's, cut off meanwhile
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
        """(producer id, first, marker offset) of the aborted transactions that end in this segment.

        Entries above the published end belong to an append that is not published: left out.
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
                return []  # a swap took it: who asks compares versions
            entries = _ABORTED.iter_unpack(data[: len(data) // _ABORTED.size * _ABORTED.size])
            self._aborted = [(p, f, last) for _, p, f, last, _ in entries if last < log_end]
            self._aborted_size = len(self._aborted) * _ABORTED.size
        return self._aborted

    def judge_aborted(self, *, sealed: bool) -> list[Doubt]:
        """Compare a sealed segment's abort index with its batches, once.

        The format has no checksum there, and a wrong entry shows what was aborted, or hides what
        was not. A cleaning may have taken an aborted transaction's data, never its marker.

        Returns:
            What other segments are to be asked for; until `believe` it is judged again.

        Raises:
            CorruptRecord: they disagree.
        """
        if self._judged or self._aborted_size < 0 or not sealed:
            self._judged = True  # recovery made it, and this session's writers what was added
            return []
        try:
            index = files.read_file(self.path(TXN_INDEX))
            file = self._open()
        except FileNotFoundError:
            return []
        size = self._size(file)
        data = self._whole(file, size) if size else b""
        ends = _core.transaction_ends(data) if index and data is not None else None
        doubtful: list[Doubt] = []
        if ends is not None:
            wanted = {(p, last): (first, before) for p, first, before, last, abort in ends if abort}
            opened = self.open_at_base()
            index = index[: len(index) // _ABORTED.size * _ABORTED.size]
            for version, producer, first, last, _ in _ABORTED.iter_unpack(index):
                seen, before = wanted.pop((producer, last), (-2, -2))
                least, most = before + 1, seen if seen >= 0 else last
                if before < 0 and producer in opened:
                    if first != opened[producer]:  # a cleaning may have taken what lay between
                        low, high = sorted((first, opened[producer]))
                        doubtful.append(Doubt(producer, first, low, high, True))
                elif before < 0 and first < self.base_offset:
                    doubtful.append(Doubt(producer, first, first, self.base_offset, False))
                if version or seen == -2 or not least <= first <= most:
                    raise self._wrong(producer, first, last, "is not in the log")
            for (producer, last), (first, _) in wanted.items():
                if first >= 0:
                    raise self._wrong(producer, first, last, "has no entry")
        self._judged = not doubtful
        return doubtful

    def believe(self) -> None:
        """What its abort index says was found to be so."""
        self._judged = True

    def ends_from(self, offset: int) -> set[int]:
        """Producers that a transaction of ended in the segment, at an offset or behind it."""
        try:
            ends = _core.transaction_ends(files.read_file(self.path()))
        except FileNotFoundError:
            return set()
        return {producer for producer, _, _, last, _ in ends or () if last >= offset}

    def _wrong(self, producer: int, first: int, last: int, what: str) -> CorruptRecord:
        return CorruptRecord(
            f"{self.path(TXN_INDEX)}: the transaction of producer {producer} that was aborted at "
            f"[{first}, {last}] {what}; see `eoslog repair`"
        )

    def open_at_base(self) -> dict[int, int]:
        """The first offset by producer id of what was open here, if the snapshot tells."""
        try:
            entries = read_snapshot(self.path(SNAPSHOT))
        except FileNotFoundError:
            return {}
        rows = struct.iter_unpack(">qhiqiqiq", entries or b"")
        return {producer: first for producer, *_, first in rows if first >= 0}

    def close(self) -> None:
        """Close the file, whoever reads it; mappings go with their last view."""
        file, self.file = self.file, None
        if file is not None:
            file.close()


def write_snapshot(directory: str, offset: int, entries: bytes) -> None:
    """Write a producer snapshot (docs/format.md). A torn one is found by its CRC and deleted.

    Durability: the content is durable before the name is there: once retention has removed what
    lies before it, nothing else knows the producers that wrote only there (KAFKA-9892).
    """
    body = struct.pack(">i", len(entries) // 46) + entries
    content = struct.pack(">hI", 1, _core.crc32c(body)) + body
    name = os.path.join(directory, file_name(offset, SNAPSHOT))
    with contextlib.suppress(FileNotFoundError, StorageError):
        if files.read_file(name) == content:
            return  # it got its name only when it was durable
    # Another process may stand still in writing its own.
    temporary = f"{name}.{time.monotonic_ns():x}.tmp"
    try:
        files.write_file(temporary, content, durable=True)
        files.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(StorageError):
            files.remove(temporary)
        raise


def read_snapshot(path: str) -> bytes | None:
    """The 46-byte entries of a snapshot, or None when it is not valid."""
    data = files.read_file(path)
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
