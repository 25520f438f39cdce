"""Prepared directories for the fault tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import bodies
from tests.faults.harness import live


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A closed directory with the empty topics `in` and `out`."""
    path = tmp_path / "prepared"
    live(bodies.prepare, path).fine()
    return path


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """The same with numbers in `in`."""
    path = tmp_path / "prepared"
    live(bodies.prepare, path, bodies.COUNT).fine()
    return path
