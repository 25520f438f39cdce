"""Coroutines that are cancelled at a chosen one of their waits."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any

import anyio


class Cancelled:
    """Runs coroutines, and cancels each at its n-th wait.

    Args:
        nth: the wait, from 1.
        late: cancel when the wait has ended, before the coroutine continues.
        twice: cancel at the next wait too, which is one of the cancellation itself.

    Attributes:
        reached: whether the last coroutine had so many waits.
    """

    def __init__(self, nth: int, *, late: bool = False, twice: bool = False) -> None:
        self.nth, self.late, self.twice = nth, late, twice
        self.reached = False

    async def of_asyncio(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of the coroutine, or None if it was cancelled."""
        import asyncio

        task = asyncio.create_task(self._driven(work, lambda: task.cancel()))
        try:
            return await task
        except asyncio.CancelledError:
            assert self.reached
            return None

    async def by_scope(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of the coroutine, or None if its scope was cancelled."""
        with anyio.CancelScope() as scope:
            return await self._driven(work, scope.cancel)
        assert self.reached
        return None

    async def _driven(self, work: Coroutine[Any, Any, Any], cancel: Any) -> Any:
        return await self._steps(work, cancel)

    @types.coroutine
    def _steps(self, work: Coroutine[Any, Any, Any], cancel: Any) -> Generator[Any, Any, Any]:
        import asyncio

        waits, given, raised = 0, None, None
        self.reached = False
        while True:
            try:
                waited = work.send(given) if raised is None else work.throw(raised)
            except StopIteration as ended:
                return ended.value
            waits += 1
            here = waits == self.nth or (self.twice and waits == self.nth + 1)
            self.reached |= here
            if here and not self.late:
                cancel()
            given, raised = None, None
            try:
                given = yield waited
            except BaseException as error:
                raised = error
            if here and self.late:
                raised = asyncio.CancelledError()
