"""The places at which a program dies, the same for Kafka and for eoslog."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

PLACES: dict[str, tuple[str, ...]] = {
    "order": ("row inserted", "row committed", "message sent"),
    "outbox": ("rows read", "messages sent", "rows deleted"),
    "sink": ("rows inserted", "rows committed", "position committed"),
}
"""Places by program, in the order in which a request passes them."""


class Kill(NamedTuple):
    """SIGKILL at the `nth` time that a process reaches `place`; empty: never."""

    place: str = ""
    nth: int = 1


class Fate:
    """Counts the places that a process reaches, and kills it at one of them."""

    def __init__(self, kill: Kill) -> None:
        self._kill, self._left = kill, kill.nth

    def reached(self, place: str) -> None:
        """Die here, if it is the place."""
        if place == self._kill.place:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
