"""A warning about a member that has no partitions because others hold them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from eoslog.errors import EoslogError
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

logger = get_logger("eoslog.consumer")

_AFTER_S = 5.0
"""A rebalance is faster, because other members release partitions at their next poll."""


class IdleMember:
    """Logs which members hold the partitions, for a member without any.

    It logs once per change of the holders.

    Use it in one thread at a time.
    """

    def __init__(self, engine: Engine) -> None:
        """Watch groups of an open directory."""
        self._engine = engine
        self._since: float | None = None
        self._next = 0.0
        self._told: list[Any] | None = None

    def look(self, group_id: str, member_id: str, *, assigned: bool) -> None:
        """Check after a step of the membership.

        `assigned` says whether the member has partitions.
        """
        if assigned:
            self._since = self._told = None
            return
        now = time.monotonic()
        if self._since is None:
            self._since, self._next = now, now + _AFTER_S
        if now < self._next:
            return
        self._next = now + _AFTER_S
        try:
            holders = self._engine.groups.holders(group_id)
        except EoslogError:
            return  # the member's own next step raises it
        others = [(m, pid, held) for m, pid, held in holders if m != member_id and held]
        if others == self._told:
            return
        self._told = others
        held_by = "; ".join(
            f"{member} ({_process(pid)}) holds {', '.join(map(str, partitions))}"
            for member, pid, partitions in others
        )
        logger.warning(
            "group %s: member %s has had no partition for %.0f s, waiting until a member closes "
            "its consumer or exceeds max.poll.interval.ms without a poll: %s",
            group_id,
            member_id,
            now - self._since,
            held_by or "no other member holds one, so the subscription matches no partition",
        )


def _process(pid: int | None) -> str:
    return "process unknown" if pid is None else f"pid {pid}"
