"""Threads of an open directory that flush several partitions at the same time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from eoslog.storage.log.partition_log import PartitionLog

_THREADS = 8
"""The number of threads of one directory."""


class FlushPool:
    """Flushes partitions in parallel; its threads start at the first use.

    Thread-safe.
    """

    def __init__(self) -> None:
        """Start without threads."""
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def flush(self, targets: Sequence[tuple[PartitionLog, int]]) -> None:
        """Flush each log up to its offset; raise the first error when all have ended."""
        due = [(log, end) for log, end in targets if log.strict and log.durable_end < end]
        if len(due) <= 1:
            for log, end in due:
                log.flush(end)
            return
        if self._pool is None:
            with self._mutex:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_THREADS, "eoslog-flush")
        pending = [self._begin(self._pool, log, end) for log, end in due[1:]]
        try:
            due[0][0].flush(due[0][1])
        finally:
            errors = [error for future in pending if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _begin(self, pool: ThreadPoolExecutor, log: PartitionLog, end: int) -> Future[None]:
        try:
            return pool.submit(log.flush, end)
        except RuntimeError:  # interpreter shutdown: the pool accepts no more work
            done: Future[None] = Future()
            try:
                log.flush(end)
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)
            return done

    def close(self) -> None:
        """Wait for running flushes, and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
