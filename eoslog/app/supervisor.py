"""The processes of an app: started, watched, started again, and ended.

Each worker is a fork of the process that calls `App.run`. It opens the log itself. A pipe connects
it to its parent. The worker sends what it does twice a second, and at its end its report or its
error. If the parent ends, the pipe is closed, and the worker ends after its transaction.

A worker that is killed, or whose transaction was lost to another one, is started again, after a
delay that doubles with each exit. Any other error ends the run: the next attempt would fail alike.

A worker whose task hangs ends itself (`task_watch`). If the task keeps the interpreter lock, no
other thread of the worker runs, and the clock that it sets in shared memory stops. The parent kills
it then.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from multiprocessing import connection as pipes
from typing import TYPE_CHECKING, Any, Protocol

from eoslog.app.task_watch import SharedTime, watched
from eoslog.errors import (
    CommitOutcomeUnknown,
    EoslogError,
    KafkaError,
    RequestTimedOut,
    TaskFailed,
)
from eoslog.reports import RunReport
from eoslog.shown_paths import get_logger
from eoslog.storage.directory.processes import is_stopped

if TYPE_CHECKING:
    from eoslog.app.task_calls import Overdue

__all__ = ["ProcessStatus", "Supervisor", "Watch"]

logger = get_logger("eoslog.app")

_TICK_S = 0.5
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 10.0
_HEALTHY_S = 30.0
"""A worker that ran this long begins again with the first delay."""
_FROZEN_S = 5.0
"""How long after its longest call a worker whose clock has stopped is killed."""
_ENDING = (signal.SIGTERM, signal.SIGINT)
_MOST_ERRORS = 5
"""After more errors in a row, a worker is not started again."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What one process of an app does.

    Attributes:
        number: its number among the processes of the run, from 0.
        pid: its process id; None while it waits for its start.
        state: "starting", "running", "restarting", "stopping" or "ended".
        restarts: how often it was started again.
        report: what it has committed, its ended predecessors included.
        lag: the records of the input that the app has not processed; None if unknown.
        waiting: the records that wait for another attempt in this process.
        doing: the task and the record that it processes; empty if it waits.
        seconds: how long it has processed that record.
    """

    number: int
    pid: int | None = None
    state: str = "starting"
    restarts: int = 0
    report: RunReport = field(default_factory=RunReport)
    lag: int | None = None
    waiting: int = 0
    doing: str = ""
    seconds: float = 0.0


Watch = Callable[[Sequence[ProcessStatus]], object]
"""Called twice a second with the status of each process."""


class SupervisedApp(Protocol):
    """The part of an `App` that its processes use."""

    _stopping: bool
    _worker: Any
    _tasks: Any
    _watch: Any

    @property
    def id(self) -> str:
        """The id of the app."""

    @property
    def log(self) -> Any:
        """The log."""

    @property
    def run(self) -> Callable[..., RunReport]:
        """Run in this process."""

    def stop(self) -> None:
        """End the run."""


class _Child:
    """One worker, and its successors after crashes."""

    def __init__(self, number: int, clock: SharedTime) -> None:
        self.status = ProcessStatus(number)
        self.clock = clock
        self.process: Any = None
        self.pipe: Any = None
        self.error: Exception | None = None
        self.done = False
        self.start_at = 0.0
        self.began = 0.0
        self.delay = _FIRST_DELAY_S
        self.errors = 0
        self.before = RunReport()

    def take(self, message: tuple[str, Any]) -> None:
        """Note a message of the worker."""
        kind, content = message
        if kind == "error":
            self.error, note = pickle.loads(content)
            self.error.add_note(note)
            return
        if kind == "report":
            self.done = True
            content = {"report": content, "doing": "", "waiting": 0}
        total = _sum([self.before, content.pop("report")])
        self.status = replace(self.status, report=total, **content)

    def drain(self) -> None:
        """Note all messages that have arrived."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                self.take(self.pipe.recv())


class Supervisor:
    """Runs an app in several processes."""

    def __init__(
        self, app: SupervisedApp, processes: int, until: str | None, watch: Watch | None
    ) -> None:
        """Start nothing.

        Args:
            app: the app; its log is closed.
            processes: the number of processes.
            until: as for `App.run`.
            watch: called twice a second, or None.
        """
        self._app = app
        self._until = until
        self._watch = watch
        self._fork = multiprocessing.get_context("fork")
        self._children = [
            _Child(number, self._fork.Value("d", lock=False)) for number in range(processes)
        ]
        self._longest_s = max(task.task_timeout for task in app._tasks.values()) + _FROZEN_S

    def run(self) -> RunReport:
        """Run until all processes have ended.

        Raises:
            EoslogError: the first error of a process that is not started again.
        """
        began = time.monotonic()
        with self._signals():
            try:
                while any(not child.done or child.process for child in self._children):
                    self._turn()
            finally:
                self._end_all()
        report = _sum([child.status.report for child in self._children])
        report.seconds = time.monotonic() - began
        self._show()
        return report

    def _turn(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.process is None and not child.done:
                if self._app._stopping:
                    child.done = True
                elif now >= child.start_at:
                    self._start(child)
        if self._app._stopping:
            self._signal_all()
        sources: dict[Any, _Child] = {}
        for child in self._children:
            if child.process is not None:
                sources[child.process.sentinel] = child
                sources[child.pipe] = child
        if not sources:
            time.sleep(0.02)
        ready = [sources[one] for one in pipes.wait(list(sources), _TICK_S)] if sources else []
        for child in dict.fromkeys(ready):
            child.drain()
            if not child.process.is_alive():
                self._ended(child)
        for child in self._children:
            self._kill_frozen(child)
        self._show()

    def _kill_frozen(self, child: _Child) -> None:
        """Kill a worker whose threads do not run, unless it was stopped by a signal."""
        began, pid = child.clock.value, child.status.pid
        if not began or pid is None or time.monotonic() - began < self._longest_s:
            return
        child.clock.value = 0.0
        if is_stopped(pid):
            return
        logger.error(
            "app %r: process %d (pid %d) has not responded for %.0f s in %s; it is killed",
            self._app.id, child.status.number, pid, self._longest_s, child.status.doing or "a task",
        )  # fmt: skip
        child.process.kill()

    def _start(self, child: _Child) -> None:
        ours, theirs = self._fork.Pipe()
        others = [other.pipe for other in self._children if other.pipe is not None]
        process = self._fork.Process(
            target=_work, args=(self._app, self._until, theirs, [ours, *others], child.clock),
            name=f"{self._app.id}-{child.status.number}",
        )  # fmt: skip
        with _signals_held():
            process.start()
        theirs.close()
        child.process, child.pipe = process, ours
        child.began, child.error, child.clock.value = time.monotonic(), None, 0.0
        child.status = replace(child.status, pid=process.pid, state="running")

    def _ended(self, child: _Child) -> None:
        """Decide what follows the end of a worker."""
        process, number = child.process, child.status.number
        process.join()
        child.drain()
        code, pid = process.exitcode, process.pid
        child.pipe.close()
        process.close()
        child.process = child.pipe = None
        child.status = replace(child.status, pid=None, doing="", seconds=0.0, state="ended")
        if time.monotonic() - child.began > _HEALTHY_S:
            child.delay, child.errors = _FIRST_DELAY_S, 0
        if child.error is not None:
            child.errors += 1
            if not _transient(child.error) or child.errors > _MOST_ERRORS:
                child.done = True
                raise child.error
        if child.done or self._app._stopping:
            child.done = True
            return
        child.start_at = time.monotonic() + child.delay
        child.before = child.status.report
        status = replace(child.status, state="restarting", restarts=child.status.restarts + 1)
        child.status = status
        logger.warning(
            "app %r: process %d (pid %d) %s; it starts again in %g s",
            self._app.id, number, pid, _why(code, child.error), child.delay,
        )  # fmt: skip
        child.delay = min(2 * child.delay, _LONGEST_DELAY_S)

    def _signal_all(self, number: int = signal.SIGTERM) -> None:
        for child in self._children:
            if child.process is not None and child.status.state != "stopping":
                child.status = replace(child.status, state="stopping")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.process.pid, number)

    def _end_all(self) -> None:
        """Wait for the processes that are left after an error."""
        self._app.stop()
        while any(child.process is not None for child in self._children):
            try:
                self._turn()
            except EoslogError as error:
                logger.error("app %r: %s", self._app.id, error, exc_info=error)

    def _show(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch([child.status for child in self._children])
            self._watch = watch  # not after an error: the processes still have to end

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """End the run at SIGTERM and SIGINT; kill the processes at the third signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        came = 0

        def handle(*_: object) -> None:
            nonlocal came
            came += 1
            self._app.stop()
            if came > 2:
                for child in self._children:
                    if child.process is not None:
                        child.process.kill()

        before = [signal.signal(number, handle) for number in _ENDING]
        try:
            yield
        finally:
            for number, handler in zip(_ENDING, before, strict=True):
                signal.signal(number, handler)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold the signals that end a run.

    A new worker has the parent's handlers until it sets its own. They would only stop its copy of
    the supervisor, so the worker would never end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _transient(error: Exception) -> bool:
    """Whether only a transaction was lost, so that a new process can continue."""
    lost = isinstance(error, KafkaError) and (error.abortable or error.fatal)
    return lost or isinstance(error, CommitOutcomeUnknown | RequestTimedOut)


def _why(code: int | None, error: BaseException | None) -> str:
    if error is not None:
        return f"failed: {error}"
    if code is not None and code < 0:
        names = {one.value: one.name for one in signal.Signals}  # not of each real-time signal
        return f"was ended by {names.get(-code, f'signal {-code}')}"
    return f"exited with {code}"


def _sum(reports: Sequence[RunReport]) -> RunReport:
    """Add the counts of reports; the longest time counts."""
    total = RunReport()
    for report in reports:
        for name in (each.name for each in fields(RunReport)):
            both = (getattr(total, name), getattr(report, name))
            setattr(total, name, max(both) if name == "seconds" else sum(both))
    return total


# In the worker.


def _work(
    app: SupervisedApp, until: str | None, pipe: Any, others: list[Any], clock: SharedTime
) -> None:
    """Run the app in a process of its own."""
    mine = os.getpid()
    for number in _ENDING:
        signal.signal(number, lambda *_: os._exit(0))  # until the run handles them
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    for other in others:  # else the parent's end of a pipe would stay open after the parent
        other.close()
    ended = threading.Event()
    sending = threading.Lock()

    def overdue(call: Overdue) -> None:
        with sending:
            if call.stops:
                with contextlib.suppress(OSError):
                    pipe.send(("error", _portable(call.error)))
            os._exit(1)  # the note of the record stays, so the next owner counts the exit

    app._watch = functools.partial(watched, on_overdue=overdue, clock=clock)
    sender = threading.Thread(target=_report, args=(app, pipe, ended, sending), daemon=True)
    sender.start()
    try:
        last: tuple[str, Any] = ("report", app.run(until=until))
    except Exception as error:
        last = ("error", _portable(error))
    if os.getpid() != mine:
        os._exit(1)  # a fork of a task, which has returned instead of ending
    ended.set()
    sender.join()
    with contextlib.suppress(OSError):
        pipe.send(last)
    if last[0] == "error":
        raise SystemExit(1)


def _portable(error: Exception) -> bytes:
    """Return an error that another process can raise, and its traceback.

    The message of a failed task has its place, so the traceback is that of its cause.
    """
    told = (error.__cause__ if isinstance(error, TaskFailed) else None) or error
    note = f"In the process {os.getpid()}:\n{''.join(traceback.format_exception(told))}"
    try:
        copied = pickle.dumps((error, note))
        pickle.loads(copied)  # its class may need other arguments than the error keeps
        return copied
    except Exception:  # of another library, with an attribute that cannot be copied
        return pickle.dumps((TaskFailed(f"{type(error).__name__}: {error}"), note))


def _report(app: SupervisedApp, pipe: Any, ended: threading.Event, sending: threading.Lock) -> None:
    """Send the status of the worker, and end it if its parent has ended."""
    doing, since = "", 0.0
    while not ended.wait(_TICK_S):
        status = _status(app)
        if status["doing"] != doing:
            doing, since = status["doing"], time.monotonic()
        status["seconds"] = time.monotonic() - since if doing else 0.0
        try:
            if pipe.poll():
                pipe.recv()
            with sending:
                pipe.send(("status", status))
        except (EOFError, OSError):  # the parent has ended
            app.stop()


def _status(app: SupervisedApp) -> dict[str, Any]:
    worker = app._worker
    if worker is None:
        return {"report": RunReport(), "doing": ""}
    try:
        lag: int | None = sum(app.log.lag(app.id).values())
    except EoslogError:
        lag = None
    return {
        "report": replace(worker.report),
        "lag": lag,
        "waiting": worker.waiting(),
        "doing": worker.doing(),
    }
