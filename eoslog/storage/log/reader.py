"""Reading a partition below its published ends, in slices of complete batches and without a lock.

Bytes below the published end never change, and bytes above it are not read (protocol.md row 29). If
a segment is missing because retention has deleted it, the segments are listed again. If neither
retention nor compaction has removed it, the read raises CorruptRecord instead of skipping records.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from eoslog import _core
from eoslog.errors import (
    CorruptRecord,
    OffsetOutOfRange,
    StorageError,
)
from eoslog.storage.fs import files
from eoslog.storage.log.context import LogContext
from eoslog.storage.log.derived_files import DerivedFiles
from eoslog.storage.log.segment_list import SegmentList
from eoslog.storage.segment.segment import (
    HEADER_SIZE,
    LEAST_READ_SIZE,
    LOG,
    Segment,
    file_path,
)

FOLD_READ_SIZE = 1 << 20
_BATCH_START = struct.Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta
_LOG_OVERHEAD = 12
"""Bytes of a batch before those that its length counts."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Complete batches of one segment, in order.

    `data` is a view of the mapped or read bytes. `position` is its byte in the file `path`.
    """

    data: Any
    base_offset: int
    next_offset: int
    position: int
    segment_base: int
    directory: str

    @property
    def path(self) -> str:
        """The segment's file."""
        return file_path(self.directory, self.segment_base, LOG)


class LogReader:
    """Reads the batches of a partition. Thread-safe.

    Invariants:
        - a cursor maps the offset after a read to the position of the next batch, for one version
          of the list of segments
        - the version is the same before and after each read that returns data, so that a log and
          its indexes belong together (protocol.md row 28)
    """

    def __init__(self, context: LogContext, segments: SegmentList) -> None:
        """Read the segments of one list, opening them at their first use."""
        self.name = context.name
        self.path = context.path
        self._context = context
        self._core = context.core
        self._segments = segments
        self._cursors = segments.cursors
        self._refuse_outdated = context.session.refuse_outdated
        self.derived = DerivedFiles(context, segments)

    def _locate(self, offset: int, wait: bool) -> tuple[int, int, int]:
        """Find a batch boundary at or before `offset`: (segment base, position, least).

        No batch from there on begins below `least`. If one says so, its base offset is damaged.
        """
        cursor = self._cursors.get(offset)
        if cursor is not None and cursor[0] == self._core.published_segments_version:
            return *cursor[1:], offset
        bases = self._segments.bases(wait=wait)
        base = bases[max(bisect_right(bases, offset) - 1, 0)]
        return base, self._segments.segment(base).position_of(offset, self._core.log_end), base

    def read(
        self, start: int, end: int, max_bytes: int = 1 << 20, *, wait: bool = True
    ) -> list[Slice]:
        """Read complete batches that cover [start, end), or its beginning.

        Args:
            start: first offset; the first batch may begin below it.
            end: end offset, exclusive and at most the log end; nothing from there on is read.
            max_bytes: size after which to stop; at least one batch is returned.
            wait: wait for the end of a segment swap; see `SegmentList.listing`.

        Raises:
            OffsetOutOfRange: if start is below the log start or above the log end.
            CorruptRecord: if a published batch or segment is missing or damaged.
            UnknownTopicOrPartition: if the topic was deleted.
        """
        if start < self._core.log_start or start > self._core.log_end:
            raise OffsetOutOfRange(
                f"{self.name}: offset {start} is out of range, the log has "
                f"[{self._core.log_start}, {self._core.log_end}); seek to an offset in that range"
            )
        end = min(end, self._core.log_end)
        out: list[Slice] = []
        missing = 0
        while True:
            version = self._core.published_segments_version
            out.clear()
            error: Exception | None = None
            try:
                self._read_into(out, start, end, max_bytes, version, wait)
            except (FileNotFoundError, StorageError, CorruptRecord) as failure:
                error = failure
            self._refuse_outdated()
            if self._core.deleted:  # the bytes may be those of a new topic with the same name
                raise self._context.topic_deleted() from error
            if self._unchanged(version):
                if error is None:
                    return out
                if not isinstance(error, FileNotFoundError):
                    if out:
                        return out  # intact batches first; the next read raises the error
                    raise error
                missing += 1
            self._segments.outdate()
            if start >= self._core.log_start and missing == 3:  # a link to a missing file
                raise CorruptRecord(
                    f"{self.name}: a segment file is listed and cannot be opened ({error}); put it "
                    "back, or run `eoslog repair`",
                    path=self.path,
                ) from error
            if start < self._core.log_start:
                raise OffsetOutOfRange(
                    f"{self.name}: offset {start} was deleted, the log starts at "
                    f"{self._core.log_start}; seek to that offset or a later one"
                ) from error

    def _unchanged(self, version: int) -> bool:
        """Whether no segment was swapped or removed since this version."""
        return self._core.published_segments_version == version

    def _read_into(
        self, out: list[Slice], start: int, end: int, left: int, version: int, wait: bool
    ) -> None:
        if start >= end:
            return
        segments = self._segments
        base, position, least = self._locate(start, wait)
        need = 0
        if base > start:
            base, position = self._following(-1, start, end, wait), 0
            least = base
        while start < end and (left > 0 or not out):
            segment = segments.segment(base)
            if not segment.identified and segments.sealed(base):
                self.derived.identify(segment, wait=wait)
                segment.identified = True
            buffer, at, size = segment.view(
                position, need, left, partial(self._published_end, base)
            )
            try:
                first, stop, base_offset, next_offset, needed = (
                    _core.walk_batches(buffer, at, start, end, left, least)
                    if size
                    else (at, at, -1, -1, 0)
                )
            except CorruptRecord as error:
                raise error.located(segment.path(), position - at, self.name) from error
            least = max(least, next_offset)
            if base_offset >= 0:
                found = position + first - at
                position = found + stop - first
                # With a base offset that is too high, a batch may seem to end at the log end.
                ends = next_offset < end or position == self._published_end(base)
                if not ends or end < self._core.log_end or size - stop < HEADER_SIZE:
                    self._check_beyond(base, position, next_offset, end)
                data = _sub(buffer, first, stop)
                out.append(Slice(data, base_offset, next_offset, found, base, self.path))
                left -= stop - first
                start = next_offset
                need = 0
                if len(self._cursors) > 64:
                    self._cursors.clear()
                self._cursors[next_offset] = (version, base, position)
                continue
            position += first - at
            published = self._published_size(base, segment)
            if needed and position + needed <= published:
                if need >= needed and first == at:
                    raise CorruptRecord(
                        f"{self.name}: segment file is shorter than its {published} published "
                        "bytes; run `eoslog repair`",
                        path=segment.path(),
                        position=position,
                    )
                need = needed
                continue
            if size and position < published:
                if needed:  # no CRC covers the length
                    raise CorruptRecord(
                        f"{self.name}: the header says {needed} bytes, but only "
                        f"{published - position} are published; run `eoslog repair`",
                        path=segment.path(),
                        position=position,
                    )
                self._check_beyond(base, position, max(least, next_offset), end)
                need = 0  # the buffer ended between batches
                if first == at:
                    return
                continue
            base, position, need = self._following(base, start, end, wait), 0, 0
            if base < 0:
                return
            least = base

    def _following(self, base: int, start: int, end: int, wait: bool) -> int:
        """Return the next segment after this one, whose records end at `start`; -1 if there is
        none.

        Raises:
            CorruptRecord: if a segment before `end` is missing.
        """
        later = [b for b in self._segments.bases(wait=wait) if b > base]
        if not later or later[0] > start:
            self._segments.outdate()  # a listing may miss a file that is created during it
            later = [b for b in self._segments.bases(wait=wait) if b > base]
        following = later[0] if later else end
        if (later and following <= start) or following <= self._context.cleaned_by_a_broker():
            return following if later else -1
        raise CorruptRecord(
            f"{self.name}: offsets {start} to {following - 1} are missing from {self.path}: a "
            "segment file is missing or truncated, and retention or compaction did not remove it; "
            "run `eoslog repair`"
        )

    def _published_end(self, base: int) -> int | None:
        """Return the published bytes of a segment; None for all, if it is sealed."""
        while True:
            active, end = self._core.active_base, self._core.end_position
            if active == self._core.active_base:
                return end if base == active else None if base < active else 0

    def _published_size(self, base: int, segment: Segment) -> int:
        end = self._published_end(base)
        return segment.size() if end is None else end

    def _check_reach(self, base: int, next_offset: int, position: int) -> None:
        """Raise CorruptRecord if batches reach into the next segment, or beyond the log end.

        No CRC covers a base offset, and no later batch contradicts that of a segment's last batch.
        """
        bases = self._segments.listed.bases
        later = bisect_right(bases, base)
        end = bases[later] if later < len(bases) else self._core.log_end
        if next_offset > end:
            raise CorruptRecord(
                f"{self.name}: batches from this position end at offset {next_offset}, but the "
                f"next segment begins at {end}; run `eoslog repair`",
                path=self._segments.segment(base).path(),
                position=position,
            )

    def _check_beyond(self, base: int, position: int, expected: int, end: int) -> None:
        """Raise CorruptRecord if the batches after those of a read contradict it.

        A base offset that is too high shows in the next batch, which begins below its end. The read
        ended with a batch, or before one at or above `end`; neither was compared with the next one.

        Args:
            base: base of the segment.
            position: where the read ended.
            expected: end offset of the last batch before that position.
            end: the end offset of the read.
        """
        segment = self._segments.segment(base)
        for _ in range(2):
            if position + HEADER_SIZE > self._published_size(base, segment):
                break
            buffer, at, _ = segment.view(
                position, HEADER_SIZE, HEADER_SIZE, partial(self._published_end, base)
            )
            head = _sub(buffer, at, at + HEADER_SIZE)
            if len(head) < HEADER_SIZE:  # the file is cut: the next read reports it
                break
            found, length, magic, delta = _BATCH_START.unpack_from(head)
            if found < expected:
                raise CorruptRecord(
                    f"{self.name}: offsets go back: base offset {found}, expected {expected} or "
                    "more; run `eoslog repair`",
                    path=segment.path(),
                    position=position,
                )
            if found < end or length <= 0:
                return  # the next read begins with it
            expected = found + 1 + (delta if magic >= 2 else 0)
            position += length + _LOG_OVERHEAD
        self._check_reach(base, expected, position)

    def batches(self, start: int, end: int, read_size: int = FOLD_READ_SIZE) -> Iterator[Any]:
        """Yield every batch of [start, end) in order, including control batches (for folds).

        Args:
            start: first offset.
            end: end offset, exclusive.
            read_size: size of the first read in bytes; later reads are larger.

        Raises:
            CorruptRecord: if a batch does not match its CRC.
        """
        while start < end:
            parts = self.read(start, end, read_size)
            if not parts:
                return
            read_size = min(read_size * 4, FOLD_READ_SIZE)
            for part in parts:
                for batch in _core.iter_batches(part.data, base_position=part.position):
                    if batch.last_offset < start:
                        continue
                    if not batch.valid:
                        raise CorruptRecord(
                            f"{self.name}: batch at offset {batch.base_offset} does not match its "
                            "CRC; run `eoslog repair`",
                            path=part.path,
                            position=batch.position,
                        )
                    yield batch
                start = part.next_offset

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (producer id, first, marker offset) of aborted transactions in [start, end).

        Raises:
            CorruptRecord: if an index contradicts the log.
            UnknownTopicOrPartition: if the topic was deleted. Its indexes may be missing, so the
                caller must not treat batches that it has read as committed.
        """
        while True:
            version = self._core.published_segments_version
            log_end = self._core.log_end
            error: Exception | None = None
            try:
                found = self.derived.aborted(start, end, log_end)
            except (CorruptRecord, StorageError, FileNotFoundError) as failure:
                error = failure
            self._refuse_outdated()  # a cleaner may have removed entries of batches that were read
            if self._core.deleted:  # set before the first file is deleted
                raise self._context.topic_deleted() from error
            if self._unchanged(version):
                if isinstance(error, FileNotFoundError):
                    raise files.storage_error(error, error.filename or self.path) from error
                if error is not None:
                    raise error
                return found
            if isinstance(error, StorageError):
                raise error  # other errors: the index and the log were of different versions

    def offset_for_time(self, timestamp_ms: int, end: int) -> int | None:
        """Find the first offset below `end` whose timestamp (ms) is at or after a time.

        Raises:
            CorruptRecord: if a batch that must be read is damaged.
        """
        while True:
            version = self._core.published_segments_version
            try:
                with files.naming(self.path):
                    found = self._offset_for_time(timestamp_ms, end)
            except (CorruptRecord, StorageError) as error:
                if self._core.deleted:
                    raise self._context.topic_deleted() from error
                if self._unchanged(version):
                    raise
                continue
            if self._unchanged(version):
                return found

    def _offset_for_time(self, timestamp_ms: int, end: int) -> int | None:
        log_start, bases = self._core.log_start, self._segments.bases()
        if bases and log_start < min(bases[0], end):  # the first is missing: this read raises
            self.read(log_start, bases[0])
        for i in range(bisect_left(self.derived.rising(bases), timestamp_ms), len(bases)):
            base, stop = bases[i], bases[i + 1] if i + 1 < len(bases) else end
            if stop <= log_start:
                continue
            if self._segments.sealed(base):
                found = self.derived.of(base)
                if found.largest < timestamp_ms:
                    continue
                start = int(_core.find_in_time_index(found.times(), base, timestamp_ms))
            else:
                _, start = self._segments.segment(base).time_bounds(timestamp_ms)
            for batch in self.batches(max(start, log_start), min(stop, end), LEAST_READ_SIZE):
                if batch.control or batch.max_timestamp < timestamp_ms:
                    continue
                for offset, timestamp, *_ in batch.records():
                    if timestamp >= timestamp_ms and log_start <= offset < end:
                        return int(offset)
        return None


def _sub(buffer: Any, first: int, stop: int) -> Any:
    if isinstance(buffer, (bytes, bytearray)):
        return memoryview(buffer)[first:stop]
    return buffer[first:stop]
