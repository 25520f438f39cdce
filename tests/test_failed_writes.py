"""The disk refuses a write or a flush: a full one may be tried again, a failed flush poisons for all."""

from __future__ import annotations

import os
import threading

import pytest

from eoslog.errors import DiskFull, LogPoisoned
from eoslog.log import open as open_log
from eoslog.storage import checkpoints, files
from tests.storage.helpers import batch

pytestmark = pytest.mark.usefixtures("disarmed")


def test_a_full_disk_is_an_error_and_the_log_goes_on_when_there_is_room(path):
    """R66 of docs/reliability.md."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log.engine.partition("t", 0)
        partition.append(batch(2, producer_id=7, sequence=0))
        files.arm_failpoint("pwrite", "ENOSPC")
        with pytest.raises(DiskFull):
            partition.append(batch(50, producer_id=7, sequence=2, size=100))
        files.disarm_failpoints()
        assert partition.log_end == 2
        assert partition.append(batch(2, producer_id=7, sequence=2)).base_offset == 2
        assert log.check(full=True).ok


def test_short_writes_are_continued(path):
    """R53 of docs/reliability.md."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log.engine.partition("t", 0)
        files.arm_failpoint("pwrite", "short")
        partition.append(batch(50, size=100))
        assert log.check(full=True).ok


def test_a_failed_flush_poisons_the_partition_until_all_have_closed(path):
    with open_log(path) as log:
        log.create_topic("t", config={"flush.ms": 100000})
        partition = log.engine.partition("t", 0)
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
        assert log.engine.partition("t", 0).append(batch(1)).base_offset in (2, 4)
        log.engine.partition("t", 0).flush()


def test_a_signal_in_a_failing_flush_does_not_keep_the_poison_back(path, monkeypatch):
    """Ctrl-C comes before any line of Python that follows the sync."""
    with open_log(path) as log:
        log.create_topic("t", config={"flush.ms": 100000})
        partition = log.engine.partition("t", 0)
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


def test_a_close_beside_a_flush_that_fails_syncs_nothing_again(path, monkeypatch):
    """The kernel tells a failed writeback once to a descriptor: the next sync of it succeeds, over
    lost bytes (protocol.md row 7).
    """
    log = open_log(path)
    log.create_topic("t", config={"flush.ms": 100000})
    partition = log.engine.partition("t", 0)
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


def test_a_recovery_point_stays_where_an_index_could_not_be_synced(path):
    """However often it is tried: the next sync of a lost index would succeed."""
    with open_log(path) as log:
        log.create_topic("t", config={"segment.bytes": "1000"})
        partition = log.engine.partition("t", 0)
        for _ in range(3):
            partition.append(batch(1, size=800))
        partition.flush()
        files.arm_failpoint("fdatasync", "EIO", 1)
        with pytest.raises(LogPoisoned):
            log.engine._checkpointer.checkpoint()
        files.disarm_failpoints()
        log.engine._checkpointer.checkpoint()
        points = checkpoints.read_offsets(
            os.path.join(path, checkpoints.RECOVERY_POINT_CHECKPOINT), lenient=True
        )
        assert points.get(("t", 0), 0) == 0
