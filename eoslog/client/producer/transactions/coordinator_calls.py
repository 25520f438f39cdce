"""Calls of a coordinator that are repeated until a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from eoslog.errors import (
    CommitOutcomeUnknown,
    ConcurrentTransactions,
    EoslogError,
    RequestTimedOut,
)

__all__ = ["CoordinatorCalls"]

T = TypeVar("T")


class CoordinatorCalls:
    """The calls of one producer.

    Attributes:
        closing: another thread closes the producer, so no call is repeated.
    """

    def __init__(self) -> None:
        """Start open."""
        self.closing = False

    def until(
        self,
        call: Callable[[], T],
        deadline: float,
        what: str,
        final: tuple[type[EoslogError], ...] = (CommitOutcomeUnknown,),
    ) -> T:
        """Call the coordinator, and retry retriable errors until the deadline.

        Args:
            call: the call, which may be repeated after a retriable error.
            deadline: by `time.monotonic`.
            what: the name of the producer's call, for the message.
            final: errors that are raised although they are retriable.

        Raises:
            RequestTimedOut: if the last error is retriable, and the time is over.
        """
        pause = 0.005
        while True:
            try:
                return call()
            except EoslogError as error:
                if not getattr(error, "retriable", False) or isinstance(error, final):
                    raise
                if self.closing or time.monotonic() + pause > deadline:
                    why = "before the producer closed" if self.closing else "within its timeout"
                    raise RequestTimedOut(f"{what}: not completed {why}: {error}") from error
                limit = 0.02 if isinstance(error, ConcurrentTransactions) else 0.5
            time.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, limit)
