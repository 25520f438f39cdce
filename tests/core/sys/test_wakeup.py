"""A bell wakes its waiters once per stroke, unless a thread holds it.

A waiting thread sleeps without the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from eoslog import _core

LONG_S = 600.0


def waiting(bell: _core.Bell, strokes: int) -> threading.Thread:
    thread = threading.Thread(target=bell.wait, args=(strokes, LONG_S), daemon=True)
    thread.start()
    return thread


def test_a_wake_up_before_the_wait_ends_the_wait() -> None:
    bell = _core.Bell()
    strokes = bell.strokes
    bell.ring()
    bell.wait(strokes, LONG_S)
    assert bell.strokes != strokes


@pytest.mark.parametrize("wake", [_core.Bell.ring, _core.Bell.end], ids=["ring", "end"])
def test_a_waiting_thread_is_woken(wake: Callable[[_core.Bell], None]) -> None:
    bell = _core.Bell()
    thread = waiting(bell, bell.strokes)
    wake(bell)
    thread.join(60)
    assert not thread.is_alive()


def test_a_wait_after_the_end_returns_immediately() -> None:
    bell = _core.Bell()
    bell.end()
    bell.wait(bell.strokes, LONG_S)


@pytest.mark.parametrize("holds", [1, 100], ids=["held", "held again and again"])
@pytest.mark.parametrize("let_go", [False, True])
def test_the_end_wakes_waiters_although_the_bell_is_held(holds: int, let_go: bool) -> None:
    bell = _core.Bell()
    for _ in range(holds):
        bell.hold()
        if let_go:
            bell.let_go()
    thread = waiting(bell, bell.strokes)
    bell.end()
    thread.join(60)
    assert not thread.is_alive()


def test_a_wait_ends_after_its_timeout() -> None:
    bell = _core.Bell()
    bell.wait(bell.strokes, 0.01)
    bell.wait(bell.strokes, 0)


def test_a_held_bell_wakes_no_waiter_until_it_is_released() -> None:
    bell = _core.Bell()
    bell.hold()
    bell.hold()
    bell.let_go()
    assert bell.held
    thread = waiting(bell, bell.strokes)
    bell.ring()
    thread.join(0.2)
    assert thread.is_alive()
    bell.let_go()
    assert not bell.held
    bell.ring()  # as whoever held it does for what is left
    thread.join(60)
    assert not thread.is_alive()


def test_a_bell_that_is_held_often_still_wakes_its_waiters() -> None:
    bell = _core.Bell()
    thread = waiting(bell, bell.strokes)
    for _ in range(100):
        bell.ring()
        bell.hold()
        bell.let_go()
        if not thread.is_alive():  # it heard the stroke before the hold
            thread = waiting(bell, bell.strokes)
    bell.ring()
    thread.join(60)
    assert not thread.is_alive()


def test_a_stroke_before_a_hold_is_left_to_the_holder() -> None:
    bell = _core.Bell()
    for _ in range(100):
        bell.hold()
        bell.let_go()
    strokes = bell.strokes
    bell.ring()
    bell.hold()
    bell.let_go()
    thread = waiting(bell, strokes)
    thread.join(0.2)
    assert thread.is_alive()
    bell.ring()
    thread.join(60)
    assert not thread.is_alive()
