"""The deterministic simulator, its sweep and its flipped bits as harnesses.

Each of them runs in its own process. The harness reads the counts from the last line of its
output. See `tests/simulation`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

from tests.torture.harness import Step, excerpt

_PARTS = 64
_WORKLOADS = 8
_FLIP_PARTS = 512


class _Simulation:
    """A module of the simulator, run for a while a step."""

    names: dict[str, str]
    """Words of its line, and what they are counted as."""

    def missing(self) -> str | None:
        """The reason why the harness cannot run; it needs `tests/simulation`."""
        return None if find_spec("tests.simulation") else "needs tests/simulation"

    def close(self) -> None:
        """Nothing is shared."""

    def arguments(self, seed: int) -> list[str]:
        """What to run."""
        raise NotImplementedError

    def step(self, seed: int) -> Step:
        """Simulate for a while."""
        done = subprocess.run(
            [sys.executable, "-m", *self.arguments(seed)],
            capture_output=True, text=True, timeout=1700, check=False,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
        step = Step()
        lines = [x for x in done.stdout.splitlines() if x.endswith(" violations")]
        for count, word in re.findall(r"(\d+) ([a-z][a-z ]*)", lines[-1] if lines else ""):
            if word.strip() in self.names:
                step.counts[self.names[word.strip()]] += int(count)
        if done.returncode:
            step.violations.append(excerpt(done.stdout + done.stderr))
        return step


class Simulated(_Simulation):
    """Two seeds per step, with many crash points for each simulated process run.

    The speed of the machine does not change what the simulator does.
    """

    name, goal = "simulator", ("simulated crashes", 100_000)
    names = {
        "seeds": "seeds",
        "crashes": "simulated crashes",
        "power cuts": "of them power cuts",
        "in recovery": "of them in recovery",
        "steps": "simulated steps",
        "looks": "looks",
    }

    def arguments(self, seed: int) -> list[str]:
        """The first seed."""
        return ["tests.simulation", "--runs", "2", "--images", "48", "--seed", str(seed)]


class Swept(_Simulation):
    """A part of all failing calls of a workload: EIO at calls, ENOSPC at writes."""

    name, goal = "failing calls", ("failing calls", 12_000)
    names = {"fault points": "failing calls", "crashes": "crashes behind them"}
    whole = _PARTS * _WORKLOADS

    def arguments(self, seed: int) -> list[str]:
        """One in 64 of the calls of a workload.

        Each step is a part of the same eight workloads.
        """
        workload = 1 + seed // _PARTS % _WORKLOADS
        return ["tests.simulation", "--sweep", str(_PARTS), "--part", str(seed % _PARTS),
                "--seed", str(workload), "--runs", "1"]  # fmt: skip


class Flipped(_Simulation):
    """A part of all bits of two directories of 64 KiB, flipped one at a time.

    Readers and deletions run on each damaged directory.
    """

    name, goal = "flipped bits", ("flipped bits", 1_000_000)
    names = {"flips": "flipped bits", "openings": "openings", "pairs": "pairs"}
    whole = _FLIP_PARTS

    def arguments(self, seed: int) -> list[str]:
        """One in 512 of the bits."""
        return ["tests.simulation.flips", "--every", str(_FLIP_PARTS), "--part",
                str(seed % _FLIP_PARTS), "--seconds", "600"]  # fmt: skip
