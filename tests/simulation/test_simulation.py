"""A slice of the simulator in every test run.

`make quality-simulation` runs it for longer. Each test is a process of its own: the order of
sets is part of a run (PYTHONHASHSEED), and so are the clocks.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(3100)]


def simulate(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1000,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_same_seed_repeats_the_same_run() -> None:
    """Three processes, crashes and recoveries: every step in the same order."""
    first, second, other = (
        simulate("--seed", seed, "--runs", "4")[1].splitlines()[-2:] for seed in ("5", "5", "105")
    )
    assert first == second  # counts, and a digest of every step
    assert first[1].startswith("trace ")
    assert other[1] != first[1]


def test_no_promise_is_broken_by_a_crash() -> None:
    code, out = simulate("--seed", "1", "--runs", "20")  # each with many ends
    assert code == 0, out[-3000:]


def test_the_simulator_finds_planted_bugs() -> None:
    """A simulator that finds nothing proves nothing."""
    code, out = simulate("--self-test", "--runs", "80")
    assert code == 0, out


def test_a_disk_that_fails_at_any_call_breaks_no_promise() -> None:
    code, out = simulate("--sweep", "40", "--seed", "1", "--runs", "3")
    assert code == 0, out[-3000:]
