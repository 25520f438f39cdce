"""A log with topics, a world of coordinators, and faults that end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.storage.fs import files
from tests.coordinator.world import World


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(directory: Path) -> Iterator[Any]:
    with eoslog.open(directory) as opened:
        opened.create_topic("t")
        opened.create_topic("two", 2)
        opened.create_topic("small", config={"segment.bytes": 2000, "segment.index.bytes": 4096})
        yield opened


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def _faults_end() -> Iterator[None]:
    yield
    _core.disarm_faults()
    files.disarm_failpoints()
