"""A lock that is waited for with a timeout is released after an interrupt too."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from eoslog._util.locks import call_alone


class Interrupted:
    """A lock, and a signal as its `acquire` returns."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock

    def acquire(self, *args: Any, **named: Any) -> bool:
        self.lock.acquire(*args, **named)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)


def free(lock: threading.RLock) -> bool:
    """Whether another thread gets the lock."""
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(call_alone(lock, 0, lambda: True, False)))
    thread.start()
    thread.join()
    return got == [True]


def test_an_interrupt_as_the_lock_is_acquired_releases_it() -> None:
    lock = threading.RLock()
    with pytest.raises(KeyboardInterrupt):
        call_alone(Interrupted(lock), -1, lambda: None, None)  # type: ignore[arg-type]
    assert free(lock)


def test_a_nested_call_leaves_the_lock_to_the_outer_one() -> None:
    lock = threading.RLock()
    held = call_alone(lock, -1, lambda: call_alone(lock, 0, lambda: not free(lock), False), False)
    assert held and free(lock)


def test_a_held_lock_gives_the_other_answer() -> None:
    lock = threading.RLock()
    with lock:
        assert not free(lock)
    assert free(lock)
