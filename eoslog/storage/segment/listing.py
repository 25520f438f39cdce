"""Listing the segments of a partition from file names alone, consistent in spite of swaps.

A process that has the log open uses the control file instead (`SegmentList.listing`). A reader of
plain files has only names. During a swap (`segment_swap.py`) the new segment is named
`NNN.log.swap`, from before the first old segment is removed until it gets its final name. A listing
that misses a segment, and does not show that name, ran at the moment when the name appeared or
disappeared. So one swap spoils at most two listings in a row, and three equal ones are right.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from eoslog.errors import LockTimeout, StorageError
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.segment import CLEANED, LOG, SWAP
from eoslog.storage.segment.segment_files import SegmentFiles

_LONGEST_PAUSE_S = 0.05
_EQUAL_LISTINGS = 3
LISTINGS = 20
"""How often a reader starts again because a listed file was deleted."""

_T = TypeVar("_T")


def settled_segments(path: str) -> list[SegmentFiles]:
    """Return the segments of a partition directory, in order; or the one of a `.log` file.

    Raises:
        LockTimeout: if a swap has not finished for 30 s.
        StorageError: if there is no such path.
        ConfigError: if the path is neither a partition directory nor a file.
    """
    if not os.path.isdir(path):
        return segment_files.list_segments(path)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    pause = 0.001
    found: list[SegmentFiles] = []
    equal = 0
    while equal < _EQUAL_LISTINGS:
        names = files.names(path)
        half = _half_swapped(names)
        listed = [] if half else segment_files.segments_among(path, names)
        if half is None and [s.path for s in listed] == [s.path for s in found]:
            equal += 1
            continue
        if time.monotonic() > deadline:
            what = f"a segment swap ({half})" if half else "a change of segments"
            raise LockTimeout(
                f"{path}: {what} has not finished for {LOCK_TIMEOUT_S:g} s; the process doing it "
                "is suspended or was killed. If it was killed, open the log for writing and read "
                "the topic once (for a broker's directory: start the broker, or run "
                "`eoslog repair --as-kafka`)"
            )
        if half is not None:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        found, equal = listed, int(half is None)
    return found or segment_files.list_segments(path)  # raises if there is none


def over_settled(path: str, read: Callable[[list[SegmentFiles]], _T]) -> _T:
    """Call `read` with the segments, again with a new list if one of them was deleted.

    Raises:
        As `settled_segments`; StorageError if a listed file never exists.
    """
    for _ in range(LISTINGS - 1):
        try:
            return read(settled_segments(path))
        except StorageError as error:
            if not was_taken(error):
                raise
    return read(settled_segments(path))


def was_taken(error: StorageError) -> bool:
    """Whether a file was missing when it was opened: swapped or deleted after the listing."""
    return isinstance(error.__cause__, FileNotFoundError)


def _half_swapped(names: list[str]) -> str | None:
    """A new segment without its name, whose old ones may be gone; None if there is none."""
    if any(name.endswith(CLEANED) for name in names):
        return None  # the old segments are whole
    return next((name for name in names if name.endswith(LOG + SWAP)), None)
