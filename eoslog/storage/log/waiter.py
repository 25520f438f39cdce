"""Waiting until a published end moves, in one of several partitions.

Source: protocol.md, Read, row 35.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from eoslog.storage.directory.session import Session
from eoslog.storage.fs.timeouts import SLICE_S
from eoslog.storage.log.published_end import PublishedEnd
from eoslog.storage.log.settings import LogSettings

_SHORTEST_S = 1e-5


class WaitedLog(Protocol):
    """The attributes of a partition that a wait uses."""

    session: Session
    slot: int
    strict: bool

    @property
    def log_end(self) -> int:
        """The end of the written records."""

    @property
    def durable_end(self) -> int:
        """The end of the records that a flush has made durable."""

    @property
    def high_watermark(self) -> int:
        """The end of the records that read_uncommitted returns."""

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that read_committed returns."""

    @property
    def settings(self) -> LogSettings:
        """The topic's settings."""

    @property
    def unflushed(self) -> bool:
        """Whether something published is not durable yet."""

    def flush(self, up_to: int | None = None) -> None:
        """Return when all records below `up_to` are durable."""


def wait_any(
    bounds: Sequence[tuple[WaitedLog, int]],
    timeout: float,
    *,
    of: PublishedEnd = PublishedEnd.LAST_STABLE_OFFSET,
    on_unflushed: Callable[[], None] | None = None,
) -> bool:
    """Wait until one of the logs has a published end past its offset.

    If the wait is for durable records, and no thread flushes the written ones within the topic's
    `flush.ms`, this call flushes them.

    Args:
        bounds: (log, offset) pairs; all logs must be of one directory.
        timeout: seconds to wait.
        of: the published end to compare.
        on_unflushed: called once, when records were written that are not durable yet.

    Returns:
        False on timeout.

    Raises:
        IllegalState: if the log is a read-only view that has become out of date, because another
            process has opened the directory for writing.
    """
    session = bounds[0][0].session
    slots = [log.slot for log, _ in bounds]
    may_flush = of is not PublishedEnd.LOG_END and not session.read_only
    deadline = time.monotonic() + timeout
    flush_due: float | None = None
    while True:
        counters = session.control.wake_counters(slots)
        if any(of.of(log) > beyond for log, beyond in bounds):
            return True
        session.refuse_outdated()  # an outdated view never changes
        now = time.monotonic()
        if now >= deadline:
            return False
        pause = min(deadline - now, SLICE_S)
        waiting = [log for log, _ in bounds if may_flush and log.strict and log.unflushed]
        if waiting:
            if flush_due is None:
                flush_due = now + min(log.settings.flush_ms for log in waiting) / 1000
            if now >= flush_due:
                for log in waiting:
                    log.flush()
                flush_due = None
                continue
            if on_unflushed is not None:
                on_unflushed()
                on_unflushed = None
                continue
            pause = min(pause, flush_due - now)
        session.control.wait(counters, max(pause, _SHORTEST_S))
