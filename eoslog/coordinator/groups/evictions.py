"""The reasons for removed members: too slow polls, or a suspended process.

The group's log shows that a member was removed, but not why. The member's process knows the time of
its last poll, and adds the reason to the errors that the member gets.
"""

from __future__ import annotations

import threading
import time
from typing import TypeVar

from eoslog.errors import EoslogError

_MOST = 1000
"""The most members that are kept, the latest ones."""

E = TypeVar("E", bound=EoslogError)


def too_slow(limit_s: float) -> str:
    """The reason for a member that polled too late."""
    return (
        f"max.poll.interval.ms is {limit_s * 1000:.0f}; handle fewer records between two polls "
        "(max.poll.records), or raise max.poll.interval.ms"
    )


def silent(limit_s: float) -> str:
    """The reason for a member whose process sent no heartbeat."""
    return (
        f"session.timeout.ms is {limit_s * 1000:.0f}; a process that is suspended for longer "
        "counts as dead: keep it running, or raise session.timeout.ms"
    )


class Evictions:
    """The reasons for removed members. Thread-safe."""

    def __init__(self) -> None:
        """Start empty."""
        self._mutex = threading.Lock()
        self._removed: dict[tuple[str, str], tuple[float, str]] = {}

    def note(self, group_id: str, member_id: str, last_poll: float, why: str) -> None:
        """Note why a member was removed; `last_poll` is in monotonic seconds."""
        with self._mutex:
            while len(self._removed) >= _MOST:
                del self._removed[next(iter(self._removed))]
            self._removed[group_id, member_id] = last_poll, why

    def knows(self, group_id: str, member_id: str) -> bool:
        """Whether the reason for a member's removal is known."""
        with self._mutex:
            return (group_id, member_id) in self._removed

    def forget(self, group_id: str, member_id: str) -> None:
        """Drop the reason, because the member has joined again."""
        with self._mutex:
            self._removed.pop((group_id, member_id), None)

    def explained(self, error: E, group_id: str, member_id: str) -> E:
        """Return the error, with the reason if it is known."""
        with self._mutex:
            found = self._removed.get((group_id, member_id))
        if found is None:
            return error
        last_poll, why = found
        passed = time.monotonic() - last_poll
        return type(error)(f"{error}: its last poll was {passed:.1f} s ago, {why}")
