"""The second thread of a scan: which batches it decompresses, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from eoslog import _core
from eoslog.storage.format import codecs, decompress_ahead
from eoslog.storage.format.decompress_ahead import LIMIT, DecompressAhead

PLAIN = bytes(range(256)) * 1024


def payload(data: bytes = PLAIN) -> memoryview:
    return memoryview(codecs.compress("lz4", data))


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[DecompressAhead]:
    monkeypatch.setattr(decompress_ahead, "_tokens", [None])  # on a machine with one processor too
    one = DecompressAhead()
    yield one
    one.close()
    _ended()


def _threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("eoslog-decompress")]


def _ended() -> None:
    for thread in _threads():
        thread.join(300)
        assert not thread.is_alive()


class Occupied:
    """Keeps the thread of an object busy."""

    def __init__(self, ahead: DecompressAhead) -> None:
        self._free = threading.Event()
        assert ahead.submit("none", memoryview(b"")) is not None  # starts the thread
        assert ahead._pool is not None
        ahead._pool.submit(self._free.wait)

    def end(self) -> None:
        self._free.set()


def finished(job: Any) -> Any:
    """Wait until the thread has run a job, without claiming it."""
    return job.wait()


def test_the_thread_decompresses_what_is_submitted(ahead: DecompressAhead) -> None:
    job = ahead.submit("lz4", payload())
    assert finished(job) == PLAIN
    assert ahead.result(job, []) == PLAIN
    assert len(_threads()) == 1


def test_a_job_that_the_thread_has_not_begun_is_left_to_the_scan(
    ahead: DecompressAhead,
) -> None:
    busy = Occupied(ahead)
    job = ahead.submit("lz4", payload())
    assert job is not None
    assert ahead.result(job, []) is None
    busy.end()
    job.run_if_unclaimed()  # as the thread will: it must not decompress a claimed job
    assert not job.is_done()


def test_the_scan_runs_later_jobs_while_it_waits(ahead: DecompressAhead) -> None:
    busy = Occupied(ahead)
    job, later = ahead.submit("lz4", payload()), ahead.submit("lz4", payload())
    assert job is not None
    assert later is not None
    assert job.claim()  # as if the thread had begun it
    end = threading.Thread(target=lambda: (later.wait(), job.run()))
    end.start()  # ends the job only after the later one
    assert ahead.result(job, [later]) == PLAIN
    end.join()
    assert later.is_done()
    assert ahead.result(later, []) == PLAIN
    busy.end()


@pytest.mark.parametrize(
    "data",
    [memoryview(b"not a frame"), payload(bytes(LIMIT + 1))],
    ids=["damaged", "larger than the limit"],
)
def test_a_failed_job_is_left_to_the_scan_and_is_the_last(
    ahead: DecompressAhead, data: memoryview
) -> None:
    job = ahead.submit("lz4", data)
    assert finished(job) is None
    assert ahead.result(job, []) is None
    assert ahead.submit("lz4", payload()) is None


def test_no_thread_starts_before_the_first_job(ahead: DecompressAhead) -> None:
    assert not _threads()
    ahead.close()
    assert ahead.submit("lz4", payload()) is None
    assert not _threads()


def test_no_more_threads_run_than_half_of_the_processors(ahead: DecompressAhead) -> None:
    other = DecompressAhead()
    assert ahead.submit("lz4", payload()) is not None
    assert other.submit("lz4", payload()) is None
    other.close()
    ahead.close()
    again = DecompressAhead()
    assert again.submit("lz4", payload()) is not None
    again.close()
    assert len(decompress_ahead._tokens) == 1


def test_a_system_that_refuses_a_thread_leaves_all_to_the_scan(
    ahead: DecompressAhead,
) -> None:
    before = threading.stack_size(1 << 46)  # more than the address space
    try:
        assert ahead.submit("lz4", payload()) is None
    finally:
        threading.stack_size(before)
    assert ahead.submit("lz4", payload()) is None
    ahead.close()
    assert len(decompress_ahead._tokens) == 1


@pytest.mark.process
def test_a_scan_while_the_interpreter_exits_has_no_thread() -> None:
    code = (
        "import atexit\n"
        "from eoslog.storage.format import decompress_ahead\n"
        "decompress_ahead._tokens = [None]\n"
        "def last():\n"
        "    ahead = decompress_ahead.DecompressAhead()\n"
        "    print(ahead.submit('none', memoryview(b'')), decompress_ahead._tokens)\n"
        "    ahead.close()\n"
        "    print(decompress_ahead._tokens)\n"
        "atexit.register(last)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout.split("\n"), done.stderr) == (["None [None]", "[None]", ""], "")


def test_closing_drops_what_has_not_begun(ahead: DecompressAhead) -> None:
    busy = Occupied(ahead)
    job = ahead.submit("lz4", payload())
    assert job is not None
    ahead.close()
    busy.end()
    _ended()
    assert not job.is_done()
    assert job.claim()


def test_a_forked_child_decompresses_everything_itself(ahead: DecompressAhead) -> None:
    busy = Occupied(ahead)
    job = ahead.submit("lz4", payload())
    assert job is not None
    assert job.claim()  # as if the thread, which the child does not have, had begun it
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            refused = ahead.result(job, []) is None and ahead.submit("lz4", payload()) is None
            ahead.close()
            fresh = len(decompress_ahead._tokens) == len(os.sched_getaffinity(0)) // 2
            code = 0 if refused and fresh else 2
        finally:
            os._exit(code)
    busy.end()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    job.run()
    assert ahead.result(job, []) == PLAIN


def test_a_thread_ends_with_its_scan_however_it_ends(tmp_path: Any) -> None:
    """Read to the end, stopped, dropped, and still open when the interpreter exits."""
    program = """
import sys, threading
import eoslog
from eoslog.storage.format import decompress_ahead
decompress_ahead._tokens[:] = [None]
with eoslog.open(sys.argv[1]) as log:
    log.create_topic("t", 1, {"max.message.bytes": "2000000"})
    with log.producer({"compression.type": "lz4"}) as producer:
        producer.produce_many("t", [b"%0100d" % (i * 7919 % 99991) * 3 for i in range(60_000)],
                              partition=0)
    def threads():
        return [t for t in threading.enumerate() if t.name.startswith("eoslog-decompress")]
    def ended():
        for thread in threads():
            thread.join(300)
            assert not thread.is_alive()
        assert len(decompress_ahead._tokens) == 1
    scan = log.scan("t", batch_rows=4000)
    assert sum(batch.num_rows for batch in scan) == 60_000
    ended()
    started = 0
    for stop in ("close", "drop"):
        some = iter(scan)
        for _ in range(8):
            next(some)
        started += len(threads())
        if stop == "close":
            some.close()
        del some
        ended()
    assert started == 2, started
    left = iter(scan)
    for _ in range(8):
        next(left)
    assert threads()
    kept = [left]
    print("exits")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "exits\n", "")


def test_decompressed_memory_is_that_of_the_pool(ahead: DecompressAhead) -> None:
    job = ahead.submit("lz4", payload())
    found = finished(job)
    assert isinstance(found, memoryview)
    assert found.readonly
    assert type(found.obj) is type(_core.writable_memory(1))
