"""The targets of `tests/fuzz` as a harness: mutations of the corpus.

The fuzzer runs in its own process. `make quality-fuzz` goes further: there the coverage of the
core guides the fuzzer, and sanitizers check the core.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec

from tests.torture.harness import Step, excerpt


class Fuzzed:
    """Some thousand inputs for each target per step.

    Each target reaches a million inputs over the steps of the goal.
    """

    name, goal = "fuzz", ("inputs", 14 * 1_000_000)

    def missing(self) -> str | None:
        """The reason why this harness cannot run, or None: `tests/fuzz` is required."""
        return None if find_spec("tests.fuzz") else "needs tests/fuzz"

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Mutate for a while."""
        with tempfile.TemporaryDirectory(prefix="eoslog-fuzz-") as finds:
            done = subprocess.run(
                [sys.executable, "-m", "tests.fuzz.run", "--seconds", "700", "--runs", "5000",
                 "--seed", str(seed), "--finds", finds],
                capture_output=True, text=True, timeout=1700, check=False,
            )  # fmt: skip
        step = Step()
        for name, count in re.findall(r"^(\S+) +([\d,]+) inputs", done.stdout, re.MULTILINE):
            step.counts["inputs" if name == "all" else f"{name} inputs"] += int(
                count.replace(",", "")
            )
        if done.returncode:
            step.violations.append(excerpt(done.stdout + done.stderr))
        return step
