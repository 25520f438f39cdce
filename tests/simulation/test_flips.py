"""A sample of single flipped bits is detected or harmless.

`python -m tests.simulation.flips` flips every bit.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.process


def test_a_flipped_bit_is_detected_or_harmless() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.flips", "--seconds", "30", "--every", "4000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
