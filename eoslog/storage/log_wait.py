"""Waiting for published ends to move, in one partition or in any of several.

Source: protocol.md, Read, row 35.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog

_SLICE_S = 0.05  # a publisher killed before its wake-up costs no more than this
_SHORTEST_S = 1e-5


def wait_any(
    bounds: Sequence[tuple[PartitionLog, int]], timeout: float, *, of: str = "last_stable_offset"
) -> bool:
    """Block until one of the logs has a published end past its offset.

    Who waits for durability pays for it: when bytes are there and nobody flushes them within the
    topic's `flush.ms`, this call does.

    Args:
        bounds: (log, offset); logs of one directory.
        timeout: in seconds.
        of: which end: log_end, durable_end, high_watermark, last_stable_offset.

    Returns:
        False on timeout.

    Raises:
        IllegalState: of a reader that began where nobody wrote, which sees no end move: somebody
            writes since.
    """
    session = bounds[0][0].session
    slots = [log.slot for log, _ in bounds]
    may_flush = of != "log_end" and not session.read_only
    deadline = time.monotonic() + timeout
    flush_due: float | None = None
    while True:
        counters = session.control.wake_counters(slots)
        if any(getattr(log, of) > beyond for log, beyond in bounds):
            return True
        session.refuse_outdated()  # it would wait for ever
        now = time.monotonic()
        if now >= deadline:
            return False
        pause = min(deadline - now, _SLICE_S)
        waiting = [log for log, _ in bounds if may_flush and log.strict and log.unflushed]
        if waiting:
            if flush_due is None:
                flush_due = now + min(log.settings.flush_ms for log in waiting) / 1000
            if now >= flush_due:
                for log in waiting:
                    log.flush()
                flush_due = None
                continue
            pause = min(pause, flush_due - now)
        session.control.wait(counters, max(pause, _SHORTEST_S))
