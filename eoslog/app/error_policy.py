"""When a failed record is tried again."""

from __future__ import annotations

from eoslog.app.tasks import Task

__all__ = ["delay_after"]

_WITHOUT_RETRIES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""The delays of `on_error="retry"` without `retries`, in seconds."""


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
