"""Producers that have not written for long expire alike in all processes.

Rule 10 of docs/contributing/protocol.md.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import InvalidProducerEpoch, OutOfOrderSequence
from eoslog.model import AppendOrigin
from eoslog.storage.directory.last_run import LastSession
from eoslog.storage.directory.session import Session
from eoslog.storage.log.loader import open_partition
from eoslog.storage.log.partition_log import LogSettings, PartitionLog
from eoslog.storage.log.producer_expiry import ProducerExpiry, written_before
from eoslog.storage.log.retention import delete_records
from eoslog.storage.segment.segment import LOG, file_path, read_snapshot
from tests.storage.helpers import SLOT, TOPIC_ID, batch, opened

DAY_S = 86_400
NOW = 1_800_000_000


def ids(log: PartitionLog) -> list[int]:
    return sorted(p.producer_id for p in log.producers())


def end(log: PartitionLog, producer: int, epoch: int, timestamp: int = 5) -> None:
    marker = _core.build_marker(producer, epoch, True, timestamp=timestamp)
    log.append(marker, origin=AppendOrigin.COORDINATOR)


def begin(log: PartitionLog, producer: int, epoch: int = 0) -> None:
    data = batch(1, producer_id=producer, epoch=epoch, sequence=0, transactional=True)
    log.append(data, expect=[(log, log.log_end)])


def aged(log: PartitionLog, base: int, age_s: float) -> None:
    """Say that a segment was written to for the last time so long ago."""
    at = NOW - age_s
    os.utime(file_path(log.path, base, LOG), (at, at))


def test_only_producers_without_recent_batches_expire(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        for producer in (1, 2, 3):
            log.append(batch(1, producer_id=producer, sequence=0))
        log.append(batch(1, producer_id=1, sequence=1))
        log.expire_producers(2, 0)
        assert ids(log) == [1, 3]
        assert log.append(batch(1, producer_id=1, sequence=1)).duplicate
        assert not log.append(batch(1, producer_id=2, sequence=7)).duplicate
        with pytest.raises(OutOfOrderSequence):
            log.append(batch(1, producer_id=3, sequence=2))


def test_R36_an_open_transaction_keeps_its_producer_from_expiring(tmp_path: Path) -> None:
    """And with it the first unstable offset, wherever its entry moves to."""
    with opened(str(tmp_path)) as log:
        for producer in range(20):
            log.append(batch(1, producer_id=100 + producer, sequence=0))
            begin(log, producer)
        log.expire_producers(log.log_end, 1 << 60)
        assert ids(log) == list(range(20))
        assert [row[0] for row in log.open_transactions()] == list(range(20))
        for producer in (7, 0, 19):
            end(log, producer, 1, timestamp=1 << 61)
            rest = [p for p, *_ in log.open_transactions()]
            assert log.stable_end == 2 * min(rest) + 1
        assert [row[0] for row in log.open_transactions()] == sorted(set(range(20)) - {7, 0, 19})


def test_a_producer_with_only_a_marker_expires_by_the_markers_timestamp(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        for producer, timestamp in ((1, 1000), (2, 2000)):
            begin(log, producer)
            end(log, producer, 1, timestamp)
        log.expire_producers(log.log_end, 1500)
        assert ids(log) == [2]


def test_R19_expiry_keeps_the_fence_of_a_newer_epoch(tmp_path: Path) -> None:
    """An old epoch's batches are below the horizon, the new epoch's are not."""
    with opened(str(tmp_path)) as log:
        log.append(batch(1, producer_id=1, epoch=0, sequence=0))
        old_end = log.log_end
        log.append(batch(1, producer_id=1, epoch=1, sequence=0))
        log.expire_producers(old_end, 1 << 60)
        with pytest.raises(InvalidProducerEpoch):
            log.append(batch(1, producer_id=1, epoch=0, sequence=1))


def test_an_expiry_horizon_never_moves_back_or_past_the_end(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(3, producer_id=1, sequence=0))
        log.expire_producers(1 << 60, 0)
        assert log.core.expire_below == 3
        log.append(batch(1, producer_id=2, sequence=0))
        log.expire_producers(1, 0)
        assert log.core.expire_below == 3
        assert ids(log) == [2]


def test_P10_all_handles_of_a_partition_use_one_expiry_horizon(tmp_path: Path) -> None:
    """B knows a producer that expired in A: both answer its late batch alike."""
    with opened(str(tmp_path)) as a, opened(str(tmp_path)) as b:
        for sequence in range(3):
            a.append(batch(1, producer_id=1, sequence=sequence))
        a.append(batch(1, producer_id=2, sequence=0))
        b.fold()
        a.expire_producers(3, 0)
        assert ids(a) == ids(b) == [2]
        assert not b.append(batch(1, producer_id=1, sequence=9)).duplicate
        for log in (a, b):
            assert log.append(batch(1, producer_id=1, sequence=9)).duplicate
            with pytest.raises(OutOfOrderSequence):
                log.append(batch(1, producer_id=1, sequence=2))


def test_a_replay_expires_sequences_from_before_a_gap(tmp_path: Path) -> None:
    """The process that accepted the batch after the gap did not know its producer."""
    path = str(tmp_path)
    with opened(path) as log:
        for sequence in (0, 1):
            log.append(batch(1, producer_id=1, sequence=sequence))
        log.expire_producers(2, 0)
        log.append(batch(1, producer_id=1, sequence=8))
    with opened(path) as log:
        assert log.append(batch(1, producer_id=1, sequence=8)).duplicate
        with pytest.raises(OutOfOrderSequence):
            log.append(batch(1, producer_id=1, sequence=1))


def test_snapshots_contain_no_expired_producer(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1, producer_id=1, sequence=0))
        log.append(batch(1, producer_id=2, sequence=0))
        log.expire_producers(1, 0)
        log.roll()
        entries = read_snapshot(file_path(log.path, 2, ".snapshot"))
        assert entries is not None
        assert len(entries) == 46
        log.write_snapshot()


def test_the_expiry_horizon_is_the_end_of_the_youngest_old_segment(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        for age in (5, 4, 3):
            base = log.core.active_base
            log.append(batch(2, producer_id=age, sequence=0))
            if age != 3:
                log.roll()
            aged(log, base, age * DAY_S)
        horizons = [written_before(log.path, 6, NOW - days * DAY_S) for days in (6, 4.5, 3.5, 2.5)]
        assert horizons == [0, 2, 4, 6]
        assert written_before(log.path, 5, NOW) == 5, "no further than what was published"
        log.flush()
        delete_records(log, 2)
        assert written_before(log.path, 6, NOW - 4.5 * DAY_S) == 0, "snapshots know older ones"


def test_an_empty_segment_does_not_date_the_segment_before_it(
    tmp_path: Path,
) -> None:
    """Its file was made ready for the roll, perhaps days before."""
    with opened(str(tmp_path)) as log:
        log.append(batch(2, producer_id=1, sequence=0))
        log.roll()
        aged(log, 0, 0)
        aged(log, 2, 9 * DAY_S)
        assert written_before(log.path, 2, NOW - DAY_S) == 0
        aged(log, 0, 3 * DAY_S)
        assert written_before(log.path, 2, NOW - DAY_S) == 2


def test_expiry_continues_after_a_partition_that_accepts_no_horizon(tmp_path: Path) -> None:
    names = [tmp_path / name for name in "abc"]
    for name in names:
        name.mkdir()
    with opened(str(names[0])) as a, opened(str(names[1])) as b, opened(str(names[2])) as c:
        for log in (a, b, c):
            log.append(batch(1, producer_id=1, sequence=0))
        a.core.poison()
        shutil.rmtree(b.path)
        expiry = ProducerExpiry(lambda: [a, b, c], 1, lambda: int(time.time() * 1000) + 60_000)
        expiry.look()
        expiry.look()
        assert ids(c) == []


def test_a_clock_that_is_wrong_for_a_moment_expires_no_producer(tmp_path: Path) -> None:
    """R36"""
    clock = [NOW * 1000]
    with opened(str(tmp_path)) as log:
        log.append(batch(1, producer_id=1, sequence=0, timestamp=1))  # years ago, by its record
        aged(log, 0, 0)
        expiry = ProducerExpiry(lambda: [log], DAY_S * 1000, lambda: clock[0])
        expiry.look()
        clock[0] += 400 * DAY_S * 1000
        expiry.look()
        clock[0] -= 400 * DAY_S * 1000
        expiry.look()
        expiry.look()
        assert ids(log) == [1]
        clock[0] += 2 * DAY_S * 1000
        expiry.look()
        assert ids(log) == [1]
        log.append(batch(1, producer_id=2, sequence=0))
        aged(log, 0, -2 * DAY_S)
        expiry.look()
        assert ids(log) == [1, 2]
        clock[0] += 2 * DAY_S * 1000
        expiry.look()
        expiry.look()
        assert ids(log) == []


def test_a_new_session_drops_producers_that_expired_long_ago(tmp_path: Path) -> None:
    path = str(tmp_path)
    with opened(path) as log:
        log.append(batch(1, producer_id=1, sequence=0))
        log.roll()
        log.append(batch(1, producer_id=2, sequence=0))
        old = time.time() - 2 * DAY_S
        os.utime(file_path(log.path, 0, LOG), (old, old))
    for age_ms, known in ((DAY_S * 1000, [2]), (3 * DAY_S * 1000, [1, 2])):
        session = Session(path)
        session.ensure_slot(SLOT)
        log = PartitionLog(
            session, "t", 0, slot=SLOT, topic_id=TOPIC_ID, strict=True, settings=LogSettings()
        )
        last = LastSession(clean=True, recovery_point=2)
        open_partition(log, last, producer_expiration_ms=age_ms)
        assert ids(log) == known
        log.close()
        session.close()


def test_a_new_session_with_a_clock_ahead_expires_no_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path)
    with opened(path) as log:
        log.append(batch(1, producer_id=1, sequence=0))
        log.roll()
        log.append(batch(1, producer_id=2, sequence=0))
        old = time.time() - 2 * DAY_S
        os.utime(file_path(log.path, 0, LOG), (old, old))
    ahead = time.time() + 400 * DAY_S
    monkeypatch.setattr(time, "time", lambda: ahead)
    with closing(Session(path)) as session:
        session.ensure_slot(SLOT)
        log = PartitionLog(
            session, "t", 0, slot=SLOT, topic_id=TOPIC_ID, strict=True, settings=LogSettings()
        )
        last = LastSession(clean=True, recovery_point=2)
        open_partition(log, last, producer_expiration_ms=DAY_S * 1000)
        assert ids(log) == [2]  # the producer that was to expire when the last session ended
        monkeypatch.undo()
        with pytest.raises(OutOfOrderSequence):
            log.append(batch(1, producer_id=2, sequence=7))
        assert log.append(batch(1, producer_id=2, sequence=0)).duplicate
        log.close()


def test_an_open_directory_expires_idle_producers_in_the_background(tmp_path: Path) -> None:
    config = {"producer.id.expiration.ms": 1, "producer.id.expiration.check.interval.ms": 10}
    with eoslog.open(str(tmp_path), config=config) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", b"v")
            producer.flush()
            partition = log._engine.partition("t", 0)
            while ids(partition):
                time.sleep(0.01)
            assert partition.core.expire_below == 1
