"""The segment that a compaction pass writes: a log file and its indexes, with suffix `.cleaned`.

After a crash, `replacement.finish_renames` removes incomplete files.
"""

from __future__ import annotations

import struct
from types import TracebackType

from eoslog import _core
from eoslog.storage.fs import files
from eoslog.storage.segment.segment import (
    CLEANED,
    INDEX,
    LOG,
    TIME_INDEX,
    TXN_INDEX,
    file_path,
)
from eoslog.storage.segment.segment_files import AbortedEntry

_WRITE_SIZE = 1 << 20


class CleanedSegment:
    """A segment that is being written. Append batches in the order of their offsets.

    Invariants: as in an append, a batch gets an index entry if more than the interval was written
    since the last entry, not counting the batch itself. The time index ends with the segment's
    largest timestamp.
    """

    def __init__(self, directory: str, base: int, index_interval: int) -> None:
        """Create `<base>.log.cleaned`."""
        self.base = base
        self.size = 0
        self.next_offset = base
        self._path = file_path(directory, base, "")
        self._interval = index_interval
        self._buffer = bytearray()
        self._written = 0
        self._index, self._times, self._aborted = bytearray(), bytearray(), bytearray()
        self._indexed_at = 0
        self._largest, self._largest_offset, self._last_time = -1, base, -1
        self._fd = files.open_file(self._path + LOG + CLEANED, create=True)
        with files.naming(self._path):
            _core.os_truncate(self._fd, 0)

    def append(self, data: bytes, last_offset: int, max_timestamp: int) -> None:
        """Add a complete batch; `max_timestamp` is -1 if it has no records left."""
        if max_timestamp > self._largest:
            self._largest, self._largest_offset = max_timestamp, last_offset
        if self.size - self._indexed_at > self._interval:
            self._index += struct.pack(">ii", last_offset - self.base, self.size)
            self._indexed_at = self.size
            self._note_time()
        self._buffer += data
        self.size += len(data)
        self.next_offset = last_offset + 1
        if len(self._buffer) >= _WRITE_SIZE:
            self._write()

    def abort(self, entry: AbortedEntry) -> None:
        """Add an entry to the abort index, in the order of the markers."""
        self._aborted += struct.pack(">hqqqq", 0, *entry)

    def _note_time(self) -> None:
        if self._largest > self._last_time:
            relative = self._largest_offset - self.base
            self._times += struct.pack(">qi", self._largest, relative)
            self._last_time = self._largest

    def _write(self) -> None:
        with files.naming(self._path + LOG + CLEANED):
            _core.os_pwrite(self._fd, bytes(self._buffer), self._written)
        self._written += len(self._buffer)
        self._buffer.clear()

    def finish(self) -> None:
        """Write the rest and the indexes. Durability: the files' contents are durable on return."""
        self._write()
        self._note_time()
        files.failpoint("clean.written")
        files.write_file(self._path + INDEX + CLEANED, bytes(self._index), durable=True)
        files.write_file(self._path + TIME_INDEX + CLEANED, bytes(self._times), durable=True)
        if self._aborted:
            files.write_file(self._path + TXN_INDEX + CLEANED, bytes(self._aborted), durable=True)
        with files.naming(self._path + LOG + CLEANED):
            _core.os_sync(self._fd, data_only=False)
        files.failpoint("clean.durable")

    def discard(self) -> None:
        """Remove the files."""
        for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
            files.remove(self._path + suffix + CLEANED)

    def __enter__(self) -> CleanedSegment:
        """Return the segment. The block's end closes it; an exception removes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        files.close(self._fd)
        self._fd = -1
        if kind is not None:
            self.discard()
