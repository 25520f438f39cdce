"""A slice of the simulator in every test run; `make simulate` runs it for longer.

Each test is a process of its own: the order of sets is part of a run (PYTHONHASHSEED), and so are the clocks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.process


def simulate(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_same_seed_is_the_same_run() -> None:
    """Three processes, crashes and recoveries: every step of every process, in the same order."""
    first, second, other = (
        simulate("--seed", seed, "--runs", "4")[1].splitlines()[-2:] for seed in ("5", "5", "105")
    )
    assert first == second  # counts, and a digest of every step
    assert first[1].startswith("trace ")
    assert other[1] != first[1]


def test_nothing_that_was_promised_is_lost_in_a_crash() -> None:
    code, out = simulate("--seed", "1", "--runs", "20")  # each with many ends
    assert code == 0, out[-3000:]


def test_planted_bugs_are_found() -> None:
    """A simulator that finds nothing proves nothing."""
    code, out = simulate("--self-test", "--runs", "150")
    assert code == 0, out


def test_a_disk_that_fails_at_any_call_loses_nothing_that_was_promised() -> None:
    code, out = simulate("--sweep", "40", "--seed", "1", "--runs", "3")
    assert code == 0, out[-3000:]
