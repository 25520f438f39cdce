"""The segments of a partition, as this process lists and opens them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from eoslog.errors import CorruptRecord, LockTimeout, StorageError
from eoslog.storage.directory.processes import lock_text
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.context import LogContext
from eoslog.storage.segment.segment import LOG, Segment, offsets_in

__all__ = ["Listing", "SegmentList", "SwapUnderWay"]

_OUTDATED = -1
"""Not a published version: the segments must be listed again."""


class SwapUnderWay(Exception):
    """Segments are being swapped, and the caller must not wait for the end of the swap."""


class Listing(NamedTuple):
    """A list of segments that no swap has changed while it was made. Immutable.

    Attributes:
        version: published version of the list of segments.
        cleaned: published number of their swaps.
        bases: base offsets of the segments, ascending.
        active: base of the active segment before the listing, which may miss later segments.
    """

    version: int
    cleaned: int
    bases: list[int]
    active: int = -1


def _cannot_finish() -> bool:
    """Report that a read-only reader cannot finish a swap: it takes no locks."""
    return False


class SegmentList:
    """The segments of a partition, as this process reads them. Thread-safe.

    Invariant: `bases` is ascending. It includes every segment that is published at the call, and no
    segment that has only unpublished bytes.

    Attributes:
        cursors: where the batch at an offset begins, as (version, base, position), from earlier
            reads. Always the same dictionary; emptied when the version changes.
    """

    def __init__(
        self, context: LogContext, finish_swap: Callable[[], bool] = _cannot_finish
    ) -> None:
        """Begin without a list and without open segments.

        Args:
            context: the partition's.
            finish_swap: finishes the swap of a dead process; returns False while the process lives.
        """
        self._core = context.core
        self._name = context.name
        self._path = context.path
        self._session, self._slot = context.session, context.slot
        self._check_not_deleted = context.check_not_deleted
        self._finish_swap = finish_swap
        self._mutex = threading.RLock()
        self._segments: dict[int, Segment] = {}
        self.listed = Listing(_OUTDATED, -1, [])
        self.cursors: dict[int, tuple[int, int, int]] = {}

    def bases(self, *, wait: bool = True) -> list[int]:
        """Return the bases of the readable segments, listed again if they changed.

        A roll does not change the version, so the active segment is compared too: a search for the
        end of a transaction must not miss a segment.

        Returns:
            Their base offsets, ascending; none for a reader of a new partition without files.

        Raises:
            CorruptRecord: if the log holds records, and there is no segment file.
            Others as `listing`.
        """
        with self._mutex:
            listed = self.listed
            version, active = self._core.published_segments_version, self._core.active_base
            rolled = active != listed.active or (
                listed.bases[-1:] != [active] and active < self._core.log_end  # was empty
            )
            if version != listed.version or not listed.bases or rolled:
                listed = self._list_again(listed, active, wait)
            return listed.bases

    def _list_again(self, before: Listing, active: int, wait: bool) -> Listing:
        while True:
            found = self.listing(wait=wait)
            start, end = self._core.log_start, self._core.log_end
            if found.bases or start >= end:
                break
            self._check_not_deleted()
            if found.version != self._core.published_segments_version:
                continue  # a writer has created the first segment after the listing
            raise CorruptRecord(
                f"{self._name}: offsets {start} to {end - 1} are missing: there is no segment "
                "file; put the files back, or run `eoslog repair`",
                path=self._path,
            )
        bases = [base for base in found.bases if base < end or base == 0]
        if found.version != before.version:
            self.cursors.clear()
        if found.cleaned != before.cleaned >= 0:
            self._segments.clear()  # the names belong to other files now
        for base in set(self._segments) - set(bases):
            del self._segments[base]
        self.listed = found._replace(bases=bases or found.bases[:1], active=active)
        return self.listed

    def listing(self, *, wait: bool = True) -> Listing:
        """List all segment files, including segments that have only unpublished bytes.

        Args:
            wait: wait for the end of a swap, or finish it under the cleaner lock. Must be False if
                the caller holds a lock that comes after the cleaner lock.

        Raises:
            LockTimeout: if a swap has not finished for 30 s.
            SwapUnderWay: if there is a swap and `wait` is False.
            StorageError: if the directory cannot be read.
            UnknownTopicOrPartition: if it is missing because the topic was deleted.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            version, cleaned = self._versions()
            if not cleaned & 1:
                try:
                    bases = offsets_in(self._path, LOG)
                except StorageError:
                    self._check_not_deleted()
                    raise
                if (version, cleaned) == self._versions():
                    return Listing(version, cleaned, bases)
            elif not wait:
                raise SwapUnderWay(self._name)
            elif time.monotonic() > deadline:
                holder = lock_text(self._session, self._slot, "cleaner")
                raise LockTimeout(
                    f"{self._name}: a segment swap has not finished for {LOCK_TIMEOUT_S:g} s; the "
                    f"cleaner lock is held by {holder}; retry, or end that process if it is "
                    "suspended"
                )
            elif not self._finish_swap():
                time.sleep(0.001)

    def _versions(self) -> tuple[int, int]:
        cleaned = self._core.cleaned_version
        return self._core.published_segments_version, cleaned

    def sealed(self, base: int) -> bool:
        """Whether the segment is sealed: appends go to a later one."""
        return base < self._core.active_base

    def segment(self, base: int) -> Segment:
        """Return the segment with this base offset."""
        with self._mutex:
            found = self._segments.get(base)
            if found is None:
                found = self._segments[base] = Segment(self._path, base)
            return found

    def sizes(self) -> dict[int, int]:
        """Return the bytes of batches in each readable segment, by base.

        Raises:
            UnknownTopicOrPartition: if the topic was deleted.
            StorageError: if a listed file cannot be opened.
            Others as `bases`.
        """
        before: tuple[int, ...] | None = None
        while True:
            bases = tuple(self.bases())
            try:
                sizes = {base: self.segment(base).size() for base in bases}
                active, end = self._core.active_base, self._core.end_position
                if active in sizes and active == self._core.active_base:
                    sizes[active] = end  # its file may be preallocated
                self._check_not_deleted()  # the files may be those of a new topic
                return sizes
            except FileNotFoundError as error:
                if bases == before:  # a link to a missing file
                    raise files.storage_error(error, error.filename or self._path) from error
                before = bases
                self.outdate()  # a segment was deleted after the listing

    def size(self) -> int:
        """Return the bytes in all log files; errors are those of `sizes`."""
        return sum(self.sizes().values())

    def holds_removed(self, outdated: bool = False) -> bool:
        """Whether open segments may have been removed or replaced since."""
        listed = (self.listed.version, self.listed.cleaned)
        return bool(self._segments) and (outdated or self._versions() != listed)

    def outdate(self) -> None:
        """Make the next use list the segments again. Views of open segments stay valid."""
        with self._mutex:
            self.listed = self.listed._replace(version=_OUTDATED)

    def clear(self) -> None:
        """Drop the list and all open segments."""
        with self._mutex:
            self._segments.clear()
            self.outdate()

    def forget(self, base: int) -> None:
        """Drop a segment whose files were deleted. Its views stay valid."""
        with self._mutex:
            self._segments.pop(base, None)  # closed with its last reader
            self.outdate()

    def close(self) -> None:
        """Close descriptors. A mapping stays until its last view is dropped."""
        for segment in list(self._segments.values()):  # a copy: threads may open more
            segment.close()
