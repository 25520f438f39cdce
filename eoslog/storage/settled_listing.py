"""The segments of a partition by its names alone, none of it from the middle of a swap.

Who has the directory open asks the shared page (`LogReader.listing`). A reader of plain files sees
names only. In a swap (`segment_swap.py`) the new segment is `NNN.log.swap` from before the first
old one goes until the instant that it gets its name. So a listing that misses what is there, and
shows no such file, was under way when that name came up, or when it went away: names that come and
go during a listing may be missed. A swap tears two listings in a row at most, hence three.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from eoslog.errors import LockTimeout, StorageError
from eoslog.storage import files, segment_files
from eoslog.storage.segment_files import SegmentFiles
from eoslog.storage.segments import CLEANED, LOG, SWAP

_SWAP_TIMEOUT_S = 30.0
_LONGEST_PAUSE_S = 0.05
_EQUAL_LISTINGS = 3
LISTINGS = 20
"""How often a reader begins again where a file that it had listed is gone."""

_T = TypeVar("_T")


def settled_segments(path: str) -> list[SegmentFiles]:
    """The segments of a partition directory in order, or the one that a `.log` file is.

    Raises:
        LockTimeout: a swap is half done for half a minute.
        StorageError: there is no such path.
        ConfigError: it is neither a partition directory nor a file.
    """
    if not os.path.isdir(path):
        return segment_files.list_segments(path)
    deadline = time.monotonic() + _SWAP_TIMEOUT_S
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
            what = f"{half}: a swap of segments" if half else "a change of segments"
            raise LockTimeout(
                f"{path}: {what} was begun and not finished for {_SWAP_TIMEOUT_S:g} s. Its cleaner "
                "stands still or was killed; reading the topic once with the directory open for "
                "writing ends what a dead one left (a broker's: start it, or "
                "`eoslog repair --as-kafka`)"
            )
        if half is not None:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        found, equal = listed, int(half is None)
    return found or segment_files.list_segments(path)  # which says that there is none


def over_settled(path: str, read: Callable[[list[SegmentFiles]], _T]) -> _T:
    """What `read` makes of the segments; of new ones where one of them was gone before it was open.

    Raises: as `settled_segments`; StorageError where a file that is listed is never there.
    """
    for _ in range(LISTINGS - 1):
        try:
            return read(settled_segments(path))
        except StorageError as error:
            if not was_taken(error):
                raise
    return read(settled_segments(path))


def was_taken(error: StorageError) -> bool:
    """Whether a file was gone when it was opened: a swap or retention took it since the listing."""
    return isinstance(error.__cause__, FileNotFoundError)


def _half_swapped(names: list[str]) -> str | None:
    """A new segment without its name, whose old ones may be gone; None if there is none."""
    if any(name.endswith(CLEANED) for name in names):
        return None  # the old segments are whole
    return next((name for name in names if name.endswith(LOG + SWAP)), None)
