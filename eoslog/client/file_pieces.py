"""The batches of plain segment files, in pieces for a decoder.

A cleaner or retention may take a file between its listing and its opening: the reading goes on in
the files that are there then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eoslog.errors import OffsetOutOfRange, StorageError
from eoslog.storage import settled_listing

READ_SIZE = 8 << 20
"""Bytes handed to the decoder at once: what one data buffer of a batch pins at least."""

_NO_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole batches: a buffer that begins at one."""

    data: Any
    path: str
    """Their file, and their byte in it."""
    position: int


class FilePieces:
    """The batches of segment files, in windows over their mappings."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._segments = settled_listing.settled_segments(path)

    def __call__(self, start: int, end: int) -> Iterator[Piece]:
        """Pieces that hold [start, end); one may begin with what was given already.

        Raises:
            OffsetOutOfRange: what was to come is deleted.
        """
        segments = self._segments
        for again in reversed(range(settled_listing.LISTINGS)):
            following = [*(s.base_offset for s in segments[1:]), _NO_END]
            for segment, next_base in zip(segments, following, strict=True):
                if next_base <= start:
                    continue
                if segment.base_offset >= end:
                    return
                try:
                    _ = segment.data  # mapped from here on, whoever takes its name
                except StorageError as error:
                    if not again or not settled_listing.was_taken(error):
                        raise
                    break
                position = segment.position_of(start)
                last = segment is segments[-1]
                for window in segment.windows(position, READ_SIZE, last=last):
                    yield Piece(window.data, segment.path, window.position)
                start = next_base
            else:
                return
            # A cleaner's file holds what was to come, and may begin with what was read already.
            segments = settled_listing.settled_segments(self._path)
            if segments[0].base_offset > start:
                raise OffsetOutOfRange(
                    f"{self._path}: offset {start} was deleted, "
                    f"the files begin at {segments[0].base_offset}"
                )
