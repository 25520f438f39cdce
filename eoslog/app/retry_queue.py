"""The records of an app that wait for their next attempt, in memory.

Records of one task, partition and key form a line, in the order of their offsets. Only the first
one of a line is tried, at its time. The others wait for it, so the order of a key is kept. Records
without a key wait alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from eoslog.app.failed_records import FailedRecord

__all__ = ["RetryQueue", "WaitingRecord"]

Line = tuple[str, int, str, bytes]
"""Topic, partition, task and key, or the place of a record without a key."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRecord:
    """A record that waits, for its time or for an earlier record of its key."""

    record: FailedRecord
    due: int
    """The time of the next attempt, in ms since the epoch."""
    id: bytes
    """The key of the record in the retry topic."""

    @property
    def line(self) -> Line:
        """The line in which the record waits."""
        of = self.record
        key = b"0" + self.id if of.key is None else b"1" + of.key
        return (of.topic, of.partition, of.task, key)


class RetryQueue:
    """Lines of waiting records. Changes are undone unless `commit` follows.

    Attributes:
        count: the number of records.
    """

    def __init__(self) -> None:
        """Start without records."""
        self._lines: dict[Line, deque[WaitingRecord]] = {}
        self._heap: list[tuple[int, int, WaitingRecord]] = []
        self._numbers = itertools.count()
        self._undo: list[tuple[Line, Callable[[], object]]] = []
        self.count = 0
        self._held: frozenset[tuple[str, int]] = frozenset()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[WaitingRecord]:
        for line in self._lines.values():
            yield from line

    def blocks(self, topic: str, partition: int, task: str, key: bytes | None) -> bool:
        """Return whether an earlier record of the key waits."""
        return key is not None and (topic, partition, task, b"1" + key) in self._lines

    def load(self, waiting: WaitingRecord) -> None:
        """Add a record that is committed already at the end of its line."""
        line = self._lines.setdefault(waiting.line, deque())
        line.append(waiting)
        self.count += 1
        if len(line) == 1:
            self._push(waiting)

    def add(self, waiting: WaitingRecord) -> None:
        """Add a record at the end of its line."""
        self.load(waiting)
        self._undo.append((waiting.line, lambda: self._take_last(waiting)))

    def remove(self, waiting: WaitingRecord) -> None:
        """Remove the first record of a line; the next one may be tried."""
        self._take_first(waiting)
        self._undo.append((waiting.line, lambda: self._put_first(waiting)))

    def replace(self, waiting: WaitingRecord, later: WaitingRecord) -> None:
        """Put another time, and other attempts, on the first record of a line."""
        line = self._lines[waiting.line]
        line[0] = later
        self._push(later)

        def undo() -> None:
            self._lines[waiting.line][0] = waiting

        self._undo.append((waiting.line, undo))

    def due(self, now: int) -> WaitingRecord | None:
        """Return a record whose time has come; None if there is none."""
        first = self._first()
        return first if first is not None and first.due <= now else None

    def next_due(self) -> int | None:
        """Return the time of the next record in ms; None without records."""
        first = self._first()
        return None if first is None else first.due

    def hold(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Let the records of these partitions wait, and those of no others."""
        self._held = frozenset(partitions)
        self._sort()

    def commit(self) -> None:
        """Keep the changes since the last commit."""
        self._undo.clear()

    def abort(self) -> None:
        """Undo the changes since the last commit."""
        while self._undo:
            self._undo.pop()[1]()
        self._sort()

    def forget(self, topic: str, partition: int) -> None:
        """Remove the records of a partition that another process owns now."""
        owned = (topic, partition)
        self._undo = [(line, undo) for line, undo in self._undo if line[:2] != owned]
        for line in [line for line in self._lines if line[:2] == owned]:
            self.count -= len(self._lines.pop(line))

    def _first(self) -> WaitingRecord | None:
        while self._heap:
            waiting = self._heap[0][2]
            line = self._lines.get(waiting.line)
            if line and line[0] is waiting:
                return waiting
            heapq.heappop(self._heap)  # removed, or replaced by one with another time
        return None

    def _sort(self) -> None:
        self._heap.clear()
        for line in self._lines.values():
            self._push(line[0])

    def _push(self, waiting: WaitingRecord) -> None:
        if waiting.line[:2] in self._held:
            return
        heapq.heappush(self._heap, (waiting.due, next(self._numbers), waiting))

    def _take_first(self, waiting: WaitingRecord) -> None:
        line = self._lines[waiting.line]
        line.popleft()
        self.count -= 1
        if line:
            self._push(line[0])
        else:
            del self._lines[waiting.line]

    def _put_first(self, waiting: WaitingRecord) -> None:
        self._lines.setdefault(waiting.line, deque()).appendleft(waiting)
        self.count += 1

    def _take_last(self, waiting: WaitingRecord) -> None:
        line = self._lines[waiting.line]
        line.pop()
        self.count -= 1
        if not line:
            del self._lines[waiting.line]
