"""Calls under a lock that is waited for with a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["call_alone"]

T = TypeVar("T")


def call_alone(lock: threading.RLock, wait_s: float, call: Callable[[], T], otherwise: T) -> T:
    """Call under a lock that no interrupt leaves held.

    A signal handler may raise an exception as `acquire` returns. After `with lock`, it cannot.

    Args:
        lock: the lock. A thread that holds it calls without waiting.
        wait_s: the longest wait in seconds; a negative number waits as long as needed.
        call: what to do.
        otherwise: what to return if another thread holds the lock for longer.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        return call()
    try:
        # Without a timeout first, because that is faster.
        if not (lock.acquire(False) or lock.acquire(timeout=min(wait_s, threading.TIMEOUT_MAX))):
            return otherwise
        return call()
    finally:
        try:  # without a call before it, which an interrupt could follow
            lock.release()
        except RuntimeError:
            pass  # not acquired
