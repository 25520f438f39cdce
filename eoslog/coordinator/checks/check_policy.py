"""When resolvers are asked about prepared transactions.

Due times in records are wall-clock times, because they survive restarts. Waits of a process count
on its monotonic clock, so a wall clock that is set back or forward between two checks changes
nothing. When a process first reads a due time, it waits at most as long as the policy says: a wall
clock that was set back by a year delays no check by a year.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eoslog._util.arguments import as_int, as_seconds, shown
from eoslog.coordinator.transactions.prepared_records import PreparedEntry
from eoslog.errors import ConfigError

LONGEST_S = 1e9
"""The longest delay between two checks, in seconds."""
_EXHAUSTED = ("park", "abort", "commit")


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """The settings of `Log.register_resolver`, in seconds.

    Attributes:
        first_check: from the prepare to the first check.
        interval: from an answer UNKNOWN to the next check.
        backoff: the factor by which the interval grows with each answer.
        max_checks: the number of answers UNKNOWN after which `on_exhausted` applies.
        timeout: the longest call.
        on_exhausted: "park", "abort" or "commit".
        workers: the number of calls at the same time.
    """

    first_check: float = 6.0
    interval: float = 30.0
    backoff: float = 1.0
    max_checks: int = 15
    timeout: float = 3.0
    on_exhausted: str = "park"
    workers: int = 1

    @classmethod
    def of(cls, **settings: Any) -> CheckPolicy:
        """Check the settings.

        Raises:
            ConfigError: if one has another type or is out of range.
        """
        found: dict[str, Any] = {}
        for name, value in settings.items():
            what = f"register_resolver: {name}"
            if name == "on_exhausted":
                if value not in _EXHAUSTED:
                    raise ConfigError(f"{what}: expected one of {_EXHAUSTED}, got {shown(value)}")
                found[name] = value
                continue
            number = as_int(what, value) if name in _WHOLE else as_seconds(what, value)
            least = _LEAST[name]
            if number < least or (number == 0 and name != "first_check"):
                bound = f"at least {least}" if least else "more than 0"
                raise ConfigError(f"{what}: expected {bound}, got {shown(value)}")
            found[name] = number
        return cls(**found)

    def delay(self, checks: int) -> float:
        """Seconds from the answer of check number `checks` to the next check."""
        try:
            return float(min(self.interval * self.backoff ** max(checks - 1, 0), LONGEST_S))
        except OverflowError:
            return LONGEST_S

    def wait(self, entry: PreparedEntry, now_ms: int) -> float:
        """Seconds from now until an entry is due."""
        first = entry.checks == 0
        longest = self.first_check if first else self.delay(entry.checks)
        due_ms = entry.due_at_ms
        if due_ms < 0:
            due_ms = entry.prepared_at_ms + int(self.first_check * 1000)
        return min(max((due_ms - now_ms) / 1000, 0.0), longest)


_WHOLE = frozenset({"max_checks", "workers"})
_LEAST = {
    "first_check": 0, "interval": 0, "backoff": 1, "max_checks": 1, "timeout": 0, "workers": 1,
}  # fmt: skip
