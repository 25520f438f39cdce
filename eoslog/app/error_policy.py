"""When a failed record is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable

from eoslog.app.tasks import Task

__all__ = ["SteadyClock", "delay_after", "longest_delay"]

_WITHOUT_RETRIES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""The delays of `on_error="retry"` without `retries`, in seconds."""
_SET_BACK_MS = 1000


class SteadyClock:
    """A wall clock that does not go back, so that no record waits longer."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """Begin at the time of a wall clock, in ms since the epoch."""
        self._clock_ms = clock_ms
        self._ahead = 0
        self._before, self._seen_at = clock_ms(), time.monotonic()

    def __call__(self) -> int:
        """Return the time in ms since the epoch."""
        now, seen_at = self._clock_ms(), time.monotonic()
        back = self._before + round(1000 * (seen_at - self._seen_at)) - now
        if back > _SET_BACK_MS:
            self._ahead += back
        self._before, self._seen_at = now, seen_at
        return now + self._ahead


def delay_after(task: Task, attempts: int) -> float | None:
    """Return the delay before the next attempt; None if there is no further one.

    `retries` has the delays, one for each further attempt. `on_error="retry"` repeats the last one.

    Args:
        task: the task.
        attempts: the attempts that have ended, 1 or more.
    """
    if attempts <= len(task.retries):
        return task.retries[attempts - 1]
    if task.on_error != "retry":
        return None
    delays = task.retries or _WITHOUT_RETRIES
    return delays[min(attempts, len(delays)) - 1]


def longest_delay(task: Task) -> float:
    """Return the longest delay before an attempt of a task, in seconds."""
    return max(task.retries or (_WITHOUT_RETRIES if task.on_error == "retry" else (0.0,)))
