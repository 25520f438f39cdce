"""Retries of conditional appends."""

from __future__ import annotations

import random
import time

from eoslog.errors import ConcurrentTransactions

_AT_ONCE = 8
"""Failed conditions in a row without a pause; after them, pause to let others append."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class Attempts:
    """Counts the attempts of one request, and pauses when they become many.

    Args:
        what: the words that name the request in an error; they are joined only then.
        limit_s: seconds until the request fails with a retriable error.
    """

    _deadline = 0.0
    _tries = 0

    def __init__(self, *what: object, limit_s: float = 10.0) -> None:
        """Start without attempts; the time limit counts from the first `again`."""
        self._what = what
        self._limit_s = limit_s

    def again(self) -> None:
        """Note a failed attempt, because the log had changed.

        Raises:
            ConcurrentTransactions: if attempts have failed for `limit_s`; retriable.
        """
        self._tries += 1
        if self._tries == 1:
            self._deadline = time.monotonic() + self._limit_s
        if self._tries <= _AT_ONCE:
            return
        if time.monotonic() >= self._deadline:
            raise ConcurrentTransactions(
                f"{' '.join(map(str, self._what))}: the transaction log changed during each of "
                f"{self._tries} attempts in {self._limit_s} s; retry"
            )
        pause = min(_FIRST_PAUSE_S * 2 ** min(self._tries - _AT_ONCE, 10), _LONGEST_PAUSE_S)
        time.sleep(pause * (0.5 + random.random() / 2))
