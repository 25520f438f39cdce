"""The one background thread of an open directory: heartbeats, late flushes, when other work is due;
and the threads that flush several partitions at once for who asks.

Nothing waits for it: who needs durability flushes itself. It only serves acks=0 and acks=1 writers
and markers, whose bytes become durable within the topic's `flush.ms`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from eoslog.errors import EoslogError
from eoslog.storage.log_settings import FOR_EVER
from eoslog.storage.partition_log import PartitionLog

logger = logging.getLogger("eoslog.background")


@dataclass(order=True)
class _Task:
    due: float
    interval_s: float = field(compare=False)
    run: Callable[[], None] = field(compare=False)


_AGAIN_S = 1.0
"""Until a flush that could not be tried is."""
_FLUSHERS = 8
"""Threads, of one directory."""


class _Note(NamedTuple):
    """A log is to be flushed at `due` (s); what waits for that lies below `end`."""

    due: float
    end: int


class Background:
    """A daemon thread; a forked child has none, which its dead handles do not miss."""

    def __init__(
        self,
        name: str,
        beat: Callable[[], None],
        beat_s: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Start beating."""
        self._clock = clock or time.monotonic  # as it is now: the simulator has its own
        self._dirty: dict[PartitionLog, _Note] = {}
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._stop = False
        self._tasks = [_Task(self._clock(), beat_s, beat)]
        self._thread = threading.Thread(target=self._run, name=f"eoslog-{name}", daemon=True)
        self._thread.start()

    def schedule(self, interval_s: float, run: Callable[[], None]) -> None:
        """Call `run` every interval_s seconds; what it raises is logged."""
        with self._mutex:
            self._tasks.append(_Task(self._clock() + interval_s, interval_s, run))

    def note_append(self, log: PartitionLog) -> None:
        """Flush this log within its `flush.ms` unless somebody does before.

        At once when `flush.messages` records wait for it. Once what was noted is durable, the time
        runs anew: writers that flush by themselves would meet this thread's flushes in their way.
        """
        if not log.strict:
            return
        durable, end = log.durable_end, log.log_end
        most = log.settings.flush_messages
        full = most < FOR_EVER and end - durable >= most
        note = self._dirty.get(log)
        if note is not None and durable < note.end and not full:
            return
        with self._mutex:
            wait_ms = 0 if full else log.settings.flush_ms
            self._dirty[log] = _Note(self._clock() + wait_ms / 1000, end)
        if note is None or full:
            self._wake.set()

    def forget(self, log: PartitionLog) -> None:
        """The log is going."""
        with self._mutex:
            self._dirty.pop(log, None)

    def _run(self) -> None:
        while not self._stop:
            due = self.step()
            self._wake.wait(max(0.0, min(due - self._clock(), 1.0)))
            self._wake.clear()

    def step(self) -> float:
        """Do what is due now; when there will be more to do (CLOCK_MONOTONIC, s)."""
        now = self._clock()
        with self._mutex:
            due = [log for log, note in self._dirty.items() if note.due <= now]
            for log in due:
                del self._dirty[log]
            tasks = [task for task in self._tasks if task.due <= now]
            for task in tasks:
                task.due = now + task.interval_s
            times = [note.due for note in self._dirty.values()] + [task.due for task in self._tasks]
        for log in due:
            error = self._guard(log.flush)
            if getattr(error, "retriable", False) and not log.core.deleted:
                with self._mutex:  # nobody else may come by to flush it
                    self._dirty.setdefault(log, _Note(now + _AGAIN_S, log.log_end))
                times.append(now + _AGAIN_S)
        for task in tasks:
            self._guard(task.run)
        return min(times, default=now + 1.0)

    def _guard(self, run: Callable[[], None]) -> Exception | None:
        """Run it; what it raised, which is logged."""
        try:
            run()
        except EoslogError as error:
            logger.warning("background: %s", error)
            return error
        except Exception as error:
            if not self._stop:
                logger.exception("background work failed")
            return error
        return None

    def close(self, timeout: float = 10) -> bool:
        """Stop and wait for the work in hand; whether it has ended within `timeout` seconds."""
        self._stop = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()


class Flushers:
    """Flushes partitions at the same time; its threads are made at the first need."""

    def __init__(self) -> None:
        """No thread yet."""
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def flush(self, targets: Sequence[tuple[PartitionLog, int]]) -> None:
        """Flush each up to its offset; the first error is raised when all are done."""
        due = [(log, end) for log, end in targets if log.strict and log.durable_end < end]
        if len(due) <= 1:
            for log, end in due:
                log.flush(end)
            return
        if self._pool is None:
            with self._mutex:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_FLUSHERS, "eoslog-flush")
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
        except RuntimeError:  # the program ends, and takes no more work for other threads
            done: Future[None] = Future()
            try:
                log.flush(end)
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)
            return done

    def close(self) -> None:
        """Wait for what is under way."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
