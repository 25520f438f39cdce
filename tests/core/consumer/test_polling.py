"""A consumer's `poll` while records are fetched, and the guard around its calls."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import IllegalState


class Polling(_core.RecordPolling):
    """Answers "asked" where the fast path does not."""

    def __init__(self, count: int = 3) -> None:
        self._use = _core.OneThread("consumer")
        self._next_duty = float("inf")
        self._current = _core.FetchedRecords()
        self._current.fill([_core.Record("t", 0, 10 + 2 * i) for i in range(count)], 20)

    def _poll_one(self, timeout: float | None) -> Any:
        with self._use:
            return "asked"


def test_fetched_records_are_returned_in_order_and_move_the_position() -> None:
    consumer = Polling()
    fetched = consumer._current
    seen = []
    while isinstance(record := consumer.poll(0), _core.Record):
        seen.append((record.offset, fetched.position, fetched.last_returned))
    # After the last record, poll also skips the rest of the fetch: markers and aborted batches.
    assert seen == [(10, 11, 10), (12, 13, 12), (14, 20, 14)]
    assert fetched.records == []


def test_take_and_poll_continue_from_the_same_position() -> None:
    consumer = Polling(5)
    fetched = consumer._current
    assert [r.offset for r in fetched.take(2)] == [10, 12]
    assert consumer.poll().offset == 14
    assert [r.offset for r in fetched.take(99)] == [16, 18]
    assert (fetched.position, fetched.take(1)) == (20, [])


def test_the_fast_path_of_poll_returns_no_record_when_other_work_is_due() -> None:
    for attribute, value in (
        ("_woken", True),
        ("_next_duty", time.monotonic() - 1),
        ("_current", None),
    ):
        consumer = Polling()
        setattr(consumer, attribute, value)
        assert consumer.poll() == "asked"
    consumer = Polling()
    consumer._current.paused = True
    assert consumer.poll() == "asked"
    consumer._current.paused = False
    consumer._current.drop_fetched()
    assert consumer.poll() == "asked"


def test_an_empty_fetch_moves_the_position() -> None:
    fetched = _core.FetchedRecords()
    assert (fetched.position, fetched.last_returned) == (None, None)
    fetched.fill([], 7)
    assert fetched.position == 7
    fetched.position = None
    assert fetched.position is None


def test_a_closed_handle_and_a_second_thread_are_rejected() -> None:
    consumer = Polling()
    told: list[str] = []

    def other() -> None:
        try:
            consumer.poll()
        except IllegalState as error:
            told.append(str(error))

    with consumer._use:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert consumer.poll() == "asked"  # nested in the thread that has it
    assert "in use by thread" in told[0]
    consumer._use.closed = True
    with pytest.raises(IllegalState, match="closed"):
        consumer.poll()


def test_a_forked_child_gets_no_record(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log"):  # from the first open directory on, forks are counted
        consumer = Polling()
    child = os.fork()
    if child == 0:
        try:
            consumer.poll()
        except IllegalState as error:
            os._exit(7 if "inherited through fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert consumer.poll().offset == 10
