"""A sample of single flipped bits is detected or harmless.

`python -m tests.simulation.flips` flips every bit.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import CorruptRecord
from eoslog.model import POSITIONS_TOPIC
from tests.paths import ROOT
from tests.simulation.flips import directory, lay

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


def test_the_killed_directory_has_flushed_all_named_positions(tmp_path: Path) -> None:
    """Otherwise a damaged marker counts as never written, which hides no record."""
    image = directory(clean=False)
    newest = max(name for name in image if POSITIONS_TOPIC in name and name.endswith(".log"))
    end = 8 * len((image[newest] or b"").rstrip(b"\0"))
    lay(str(tmp_path), image, newest, end - 1)
    with (
        eoslog.open(tmp_path, read_only=True) as log,
        pytest.raises(CorruptRecord, match="flushed"),
    ):
        log.positions()
