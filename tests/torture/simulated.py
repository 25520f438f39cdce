"""The deterministic simulator (`tests/simulation`) as a harness: a process of its own, its line read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

from tests.torture.harness import Step

NAMES = {
    "seeds": "seeds",
    "crashes": "simulated crashes",
    "steps": "simulated steps",
    "looks": "looks",
}


class Simulated:
    """Five seconds a step."""

    name, goal = "simulator", ("simulated crashes", 100_000)

    def missing(self) -> str | None:
        """It lies in the tree."""
        return None if find_spec("tests.simulation") else "needs tests/simulation"

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Simulate for a while."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seconds", "5", "--seed", str(seed)],
            capture_output=True, text=True, timeout=300, check=False,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
        step = Step()
        line = next((x for x in reversed(done.stdout.splitlines()) if " seeds, " in x), "")
        for count, word in re.findall(r"(\d+) (\w+)", line):
            if word in NAMES:
                step.counts[NAMES[word]] += int(count)
        if done.returncode:
            step.violations.append((done.stdout + done.stderr)[-2000:])
        return step
