"""A wall clock that a test moves forward."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from eoslog._util.arguments import as_seconds
from eoslog.log import Log

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["Clock"]

_LONGEST_S = 10.0
"""The longest wait for deliveries that have begun."""


class Clock:
    """The wall clock of logs in a test, ahead of the system's by what `advance` adds.

    It decides when records with `deliver_at` appear, when an application tries a failed record
    again, what retention and compaction delete, and when
    transactional ids, groups and outcomes expire. Timeouts do not use it, nor do the timestamps of
    produced records: pass `timestamp=clock.ms`. Other processes use the system's clock.
    """

    def __init__(self) -> None:
        """Begin at the system's time."""
        self._ahead = 0.0
        self._logs: list[Log] = []

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        return time.time() + self._ahead

    @property
    def ms(self) -> int:
        """The time in ms since the epoch, as `deliver_at` and `timestamp` take it."""
        return int(self() * 1000)

    def set_for(self, log: Log) -> None:
        """Make this the clock of a log, in this process.

        Args:
            log: the log.

        Raises:
            IllegalState: if the log is closed.
        """
        log._engine.use_clock(self)
        self._logs.append(log)

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock forward, and deliver the records whose time has come.

        Retention and expiry follow in the background: after a step of a minute or more, at the
        second search. Call `log.clean()` to apply retention.

        Args:
            seconds: how far, as a number of seconds or a timedelta.

        Raises:
            ConfigError: if `seconds` is not a duration, or is negative.
            EoslogError: if the records that are due cannot be read.
        """
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        step = as_seconds("seconds", seconds)
        engines = [log._engine for log in self._logs if not log._closed]
        for engine in engines:
            _look(engine)  # a record that is due when it is first seen is left to its process
        self._ahead += step
        for engine in engines:
            _look(engine)
            _await_deliveries(engine)


def _look(engine: Engine) -> None:
    def begin(_name: str, run: Callable[[], object]) -> None:
        run()

    engine.checks.look(begin)


def _await_deliveries(engine: Engine) -> None:
    """Wait for what the thread of the engine is delivering."""
    deadline = time.monotonic() + _LONGEST_S
    prepared = engine.transactions.prepared
    while time.monotonic() < deadline:
        due = [entry for _, entry in prepared.index.undelivered()]
        due += [entry for _, entry in prepared.index.pending() if entry.resolver is None]
        if not any(0 <= entry.deliver_at_ms <= engine.clock_ms() for entry in due):
            return
        time.sleep(0.001)
