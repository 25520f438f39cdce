"""A late flush rewrites and rereads bytes that are older than its descriptors.

Each byte is written again once (protocol.md row 7), in any number of segments.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.retention import apply_retention, delete_records
from tests.faults.harness import Child, start
from tests.storage.compaction.test_compactor import NOW, Writer
from tests.storage.helpers import batch, opened

SEGMENTS = 30


def test_a_late_flush_rewrites_and_rereads_each_segment_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path), strict=False) as writer, opened(str(tmp_path), strict=False) as late:
        for _ in range(SEGMENTS):
            writer.append(batch(2))
            writer.roll()
        late.fold()
        asked: list[tuple[int, int]] = []
        read = late.reader.read

        def noted(start: int, end: int, max_bytes: int, **how: Any) -> Any:
            asked.append((start, end))
            return read(start, end, max_bytes, **how)

        monkeypatch.setattr(late.reader, "read", noted)
        late.sync()
        # It has had a descriptor of the first one since before there was anything in it.
        assert asked == [(at, at + 2) for at in range(2, 2 * SEGMENTS, 2) for _ in "wr"]
        assert late.durable_end == 2 * SEGMENTS


def test_a_flush_of_a_log_without_records_only_moves_the_durable_end(tmp_path: Path) -> None:
    with opened(str(tmp_path), strict=False) as log:
        log.append(batch(2))
        delete_records(log, 2)
        log.sync()
        assert log.durable_end == 2


SETTINGS = {"segment_bytes": 700, "cleanup_policy": "compact,delete"}


def flush(child: Child, path: str, durability: str) -> None:
    with opened(path, strict=durability == "strict", **SETTINGS) as log:
        os.kill(os.getpid(), signal.SIGSTOP)
        child.armed()
        log.sync()  # of what another process appended: it has no descriptors yet
        child.tell("done", [log.durable_end == log.log_end, log.core.poisoned])


def delete(log: PartitionLog) -> None:
    delete_records(log, 15)


def expire(log: PartitionLog) -> None:
    log.configure(replace(log.settings, retention_bytes=1000))
    assert apply_retention(log, NOW)


def merge(log: PartitionLog) -> None:
    log.configure(replace(log.settings, segment_bytes=100_000))
    done = clean_partition(log, 0, NOW, force=True)
    assert done is not None and done.segments_after == 1 < done.segments_before


@pytest.mark.process
@pytest.mark.parametrize("durability", ["strict", "os"])
@pytest.mark.parametrize("take", [delete, expire, merge])
def test_a_flush_that_was_suspended_poisons_no_partition(
    tmp_path: Path, take: Callable[[PartitionLog], None], durability: str
) -> None:
    """What it had listed was made durable by others, or deleted."""
    path = str(tmp_path)
    slow = start(flush, path, durability, faults=(("flush.before", "stop", 1),))
    os.waitpid(slow.pid, os.WUNTRACED)
    with opened(path, strict=durability == "strict", **SETTINGS) as log:
        writer = Writer(log)
        for i in range(20):
            writer.put([(b"k%d" % (i % 2), b"-" * 60)])
        slow.signal(signal.SIGCONT)
        os.waitpid(slow.pid, os.WUNTRACED)
        log.flush()
        take(log)
        slow.signal(signal.SIGCONT)
        assert slow.end().fine().of("done") == [[True, False]]
        log.append(batch(1))
        log.sync()
        assert log.durable_end == log.log_end
