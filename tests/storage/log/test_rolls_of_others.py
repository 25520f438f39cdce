"""Rolls and deletions by one process, as seen by another that looked before.

Two open handles of this process represent two processes: their sessions and locks are their own.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from eoslog._core import build_marker
from eoslog.model import AppendOrigin
from eoslog.storage.fs import files
from eoslog.storage.log.retention import delete_records
from eoslog.storage.log.settings import LogSettings
from eoslog.storage.segment.segment import INDEX, SNAPSHOT, file_name, read_snapshot
from tests.faults.harness import Child, start
from tests.storage.helpers import batch, opened, payloads


def test_an_abort_marker_in_a_segment_newer_than_the_list_is_found(tmp_path: Path) -> None:
    """A roll changes no version of the list; the marker may be segments later."""
    path, small = str(tmp_path), {"segment_bytes": 1000}
    with opened(path, **small) as reader, opened(path, **small) as writer:
        writer.append(batch(1, producer_id=7, sequence=0, transactional=True), expect=[(writer, 0)])
        while len(reader.segments.bases()) < 2:
            writer.append(batch(1, size=300))
        assert reader.aborted(0, 1) == []
        listed = reader.segments.bases()
        while len(writer.segments.bases()) < len(listed) + 2:
            writer.append(batch(1, size=300))
        marker = writer.log_end
        writer.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)
        assert reader.aborted(0, 1) == [(7, 0, marker)]


def test_the_segment_list_is_read_once_for_each_roll(tmp_path: Path, monkeypatch) -> None:
    """Also where the newest segment is empty."""
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        log.roll()
        assert log.segments.bases() == [0]
        looks = []
        listing = log.segments.listing
        monkeypatch.setattr(
            log.segments, "listing", lambda **how: looks.append(1) or listing(**how)
        )
        for _ in range(3):
            assert log.segments.bases() == [0]
        assert looks == []
        log.append(batch(1))
        for _ in range(3):
            assert log.segments.bases() == [0, 1]
        assert looks == [1]


@pytest.mark.process
def test_C03_a_suspended_roller_damages_no_snapshot(tmp_path: Path) -> None:
    """It had begun a producers' snapshot that retention wrote too.

    Retention then deleted the segment that was the only other source.
    """
    path = str(tmp_path)
    once = batch(1, producer_id=7, sequence=0)
    with opened(path) as log:
        log.append(once)
        log.flush()
        roller = start(rolls, path, faults=(("ftruncate", "stop", 1), ("pwrite", "kill", 2)))
        os.waitid(os.P_PID, roller.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        log.append(batch(1))
        log.flush()
        delete_records(log, 1)
        assert log.segments.bases() == [1]
        roller.signal(18)
        life = roller.end()
        assert life.killed, life.error
        snapshot = tmp_path / "t-0" / file_name(1, SNAPSHOT)
        assert len(read_snapshot(str(snapshot)) or b"") == 46
        assert log.append(once).duplicate
    with opened(path, recovery_point=2) as log:
        assert log.append(once).duplicate, "whoever comes next knows the producer too"
        assert [name for name in files.names(log.path) if name.endswith(".tmp")] == []


def rolls(child: Child, path: str) -> None:
    """Roll, suspended before the snapshot is written and killed while it is."""
    with opened(path) as log:
        log.fold()
        child.armed()
        log.roll()


def test_all_writers_put_index_entries_at_the_interval_of_the_session(tmp_path: Path) -> None:
    """Every handle uses the interval that the session began with."""
    path = str(tmp_path)
    with opened(path, index_interval_bytes=500) as first:
        first.append(batch(1, size=300))
        with opened(path, index_interval_bytes=100_000) as second:
            for turn in range(60):
                (first, second)[turn % 2].append(batch(1, size=300))
                if turn == 30:
                    first.configure(LogSettings(index_interval_bytes=64))
        index = (tmp_path / "t-0" / file_name(0, INDEX)).read_bytes()
        entries = list(struct.iter_unpack(">ii", index))
        assert len(entries) > 10
        assert all(
            a < b for one, other in pairwise(entries) for a, b in zip(one, other, strict=True)
        )
        assert all(other[1] - one[1] > 500 for one, other in pairwise(entries))
    with opened(path, index_interval_bytes=64) as log:
        for _ in range(4):
            log.append(batch(1, size=300))
        index = (tmp_path / "t-0" / file_name(0, INDEX)).read_bytes()
        assert len(index) == 64 * 8, "the next session: an entry before each batch but the first"
        assert len(payloads(log)) == 65
