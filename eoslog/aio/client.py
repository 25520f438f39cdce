"""What async consumers and producers share: start, end, and `call`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from eoslog._util.arguments import shown
from eoslog._util.event_loops import pause
from eoslog.aio.call_thread import CallThread
from eoslog.errors import ConfigError, IllegalState

__all__ = ["AsyncClient"]

C = TypeVar("C")
T = TypeVar("T")

_CALLS_BETWEEN_PAUSES = 100
"""So many calls may return without a wait before other tasks run."""


class AsyncClient(Generic[C]):
    """A client of coroutines, around a client of threads."""

    _name = "client"
    _wrapped: C | None = None
    _thread: CallThread
    _stopping = False
    _unpaused = 0

    def __init__(self, make: Callable[[], C], adopt: Callable[[CallThread], object]) -> None:
        """Keep what `start` calls; programs use the methods of `Log` instead.

        Args:
            make: creates the client of threads; called in the thread.
            adopt: has the log end the thread when it is closed.
        """
        self._make = make
        self._adopt = adopt

    def __repr__(self) -> str:
        if self._wrapped is None:
            return f"<{type(self).__name__}, not started>"
        return f"<{type(self).__name__} of {self._wrapped!r}>"

    async def start(self) -> None:
        """Create the client; `async with` does it. A second call does nothing.

        Cancelled: the client is not started, and no thread is left. It can be started again.

        Raises:
            EoslogError: as the method of `Log` that creates the client of threads.
        """
        if self._stopping:
            raise IllegalState(f"the {self._name} is closed; create a new one")
        if self._wrapped is not None:
            return
        thread = CallThread(self._name)
        made: list[C] = []

        def make() -> C:
            client = self._make()
            made.append(client)
            self._begin(client)
            return client

        def unmake() -> None:
            for client in made:
                self._close(client, None, None, None)

        started = False
        try:
            wrapped = await thread.call("start", make, undo=unmake)
            started = True
        finally:
            if not started:
                self._unstarted(thread, made)
        self._thread, self._wrapped = thread, wrapped
        self._adopt(thread)
        weakref.finalize(self, thread.finish)

    def _unstarted(self, thread: CallThread, made: list[C]) -> None:
        """End the thread of a failed start, and close the client it has made."""
        if made and not thread.waiting:
            with contextlib.suppress(Exception):  # the error of the start is the one to see
                self._close(made[0], None, None, None)
        thread.finish() if thread.waiting else thread.close()

    def _begin(self, client: C) -> None:
        """Do what `start` does in the thread with a new client."""

    def _close(
        self,
        client: C,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client of threads, as its `with` block does."""
        raise NotImplementedError

    def _client(self) -> C:
        """Return the client of threads.

        Raises:
            IllegalState: if it is not started, or closed.
        """
        if self._stopping:
            raise IllegalState(f"the {self._name} is closed; create a new one")
        if self._wrapped is None:
            raise IllegalState(
                f"the {self._name} is not started; use `async with`, or await start() first"
            )
        return self._wrapped

    async def call(self, function: Callable[[C], T]) -> T:
        """Call a function with the client of threads, in the thread of this client.

        So a coroutine can use every method that this class lacks::

            await producer.call(lambda p: p.produce_many("orders", values))

        Cancelled: if the function has begun, it runs to its end, and what it returns is lost.
        So do not read records in it.

        Args:
            function: a function that takes the `Consumer` or `Producer`; not a coroutine function.

        Returns:
            What the function returns.

        Raises:
            BaseException: what the function raises.
            ConfigError: if `function` is not callable.
        """
        if not callable(function):
            raise ConfigError(f"call: expected a function, got {shown(function)}")
        client = self._client()

        def made() -> T:
            self._ready(client)
            return function(client)

        return await self._thread.call("call", made)

    def _ready(self, client: C) -> None:
        """Do what each call begins with, in the thread."""

    async def _breathe(self, what: str) -> None:
        """Let other tasks run once in many calls that do not wait."""
        self._unpaused += 1
        if self._unpaused >= _CALLS_BETWEEN_PAUSES:
            self._unpaused = 0
            await pause(what)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop(lambda client: self._close(client, kind, error, trace))

    async def _stop(self, close: Callable[[C], object]) -> None:
        client = self._wrapped
        if client is None:
            self._stopping = True
            return
        thread = self._thread
        if thread.finished:  # the log was closed
            self._stopping = True
            return
        task_before = self._stopping  # it closes the client: wait for that
        self._stopping = True
        if not task_before:
            thread.abandon_all(IllegalState(f"the {self._name} was closed during the call"))
        try:
            await thread.call(
                "stop", (lambda: None) if task_before else lambda: close(client), certain=True
            )
        except GeneratorExit:  # the coroutine was dropped: it cannot wait
            thread.finish()
            raise
        except IllegalState:
            thread.close()
            if not task_before:
                raise
        except BaseException:
            thread.close()
            raise
        thread.close()


def refuse_coroutine_function(what: str, function: Any) -> None:
    """Refuse a coroutine function, which a thread cannot call.

    Raises:
        ConfigError: if it is one.
    """
    import inspect

    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"{what}: expected a function, got the coroutine function {shown(function)}; it is "
            "called in the thread of the consumer"
        )
