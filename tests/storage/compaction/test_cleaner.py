"""A cleaning pass over one partition while other processes change it."""

from __future__ import annotations

import os
import signal

import pytest

from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.segment.segment import INDEX, LOG, file_name
from tests.faults.harness import Child, start
from tests.storage.compaction.test_compactor import NOW, Writer, clean, committed, folded
from tests.storage.helpers import batch, opened

SETTINGS = {"segment_bytes": 700, "index_interval_bytes": 100, "cleanup_policy": "compact"}


def clean_what_is_not_flushed(child: Child, path: str) -> None:
    with opened(path, **SETTINGS) as log:
        Writer(log).put([(b"unflushed", b"")])
        child.armed()
        clean_partition(log, 0, NOW, force=True)
        child.tell("end", log.durable_end)


@pytest.mark.process
def test_G06_a_marker_beyond_the_durable_end_decides_nothing_yet(tmp_path):
    """A power loss may lose it, and the aborted record seemed committed."""
    path = str(tmp_path)
    with opened(path, **SETTINGS) as log:
        writer = Writer(log)
        writer.put([(b"k", b"committed")])
        writer.put([(b"k", b"aborted")], producer=1, transactional=True)
        for i in range(20):
            writer.put([(b"filler%d" % i, b"-" * 60)])
        log.flush()
    cleaner = start(clean_what_is_not_flushed, path, faults=(("flush.after", "stop", 1),))
    os.waitid(os.P_PID, cleaner.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with opened(path, **SETTINGS) as log:
        writer.log = log
        writer.end(1, commit=False)
        writer.put([(b"later", b"")])
        cleaner.signal(signal.SIGCONT)
        durable = cleaner.end().fine().of("end")[0]
        assert durable < log.log_end
        log.flush()
        assert folded(committed(log))[b"k"] == (0, b"committed")
        clean(log)
        assert folded(committed(log))[b"k"] == (0, b"committed")
        assert not [b for b in log.batches(0, log.log_end) if b.transactional and not b.control
                    and b.count]  # fmt: skip


def roll(child: Child, path: str) -> None:
    with opened(path, **SETTINGS) as log:
        child.armed()
        log.roll()
        log.append(batch(1, size=100))
        log.append(batch(1, size=100))
        log.flush()


@pytest.mark.process
def test_cleaning_keeps_the_indexes_of_a_segment_while_a_roll_creates_it(tmp_path):
    """They get their names before the log does, and were deleted as leftovers."""
    path = str(tmp_path)
    with opened(path, **SETTINGS) as log:
        Writer(log).put([(b"k", b"v")])
        log.flush()
    roller = start(roll, path, faults=(("rename", "stop", 2),))
    os.waitid(os.P_PID, roller.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    index = os.path.join(path, "t-0", file_name(1, INDEX))
    with opened(path, **SETTINGS) as log:
        assert os.path.exists(index) and not os.path.exists(index.replace(INDEX, LOG))
        assert clean_partition(log, 0, NOW) is None
        roller.signal(signal.SIGCONT)
        roller.end().fine()
        assert os.path.getsize(index) > 0
        assert log.log_end == 3
