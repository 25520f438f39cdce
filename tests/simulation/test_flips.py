"""Single flipped bits, sampled; `python -m tests.simulation.flips` takes every one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


def test_a_flipped_bit_is_detected_or_harmless() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.flips", "--seconds", "30", "--every", "4000"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
