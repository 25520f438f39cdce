"""Which record a log line of a task is about."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eoslog.app.context import Context

__all__ = ["RecordContext", "running"]

running: ContextVar[Context | None] = ContextVar("eoslog_running", default=None)
"""The call of a task that this thread, or this coroutine, runs."""


class RecordContext(logging.Filter):
    """A logging filter that adds the app, the task and the current record.

    Add it to a handler of `logging`, and name the attributes in its format::

        handler = logging.StreamHandler()
        handler.addFilter(RecordContext())
        handler.setFormatter(logging.Formatter("%(message)s (%(task)s, %(place)s)"))
        logging.getLogger().addHandler(handler)

    A log record gets `app`, `task`, `partition` (such as "orders-0"), `offset`, and `place` (such
    as "orders-0 at offset 7"). Outside of a task, each of them is "-". An attribute that the log
    record has already, for example by `extra`, stays as it is. A thread that the task starts has no
    task of its own, unless it is started by `asyncio.to_thread` or with a copy of the context.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes, and let the log record pass.

        Args:
            record: the log record.
        """
        found = dict.fromkeys(("app", "task", "partition", "offset", "place"), "-")
        ctx = running.get()
        if ctx is not None:
            at = f"{ctx.record.topic}-{ctx.record.partition}"
            found = {
                "app": ctx.app_id,
                "task": ctx.task,
                "partition": at,
                "offset": str(ctx.record.offset),
                "place": f"{at} at offset {ctx.record.offset}",
            }
        for name, value in found.items():
            record.__dict__.setdefault(name, value)
        return True
