"""Reading a partition below its published ends: slices of whole batches, without a lock.

Bytes below the published end never change; nothing above it is looked at (protocol.md row 29). A
segment that retention takes away meanwhile is found missing, and the list is read again. One that
is missing though nobody took it away is an error: the records in it are not skipped.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from eoslog import _core
from eoslog.errors import (
    CorruptRecord,
    LockTimeout,
    OffsetOutOfRange,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.storage import abort_index
from eoslog.storage.segments import LEAST_READ_SIZE, LOG, Segment, file_name, offsets_in

FOLD_READ_SIZE = 1 << 20
_SWAP_TIMEOUT_S = 30.0


def _nobody_finishes() -> bool:
    """A reader can't: it takes no lock."""
    return False


def _current() -> None:
    """Until somebody knows better."""


def _nothing_cleaned() -> int:
    """Until somebody knows more."""
    return 0


class SwapUnderWay(Exception):
    """Segments are being swapped, and who asked for a list of them may not wait for its end."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole batches of one segment, in order.

    `data` is a view over the mapping or bytes read; `position` is its byte in the segment, whose
    file is `path`.
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
        return os.path.join(self.directory, file_name(self.segment_base, LOG))


class LogReader:
    """The segments of a partition as this process reads them; safe for concurrent use.

    Invariants:
        - `bases` is ascending, names every segment that is published at the call, and none that
          holds only unpublished bytes
        - a cursor maps the offset after a read to where the next batch begins, in one version
        - what is handed out was read between two equal versions of the list of segments: a log and
          its indexes belong together (protocol.md row 28)
    """

    finish_swap: Callable[[], bool]
    """Finish a swap whose process died; False while somebody is at it."""
    cleaned_to: Callable[[], int]
    """Below this offset a broker's cleaner may have left gaps between segments; ours has none."""

    refuse_outdated: Callable[[], None]
    """Raises where the files are not what was found when the ends were settled."""

    def __init__(self, name: str, path: str, core: _core.Partition) -> None:
        """Nothing is listed or opened yet."""
        self.name = name
        self.path = path
        self._core = core
        self._segments: dict[int, Segment] = {}
        self._bases: list[int] = []
        self._segments_version = -1
        self._cleaned_version = -1
        self._listed_active = -1  # the active segment before the listing: later ones may miss
        self._cursors: dict[int, tuple[int, int, int]] = {}
        self._latest_times: tuple[list[int], list[int]] = ([], [])
        self._listing = threading.RLock()
        # The thread that gets SwapUnderWay where others would wait for the end of a swap, or finish
        # it under the cleaner lock: it has a lock that comes after that one.
        self.impatient = 0
        self.finish_swap = _nobody_finishes
        self.cleaned_to = _nothing_cleaned
        self.refuse_outdated = _current

    def bases(self) -> list[int]:
        """Bases of the readable segments, listed anew when they changed.

        Rolls raise no version; who looks for what ends a transaction must not miss one.
        """
        with self._listing:
            version, active = self._core.published_segments_version, self._core.active_base
            rolled = active != self._listed_active or (
                self._bases[-1:] != [active] and active < self._core.log_end  # was empty
            )
            if version != self._segments_version or not self._bases or rolled:
                version, cleaned, listed = self.listing()
                end = self._core.log_end
                bases = [base for base in listed if base < end or base == 0]
                if version != self._segments_version:
                    self._cursors.clear()
                if cleaned != self._cleaned_version >= 0:
                    self._segments.clear()  # the same names are other files now
                for base in set(self._segments) - set(bases):
                    del self._segments[base]
                self._bases = bases or listed[:1]
                self._segments_version, self._cleaned_version = version, cleaned
                self._listed_active = active
            return self._bases

    def listing(self) -> tuple[int, int, list[int]]:
        """(segments version, cleaned version, bases of all segment files), none of it from the
        middle of a swap.

        Raises:
            LockTimeout: a swap is under way for half a minute.
            SwapUnderWay: it is, and this thread may not wait.
        """
        deadline = time.monotonic() + _SWAP_TIMEOUT_S
        while True:
            version, cleaned = self._versions()
            if not cleaned & 1:
                listed = offsets_in(self.path, LOG)
                if (version, cleaned) == self._versions():
                    return version, cleaned, listed
            elif self.impatient == threading.get_ident():
                raise SwapUnderWay(self.name)
            elif time.monotonic() > deadline:
                raise LockTimeout(f"{self.name}: a swap of segments was begun and not finished")
            elif not self.finish_swap():
                time.sleep(0.001)

    def _versions(self) -> tuple[int, int]:
        cleaned = self._core.cleaned_version
        return self._core.published_segments_version, cleaned

    @property
    def version(self) -> int:
        """The published version of the segment list that this one is of."""
        return self._segments_version

    def sealed(self, base: int) -> bool:
        """Whether nothing is appended to the segment any more."""
        return base < self._core.active_base

    @property
    def log_start(self) -> int:
        """The first offset that may be read."""
        return self._core.log_start

    def segment(self, base: int) -> Segment:
        """The segment with this base offset."""
        with self._listing:
            found = self._segments.get(base)
            if found is None:
                found = self._segments[base] = Segment(self.path, base)
            return found

    def _locate(self, offset: int) -> tuple[int, int, int]:
        """(segment base, position, least) of a batch boundary at or before `offset`.

        No batch from there on begins below `least`: one that says so has a damaged base offset.
        """
        cursor = self._cursors.get(offset)
        if cursor is not None and cursor[0] == self._core.published_segments_version:
            return *cursor[1:], offset
        bases = self.bases()
        base = bases[max(bisect_right(bases, offset) - 1, 0)]
        return base, self.segment(base).position_of(offset, self._core.log_end), base

    def read(self, start: int, end: int, max_bytes: int = 1 << 20) -> list[Slice]:
        """Whole batches that cover [start, end), or its beginning.

        Args:
            start: offset; the first batch may begin below it.
            end: exclusive, at most the log end; nothing at or past it is looked at.
            max_bytes: where to stop; at least one batch is given.

        Raises:
            OffsetOutOfRange: start lies below the log start or beyond the log end.
            CorruptRecord: no batch where one must be, or no segment.
            UnknownTopicOrPartition: the topic was deleted.
        """
        if start < self._core.log_start or start > self._core.log_end:
            raise OffsetOutOfRange(
                f"{self.name}: offset {start}, "
                f"the log has [{self._core.log_start}, {self._core.log_end})"
            )
        end = min(end, self._core.log_end)
        out: list[Slice] = []
        missing = 0
        while True:
            version = self._core.published_segments_version
            out.clear()
            error: Exception | None = None
            try:
                self._read_into(out, start, end, max_bytes, version)
            except (FileNotFoundError, StorageError, CorruptRecord) as failure:
                error = failure
            self.refuse_outdated()
            if self._core.deleted:  # what was read may be of another topic, made under the name
                raise UnknownTopicOrPartition(f"{self.name}: the topic was deleted") from error
            if self._unchanged(version):
                if error is None:
                    return out
                if not isinstance(error, FileNotFoundError):
                    if out:
                        return out  # what lies before comes first; the next read meets it again
                    raise error
                missing += 1
            self._segments_version = -1
            if start < self._core.log_start or missing == 3:
                raise OffsetOutOfRange(
                    f"{self.name}: offset {start} was deleted, "
                    f"the log starts at {self._core.log_start}"
                ) from error

    def _unchanged(self, version: int) -> bool:
        """Whether no segment was swapped or removed since the list had this version."""
        return self._core.published_segments_version == version

    def _read_into(self, out: list[Slice], start: int, end: int, left: int, version: int) -> None:
        base, position, least = self._locate(start)
        need = 0
        if base > start and start < end:
            base, position = self._behind(-1, start, end), 0
            least = base
        while start < end and (left > 0 or not out):
            segment = self.segment(base)
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
                self._check_reach(base, next_offset, found)
                data = _sub(buffer, first, stop)
                out.append(Slice(data, base_offset, next_offset, found, base, self.path))
                left -= stop - first
                position = found + stop - first
                start = next_offset
                need = 0
                if len(self._cursors) > 64:
                    self._cursors.clear()
                self._cursors[next_offset] = (version, base, position)
                continue
            position += first - at
            published = self._published_size(base, segment)
            if needed and position + needed <= published:
                need = needed
                continue
            if size and position < published:
                self._check_header(buffer, first, base, position, needed)
                need = 0  # the buffer ended between batches
                if first == at:
                    return
                continue
            base, position, need = self._behind(base, start, end), 0, 0
            if base < 0:
                return
            least = base

    def _behind(self, base: int, start: int, end: int) -> int:
        """The segment behind this one, whose records end at `start`, below `end`; -1 for none.

        Raises:
            CorruptRecord: it is missing.
        """
        later = [b for b in self.bases() if b > base]
        if not later or later[0] > start:
            self._segments_version = -1  # a list may miss a file that was made while it was read
            later = [b for b in self.bases() if b > base]
        following = later[0] if later else end
        if (later and following <= start) or following <= self.cleaned_to():
            return following if later else -1
        raise CorruptRecord(
            f"{self.name}: offsets {start} to {following - 1} are missing from {self.path}: the "
            "segment is not there, or cut short, and no retention or compaction took it; see "
            "`eoslog repair`"
        )

    def _published_end(self, base: int) -> int | None:
        """Bytes of a segment that are published; None for all, as of a sealed one."""
        while True:
            active, end = self._core.active_base, self._core.end_position
            if active == self._core.active_base:
                return end if base == active else None if base < active else 0

    def _published_size(self, base: int, segment: Segment) -> int:
        end = self._published_end(base)
        return segment.size() if end is None else end

    def _check_header(self, buffer: Any, at: int, base: int, position: int, needed: int) -> None:
        """A published batch that can't be taken: its length and base offset are under no CRC."""
        offset = int.from_bytes(bytes(buffer[at : at + 8]), "big", signed=True)
        if needed or offset >= self._core.log_end:
            raise CorruptRecord(
                f"{self.name}: batch of base offset {offset} and {needed or 'enough'} bytes, the "
                f"log ends at offset {self._core.log_end}",
                path=self.segment(base).path(),
                position=position,
            )

    def _check_reach(self, base: int, next_offset: int, position: int) -> None:
        """Batches end before the next segment begins, and with the log: a base offset is under no
        CRC, and after the last batch of a segment nothing in there contradicts it.
        """
        bases = self._bases
        later = bisect_right(bases, base)
        end = bases[later] if later < len(bases) else self._core.log_end
        if next_offset > end:
            raise CorruptRecord(
                f"{self.name}: the batches from here on reach to offset {next_offset - 1}, what "
                f"follows their segment begins at {end}",
                path=self.segment(base).path(),
                position=position,
            )

    def batches(self, start: int, end: int, read_size: int = FOLD_READ_SIZE) -> Iterator[Any]:
        """Every batch of [start, end), control batches too, in order (for folds).

        Args:
            start: offset.
            end: exclusive.
            read_size: bytes to begin with, for who may find what it looks for in the first batches.

        Raises:
            CorruptRecord: a batch does not match its CRC: no state is made of damaged records.
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
                            f"{self.name}: the batch at offset {batch.base_offset} does not match "
                            "its CRC",
                            path=part.path,
                            position=batch.position,
                        )
                    yield batch
                start = part.next_offset

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """(producer id, first, marker offset) of aborted transactions that touch [start, end).

        Raises:
            CorruptRecord: an index says what the log does not.
            UnknownTopicOrPartition: the topic was deleted. Its indexes may be gone, so whoever has
                read its batches already must not take them for committed.
        """
        while True:
            version = self._core.published_segments_version
            log_end = self._core.log_end
            error: Exception | None = None
            try:
                bases = self.bases()
                below = [base for base in bases if base <= start]
                first = below[-1] if below else 0
                found = [
                    entry
                    for base in bases
                    if base >= first
                    for entry in abort_index.entries_of(self, base, log_end)
                    if entry[2] >= start and entry[1] < end
                ]
            except (CorruptRecord, StorageError) as failure:
                error = failure
            self.refuse_outdated()  # its cleaner may have taken entries of what was read
            if self._core.deleted:  # it says so before the first file goes
                raise UnknownTopicOrPartition(f"{self.name}: the topic was deleted") from error
            if self._unchanged(version):
                if error is not None:
                    raise error
                return found
            if error is not None and not isinstance(error, CorruptRecord):
                raise error  # else the index of one version, the log of another

    def offset_for_time(self, timestamp_ms: int, end: int) -> int | None:
        """The first offset below `end` whose timestamp is at or after a time, in ms."""
        log_start = self._core.log_start
        bases = self.bases()
        for i in range(bisect_left(self._latest(bases), timestamp_ms), len(bases)):
            stop = bases[i + 1] if i + 1 < len(bases) else end
            if stop <= log_start:
                continue
            largest, search_from = self.segment(bases[i]).time_bounds(timestamp_ms)
            if i + 1 < len(bases) and 0 <= largest < timestamp_ms:
                continue
            start = max(search_from, log_start)
            for batch in self.batches(start, min(stop, end), LEAST_READ_SIZE):
                if batch.control or batch.max_timestamp < timestamp_ms:
                    continue
                for offset, timestamp, *_ in batch.records():
                    if timestamp >= timestamp_ms and log_start <= offset < end:
                        return int(offset)
        return None

    def _latest(self, bases: list[int]) -> list[int]:
        """For each sealed segment the largest timestamp up to its end, found once a listing.

        The last entry of a sealed segment's time index was written before the next segment's name.
        """
        listed, latest = self._latest_times
        if listed is not bases:
            latest = list(
                accumulate((self.segment(base).latest_time() for base in bases[:-1]), max)
            )
            self._latest_times = bases, latest
        return latest

    def sizes(self) -> dict[int, int]:
        """Bytes in the log file of each readable segment.

        Raises:
            UnknownTopicOrPartition: the topic was deleted, and its files are gone.
        """
        while True:
            try:
                return {base: self.segment(base).size() for base in self.bases()}
            except FileNotFoundError as error:
                if self._core.deleted:
                    raise UnknownTopicOrPartition(f"{self.name}: the topic was deleted") from error
                self._segments_version = -1  # it went since the list was made

    def size(self) -> int:
        """Bytes in all log files; raises as `sizes`."""
        return sum(self.sizes().values())

    def forget_all(self) -> None:
        """Segments were swapped: list and open them again; views that were handed out live on."""
        with self._listing:
            self._segments_version = -1

    def begin_anew(self) -> None:
        """Nothing that was listed or opened counts any more."""
        with self._listing:
            self._segments.clear()
            self._segments_version = -1

    def forget(self, base: int) -> None:
        """A segment's files are gone; views that were handed out live on."""
        with self._listing:
            self._segments.pop(base, None)  # who reads it closes it
            self._segments_version = -1

    def close(self) -> None:
        """Close descriptors; mappings go with their last view."""
        for segment in list(self._segments.values()):  # threads may be opening more
            segment.close()


def _sub(buffer: Any, first: int, stop: int) -> Any:
    if isinstance(buffer, (bytes, bytearray)):
        return memoryview(buffer)[first:stop]
    return buffer[first:stop]
