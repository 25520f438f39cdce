"""The lag of a group or reader, which is 0 if no visible record is left.

An offset that was committed after the last visible record may precede a transaction marker or
aborted records. These are never returned, so no later commit would follow, and the difference to
the log end would never become 0.
"""

from __future__ import annotations

import contextlib
from typing import Any

from eoslog import _core
from eoslog.errors import EoslogError

__all__ = ["lag_of"]

_READ_BYTES = 1 << 20
_MOST_READS = 64
"""Reads without a visible record after which the plain difference is returned."""


def lag_of(log: Any, position: int, end: int, *, committed_only: bool) -> int:
    """Return the offsets from a position to `end`, or 0 if none is visible.

    Args:
        log: the partition's log.
        position: the next offset to read.
        end: the offset at which reading ends now.
        committed_only: exclude records of aborted transactions, as read_committed does. Markers are
            always excluded.
    """
    distance = max(end - position, 0)
    if distance == 0 or position < log.log_start:
        return distance
    with contextlib.suppress(EoslogError):  # a reader will get the error; the lag is still correct
        if not _shows_a_record(log, position, end, committed_only):
            return 0
    return distance


def _shows_a_record(log: Any, position: int, end: int, committed_only: bool) -> bool:
    for _ in range(_MOST_READS):
        slices = log.read(position, end, _READ_BYTES)
        if not slices:
            return False
        aborted = None
        if committed_only:
            covered = min(end, slices[-1].next_offset)
            aborted = _core.AbortedTransactions(log.aborted(position, covered))
        start = position
        for part in slices:
            found, position = _core.decode_records(
                log.topic, log.partition, part.data, position, end, aborted, 1
            )
            if found:
                return True
        if position >= end:
            return False
        if position == start:
            return True  # an incomplete batch: its records are not known, so count it
    return True
