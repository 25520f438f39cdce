"""Jobs that follow their source.

A run copies a fixed set of partitions. When a following job finds a new one at the source, its run
ends after a transaction, and the next run begins. It resumes like a run after a restart, so new
partitions need no rules of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from eoslog.kafka.cluster import Moved

_LOOK_S = 2.0


def run_job(run: Callable[[int], Moved], *, follow: bool) -> Moved:
    """Run a job once, or again and again if it follows its source.

    Args:
        run: makes one run, after earlier ones have copied so many records. If the job follows its
            source, it returns when the source has new partitions.
        follow: whether the job follows its source.
    """
    moved = run(0)
    while follow:
        moved = run(moved.records)
    return moved


class NewPartitions:
    """Partitions of a source that a run does not copy, looked up now and then.

    Args:
        copied: the partition counts of the topics that the run copies.
        look: returns the partition counts that the source has now.
    """

    def __init__(self, copied: Mapping[str, int], look: Callable[[], Mapping[str, int]]) -> None:
        """Look for the first time after `_LOOK_S`."""
        self._copied, self._look = copied, look
        self._next = time.monotonic() + _LOOK_S

    def found(self) -> bool:
        """Whether there are any; between two looks, the answer is no."""
        if time.monotonic() < self._next:
            return False
        counts = self._look()
        self._next = time.monotonic() + _LOOK_S
        return any(count > self._copied.get(name, 0) for name, count in counts.items())
