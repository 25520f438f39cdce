"""What a coroutine needs of its event loop, the same for asyncio and trio.

asyncio is used as it is. Any other loop is used by anyio, which is imported only there.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Protocol

from eoslog._util.extras import package

if TYPE_CHECKING:
    import asyncio

__all__ = ["Signal", "outlast", "pause", "signal"]


class Signal(Protocol):
    """An event that any thread sets, and coroutines of one loop wait for."""

    def set(self) -> None:
        """End the waits. Any thread may call it, also if the loop has ended."""
        ...

    async def wait(self) -> None:
        """Wait until the event is set."""
        ...


class _AsyncioSignal:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        from asyncio import Event

        self._loop = loop
        self._event = Event()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no coroutine waits
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()


class _AnyioSignal:
    def __init__(self, what: str) -> None:
        lowlevel = package("anyio.lowlevel", f"{what} outside of asyncio", "async")
        self._token = lowlevel.current_token().native_token  # of trio: anyio has no other loop
        self._event = package("anyio", what, "async").Event()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._token.run_sync_soon(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()


def signal(what: str) -> Signal:
    """Create a signal of the running event loop.

    Args:
        what: the call that waits, for messages.

    Raises:
        ConfigError: if the loop is not asyncio's, and anyio is not installed.
    """
    loop = _asyncio_loop()
    return _AnyioSignal(what) if loop is None else _AsyncioSignal(loop)


async def outlast(waited: Signal) -> None:
    """Wait until the signal is set, although the task is cancelled.

    The caller raises the cancellation that it has caught when this returns.
    """
    loop = _asyncio_loop()
    anyio: Any = package("anyio", "outlast", "async") if loop is None else sys.modules.get("anyio")
    # A scope of anyio cancels a task of asyncio again and again, unless another scope is a shield.
    with contextlib.nullcontext() if anyio is None else anyio.CancelScope(shield=True):
        if loop is None:
            await waited.wait()
            return
        from asyncio import CancelledError

        while True:
            with contextlib.suppress(CancelledError):
                await waited.wait()
                return


async def pause(what: str) -> None:
    """Let the other tasks of the loop run; a cancelled task raises its cancellation."""
    if _asyncio_loop() is None:
        await package("anyio.lowlevel", f"{what} outside of asyncio", "async").checkpoint()
        return
    from asyncio import sleep

    await sleep(0)


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    if "asyncio" not in sys.modules:
        return None
    from asyncio import _get_running_loop

    return _get_running_loop()
