"""The watch over calls that run for longer than their `task_timeout`.

A function that hangs cannot be ended from another thread. So the watch logs which record it is. A
process of a run with several processes then ends, and its successor counts the exit for the record.
In any other process, the function continues. Its membership and its transaction end by their own
timeouts, 30 seconds later, and another process can take over the partition.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.app.task_calls import Overdue, TaskCalls

__all__ = ["SharedTime", "watched"]

logger = get_logger("eoslog.app")

_TICK_S = 0.5


class SharedTime(Protocol):
    """A time in memory that a process shares with its parent."""

    value: float
    """When the watch has looked last (monotonic, s); 0 without a watch."""


@contextlib.contextmanager
def watched(
    calls: TaskCalls,
    on_overdue: Callable[[Overdue], object] | None = None,
    clock: SharedTime | None = None,
) -> Iterator[None]:
    """Watch calls of tasks in the block.

    Args:
        calls: those of a worker.
        on_overdue: called in another thread after the message, once for each call.
        clock: set at each look.
    """
    ended = threading.Event()

    def look() -> None:
        if clock is not None:
            clock.value = time.monotonic()

    def watch() -> None:
        before = None
        while not ended.wait(_TICK_S):
            look()
            overdue = calls.overdue()
            if overdue is not None and overdue.began != before:
                before = overdue.began
                logger.error("%s", overdue.error)
                if on_overdue is not None:
                    on_overdue(overdue)

    thread = threading.Thread(target=watch, name="eoslog-app-watch", daemon=True)
    look()
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if clock is not None:
            clock.value = 0.0
