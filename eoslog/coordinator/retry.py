"""Retries of conditional appends."""

from __future__ import annotations

import random
import time

from eoslog.errors import ConcurrentTransactions

_AT_ONCE = 8
"""Failed conditions in a row without a pause; after them, pause to let others append."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_LIMIT_S = 10.0
"""Seconds after the first failed attempt until the request fails with a retriable error."""


class Attempts:
    """The failed attempts of one request."""

    def __init__(self) -> None:
        """Start without attempts; the time limit counts from now."""
        self.count = 0
        self.deadline = time.monotonic() + _LIMIT_S


def again(attempts: Attempts | None, *what: object) -> Attempts:
    """Note a failed attempt, because the log had changed; pause if there were many.

    Args:
        attempts: what the last call returned; None after the first attempt. A request that succeeds
            immediately, as nearly all do, thus creates nothing.
        what: the words that name the request in an error; they are joined only then.

    Raises:
        ConcurrentTransactions: if attempts have failed for 10 s; retriable.
    """
    if attempts is None:
        attempts = Attempts()
    attempts.count += 1
    if attempts.count <= _AT_ONCE:
        return attempts
    if time.monotonic() >= attempts.deadline:
        raise ConcurrentTransactions(
            f"{' '.join(map(str, what))}: the transaction log changed during each of "
            f"{attempts.count} attempts in {_LIMIT_S} s; retry"
        )
    pause = min(_FIRST_PAUSE_S * 2 ** min(attempts.count - _AT_ONCE, 10), _LONGEST_PAUSE_S)
    time.sleep(pause * (0.5 + random.random() / 2))
    return attempts
