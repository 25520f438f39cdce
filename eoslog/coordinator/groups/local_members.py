"""The group members of this process: last polls, and reasons of removals.

The group's log shows that a member was removed, but not why. The member's process knows the time of
its last poll, and adds the reason to the errors that the member gets. Times are monotonic seconds.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from typing import TypeVar

from eoslog.coordinator.groups.evictions import Evictions, silent, too_slow
from eoslog.coordinator.host import HEARTBEAT_INTERVAL_S
from eoslog.errors import EoslogError

E = TypeVar("E", bound=EoslogError)


@dataclass(slots=True)
class LocalMember:
    """A member of this process."""

    last_poll: float
    max_poll_interval: float
    session_timeout: float
    leaving: bool = False  # its consumer has left it, or could not join

    @property
    def overdue(self) -> bool:
        """Whether it leaves, or has not polled for longer than max.poll.interval.ms."""
        return self.leaving or time.monotonic() - self.last_poll > self.max_poll_interval


class LocalMembers:
    """The members of this process, by group and member id. Thread-safe."""

    def __init__(self) -> None:
        """Start without members."""
        self._mutex = threading.Lock()
        self._members: dict[tuple[str, str], LocalMember] = {}
        self._evictions = Evictions()

    def add(
        self, group_id: str, member_id: str, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Add a member that joins, which counts as a poll."""
        self._evictions.forget(group_id, member_id)
        interval = rebalance_timeout_ms / 1000 if rebalance_timeout_ms > 0 else float("inf")
        with self._mutex:
            self._members[group_id, member_id] = LocalMember(
                time.monotonic(), interval, session_timeout_ms / 1000
            )

    def remove(self, group_id: str, member_id: str) -> None:
        """Remove a member that has left or was removed."""
        with self._mutex:
            self._members.pop((group_id, member_id), None)

    def mark_leaving(self, group_id: str, member_id: str) -> None:
        """Have `GroupMembership.tick` remove a member, until it is removed."""
        with self._mutex:
            local = self._members.get((group_id, member_id))
            if local is not None:
                local.leaving = True

    def touch(self, group_id: str, member_id: str) -> float:
        """Note a poll, and return the time of the previous one."""
        now = time.monotonic()
        with self._mutex:
            local = self._members.get((group_id, member_id))
            if local is None:
                return now
            before, local.last_poll = local.last_poll, now
            return before

    def find(self, group_id: str, member_id: str) -> LocalMember | None:
        """A member of this process; None for other members."""
        with self._mutex:
            return self._members.get((group_id, member_id))

    def all(self) -> dict[tuple[str, str], LocalMember]:
        """All members of this process."""
        with self._mutex:
            return dict(self._members)

    def idlest(self) -> tuple[int, float]:
        """The `member_hash` and idle seconds of the oldest poll; 0 if there is none."""
        with self._mutex:
            last, key = min(
                ((local.last_poll, key) for key, local in self._members.items()),
                default=(0.0, None),
            )
        return (0, 0.0) if key is None else (member_hash(*key), time.monotonic() - last)

    # Reasons for removals.

    def note_slow(self, group_id: str, member_id: str, local: LocalMember) -> str:
        """Note the removal of a member that polled too late; return the reason."""
        why = too_slow(local.max_poll_interval)
        self._evictions.note(group_id, member_id, local.last_poll, why)
        return why

    def note_silence(self, group_id: str, member_id: str, last_poll: float | None = None) -> None:
        """Note a removal by another process; the time since the last poll shows why."""
        local = self.find(group_id, member_id)
        if local is None:
            return
        last_poll = local.last_poll if last_poll is None else last_poll
        passed = time.monotonic() - last_poll
        if passed > local.max_poll_interval:
            self._evictions.note(group_id, member_id, last_poll, too_slow(local.max_poll_interval))
        elif passed > local.session_timeout - HEARTBEAT_INTERVAL_S:
            # The timeout counts from the last heartbeat, which may be older than the last poll.
            self._evictions.note(group_id, member_id, last_poll, silent(local.session_timeout))

    def explained(self, error: E, group_id: str, member_id: str) -> E:
        """Return the error of a member, with the reason if this process knows it."""
        if not self._evictions.knows(group_id, member_id):
            self.note_silence(group_id, member_id)
        return self._evictions.explained(error, group_id, member_id)


def member_hash(group_id: str, member_id: str) -> int:
    """The number of a group member in the process table; never 0."""
    name = f"{group_id}\0{member_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little") | 1
