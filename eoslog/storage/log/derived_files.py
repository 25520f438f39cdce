"""The verified derived files of a partition's sealed segments, each verified at its first use."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from functools import partial
from itertools import accumulate
from weakref import ref

from eoslog.errors import EoslogError, StorageError
from eoslog.storage.directory.cleaner_lock import CleanerLock
from eoslog.storage.log.context import LogContext
from eoslog.storage.log.segment_list import SegmentList
from eoslog.storage.segment import seals
from eoslog.storage.segment.derived import Aborted, Derived, Remade, remake
from eoslog.storage.segment.segment import Segment


class DerivedFiles:
    """The derived files of the sealed segments of a list. Thread-safe.

    Invariant: cached results are used only while the list has the same `Segment` object, because
    after a swap another segment may have the name.
    """

    def __init__(self, context: LogContext, segments: SegmentList) -> None:
        """Begin with an empty cache."""
        self._context = context
        self._core = context.core
        self._path = context.path
        self._topic_id = context.topic_id
        self._segments = segments
        self._known: dict[int, tuple[ref[Segment], Derived]] = {}
        self._bases: list[int] = []  # of the listing that `_known` was last compared with
        self._largest: tuple[list[int], list[int]] = ([], [])

    def of(self, base: int) -> Derived:
        """Return the verified derived files of a sealed segment.

        Raises:
            FileNotFoundError: if the segment was deleted after the listing.
        """
        end, bases = self._end_of(base)
        segment = self._segments.segment(base)
        made_for, found = self._known.get(base, (None, None))
        if found is None or found.end != end or made_for is None or made_for() is not segment:
            found = Derived(
                self._path, self._topic_id, base, end, partial(self._remade, bases, base, end),
                scanned=segment.scanned is not None,
            )  # fmt: skip
            self._known[base] = ref(segment), found
        return found

    def _remade(self, bases: list[int], base: int, end: int) -> Remade:
        scanned = self._segments.segment(base).scanned
        if scanned is not None:
            made = Remade(*scanned[:3], None, 0, *scanned[3:])
        else:
            made = remake(self._path, bases, base, self._context.new_fold)
        if made.fault is None and made.offset < end > self._context.cleaned_by_a_broker():
            return made._replace(gap=True)
        return made

    def _end_of(self, base: int, *, wait: bool = True) -> tuple[int, list[int]]:
        bases = self._segments.bases(wait=wait)
        if bases is not self._bases:
            self._bases = bases
            for gone in set(self._known) - set(bases):
                self._known.pop(gone, None)
        at = bisect_right(bases, base)
        return (bases[at] if at < len(bases) else self._core.active_base), bases

    def remade(self) -> list[Derived]:
        """Return those of segments that this process had to scan: a file is missing or wrong."""
        return [
            found
            for base, (made_for, found) in list(self._known.items())
            if found.remade and made_for() is self._segments.segment(base)
        ]

    def write_again(self, lock: CleanerLock) -> None:
        """Write the files that were missing or wrong, unless a cleaner works on the partition.

        Errors are ignored: the next process finds the same files missing or wrong.
        """
        if self.remade() and lock.try_take():
            try:
                if self._core.cleaned_version & 1:  # a cleaner died during a swap
                    return
                if self._core.deleted:  # the directory may belong to another topic now
                    return
                # A cleaner may have replaced the segments: list them again.
                self._segments.outdate()
                with contextlib.suppress(EoslogError, FileNotFoundError):
                    self._segments.bases()
                    for found in self.remade():
                        with contextlib.suppress(StorageError, FileNotFoundError):
                            found.write()
            finally:
                lock.release()

    def identify(self, segment: Segment, *, wait: bool) -> None:
        """Compare a sealed segment's log file with its seal, if it has one.

        Args:
            segment: a segment of the list.
            wait: wait for the end of a segment swap; see `SegmentList.listing`.

        Raises:
            CorruptRecord: if the file belongs to another segment.
        """
        base = segment.base_offset
        end, _ = self._end_of(base, wait=wait)
        seal = seals.read(self._path, end, self._topic_id, base)
        if seal is not None and seal.size:
            seals.identify(seal, segment.opened().fd, segment.path())

    def aborted(self, start: int, end: int, log_end: int) -> list[Aborted]:
        """Return the aborted transactions in [start, end) whose markers are below `log_end`.

        Raises:
            CorruptRecord: if an abort index and the log are both damaged.
            FileNotFoundError: if a segment was deleted after the listing.
        """
        bases = self._segments.bases()
        first = max(bisect_right(bases, start) - 1, 0)
        return [
            entry
            for base in bases[first:]
            for entry in self._aborted_in(base, log_end)
            if entry[2] >= start and entry[1] < end
        ]

    def _aborted_in(self, base: int, log_end: int) -> list[Aborted]:
        if self._segments.sealed(base):
            return self.of(base).aborted()
        return self._segments.segment(base).aborted(log_end)

    def largest_timestamp(self, base: int) -> int:
        """Return the greatest timestamp of a sealed segment (ms); -1: none, `ANY_TIME`: unknown."""
        return self.of(base).largest

    def rising(self, bases: list[int]) -> list[int]:
        """Return the greatest timestamp up to the end of each sealed segment."""
        listed, largest = self._largest
        if listed is not bases:
            sealed = (base for base in bases[:-1] if self._segments.sealed(base))
            largest = list(accumulate((self.of(base).largest for base in sealed), max))
            self._largest = bases, largest
        return largest
