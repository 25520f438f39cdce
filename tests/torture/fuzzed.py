"""The fuzzer's targets (`tests/fuzz`) as a harness: mutations of the corpus, in a process of their own.

`make fuzz` goes further: there the coverage of the core guides it, and sanitizers watch.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec

from tests.torture.harness import Step, excerpt


class Fuzzed:
    """A few thousand inputs for each target a step: every one of them comes to its million."""

    name, goal = "fuzz", ("inputs", 14 * 1_000_000)

    def missing(self) -> str | None:
        """It lies in the tree."""
        return None if find_spec("tests.fuzz") else "needs tests/fuzz"

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Mutate for a while."""
        with tempfile.TemporaryDirectory(prefix="eoslog-fuzz-") as finds:
            done = subprocess.run(
                [sys.executable, "-m", "tests.fuzz.run", "--seconds", "700", "--runs", "5000",
                 "--seed", str(seed), "--finds", finds],
                capture_output=True, text=True, timeout=800, check=False,
            )  # fmt: skip
        step = Step()
        for name, count in re.findall(r"^(\S+) +([\d,]+) inputs", done.stdout, re.MULTILINE):
            step.counts["inputs" if name == "all" else f"{name} inputs"] += int(
                count.replace(",", "")
            )
        if done.returncode:
            step.violations.append(excerpt(done.stdout + done.stderr))
        return step
