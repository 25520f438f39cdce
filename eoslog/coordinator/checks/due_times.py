"""A queue of keys by due time, whose cost does not depend on how many keys wait.

A change costs O(log n) comparisons, and so does each key that is taken. A look without a due key
costs one. An entry of the heap that was replaced stays in it until it comes up, or until such
entries are the majority; then the heap is rebuilt.
"""

from __future__ import annotations

import heapq
import itertools

_NEVER = float("inf")
_SPARE = 64
"""Replaced entries that the heap may have in addition to its keys."""


class DueTimes:
    """Keys with due times. Not thread-safe.

    The unit of time is the caller's.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[float, int, str]] = []
        self._current: dict[str, tuple[float, int, str]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, key: str) -> bool:
        return key in self._current

    def set(self, key: str, due: float) -> None:
        """Add a key, or replace its due time."""
        entry = self._current[key] = (due, next(self._numbers), key)
        if len(self._heap) > 2 * len(self._current) + _SPARE:
            self._heap = list(self._current.values())
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, entry)

    def drop(self, key: str) -> None:
        """Remove a key, if it is present."""
        self._current.pop(key, None)

    def first(self) -> float:
        """The earliest due time; infinity without keys."""
        heap = self._heap
        while heap and self._current.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else _NEVER

    def pop(self, now: float) -> str | None:
        """Remove and return the key that is due first, or None if none is due."""
        if self.first() > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._current[key]
        return key
