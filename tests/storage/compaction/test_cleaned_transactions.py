"""Which markers a cleaning keeps: those that a fold needs, wherever it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

import eoslog
from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.producer_snapshots import open_transactions_at
from tests.client.prepared.helpers import resumed, stopped
from tests.faults.harness import Child
from tests.storage.compaction.test_compactor import NOW, Writer, committed, folded, layout
from tests.storage.helpers import opened

SETTINGS = {"index_interval_bytes": 100, "delete_retention_ms": 0, "cleanup_policy": "compact"}


def clean(log: PartitionLog, passes: int, segment_bytes: int = 2500) -> None:
    log.flush()
    log.configure(replace(log.settings, segment_bytes=segment_bytes))
    for _ in range(passes):
        clean_partition(log, 0, NOW, force=True)


def markers(log: PartitionLog) -> list[int]:
    return [base for base, _, records, control in layout(log) if control and records]


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_stays_closed_for_a_fold_that_starts_in_its_middle(tmp_path, commit):
    """Its data and marker were compacted away, and the snapshot had it open."""
    path = str(tmp_path)
    with opened(path, **SETTINGS) as log:
        writer = Writer(log)
        writer.put([(b"big0", b"-" * 1500)])
        writer.put([(b"a", b"1")], producer=1, transactional=True)
        writer.put([(b"b", b"2")])
        log.roll()
        writer.end(1, commit)
        writer.put([(b"a", b"3")])
        writer.put([(b"big1", b"-" * 1500)])
        log.roll()
        writer.put([(b"c", b"4")])
        clean(log, 4)
        assert log.segments.bases() == [0, 3, 6]
        assert markers(log) == [3]
    with opened(path, recovery_point=6, **SETTINGS) as log:
        assert log.open_transactions() == []
        assert log.last_stable_offset == log.log_end == 7
        assert folded(committed(log)) == writer.latest()
        clean(log, 4, 1 << 20)  # all in one segment, whose snapshot is of before the transaction
        assert log.segments.bases() == [0, 6]
        assert markers(log) == []
    with opened(path, recovery_point=6, **SETTINGS) as log:
        assert log.open_transactions() == []
        assert folded(committed(log)) == writer.latest()


def test_an_abort_index_is_used_after_an_older_transaction_was_compacted(tmp_path):
    with opened(str(tmp_path), **SETTINGS) as log:
        writer = Writer(log)
        writer.put([(b"big", b"-" * 3000)])
        writer.put([(b"a", b"1")], producer=1, transactional=True)
        writer.put([(b"big2", b"-")])
        log.roll()
        writer.end(1, True)
        writer.put([(b"s1", b"-" * 1500)])
        writer.put([(b"b", b"2")], producer=1, transactional=True)
        log.roll()
        writer.end(1, False)
        writer.put([(b"a", b"3")])
        writer.put([(b"s2", b"-" * 1500)])
        writer.put([(b"e", b"9")], producer=1, transactional=True)
        writer.end(1, True)
        log.roll()
        writer.put([(b"x", b"9")])
        clean(log, 3)
        assert folded(committed(log)) == writer.latest()
        writer.put([(b"s1", b"-"), (b"s2", b"-")])
        log.roll()
        writer.put([(b"q", b"-")])
        clean(log, 1, 4000)
        assert log.segments.bases() == [0, 3, 14]
        assert folded(committed(log)) == writer.latest()


def rolling(child: Child, path: str) -> None:
    """Roll, and stop before the snapshot is written."""
    with eoslog.open(path) as log:
        child.armed()
        log._engine.partition("t", 0).roll()


@pytest.mark.process
def test_a_late_snapshot_has_no_transaction_whose_marker_is_gone(tmp_path):
    path = str(tmp_path / "d")
    with eoslog.open(path) as log:
        log.create_topic("t", config={"cleanup.policy": "compact", "delete.retention.ms": 0})
        partition = log._engine.partition("t", 0)
        with log.producer(transactional_id="x") as producer, log.producer() as plain:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("t", b"1", b"a")
            producer.flush()
            late = stopped(rolling, path, "log.rolled")
            producer.commit_transaction()
            for key in (b"a", b"b"):
                plain.produce("t", b"2", key)
                plain.flush()
                partition.roll()
        for _ in range(4):
            clean_partition(partition, 0, NOW, force=True)
        assert markers(partition) == []
        assert resumed(late).end().error is None
        assert open_transactions_at(partition.path, 1) == {}
