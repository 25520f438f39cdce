"""Waits for a condition, or for a thread that sleeps, however long that takes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T],
    what: str = "the condition does not hold",
    *,
    step: Callable[[], object] = lambda: time.sleep(0.005),
) -> T:
    """Return a condition's first true result, or fail the test after five minutes.

    Args:
        condition: is called until its result is true.
        what: the text of the failure.
        step: is called between two looks at the condition; it sleeps by default.
    """
    deadline = time.monotonic() + 300
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        step()
    return found


def until_asleep(thread: threading.Thread) -> None:
    """Return once the kernel shows a thread asleep at one place of its code.

    A thread that ends fails the test. A thread that wakes up now and then to look returns to the
    same instruction of the same function.
    """
    seen, before, deadline = 0, None, time.monotonic() + 120
    while seen < 3:
        assert thread.is_alive(), "it has ended"
        assert time.monotonic() < deadline, f"it is awake, at {before}"
        frame = sys._current_frames().get(thread.ident or 0)
        state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(") ")[2]
        place = (frame.f_code, frame.f_lasti) if frame and state[0] == "S" else None
        seen = seen + 1 if place is not None and place == before else 0
        before = place
        time.sleep(0.01)
