"""The thread of one client: makes its calls, and coroutines wait for them.

A call ends before the coroutine that has made it continues, also if that coroutine is cancelled:

    not begun     the call is withdrawn, unless it is `certain`
    running       it is interrupted if it can be, and awaited
    ended         `undo` takes back what it has returned, because the coroutine cannot get it

So a cancelled coroutine leaves no call in the background, and the next call sees a definite state.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

from eoslog._util.closing import Closing
from eoslog._util.event_loops import Signal, outlast, signal
from eoslog.errors import EoslogError, IllegalState
from eoslog.shown_paths import get_logger

__all__ = ["Call", "CallThread"]

logger = get_logger("eoslog.aio")

T = TypeVar("T")


class _State(Enum):
    QUEUED = 1
    RUNNING = 2
    ENDED = 3


class _Unawaited:
    """The end of a call that no coroutine waits for."""

    def set(self) -> None:
        """Do nothing."""

    async def wait(self) -> None:
        """Do nothing."""


class Call(Generic[T]):
    """One call of a function in the thread.

    Attributes:
        abandoned: no coroutine takes the result, so that it is undone.
    """

    def __init__(
        self,
        function: Callable[[], T],
        ended: Signal,
        undo: Callable[[], object] | None = None,
        interrupt: Callable[[], object] | None = None,
    ) -> None:
        """Keep the functions; `undo` runs after an abandoned call, in the thread."""
        self._function = function
        self._undo = undo
        self._result: T | None = None
        self._error: BaseException | None = None
        self._closing: BaseException | None = None
        self.ended = ended
        self.interrupt = interrupt  # of a read, which any other call precedes
        self.state = _State.QUEUED
        self.abandoned = False

    def run(self) -> None:
        """Call the function, and keep its result or error."""
        try:
            self._result = self._function()
        except BaseException as error:  # it is raised in the coroutine
            self._error = error

    def fail(self, error: BaseException) -> None:
        """Raise an error in the coroutine; `undo` takes back the result."""
        self._closing = error
        self.abandoned = True

    @property
    def can_undo(self) -> bool:
        """Whether `undo` does anything."""
        return self._undo is not None

    def undo(self) -> None:
        """Take back what the function has done, unless it raised."""
        undo, self._undo = self._undo, None
        if undo is not None and self._error is None:
            try:
                undo()
            except EoslogError as error:  # no coroutine takes it
                logger.warning("a cancelled call was not taken back: %s", error)
            except BaseException as error:
                self._error = error

    def outcome(self) -> T:
        """Return the result or raise the error."""
        error, self._error = self._closing or self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # a traceback that refers to its own error is freed late
        return self._result  # type: ignore[return-value]


class CallThread(Closing):
    """A thread that makes the calls of coroutines in their order. Thread-safe.

    A call that can be interrupted is a read: it ends early, without a result, when another kind of
    call is made. The coroutine makes the read again, after that call.

    Attributes:
        waiting: how many calls have not ended. If it is 0, the client is at rest.
        urgent: how many calls have not begun that are not reads.
    """

    def __init__(self, name: str) -> None:
        """Start no thread yet; `name` names the client in messages."""
        self.waiting = 0
        self.urgent = 0
        self._name = name
        self._pid = os.getpid()
        # Reentrant: a finalizer calls `finish`, also in a thread that holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[Call[Any]] = deque()
        self._running: Call[Any] | None = None
        self._ending = False
        self._thread: threading.Thread | None = None

    def post(self, function: Callable[[], object]) -> None:
        """Call a function in the thread later, and do not wait for it.

        The calls that were made before it come first.

        Raises:
            IllegalState: if the client is closed, or was inherited through a fork.
        """
        self._put(Call(function, _Unawaited()))

    async def call(
        self,
        what: str,
        function: Callable[[], T],
        *,
        undo: Callable[[], object] | None = None,
        interrupt: Callable[[], object] | None = None,
        certain: bool = False,
    ) -> T:
        """Call a function in the thread, and wait for its end.

        Args:
            what: the call, for messages.
            function: the function.
            undo: runs in the thread, before any other call, if the function has returned and the
                coroutine was cancelled.
            interrupt: makes a running function return soon; called in the coroutine's thread.
            certain: call the function although the coroutine is cancelled.

        Raises:
            IllegalState: if the client is closed, or was inherited through a fork.
            BaseException: what the function raises.
        """
        self._refuse_in_child()
        call = Call(function, signal(what), undo, interrupt)
        self._put(call)
        try:
            await call.ended.wait()
        except GeneratorExit:  # the coroutine was dropped: it cannot wait
            self._abandon(what, call, certain=certain)
            raise
        except BaseException:
            await outlast(self._abandon(what, call, certain=certain))
            raise
        return call.outcome()

    def _refuse_in_child(self) -> None:
        if os.getpid() != self._pid:
            raise IllegalState(
                f"the {self._name} was inherited through fork; create a new one in this process"
            )

    def _put(self, call: Call[Any], *, first: bool = False) -> None:
        self._refuse_in_child()
        with self._changed:
            if self._ending:
                raise IllegalState(f"the {self._name} is closed; create a new one")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"eoslog-{self._name}", daemon=True
                )
                self._thread.start()
            if first:
                self._queue.appendleft(call)
            else:
                self._queue.append(call)
            self.waiting += 1
            if call.interrupt is None:
                self.urgent += 1
                if self._running is not None and self._running.interrupt is not None:
                    self._running.interrupt()
            self._changed.notify()

    def _abandon(self, what: str, call: Call[Any], *, certain: bool) -> Signal:
        """Give up the result of a call; return what to wait for."""
        with self._changed:
            state, call.abandoned = call.state, not certain
            if state is _State.QUEUED and not certain:
                self._queue.remove(call)
                self._end(call)
            elif state is _State.RUNNING and call.interrupt is not None:
                call.interrupt()
        if state is not _State.ENDED or certain or not call.can_undo:
            return call.ended
        taken_back = Call(call.undo, signal(what))
        try:
            self._put(taken_back, first=True)
        except IllegalState:  # closed since
            return call.ended
        return taken_back.ended

    def abandon_all(self, error: BaseException) -> None:
        """End every call with an error, because the client is being closed.

        Calls that have not begun do not begin. A running one that can be interrupted is undone.
        """
        with self._changed:
            while self._queue:
                call = self._queue.popleft()
                call.fail(error)
                self._end(call)
            running = self._running
            if running is not None and running.interrupt is not None:
                running.fail(error)
                running.interrupt()

    @property
    def interrupted(self) -> bool:
        """Whether the running call must return soon, without a result."""
        running = self._running
        if running is None:
            return False
        return running.abandoned or (running.interrupt is not None and self.urgent > 0)

    @property
    def finished(self) -> bool:
        """Whether `finish` or `close` was called."""
        return self._ending

    def _end(self, call: Call[Any]) -> None:
        if call.state is _State.QUEUED and call.interrupt is None:
            self.urgent -= 1
        call.state = _State.ENDED
        self.waiting -= 1
        call.ended.set()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._ending:
                        return
                    self._changed.wait()
                call = self._running = self._queue.popleft()
                call.state = _State.RUNNING
                if call.interrupt is None:
                    self.urgent -= 1
            call.run()
            with self._changed:
                if not call.abandoned:
                    self._running = None
                    self._end(call)
                    del call  # its result is the coroutine's
                    continue
            call.undo()
            with self._changed:
                self._running = None
                self._end(call)
                del call

    def finish(self) -> None:
        """Let the thread end after the calls that were made; refuse others."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread, and wait until it has ended."""
        if os.getpid() != self._pid:
            return
        self.finish()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
