"""Records that a consumer decodes while the disk makes them durable.

A blocked consumer is woken when records are appended, and again when they are durable. In between
its processor would be idle, so it decodes them then. Nothing is returned before the readable end is
past it. Records below the published log end never change while this process has the log open
(protocol.md rows 8 and 29), so what was decoded early is what a later read would find.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from eoslog import _core

if TYPE_CHECKING:
    from eoslog.storage.log.partition_log import PartitionLog

__all__ = ["ReadAhead"]

_OFFSET = attrgetter("offset")


@dataclass(slots=True)
class ReadAhead:
    """The decoded records of one partition that are not known to be durable."""

    log: PartitionLog
    cleaned_version: int
    position: int
    records: list[_core.Record]
    next_offset: int

    def give(self, state: _core.FetchedRecords, log: PartitionLog, bound: int) -> ReadAhead | None:
        """Move the records below `bound` to the state, if they continue at its position.

        Args:
            state: the consumer's state of the partition.
            log: the partition's log now.
            bound: the readable end.

        Returns:
            What is left; None if nothing is, or if it must be read again.
        """
        position = state.position
        if (
            self.log is not log
            or position != self.position
            or log.cleaned_version != self.cleaned_version
            or log.log_start > position
        ):
            return None
        if bound >= self.next_offset:
            state.fill(self.records, self.next_offset)
            return None
        if bound <= position:
            return self
        count = bisect_left(self.records, bound, key=_OFFSET)
        state.fill(self.records[:count], bound)
        self.position, self.records = bound, self.records[count:]
        return self
