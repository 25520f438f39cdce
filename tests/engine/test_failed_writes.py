"""A write to a full disk can be retried, and a failed flush poisons the log."""

from __future__ import annotations

import os
import threading

import pytest

from eoslog._core import STATUS, build_marker
from eoslog.errors import DiskFull, LogPoisoned, StorageError
from eoslog.model import AppendOrigin, AppendResult
from eoslog.opening import open as open_log
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from tests.storage.helpers import batch, payloads

pytestmark = pytest.mark.usefixtures("disarmed")


def test_a_full_disk_raises_and_appends_continue_once_there_is_room(path):
    """R66 of docs/contributing/regressions.md."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        partition.append(batch(2, producer_id=7, sequence=0))
        files.arm_failpoint("pwrite", "ENOSPC")
        with pytest.raises(DiskFull):
            partition.append(batch(50, producer_id=7, sequence=2, size=100))
        files.disarm_failpoints()
        assert partition.log_end == 2
        assert partition.append(batch(2, producer_id=7, sequence=2)).base_offset == 2
        assert log.check(full=True).ok


def _abort(partition: PartitionLog, epoch: int) -> AppendResult | None:
    marker = build_marker(7, epoch, False, timestamp=1)
    return partition.append(marker, origin=AppendOrigin.COORDINATOR)


def _transactional(partition: PartitionLog, epoch: int) -> None:
    data = batch(1, producer_id=7, epoch=epoch, sequence=0, transactional=True)
    partition.append(data, expect=[(partition, partition.log_end)])


def test_P09_a_failed_append_is_not_published_by_the_next_thread(path):
    """Its index entry failed: no thread uses the state until it is loaded again."""
    with open_log(path) as log:
        log.create_topic("t", config={"index.interval.bytes": 1 << 30})
        partition = log._engine.partition("t", 0)
        _transactional(partition, 0)
        _abort(partition, 1)
        _transactional(partition, 1)
        files.arm_failpoint("pwrite", "ENOSPC", 2)  # the batch, then the abort index
        marker = build_marker(7, 2, False, timestamp=1)
        failed = partition.core.append(marker, False, (), 1.0, 1 << 30)
        assert failed[0] == STATUS["RELOAD"]
        status = partition.core.append(batch(1), True, (), 1.0, 1 << 30)[0]  # another thread
        assert status == STATUS["STALE"]
        assert partition.log_end == 3
        result = partition.append(batch(1))
        assert result is not None and result.base_offset == 3
        assert partition.stable_end == 2  # the second transaction is open
        assert _abort(partition, 2) is not None
        assert partition.aborted(0, partition.log_end) == [(7, 0, 1), (7, 2, 4)]
        assert log.check(full=True).ok


def test_P09_a_state_that_could_not_be_reloaded_answers_no_retry(path):
    with open_log(path) as log:
        log.create_topic("t", config={"index.interval.bytes": 1})
        partition = log._engine.partition("t", 0)
        for sequence in range(2):
            partition.append(batch(1, producer_id=7, sequence=sequence))
        partition.flush()
        files.arm_failpoint("pwrite", "EIO", 2)  # the batch, then the index
        files.arm_failpoint("open", "EIO")  # the snapshot
        with pytest.raises(StorageError):
            partition.append(batch(1, producer_id=7, sequence=2))
        files.disarm_failpoints()
        assert partition.log_end == 2
        again = partition.append(batch(1, producer_id=7, sequence=2))
        assert again is not None and (again.base_offset, again.duplicate) == (2, False)
        assert partition.log_end == 3
        with open_log(path) as other:
            other._engine.partition("t", 0).append(batch(1))
        assert [offset for offset, _ in payloads(partition)] == [0, 1, 2, 3]
        assert log.check(full=True).ok


def test_short_writes_are_continued(path):
    """R53 of docs/contributing/regressions.md."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        files.arm_failpoint("pwrite", "short")
        partition.append(batch(50, size=100))
        assert log.check(full=True).ok


def test_a_failed_flush_poisons_the_partition_until_all_handles_are_closed(path):
    with open_log(path) as log:
        log.create_topic("t", config={"flush.ms": 100000})
        partition = log._engine.partition("t", 0)
        partition.append(batch(2))
        partition.flush()
        partition.append(batch(2))
        files.arm_failpoint("fdatasync", "EIO")
        with pytest.raises(LogPoisoned):
            partition.flush()
        files.disarm_failpoints()
        with pytest.raises(LogPoisoned):
            partition.append(batch(1))
        with pytest.raises(LogPoisoned):
            partition.flush()
        assert partition.high_watermark == 2
    with open_log(path) as log:
        assert log._engine.partition("t", 0).append(batch(1)).base_offset in (2, 4)
        log._engine.partition("t", 0).flush()


def test_a_signal_during_a_failing_flush_does_not_prevent_the_poisoning(path, monkeypatch):
    """Ctrl-C comes before any line of Python that follows the sync."""
    with open_log(path) as log:
        log.create_topic("t", config={"flush.ms": 100000})
        partition = log._engine.partition("t", 0)
        partition.append(batch(2))

        def interrupted(self, error):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(partition.flusher), "poison", interrupted)
            files.arm_failpoint("fdatasync", "EIO", 1)
            with pytest.raises(KeyboardInterrupt):
                partition.flush()
        with pytest.raises(LogPoisoned):
            partition.flush()
        assert partition.durable_end == 0
    assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_a_close_during_a_failing_flush_syncs_nothing_again(path, monkeypatch):
    """The kernel reports a failed writeback once per descriptor.

    The next sync of it succeeds, over lost bytes (protocol.md row 7).
    """
    log = open_log(path)
    log.create_topic("t", config={"flush.ms": 100000})
    partition = log._engine.partition("t", 0)
    partition.append(batch(2))
    real, begun, closing = files.failpoint, threading.Event(), threading.Event()
    looked = type(partition).sync

    def sync(self):  # a close that has found the partition well
        if self is partition:
            closing.set()
            flushing.join()
        try:
            looked(self)
        finally:
            durable[self.name] = self.durable_end

    def meanwhile(point):
        if point == "flush.before" and threading.current_thread() is flushing:
            begun.set()
            assert closing.wait(60)
            files.arm_failpoint("fdatasync", "EIO", 1)
        return real(point)

    monkeypatch.setattr(files, "failpoint", meanwhile)
    monkeypatch.setattr(type(partition), "sync", sync)
    failed, durable = [], {}

    def flush():
        try:
            partition.flush()
        except LogPoisoned as error:
            failed.append(error)

    flushing = threading.Thread(target=flush)
    flushing.start()
    assert begun.wait(60)
    log.close()
    assert failed
    assert durable["t-0"] == 0
    assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_the_recovery_point_stays_before_an_index_that_failed_to_sync(path):
    """However often it is tried: the next sync of a lost index would succeed."""
    with open_log(path) as log:
        log.create_topic("t", config={"segment.bytes": "1000"})
        partition = log._engine.partition("t", 0)
        for _ in range(3):
            partition.append(batch(1, size=800))
        partition.flush()
        files.arm_failpoint("fdatasync", "EIO", 1)
        with pytest.raises(LogPoisoned):
            log._engine._checkpointer.checkpoint()
        files.disarm_failpoints()
        log._engine._checkpointer.checkpoint()
        points = checkpoints.read_offsets(
            os.path.join(path, checkpoints.RECOVERY_POINT_CHECKPOINT), lenient=True
        )
        assert points.get(("t", 0), 0) == 0
