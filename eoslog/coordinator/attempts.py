"""How often a conditional append is tried again."""

from __future__ import annotations

import random
import time

from eoslog.errors import ConcurrentTransactions

_AT_ONCE = 8
"""So many CHANGED in a row cost nothing; after them somebody else deserves the log for a while."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class Attempts:
    """Counts tries of one request, and pauses as for a busy lock when they become many.

    Args:
        what: the words that name the request in an error; joined only there.
        limit_s: seconds until the caller is told to try again itself.
    """

    _deadline = 0.0
    _tries = 0

    def __init__(self, *what: object, limit_s: float = 10.0) -> None:
        """Nothing has been tried; the clock starts with the first `again`."""
        self._what = what
        self._limit_s = limit_s

    def again(self) -> None:
        """Note that the log had moved.

        Raises:
            ConcurrentTransactions: it has been moving for `limit_s`; retriable.
        """
        self._tries += 1
        if self._tries == 1:
            self._deadline = time.monotonic() + self._limit_s
        if self._tries <= _AT_ONCE:
            return
        if time.monotonic() >= self._deadline:
            raise ConcurrentTransactions(
                f"{' '.join(map(str, self._what))}: the transaction log moved {self._tries} times "
                f"in {self._limit_s} s"
            )
        pause = min(_FIRST_PAUSE_S * 2 ** min(self._tries - _AT_ONCE, 10), _LONGEST_PAUSE_S)
        time.sleep(pause * (0.5 + random.random() / 2))
