"""Reads of the fold take a lock only while another thread folds many records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.coordinator.world import A0, World, Writer


class _WatchedLock:
    """A lock that says when a thread is about to wait for it."""

    def __init__(self, lock: Any, wanted: threading.Event) -> None:
        self._lock, self._wanted = lock, wanted
        self._owner = threading.get_ident()

    def __enter__(self) -> None:
        if threading.get_ident() != self._owner:
            self._wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("read", ["value", "decision"])
def test_a_reader_waits_while_the_log_is_folded_again(
    world: World, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    writer = Writer(world, "w")
    writer.write(A0, b"1")
    writer.commit()
    clog = world.coordinator.logs.of("w")
    clog.refresh()
    value, (decision,) = clog.get("w"), clog.decisions()
    assert value is not None
    stopped, found = threading.Event(), []

    def look() -> None:
        found.append(clog.get("w") if read == "value" else clog.decision(decision.key))
        stopped.set()

    reader = threading.Thread(target=look)
    batches = clog.log.batches

    def half(start: int, end: int) -> Iterator[Any]:
        reader.start()  # the tables are empty now
        assert stopped.wait(30)
        yield from batches(start, end)

    monkeypatch.setattr(clog.log, "batches", half)
    monkeypatch.setattr(clog, "_lock", _WatchedLock(clog._lock, stopped))
    monkeypatch.setattr(clog.log, "cleaned_to", clog.log.log_end + 1)  # fold all again
    clog.refresh()
    reader.join()
    assert found == [value if read == "value" else decision]
