"""SIGKILL at failpoints: before and after each call of the OS table, between stores, between steps.

Lives follow one another in one directory, so a kill also meets the recovery from the one before.
Some lives have company: a second process that works in the same directory and survives. In some
rounds a third one, which opened the directory once, reads along through all of them.
"""

from __future__ import annotations

from tests.faults.harness import live, start
from tests.torture.harness import Round, Step
from tests.torture.mixed import mixed, watch

CALLS = {"pwrite": 110, "fdatasync": 40, "fsync": 40, "rename": 12, "unlink": 12, "ftruncate": 20,
         "open": 90, "lock": 200, "mkdir": 8}  # fmt: skip
"""Calls of the OS table and about how many of them a life makes."""
POINTS = range(1, 8)
NAMED = (
    "txn.init.appended", "txn.init.durable", "txn.added", "txn.marked", "txn.completed",
    "txn.flushed", "txn.prepared", "txn.decided", "topic.deleted", "topic.forgotten", "close.alone",
    "close.left",
    "log.rolled", "flush.before", "flush.after", "fetch.read",
    "clean.group", "clean.written", "clean.durable", "clean.swap.made", "clean.swap.named",
    "clean.swap.durable", "clean.swap.begun", "clean.swap.published", "clean.swap.placed",
    "clean.old.renamed", "clean.old.durable", "clean.checkpoint", "clean.finish.judged",
    "clean.finish.named", "clean.finish.removed",
    "adopt.stamped", "adopt.durable",
    "staging.written", "staging.staged", "staging.used", "staging.published", "staging.committed",
    "backup.lock", "backup.instant", "backup.file", "backup.copied", "aside.renaming",
    "log.start.advanced", "partition.made", "producer.ack_lost", "snapshot.end_read",
)  # fmt: skip
"""Those of a life; `moves.py` has those of export, import and moved groups."""


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
            watcher, over = None, round_.place / "over"
            for _ in range(16):
                if watcher is None and round_.path.exists() and round_.rng.random() < 0.05:
                    watcher = start(
                        watch, round_.path, round_.history, f"{round_.name()}.watch",
                        round_.seed(), over,
                    )  # fmt: skip
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
            if watcher is not None:
                over.touch()
                round_.ended(watcher.end())
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
