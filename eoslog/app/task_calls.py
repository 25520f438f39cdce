"""Calls of the functions of tasks: plain functions, coroutines and generators.

The worker's thread runs one call after another. Other threads can ask whether it runs for too long.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Iterator
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from eoslog.app.batches import argument_of
from eoslog.app.context import Context
from eoslog.app.error_policy import delay_after
from eoslog.app.log_context import running
from eoslog.app.tasks import NEVER_RUNS, Task
from eoslog.errors import ConfigError, TaskTimeout

if TYPE_CHECKING:
    from eoslog._core import Record

__all__ = ["Overdue", "TaskCalls"]

_GRACE_S = 0.5
"""How much later than `task_timeout` a call is overdue: a coroutine is cancelled before."""


class Overdue(NamedTuple):
    """A call that runs for too long."""

    error: TaskTimeout
    began: float
    stops: bool
    """Whether the application must stop."""


class TaskCalls:
    """The calls of a worker; used by one thread, except for `overdue`."""

    def __init__(self, app_id: str) -> None:
        """Begin without a call."""
        self._app_id = app_id
        self._runner: asyncio.Runner | None = None
        self._running: tuple[float, Task, Record, int] | None = None
        """When the call that runs began, its task, first record and attempt."""

    def run(self, task: Task, records: list[Record], attempt: int) -> list[Any]:
        """Call the function of a task, and return its output.

        Args:
            task: the task.
            records: one record, or those of a batch.
            attempt: the number of the attempt, from 1.

        Raises:
            TaskTimeout: if the call took longer than `task_timeout`.
            Exception: what the function raises.
        """
        first = records[0]
        began = time.monotonic()
        self._running = (began, task, first, attempt)
        try:
            if task.batch is None:
                argument = about = task.decoded(first)
            else:
                argument, about = argument_of(task, records), first
            ctx = Context(self._app_id, task, about, attempt)
            token = running.set(ctx)
            try:
                result = task.handler(argument, ctx)
                if result is not None:
                    if hasattr(result, "__await__"):
                        result = self._awaited(task, first, result)
                    elif type(result) is AsyncGeneratorType and task.to is not None:
                        result = _each(self._awaited(task, first, _all_of(result)))
                    if task.to is not None:
                        ctx._send_result(task.to, result, first.key)
                    elif type(result) in (GeneratorType, AsyncGeneratorType):
                        raise ConfigError(NEVER_RUNS)
            finally:
                running.reset(token)
                outputs = ctx._end()
        finally:
            self._running = None
        took = time.monotonic() - began
        if took > task.task_timeout:
            raise self._timed_out(task, first, f"took {took:.1f} s")
        return outputs

    def _awaited(self, task: Task, record: Record, result: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def wait() -> Any:
            try:
                async with asyncio.timeout(task.task_timeout) as limit:
                    return await result
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise self._timed_out(task, record, "was cancelled") from error

        return self._runner.run(wait(), context=contextvars.copy_context())

    def running_call(self) -> str | None:
        """Say which call runs, and for how long; None without one."""
        call = self._running
        if call is None:
            return None
        began, task, first, _ = call
        seconds = time.monotonic() - began
        return (
            f"task {task.name!r} has run for {seconds:.1f} s, for {first.topic}-{first.partition} "
            f"at offset {first.offset}"
        )

    def overdue(self) -> Overdue | None:
        """The call that runs for longer than its `task_timeout`, or None; for any thread."""
        call = self._running
        if call is None:
            return None
        began, task, first, attempt = call
        seconds = time.monotonic() - began
        if seconds < task.task_timeout + _GRACE_S:
            return None
        stops = task.on_error == "stop" and delay_after(task, attempt) is None
        error = self._timed_out(task, first, f"has run for {seconds:.1f} s")
        return Overdue(error, began, stops)

    def _timed_out(self, task: Task, record: Record, what: str) -> TaskTimeout:
        return TaskTimeout(
            f"app {self._app_id!r}, task {task.name!r}: {record.topic}-{record.partition} at "
            f"offset {record.offset} {what}, task_timeout is {task.task_timeout:g} s; set a longer "
            "task_timeout, or let the task do less",
            self._app_id, task.name, record.topic, record.partition, record.offset,
        )  # fmt: skip

    def close(self) -> None:
        """Close the event loop that coroutines have used."""
        if self._runner is not None:
            self._runner.close()


async def _all_of(results: AsyncGeneratorType[Any, None]) -> list[Any]:
    return [result async for result in results]


def _each(results: list[Any]) -> Iterator[Any]:
    yield from results
