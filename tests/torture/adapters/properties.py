"""The Hypothesis state machines as a harness, seeded by the step.

The state machines run in their own process.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

from tests.torture.harness import Step, excerpt


class Properties:
    """Some hundred examples per step, checked against models.

    The state machines cover the partition, transactions and the offsets of groups.
    """

    name, goal = "properties", ("hypothesis steps", 50_000)

    def missing(self) -> str | None:
        """The reason why this harness cannot run, or None: Hypothesis is required."""
        there = find_spec("hypothesis") and find_spec("tests.properties")
        return None if there else "needs hypothesis and tests/properties"

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Run each machine with this seed."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.properties.steps", "--seed", str(seed)],
            capture_output=True, text=True, timeout=1700, check=False,
        )  # fmt: skip
        step = Step()
        for name, rules, examples in re.findall(r"(\w+) (\d+) steps (\d+) examples", done.stdout):
            step.counts["hypothesis steps"] += int(rules)
            step.counts[f"{name} steps"] += int(rules)
            step.counts["examples"] += int(examples)
        if done.returncode:
            step.violations.append(excerpt(done.stdout + done.stderr))
        return step
