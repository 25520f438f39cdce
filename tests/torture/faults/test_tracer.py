"""The tracer numbers the calls of all threads in order and kills at the nth.

The process ends before the call with the requested number.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
from pathlib import Path

import pytest

from tests.faults.harness import Child
from tests.torture.faults.tracer import can_trace, traced

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(platform.machine() != "x86_64" or not can_trace(), reason="no ptrace"),
]


def writes(child: Child, path: Path) -> None:
    """Make an open that may create a file, and six writes, three of them by a thread.

    A stat does not count.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def some(begin: int) -> None:
        for at in range(begin, begin + 3):
            os.pwrite(fd, b"x", at)

    some(0)
    thread = threading.Thread(target=some, args=(3,))
    thread.start()
    thread.join()
    os.close(os.open(path, os.O_RDONLY))
    os.close(fd)


def test_the_tracer_counts_calls_of_all_threads(tmp_path: Path) -> None:
    life, count = traced(writes, tmp_path / "file")
    life.fine()
    assert count == 7
    assert (tmp_path / "file").read_bytes() == b"x" * 6


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_traced_process_ends_before_the_requested_call(tmp_path: Path, nth: int) -> None:
    life, count = traced(writes, tmp_path / "file", kill_at=nth)
    assert (life.killed, count) == (True, nth)
    done = (tmp_path / "file").read_bytes() if (tmp_path / "file").exists() else None
    assert done == (None if nth == 1 else b"x" * (nth - 2))


def test_signals_reach_a_traced_process(tmp_path: Path) -> None:
    def dies(child: Child) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: child.tell("heard", 1))
        os.kill(os.getpid(), signal.SIGUSR1)

    life, _ = traced(dies)
    assert life.fine().of("heard") == [1]
