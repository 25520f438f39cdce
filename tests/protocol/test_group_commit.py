"""One flush serves all its waiters and wakes each of them (protocol.md, Flush).

Two openings of one directory represent two processes: their locks exclude each other. Patience is so
long that no test passes by waiting it out.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from eoslog import _core
from eoslog.errors import EoslogError, TooManyOpenFiles
from eoslog.storage.fs import files
from eoslog.storage.log import flusher as log_flusher
from eoslog.storage.log.flusher import Steps
from tests.faults.harness import Child, live
from tests.storage.helpers import batch, opened
from tests.waiting import until

HOURS_NS = 10**13
PATIENCE_S = 60
INTERRUPTS = 2000
FEWEST = 100


class Flushes:
    """Flushes are suspended at their start until they may continue."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.count = 0
        self.fail_once: Exception | None = None

    def point(self, name: str) -> bool:
        if name == "flush.before":
            self.count += 1
            self.begun.release()
            assert self.go_on.acquire(timeout=PATIENCE_S)
            error, self.fail_once = self.fail_once, None
            if error is not None:
                raise error
        return False


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Flushes:
    found = Flushes()
    monkeypatch.setattr(files, "failpoint", found.point)
    monkeypatch.setattr(log_flusher, "SLICE_S", 3600)
    monkeypatch.setattr(log_flusher, "_JOIN_S", 3600)
    return found


@contextmanager
def two(path: Path) -> Iterator[tuple[Any, Any]]:
    with opened(str(path)) as one, opened(str(path)) as other:
        one.core.publish_durable(0, HOURS_NS)
        yield one, other


def flushing(log: Any, up_to: int | None = None) -> threading.Thread:
    thread = threading.Thread(target=log.flush, args=(up_to,), daemon=True)
    thread.start()
    return thread


def under_way(log: Any) -> bool:
    """Whether the slot says that a flush is under way."""
    return bool(log.session.control.slot_view(log.slot)["flush_under_way"])


def asleep(log: Any, count: int = 1) -> None:
    """Until so many wait for a flush."""
    until(lambda: sum(log.session.control.slot_view(log.slot)["flush_waiters"]) >= count)


def test_one_flush_serves_all_whose_records_were_appended_before_it(
    tmp_path: Path, flushes: Flushes
) -> None:
    with two(tmp_path) as (one, other):
        one.append(batch(1))
        other.append(batch(1))
        threads = [flushing(one)]
        assert flushes.begun.acquire(timeout=PATIENCE_S)
        threads += [flushing(other) for _ in range(3)]
        asleep(other, 3)
        flushes.go_on.release()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert flushes.count == 1
        assert one.durable_end == 2


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_an_append_too_late_for_a_flush_is_served_by_the_next_flush(
    tmp_path: Path, flushes: Flushes, fails: bool, rounds: int
) -> None:
    """The next flush serves it even after a flush with a retriable error.

    The rounds alternate between two words, so one round went before.
    """
    with two(tmp_path) as (one, other):
        for _ in range(rounds):
            one.core.begin_flush(0)
        one.append(batch(1))
        if fails:
            flushes.fail_once = TooManyOpenFiles("no descriptor is free")
        first = threading.Thread(target=_flush_anyhow, args=(one,), daemon=True)
        first.start()
        assert flushes.begun.acquire(timeout=PATIENCE_S)
        other.append(batch(1))
        second = flushing(other)
        asleep(other)
        flushes.go_on.release()
        assert flushes.begun.acquire(timeout=PATIENCE_S), "nobody was told that it is their turn"
        flushes.go_on.release()
        for thread in (first, second):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert (flushes.count, one.durable_end) == (2, 2)


def test_a_second_thread_of_one_process_waits_for_the_next_flush_too(
    tmp_path: Path, flushes: Flushes
) -> None:
    with two(tmp_path) as (one, _):
        one.append(batch(1))
        first = flushing(one)
        assert flushes.begun.acquire(timeout=PATIENCE_S)
        one.append(batch(1))
        second = flushing(one)
        asleep(one)
        flushes.go_on.release(2)
        for thread in (first, second):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert (flushes.count, one.durable_end) == (2, 2)


def test_a_poisoning_ends_the_wait_for_a_flush(tmp_path: Path, flushes: Flushes) -> None:
    with two(tmp_path) as (one, other):
        one.append(batch(1))
        flushes.fail_once = OSError(5, "the disk is gone")
        first = threading.Thread(target=_flush_anyhow, args=(one,), daemon=True)
        first.start()
        assert flushes.begun.acquire(timeout=PATIENCE_S)
        other.append(batch(1))
        second = threading.Thread(target=_flush_anyhow, args=(other,), daemon=True)
        second.start()
        asleep(other)
        flushes.go_on.release()
        for thread in (first, second):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert (flushes.count, one.durable_end) == (1, 0)


def test_a_waiter_notices_a_flush_that_ended_before_it_slept(tmp_path: Path) -> None:
    """Its turn may come between its look at the lock and its sleep."""
    with two(tmp_path) as (one, _):
        one.append(batch(1))
        seen = one.core.flush_counters
        one.core.pass_flush_on()
        one.core.await_flush(1, seen, 3600)


def test_a_waiter_is_woken_after_another_thread_failed_to_get_the_lock(
    tmp_path: Path, flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It met that thread's mutex and sleeps; the other process is done by then."""
    with two(tmp_path) as (one, other):
        other.append(batch(1))
        fd, at = other.flusher._lock_fd, other.flusher._flush_at
        assert _core.try_lock(fd, at)  # its flush has not begun yet
        in_vain, go_on = threading.Event(), threading.Event()
        real = one.flusher._flush_if_free

        def slowly(target: int, *, late: bool) -> Steps[bool]:
            taken = yield from real(target, late=late)
            if not in_vain.is_set():
                in_vain.set()
                assert go_on.wait(PATIENCE_S)
            return taken

        monkeypatch.setattr(one.flusher, "_flush_if_free", slowly)
        served = flushing(one, 1)
        assert in_vain.wait(PATIENCE_S)
        one.append(batch(1))
        sleeper = flushing(one)
        asleep(one)
        flushes.go_on.release()
        other.core.publish_durable(1, HOURS_NS)
        _core.unlock(fd, at)
        go_on.set()
        for thread in (served, sleeper):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert one.durable_end == 2


def test_a_waiter_that_a_flush_served_wakes_no_other_waiter(
    tmp_path: Path, flushes: Flushes
) -> None:
    """A flush wakes the waiters that it served and one for each next round."""
    with two(tmp_path) as (one, other):
        one.append(batch(1))
        before = one.core.flush_counters
        threads = [flushing(one)]
        assert flushes.begun.acquire(timeout=PATIENCE_S)
        threads += [flushing(log) for log in (one, other, other)]
        asleep(one, 3)
        flushes.go_on.release()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        wakes = [(one.core.flush_counters - before) >> shift & 0xFFFF for shift in (0, 32)]
        assert sorted(wakes) == [1, 2]


def test_a_waiter_tries_no_lock_while_a_flush_is_under_way(
    tmp_path: Path, flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two(tmp_path) as (one, other):
        one.append(batch(1))
        first = flushing(one)
        assert flushes.begun.acquire(timeout=PATIENCE_S)
        monkeypatch.delattr(type(other.flusher), "_flush_if_free")
        second = flushing(other)
        asleep(other)
        flushes.go_on.release()
        for thread in (first, second):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_failed_flush_is_not_mistaken_for_one_under_way(tmp_path: Path, flushes: Flushes) -> None:
    with two(tmp_path) as (one, other):
        one.append(batch(1))
        flushes.fail_once = TooManyOpenFiles("no descriptor is free")
        flushes.go_on.release(2)
        _flush_anyhow(one)
        assert not under_way(one)
        other.flush()
        assert (flushes.count, one.durable_end) == (2, 1)


def test_a_flush_of_a_dead_process_is_not_waited_for(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        log.core.begin_flush(1)
        log.core.publish_durable(0, HOURS_NS)  # what a flush takes, on average
        assert under_way(log)
        thread = flushing(log)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert log.durable_end == 1


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_failed_flush_wakes_all_waiters_that_it_would_have_served(
    tmp_path: Path, flushes: Flushes, rounds: int
) -> None:
    with two(tmp_path) as (one, other):
        for _ in range(rounds):
            one.core.begin_flush(0)
        one.append(batch(1))
        flushes.fail_once = TooManyOpenFiles("no descriptor is free")
        first = threading.Thread(target=_flush_anyhow, args=(one,), daemon=True)
        first.start()
        assert flushes.begun.acquire(timeout=PATIENCE_S)
        threads = [first, *(flushing(log) for log in (one, one, other, other))]
        asleep(one, 4)
        flushes.go_on.release(5)
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert one.durable_end == 1


@pytest.mark.parametrize("where", ["as it begins", "as it ends"])
def test_an_interrupt_leaves_no_flush_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """At the two calls between which the word stands."""
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        flusher = log.flusher
        with monkeypatch.context() as patch:
            if where == "as it begins":
                patch.setattr(flusher, "_core", Interrupted(log.core))
            else:
                flushed = flusher._flush_segments
                patch.setattr(flusher, "_flush_segments", lambda *at: interrupt_after(flushed, *at))
            with pytest.raises(KeyboardInterrupt):
                flusher._run(flusher._flush_now(leads=True))
        assert not under_way(log)


def interrupt(child: Child, path: str) -> None:
    """Interrupts at every point of a flush; what they leave taken."""

    armed = False

    def handler(*_: object) -> None:
        if armed:  # else it came late
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handler)
    chance, hits, left = random.Random(1), 0, 0
    with opened(path) as log:
        name, at = f"{path}/eoslog.lock-{log.slot % 64:02d}", log.session.append_lock(log.slot)[1]
        beside = os.open(name, os.O_RDWR)
        enough = time.monotonic() + 60  # a signal does not shorten a slow sync
        while hits < INTERRUPTS and (hits < FEWEST or time.monotonic() < enough):
            log.append(batch(1))
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-6, 120e-6))
                log.flush()
                armed = False
            except KeyboardInterrupt:
                armed = False
                hits += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            left += log.flusher._flushing.locked() or not _core.try_lock(beside, at + 1)
            if left:
                break
            _core.unlock(beside, at + 1)
    child.tell("left", left)


@pytest.mark.process
def test_an_interrupt_leaves_no_lock_held(tmp_path: Path) -> None:
    assert live(interrupt, str(tmp_path)).fine().of("left") == [0]


def interrupt_after(call: Callable[..., Steps[None]], *args: Any) -> Steps[None]:
    yield from call(*args)
    raise KeyboardInterrupt


class Interrupted:
    """The core, and a signal as `begin_flush` returns."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def begin_flush(self, target: int) -> None:
        self._core.begin_flush(target)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def _flush_anyhow(log: Any) -> None:
    with suppress(EoslogError):
        log.flush()
