"""Rules of protocol.md without another test; each test has the number of its row."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.engine.engine import Engine
from eoslog.errors import LogPoisoned, OffsetOutOfRange
from eoslog.storage.directory.session import LOCK_FILES
from eoslog.storage.fs import files
from eoslog.storage.log.retention import delete_records
from tests.rows.tools import clock, locked_elsewhere, put, transactional
from tests.storage.helpers import batch, opened

PLAIN = {"segment_bytes": 1000, "index_interval_bytes": 200}


@contextmanager
def flushed_elsewhere(log: Any) -> Iterator[None]:
    """Another process holds the flush lock of a partition, and does nothing with it."""
    fd, at = log.session.append_lock(log.slot)
    other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        assert _core.try_lock(other, at + 1)
        yield
    finally:
        os.close(other)


def syncs(call: str = "fdatasync") -> int:
    return int(_core.fault_count(call))


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    for call in ("fdatasync", "fsync"):
        _core.fault_count(call, reset=True)
    yield
    files.disarm_failpoints()


def test_P08_a_poisoned_partition_is_poisoned_for_later_handles_too(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        files.arm_failpoint("fdatasync", "EIO")
        with pytest.raises(LogPoisoned):
            log.flush()
        files.disarm_failpoints()
        with opened(str(tmp_path)) as late:
            for call in (lambda: late.append(batch(1)), late.flush):
                with pytest.raises(LogPoisoned):
                    call()
            assert (late.log_end, late.durable_end) == (1, 0)


def test_P07_a_directory_that_could_not_be_flushed_poisons_every_handle(tmp_path: Path) -> None:
    """No descriptor of a segment failed: only its name may be lost."""
    with opened(str(tmp_path), **PLAIN) as log, opened(str(tmp_path), **PLAIN) as other:
        while len(log.segments.bases()) < 2:
            log.append(batch(2, size=150))
        files.arm_failpoint("fsync", "EIO")
        with pytest.raises(LogPoisoned):
            log.flush()
        files.disarm_failpoints()
        for call in (lambda: other.append(batch(1)), other.flush):
            with pytest.raises(LogPoisoned):
                call()
        assert other.durable_end == 0


def test_P16_a_flush_covers_every_dirty_segment_and_the_directory(tmp_path: Path) -> None:
    """R48 of docs/contributing/regressions.md."""
    with opened(str(tmp_path), **PLAIN) as log:
        log.append(batch(1))
        log.flush()
        while len(log.segments.bases()) < 4:
            log.append(batch(2, size=150))
        before, folders = syncs(), syncs("fsync")
        log.flush()
        assert syncs() - before >= 4  # each of them, and what was read back
        assert syncs("fsync") - folders == 1
        assert log.durable_end == log.log_end


def test_P25_a_suspended_flusher_blocks_no_other_flush(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(3))
        with flushed_elsewhere(log):
            flusher = threading.Thread(target=log.flush, daemon=True)
            flusher.start()
            flusher.join(60)
            assert log.durable_end == 3


def test_P28_offsets_deleted_by_another_process_are_out_of_range(
    tmp_path: Path,
) -> None:
    with opened(str(tmp_path), **PLAIN) as one, opened(str(tmp_path), **PLAIN) as two:
        for i in range(20):
            one.append(batch(2, size=150, timestamp=i))
        one.flush()
        assert len(list(two.batches(0, two.log_end))) == 20  # `two` knows the files by now
        for base in two.segments.bases()[1:3]:
            two.segments.forget(base)
        delete_records(one, 24)
        with pytest.raises(OffsetOutOfRange):
            list(two.batches(0, two.log_end))
        assert [b.base_offset for b in two.batches(24, 40)] == list(range(24, 40, 2))


def test_P29_no_header_at_or_after_the_bound_is_read() -> None:
    """R60 of docs/contributing/regressions.md."""
    first = bytearray(batch(2))
    stale = bytearray(batch(2))  # a tail that was cut and written again, with a base below
    stale[:8] = (1).to_bytes(8, "big")
    whole = bytes(first + stale)
    assert _core.walk_batches(whole, 0, 0, 2, 1 << 20)[:2] == (0, len(first))


def test_P30_the_control_file_has_no_holes_and_is_synced_before_it_is_mapped(
    tmp_path: Path,
) -> None:
    with opened(str(tmp_path)):
        found = os.stat(tmp_path / "eoslog.control")
        assert found.st_size == 1 << 20
        assert found.st_blocks * 512 >= found.st_size
        assert syncs("fsync") >= 2  # the file and its directory


def test_P31_a_clock_that_jumps_times_out_no_transaction(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        engine = Engine.open(tmp_path / "log")
        with transactional(log, transaction_timeout_ms=60_000) as producer:
            producer.begin_transaction()
            put(producer, "a")
            for jump in (86_400, -86_400):
                with clock(engine, int(time.time()) + jump):
                    assert engine.transactions.abort_timed_out() == 0
            producer.commit_transaction()
        engine.close()


def test_P34_a_reader_without_writers_does_not_trust_the_control_page(tmp_path: Path) -> None:
    path = tmp_path / "log"
    pages = []
    for life in range(2):
        with eoslog.open(path) as log:
            if life == 0:
                log.create_topic("t")
            with log.producer() as producer:
                put(producer, "a", "b")
        pages.append((path / "eoslog.control").read_bytes())
    (path / "eoslog.control").write_bytes(pages[0])
    with eoslog.open(path, read_only=True) as log:
        assert log.offsets("t", 0).log_end == 4


def test_P35_a_publication_changes_the_counter_that_waiters_sleep_on(tmp_path: Path) -> None:
    """R86 of docs/contributing/regressions.md."""
    with opened(str(tmp_path)) as log:
        control = log.session.control

        def counter() -> Any:
            return control.wake_counters((log.slot,))

        before = counter()
        log.append(batch(1))
        appended = counter()
        log.flush()
        flushed = counter()
        delete_records(log, 1)
        assert len({str(seen) for seen in (before, appended, flushed, counter())}) == 4


def test_P36_other_threads_run_while_an_append_waits_for_its_lock(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        with locked_elsewhere(log):
            done: list[Any] = []
            waiting = threading.Thread(
                target=lambda: done.append(log.append(batch(1), timeout=30)), daemon=True
            )
            waiting.start()
            time.sleep(0.05)  # without the GIL this thread would wake after the thirty seconds
            assert not done
        waiting.join(60)
        assert done and done[0].base_offset == 0


def test_P37_appends_of_others_are_folded_before_the_lock_is_taken(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as one, opened(str(tmp_path)) as two:
        two.append(batch(1))
        for i in range(2000):
            one.append(batch(1, producer_id=i % 50, sequence=i // 50))
        status, *_ = two.core.append(bytearray(batch(1)), True, [], 1.0, 1 << 20, -1)
        assert status == _core.STATUS["APPENDED"]
        assert two.core.next_offset == 2002


@pytest.mark.slow
def test_P38_many_partitions_share_the_lock_files_and_one_control_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with eoslog.open(path, durability="os") as log:
        log.create_topic("t", partitions=200)
        for number in range(200):
            log._engine.partition("t", number)
        locks = list(path.glob("eoslog.lock-*"))
        assert len(locks) <= LOCK_FILES == 64
        assert (path / "eoslog.control").stat().st_size == 1 << 20
        opened_files = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
        assert sum(str(path / "eoslog.lock-") in name for name in opened_files) == len(locks)
