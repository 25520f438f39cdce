"""The background thread of a directory: heartbeats, late flushes, tasks.

Tasks that may wait for locks run in threads of their own, one for each kind of task (`Tasks`).

No caller waits for this thread: a caller that needs durability flushes itself. The late flushes are
for markers, and for writers with acks=0 and acks=1, whose records become durable within the topic's
`flush.ms`.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from eoslog.errors import EoslogError, StorageError
from eoslog.shown_paths import get_logger
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.settings import FOR_EVER

logger = get_logger("eoslog.background")
_JUMP_MS = 60_000
"""By how much the wall clock can gain on the monotonic one between two calls."""


@dataclass(order=True)
class _Timer:
    due: float
    interval_s: float = field(compare=False)
    run: Callable[[], None] = field(compare=False)


_AGAIN_S = 1.0
"""Seconds until the retry of a flush that failed with a retriable error."""
_JOIN_S = 60.0
"""The longest wait of `close` for each thread, in seconds."""


class _Note(NamedTuple):
    """The time `due` (s) at which a log must be flushed, at least up to `end`."""

    due: float
    end: int


class Tasks:
    """Threads for tasks: at most one for each kind of task."""

    def __init__(self) -> None:
        """Start without threads."""
        self._muted = False
        self._threads: dict[str, threading.Thread] = {}

    def begin(self, what: str, run: Callable[[], object]) -> None:
        """Run a task in a thread of the given name, unless that thread is running.

        Errors are logged. The task may wait for locks; heartbeats do not wait for it.
        """

        def guarded() -> None:
            try:
                run()
            except EoslogError as error:
                if not self._muted:
                    logger.warning("%s: background task failed, retrying later: %s", what, error)
            except Exception:
                if not self._muted:
                    logger.exception("%s: background task failed, retrying later", what)

        running = self._threads.get(what)
        if running is None or not running.is_alive():
            thread = threading.Thread(target=guarded, name=f"eoslog-{what}", daemon=True)
            with contextlib.suppress(RuntimeError):  # no threads can start at interpreter shutdown
                thread.start()
                self._threads[what] = thread

    def join(self) -> bool:
        """Wait for the running threads, and return whether each ended within a minute."""
        threads = list(self._threads.values())
        for thread in threads:
            thread.join(_JOIN_S)
        return not any(thread.is_alive() for thread in threads)

    def mute(self) -> None:
        """Stop logging errors, because the files of the directory are closed."""
        self._muted = True


class UnlessJumped:
    """Runs a task, except at the first call after the wall clock has jumped forward.

    A clock that is wrong for a moment must not expire or delete what is in use, because that is
    final. The next call runs the task, even after another jump: the end of a suspend of the
    machine is a jump too, and may come before each call. `ProducerExpiry` guards itself.
    """

    def __init__(self, run: Callable[[], object], clock_ms: Callable[[], int]) -> None:
        """Note the time.

        Args:
            run: the task.
            clock_ms: returns the wall clock time in ms.
        """
        self._run = run
        self._clock_ms = clock_ms
        self._ahead = self._ahead_ms()
        self._skipped = False

    def __call__(self) -> None:
        """Run the task, unless the wall clock has jumped since it ran."""
        before, self._ahead = self._ahead, self._ahead_ms()
        self._skipped = not self._skipped and self._ahead - before >= _JUMP_MS
        if not self._skipped:
            self._run()

    def _ahead_ms(self) -> float:
        return self._clock_ms() - 1000 * time.monotonic()


class Background:
    """The daemon thread of a directory, and the tasks that it begins.

    A forked child has no such thread, and needs none, because its handles are invalid.
    """

    def __init__(self, name: str, clock: Callable[[], float] | None = None) -> None:
        """Create the thread; `start` starts it."""
        self._clock = clock or time.monotonic  # looked up now, because the simulator replaces it
        self._dirty: dict[PartitionLog, _Note] = {}
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._stop = False
        self._timers: list[_Timer] = []
        self._thread = threading.Thread(target=self._run, name=f"eoslog-{name}", daemon=True)
        self.tasks = Tasks()

    def start(self) -> None:
        """Start the thread.

        Raises:
            StorageError: if the system starts no more threads for this process.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            remedy = (
                "open the log before the program exits"
                if "shutdown" in str(error)
                else "end other threads or processes of this user, or raise its limits (ulimit -u, "
                "ulimit -v)"
            )
            raise StorageError(
                f"the log's background thread cannot start ({error}); {remedy}",
                errno.EAGAIN,
            ) from error

    def schedule(
        self, interval_s: float, run: Callable[[], None], *, first_s: float | None = None
    ) -> None:
        """Call `run` in the background thread every `interval_s` seconds.

        Errors are logged.

        Args:
            interval_s: seconds between two calls.
            run: must not wait, because it would delay heartbeats.
            first_s: seconds until the first call; None means `interval_s`.
        """
        first = self._clock() + (interval_s if first_s is None else first_s)
        with self._mutex:
            self._timers.append(_Timer(first, interval_s, run))

    def schedule_task(self, what: str, interval_s: float, run: Callable[[], object]) -> None:
        """Begin a task every `interval_s` seconds, unless it is still running."""
        self.schedule(interval_s, lambda: self.tasks.begin(what, run))

    def note_append(self, log: PartitionLog) -> None:
        """Flush this log within its `flush.ms`, unless a caller flushes it before.

        If `flush.messages` records are not durable, flush it immediately. When a caller has flushed
        up to the noted end, or a decision carries it, the time starts again, so that this thread
        does not interfere with writers that flush themselves.
        """
        if not log.strict:
            return
        end = log.log_end
        most = log.settings.flush_messages
        full = most < FOR_EVER and end - log.durable_end >= most
        note = self._dirty.get(log)
        if note is not None and log.high_watermark < note.end and not full:
            return
        with self._mutex:
            wait_ms = 0 if full else log.settings.flush_ms
            self._dirty[log] = _Note(self._clock() + wait_ms / 1000, end)
        if note is None or full:
            self._wake.set()

    def forget(self, log: PartitionLog) -> None:
        """Drop a log that will be closed."""
        with self._mutex:
            self._dirty.pop(log, None)

    def _run(self) -> None:
        while not self._stop:
            due = self.step()
            self._wake.wait(max(0.0, min(due - self._clock(), 1.0)))
            self._wake.clear()

    def step(self) -> float:
        """Do what is due now, and return the time of the next work (CLOCK_MONOTONIC, s)."""
        now = self._clock()
        with self._mutex:
            due = [log for log, note in self._dirty.items() if note.due <= now]
            for log in due:
                del self._dirty[log]
            timers = [timer for timer in self._timers if timer.due <= now]
            for timer in timers:
                timer.due = now + timer.interval_s
            times = [note.due for note in self._dirty.values()] + [t.due for t in self._timers]
        for log in due:
            error = self._guard(log.flush)
            if getattr(error, "retriable", False) and not log.core.deleted:
                with self._mutex:  # retry, because no other caller may flush it
                    self._dirty.setdefault(log, _Note(now + _AGAIN_S, log.log_end))
                times.append(now + _AGAIN_S)
        for timer in timers:
            self._guard(timer.run)
        return min(times, default=now + 1.0)

    def _guard(self, run: Callable[[], None]) -> Exception | None:
        """Call `run`, log the exception that it raises, and return it."""
        try:
            run()
        except EoslogError as error:
            logger.warning("background: work failed, retrying later: %s", error)
            return error
        except Exception as error:
            if not self._stop:
                logger.exception("background: work failed, retrying later")
            return error
        return None

    def close(self) -> bool:
        """Stop, and return whether the thread and the tasks ended, each within a minute."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        ended = not self._thread.is_alive()
        return self.tasks.join() and ended
