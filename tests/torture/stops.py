"""Processes that stand still, and clocks that jump."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from tests.faults.harness import Child, live, start
from tests.torture.harness import Round, Step
from tests.torture.mixed import mixed


class Stops:
    """SIGSTOP at any moment, with or without locks, while others work; then SIGCONT or SIGKILL."""

    name, goal = "stop", ("stops", 1_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """A life that is stopped several times beside one that is not."""
        with Round(seed) as round_:
            arguments = (mixed, round_.path, round_.history)
            stopped = start(*arguments, round_.name(), round_.seed(), 30)
            others = [start(*arguments, round_.name(), round_.seed(), 20) for _ in range(2)]
            for _ in range(4):
                time.sleep(round_.rng.uniform(0, 0.15))
                stopped.signal(signal.SIGSTOP)
                time.sleep(round_.rng.uniform(0.01, 0.4))
                stopped.signal(signal.SIGCONT)
                round_.step.counts["stops"] += 1
            if round_.rng.random() < 0.3:
                stopped.signal(signal.SIGSTOP)
                stopped.signal(signal.SIGKILL)
            for running in (stopped, *others):
                round_.ended(running.end(100))
            return round_.verdict()


def at_odd_times(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """A life whose wall clock is wrong from the start and jumps, back and forth, while it lasts."""
    rng, real = random.Random(seed), time.time
    shift = [rng.choice(SHIFTS_S)]

    def now() -> float:
        if rng.random() < 0.05:
            shift[0] = rng.choice(SHIFTS_S)
        return real() + shift[0]

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    mixed(child, path, history, name, seed)


DAY_S = 86_400.0
SHIFTS_S = (DAY_S, -7200.0, -0.002, 0.0, 4.3e9 - 1.79e9, -10 * 365 * DAY_S)
"""A day ahead, two hours behind, a little behind, right, beyond 2106, ten years ago."""


class Clocks:
    """Wall clocks that differ between processes and jump, past 2038 and 2106 too."""

    name, goal = "clock", ("clock lives", 500)

    def missing(self) -> str | None:
        """The clock is the process's own."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Two lives at once and one after them, each at its own time of day."""
        with Round(seed) as round_:
            arguments = (at_odd_times, round_.path, round_.history)
            for running in [start(*arguments, round_.name(), round_.seed()) for _ in range(2)]:
                round_.ended(running.end(100))
            round_.ended(live(*arguments, round_.name(), round_.seed()))
            round_.step.counts["clock lives"] += 3
            return round_.verdict()
