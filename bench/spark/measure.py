"""Wall and processor time of interleaved cases, and the ratios between them."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Measured:
    """One case: seconds of each round that counts."""

    walls: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @property
    def wall(self) -> float:
        """The median round."""
        return statistics.median(self.walls)


@dataclass(frozen=True)
class Ratio:
    """The ratio of two cases in the same run; above 1 the first is better.

    Attributes:
        walls: median of the rounds' ratios. A round is short compared with changes on the machine,
            so other programs affect both cases.
        processor: the same of processor time, which other programs hardly change.
        worst: the lowest of the rounds' ratios.
    """

    walls: float
    processor: float
    worst: float


def ratio(ours: Measured, peer: Measured) -> Ratio:
    """How many times the peer's time ours is."""
    walls = [theirs / mine for theirs, mine in zip(peer.walls, ours.walls, strict=True)]
    costs = zip(peer.processor, ours.processor, strict=True)
    return Ratio(
        statistics.median(walls),
        statistics.median(theirs / mine for theirs, mine in costs),
        min(walls),
    )


def in_turns(
    cases: Mapping[str, Callable[[int], object]],
    rounds: int,
    before: Callable[[str, int], object] = lambda name, number: None,
) -> dict[str, Measured]:
    """Run each case once per round, and drop the first round.

    Each case runs on a disk that has nothing left to write. The order of each round is chosen
    at random, the same in every run. So no case always finds what a certain other one has left
    in the processor's caches, the compiler and the heap.

    Args:
        cases: functions to run, by name; each gets the number of the round.
        rounds: number of rounds that count.
        before: called with both before the clock starts.
    """
    found = {name: Measured() for name in cases}
    draw = random.Random(2013)
    for number in range(rounds + 1):
        for name in draw.sample(list(cases), len(cases)):
            before(name, number)
            os.sync()  # no case pays for what the one before left unflushed
            cpu, started = processor_seconds(), time.perf_counter()
            cases[name](number)
            wall = time.perf_counter() - started
            if number:
                found[name].walls.append(wall)
                found[name].processor.append(max(processor_seconds() - cpu, 1e-3))
    return found


def processor_seconds() -> float:
    """Of this process and all below it, the dead ones that were waited for included."""
    ticks = 0
    parents: dict[int, list[int]] = {}
    own: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            pid = int(entry.parent.name)
            parents.setdefault(int(fields[1]), []).append(pid)
            own[pid] = sum(int(one) for one in fields[11:15])
    queue: list[int] = [os.getpid()]
    while queue:
        pid = queue.pop()
        ticks += own.get(pid, 0)
        queue += parents.get(pid, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as they need; the first is left-aligned."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
