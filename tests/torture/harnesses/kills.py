"""SIGKILL at failpoints: around calls of the OS table, stores and steps.

Process runs follow each other in one directory, so a kill also meets the recovery from the one
before. Some runs have company: a second process that works in the same directory and survives.
In some rounds a third process, which opened the directory once, reads through all of them.
"""

from __future__ import annotations

from tests.faults.harness import live, start
from tests.torture.harness import Round, Step
from tests.torture.workloads.deciding import deciding
from tests.torture.workloads.mixed import mixed, watch

CALLS = {"pwrite": 110, "fdatasync": 40, "fsync": 40, "rename": 12, "unlink": 12, "ftruncate": 20,
         "open": 90, "lock": 200, "mkdir": 8}  # fmt: skip
"""Calls of the OS table and about how many of them a life makes."""
POINTS = range(1, 8)
NAMED = (
    "txn.init.appended", "txn.init.durable", "txn.added", "txn.marked", "txn.completed",
    "txn.flushed", "txn.prepared", "txn.durable", "txn.decided", "topic.deleted", "topic.forgotten", "close.alone",
    "close.left",
    "log.rolled", "log.rolled.snapshot", "flush.before", "flush.after", "fetch.read",
    "clean.group", "clean.written", "clean.durable", "clean.swap.made", "clean.swap.named",
    "clean.swap.durable", "clean.swap.begun", "clean.swap.published", "clean.swap.placed",
    "clean.old.renamed", "clean.old.durable", "clean.checkpoint", "clean.finish.judged",
    "clean.finish.named", "clean.finish.removed",
    "adopt.stamped", "adopt.durable",
    "staging.written", "staging.staged", "staging.used", "staging.published", "staging.committed",
    "backup.lock", "backup.cut", "backup.file", "backup.copied", "aside.renaming",
    "log.start.noted", "log.start.advanced", "partition.made", "producer.ack_lost",
    "snapshot.end_read", "group.decided",
)  # fmt: skip
"""Those of a life; `moves.py` has those of export, import and moved groups."""
OF_DECISIONS = (
    "prepare.flushed", "prepare.appended", "prepare.durable", "stage.written", "stage.appended",
    "stage.durable", "resolve.appended", "resolve.durable", "deliver.appended", "deliver.decided",
)  # fmt: skip
"""Those of prepared transactions."""


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


class Decisions(Kills):
    """The same with prepared transactions, which any process decides."""

    name, goal = "decisions", ("kills", 10_000)

    def step(self, seed: int) -> Step:
        """Twelve lives, each killed somewhere, some with company, then the verdict."""
        with Round(seed) as round_:
            for _ in range(12):
                name, company = round_.name(), None
                if round_.rng.random() < 0.3 and round_.path.exists():
                    company = start(
                        deciding, round_.path, round_.history, f"{name}.company", round_.seed()
                    )
                faults = (self._fault(round_),)
                if round_.rng.random() < 0.4:
                    faults = ((round_.rng.choice(OF_DECISIONS), "kill", 1),)
                round_.ended(
                    live(deciding, round_.path, round_.history, name, round_.seed(), faults=faults)
                )
                if company is not None:
                    round_.ended(company.end())
            return round_.verdict()
