"""SIGKILL at failpoints: before and after each call of the OS table, between stores, between steps.

Lives follow one another in one directory, so a kill also meets the recovery from the one before.
Some lives have company: a second process that works in the same directory and survives.
"""

from __future__ import annotations

from tests.faults.harness import live, start
from tests.torture.harness import Round, Step
from tests.torture.mixed import mixed

CALLS = {"pwrite": 110, "fdatasync": 40, "fsync": 40, "rename": 12, "unlink": 12, "ftruncate": 20,
         "open": 90, "lock": 200, "mkdir": 8}  # fmt: skip
"""Calls of the OS table and about how many of them a life makes."""
POINTS = range(1, 8)
NAMED = (
    "txn.init.appended", "txn.init.durable", "txn.added", "txn.marked", "txn.completed",
    "txn.flushed", "txn.prepared", "txn.decided", "topic.deleted", "close.alone", "log.rolled",
    "log.start.advanced", "flush.before", "flush.after",
)  # fmt: skip


class Kills:
    """Sixteen lives a verdict."""

    name, goal = "kill", ("kills", 10_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Sixteen lives, each killed somewhere, then the verdict."""
        with Round(seed) as round_:
            for _ in range(16):
                name, life_seed = round_.name(), round_.seed()
                company = None
                if round_.rng.random() < 0.2 and round_.path.exists():
                    company = start(
                        mixed, round_.path, round_.history, f"{name}.company", round_.seed()
                    )
                faults = (self._fault(round_),)
                round_.ended(
                    live(mixed, round_.path, round_.history, name, life_seed, faults=faults)
                )
                if company is not None:
                    round_.ended(company.end())
            return round_.verdict()

    @staticmethod
    def _fault(round_: Round) -> tuple[str, str, int]:
        rng = round_.rng
        kind = rng.random()
        if kind < 0.2:
            return rng.choice(NAMED), "kill", min(1 + int(rng.expovariate(0.5)), 10)
        if kind < 0.35:
            return "point", "kill", rng.choice(POINTS)
        call = rng.choice(list(CALLS))
        return call, rng.choice(["kill", "kill-after"]), rng.randint(1, CALLS[call])
