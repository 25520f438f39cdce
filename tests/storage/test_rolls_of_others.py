"""What one process does to segments and their files, as another one sees it that looked before.

Two open handles of this process stand for two processes: their sessions and locks are their own.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from eoslog._core import build_marker
from eoslog.model import AppendOrigin
from eoslog.storage import files
from eoslog.storage.log_settings import LogSettings
from eoslog.storage.segments import INDEX, SNAPSHOT, file_name, read_snapshot
from tests.faults.harness import Child, start
from tests.storage.helpers import batch, opened, payloads


def test_an_abort_in_a_segment_made_since_the_last_look_is_seen(tmp_path: Path) -> None:
    """A roll raises no version of the list; the marker may lie any number of segments later."""
    path, small = str(tmp_path), {"segment_bytes": 1000}
    with opened(path, **small) as reader, opened(path, **small) as writer:
        writer.append(batch(1, producer_id=7, sequence=0, transactional=True), expect=[(writer, 0)])
        while len(reader.reader.bases()) < 2:
            writer.append(batch(1, size=300))
        assert reader.aborted(0, 1) == []
        listed = reader.reader.bases()
        while len(writer.reader.bases()) < len(listed) + 2:
            writer.append(batch(1, size=300))
        marker = writer.log_end
        writer.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)
        assert reader.aborted(0, 1) == [(7, 0, marker)]


def test_the_list_is_read_once_for_each_roll(tmp_path: Path, monkeypatch) -> None:
    """Also where the newest segment is empty."""
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        log.roll()
        assert log.reader.bases() == [0]
        looks = []
        listing = log.reader.listing
        monkeypatch.setattr(log.reader, "listing", lambda: looks.append(1) or listing())
        for _ in range(3):
            assert log.reader.bases() == [0]
        assert looks == []
        log.append(batch(1))
        for _ in range(3):
            assert log.reader.bases() == [0, 1]
        assert looks == [1]


@pytest.mark.process
def test_C03_a_roller_that_stands_still_spoils_no_snapshot(tmp_path: Path) -> None:
    """It had begun to write the producers' snapshot; retention made the same one, and took the
    segment that alone knew them otherwise.
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
        log.delete_records(1)
        assert log.reader.bases() == [1]
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
    """Stands still before it writes the snapshot, and dies when it has begun to."""
    with opened(path) as log:
        log.fold()
        child.armed()
        log.roll()


def test_all_put_index_entries_where_all_expect_them(tmp_path: Path) -> None:
    """Whoever opens later, or changes the setting, goes by the interval that the session began with."""
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
