"""Opening a closed partition opens each file once, whatever it contains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog.storage.fs import files

AT_MOST = 11
"""A lock file; the folder's metadata; the active segment's log twice (recovery, fold), its three indexes, the
snapshot and the seal at each of its ends."""


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    files.disarm_failpoints()


def opens(path: Path, segments: int) -> int:
    """How many files the opening of a partition with so many segments opens."""
    with eoslog.open(path, durability="os") as log:
        log.create_topic("t", 1, {"segment.bytes": 200})
        log.create_topic("first")
        with log.producer() as producer:
            for number in range(segments):
                producer.produce("t", b"v" * 100, partition=0, timestamp=number)
                producer.flush()
    assert len(list((path / "t-0").glob("*.log"))) == segments
    with eoslog.open(path) as log:
        log._engine.partition("first", 0)  # the coordinators' partitions come with it
        _core.fault_count("open", reset=True)
        partition = log._engine.partition("t", 0)
        found = _core.fault_count("open")
        assert partition.log_end == segments
    return int(found)


@pytest.mark.parametrize("segments", [1, 2, 12])
def test_field_A2_opening_a_closed_partition_opens_each_file_once(
    tmp_path: Path, segments: int
) -> None:
    assert opens(tmp_path / "log", segments) <= AT_MOST
