"""The batches of segment files, in pieces for a decoder.

A cleaner or retention may remove a file after it was listed and before it is opened. Reading then
continues in the current files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eoslog import _core
from eoslog.errors import CorruptRecord, OffsetOutOfRange, StorageError
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.segment import listing, seals, segment_files
from eoslog.storage.segment.segment_files import SegmentFiles

READ_SIZE = 8 << 20
"""The bytes of one piece, which is also the least memory that one data buffer of a batch pins."""

_NO_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A buffer of complete batches."""

    data: Any
    path: str
    """The file of the batches."""
    position: int
    """The position of the buffer in the file."""


class FilePieces:
    """The batches of segment files, in windows over their mappings."""

    def __init__(self, path: str, begins: int = 0) -> None:
        """List the segments; the log start is at most `begins`."""
        self._path = path
        self._begins = begins
        self._segments = listing.settled_segments(path)

    def __call__(self, start: int, end: int) -> Iterator[Piece]:
        """Yield pieces with the offsets from start to end; pieces may overlap.

        Raises:
            OffsetOutOfRange: if records that were not read yet are deleted.
            CorruptRecord: if the first segment is missing.
        """
        segments = self._segments
        first = segments[0].base_offset
        if max(start, self._begins) < min(first, end):
            if _recorded_start(self._path) >= first:  # deleted after the range was found
                raise self._deleted(max(start, self._begins), first)
            raise CorruptRecord(
                f"{self._path}: offsets {max(start, self._begins)} to {first - 1} are missing, but "
                "no deletion is recorded, so a segment file was removed; restore it from a backup, "
                "or run `eoslog repair`",
                path=segments[0].path,
                position=0,
            )
        for again in reversed(range(listing.LISTINGS)):
            following = [*(s.base_offset for s in segments[1:]), _NO_END]
            for segment, next_base in zip(segments, following, strict=True):
                if next_base <= start:
                    continue
                if segment.base_offset >= end:
                    return
                try:
                    _ = segment.data  # maps the file, which stays readable if it is deleted
                    if segment is not segments[-1]:
                        _identify(segment, next_base)
                except (CorruptRecord, StorageError) as error:
                    swapped = isinstance(error, CorruptRecord) or listing.was_taken(error)
                    if not again or not swapped:
                        raise
                    break
                position = segment.position_of(start)
                last = segment is segments[-1]
                least = segment.base_offset
                for window in segment.windows(position, READ_SIZE, last=last):
                    least, data, damage = in_order(window.data, least, next_base)
                    if len(data):
                        yield Piece(data, segment.path, window.position)
                    if damage is not None:
                        if least >= end:
                            return
                        raise damage.located(segment.path, window.position)
                start = next_base
            else:
                return
            # The cleaner's new file has the rest, and may begin with records that were read.
            segments = listing.settled_segments(self._path)
            if segments[0].base_offset > start:
                raise self._deleted(start, segments[0].base_offset)

    def _deleted(self, offset: int, first: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{self._path}: offset {offset} was deleted; the files begin at offset {first}; read "
            "from that offset"
        )


def _recorded_start(path: str) -> int:
    """Return the log start recorded for a partition; 0 if there is none."""
    directory = os.path.abspath(path)
    if not os.path.isdir(path):
        directory = os.path.dirname(directory)
    key = segment_files.partition_of_path(directory)
    return offset_checkpoints.bounds_of(os.path.dirname(directory), key)[0] or 0


def in_order(data: Any, least: int, bound: int = _NO_END) -> tuple[int, Any, CorruptRecord | None]:
    """Return the batches before one with an impossible base offset.

    The base offset of a batch is not part of its CRC, so it is checked against its neighbours.

    Args:
        data: consecutive complete batches of a segment.
        least: the lowest possible base offset.
        bound: the base offset of the next segment.

    Returns:
        (the offset after the last good batch, the bytes of the good batches, the error of the next
        batch or None).
    """
    try:
        *_, after, _ = _core.walk_batches(data, 0, 0, _NO_END, _NO_END, least)
    except CorruptRecord:
        after = _NO_END
    if after <= bound and after < _NO_END:
        return max(after, least), data, None
    jumped: tuple[int, int] | None = None  # the last batch, if it left offsets out
    try:
        batches = _core.iter_batches(data, strict=False)
    except CorruptRecord:
        return least, data, None  # not a batch: the decoder reports why
    for batch in batches:
        base, at = batch.base_offset, batch.position
        if base < least or batch.last_offset >= bound:
            what = f"base offset {base}, expected {least} to {bound - 1}"
            if base < least and jumped is not None:
                (at, least), what = jumped, f"base offset {least}, the next batch begins at {base}"
            return least, data[:at], CorruptRecord(f"{what} (no CRC covers it)", position=at)
        jumped = (at, least) if base > least else None
        least = batch.last_offset + 1
    return least, data, None


def _identify(segment: SegmentFiles, end: int) -> None:
    """Compare a segment's file with its seal, if there is one.

    Raises:
        CorruptRecord: if the file belongs to another segment.
    """
    seal = seals.read(os.path.dirname(segment.path), end, base=segment.base_offset)
    wrong = None if seal is None or not seal.size else seals.fault(seal, segment.path)
    if wrong is not None:
        raise wrong
