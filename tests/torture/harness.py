"""The interface of a `make torture` harness: a name, its needs, and a step.

A harness is a class with this shape; `registry.py` lists them. A step takes a seed, causes its
faults, and returns counts (which add up over runs) and violations (texts). It lasts some
seconds at most.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.faults.harness import Life
from tests.torture.oracles.verify import endings_of, verify

MEMORY = Path("/dev/shm")


@dataclass
class Step:
    """What one step did and found."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def excerpt(said: str, limit: int = 2000) -> str:
    """What a failed process said: the lines that name what is wrong, then its end."""
    named = [line for line in said.splitlines() if "violat" in line.lower()]
    head = "\n".join(named)[: limit // 2]
    return head + "\n...\n" + said[len(head) - limit :] if len(said) > limit else said


class Harness(Protocol):
    """One kind of fault; `goal` names a count and the figure to reach.

    The violations must stay at zero. If steps are parts of a whole, `whole` is the number of
    parts. The parts are taken one after another, from run to run, and the seed of a step is the
    number of its part.
    """

    name: str
    goal: tuple[str, int]
    whole: int

    def missing(self) -> str | None:
        """Why it cannot run on this machine; None if it can."""

    def step(self, seed: int) -> Step:
        """Faults drawn from a seed, and their verdict."""

    def close(self) -> None:
        """Give back what the steps shared."""


class Round:
    """A directory, the histories of the processes that ran in it, and a final check.

    Args:
        seed: seed of every random choice.
        root: directory of the log; None means a temporary directory in memory.
    """

    def __init__(self, seed: int, root: Path | None = None) -> None:
        self.rng, self.step = random.Random(seed), Step()
        self.place = Path(
            tempfile.mkdtemp(prefix="eoslog-torture-", dir=MEMORY if MEMORY.is_dir() else None)
        )
        # A removal can be undone by a power cut, so no round uses another one's directory.
        self.path = (root or self.place) / f"log-{seed}"
        self.history = self.place / "history"
        self.history.mkdir()
        self.numbers = 0

    def __enter__(self) -> Round:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def name(self) -> str:
        """The name of the next life."""
        self.numbers += 1
        return f"l{self.numbers}"

    def seed(self) -> int:
        """A seed for a life."""
        return self.rng.randrange(1 << 30)

    def ended(self, life: Life) -> Life:
        """Count how a life ended and note what it may not do."""
        self.step.counts["kills"] += life.killed
        self.step.counts["lives"] += 1
        self.step.counts["refusals"] += len(life.of("refused"))
        self.step.violations += endings_of(life)
        return life

    def verdict(
        self, lossy: frozenset[str] = frozenset({"0"}), *,
        forgetful: bool = False, crowded: bool = False,
    ) -> Step:  # fmt: skip
        """Look at what is left; the arguments are `verify`'s."""
        found = verify(
            self.path, self.history, self.name(), lossy=lossy, forgetful=forgetful, crowded=crowded
        )
        self.step.counts["verdicts"] += 1
        self.step.violations += found
        return self.step
