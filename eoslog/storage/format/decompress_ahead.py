"""Decompressing the next batches of a scan in a second thread.

The libraries release the GIL, so one batch is decompressed while the scan decodes the one before.
The thread belongs to one scan and ends with it. It never delays the scan for long: a batch that the
thread has not begun is decompressed by the scan itself, and so is one that fails, which reports the
error in its turn. After a fork, the child decompresses everything itself.

This is not a C thread as in `sync_pool.c`, because the codecs are called through Python, and only
threads of Python stop in time when the interpreter exits.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from eoslog import _core
from eoslog.storage.format import codecs

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["DecompressAhead"]

LIMIT = 8 << 20
"""Larger batches are left to the scan, so that those in advance take little memory."""


def _new_tokens() -> list[None]:
    """One for each thread that may decompress ahead: half of the processors."""
    return [None] * (len(os.sched_getaffinity(0)) // 2)


_tokens = _new_tokens()  # without a lock, because a garbage collection anywhere may end a scan


def _after_fork() -> None:
    global _tokens
    _tokens = _new_tokens()


os.register_at_fork(after_in_child=_after_fork)


class _Job:
    """One batch to decompress, by the first thread that claims it."""

    __slots__ = ("_claimed", "_codec", "_data", "_done", "_found")

    def __init__(self, codec: str, data: memoryview) -> None:
        self._codec = codec
        self._data = data
        self._found: Any = None
        self._claimed = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()

    def claim(self) -> bool:
        """Return whether the caller is the first, and so has to run the job or drop it."""
        return self._claimed.acquire(blocking=False)

    def run(self) -> None:
        """Decompress; an error is left to the scan, which decompresses again."""
        try:
            self._found = codecs.decompress(
                self._codec, self._data, limit=LIMIT, room=_core.writable_memory
            )
        except Exception:
            self._found = None
        finally:
            self._done.release()

    def run_if_unclaimed(self) -> None:
        if self.claim():
            self.run()

    def is_done(self) -> bool:
        return not self._done.locked()

    def wait(self) -> Any:
        """Return the decompressed bytes, None after an error."""
        with self._done:
            return self._found


class DecompressAhead:
    """The second thread of one scan. Not thread-safe; use it from the scan's thread.

    The thread starts at the first batch. If the machine has no processor or thread to spare,
    nothing is decompressed ahead.
    """

    def __init__(self) -> None:
        """Start nothing."""
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0
        self._given_up = False

    def submit(self, codec: str, data: memoryview) -> _Job | None:
        """Let the thread decompress a payload; None if there is no thread for it.

        Args:
            codec: one of `CODECS`.
            data: the payload, which is kept until the job is dropped.
        """
        if self._given_up:
            return None
        if self._pool is None:
            self._pool = self._new_pool()
        if self._pool is None or self._pid != os.getpid():
            self._given_up = True
            return None
        job = _Job(codec, data)
        try:
            self._pool.submit(job.run_if_unclaimed)
        except RuntimeError:  # no new thread, or the interpreter exits
            self._given_up = True
            return None
        return job

    def _new_pool(self) -> ThreadPoolExecutor | None:
        try:
            _tokens.pop()
        except IndexError:
            return None
        try:
            from concurrent.futures import ThreadPoolExecutor  # slow to import, seldom needed

            self._pid = os.getpid()
            return ThreadPoolExecutor(1, "eoslog-decompress")
        except BaseException as error:
            _tokens.append(None)
            if isinstance(error, RuntimeError):  # the interpreter exits
                return None
            raise

    def result(self, job: _Job, later: list[_Job]) -> Any:
        """Return what the thread made of a job.

        If the thread is still busy with it, the scan runs the later jobs first.

        Returns:
            A buffer; None if the caller has to decompress: the thread has not begun, or it failed.
        """
        if self._pid != os.getpid() or job.claim():
            return None
        for other in later:
            if job.is_done():
                break
            other.run_if_unclaimed()
        found = job.wait()
        if found is None:  # the next batches are probably as large, or damaged too
            self._given_up = True
        return found

    def close(self) -> None:
        """End the thread, after the batch that it is decompressing."""
        pool, self._pool, self._given_up = self._pool, None, True
        if pool is not None and self._pid == os.getpid():
            try:
                pool.shutdown(wait=False, cancel_futures=True)
            finally:
                _tokens.append(None)
