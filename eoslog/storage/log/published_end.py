"""The ends that a partition publishes, for readers and flushers that wait for one of them."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

__all__ = ["PublishedEnd"]


class _Ends(Protocol):
    """A partition, or an object with the same published ends."""

    @property
    def log_end(self) -> int: ...
    @property
    def durable_end(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...


class PublishedEnd(Enum):
    """One of a partition's ends."""

    LOG_END = "log_end"
    """The end of the written records."""
    DURABLE_END = "durable_end"
    """The end of the records that a flush has made durable."""
    HIGH_WATERMARK = "high_watermark"
    """The end of the records that read_uncommitted returns."""
    LAST_STABLE_OFFSET = "last_stable_offset"
    """The end of the records that read_committed returns."""

    def of(self, log: _Ends) -> int:
        """Return the current value of this end."""
        if self is PublishedEnd.LAST_STABLE_OFFSET:
            return log.last_stable_offset
        if self is PublishedEnd.HIGH_WATERMARK:
            return log.high_watermark
        if self is PublishedEnd.DURABLE_END:
            return log.durable_end
        return log.log_end
