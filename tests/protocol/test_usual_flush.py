"""The flush of one segment that has been flushed before (`Partition.lead_flush`).

It does what the other flushes do (protocol.md, Flush), and leaves every other case to them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eoslog import _core
from eoslog.errors import LogPoisoned, TooManyOpenFiles
from eoslog.storage.fs import files
from tests.storage.helpers import batch, opened, payloads

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    for call in ("fdatasync", "fsync", "pwrite"):
        _core.fault_count(call, reset=True)
    yield
    files.disarm_failpoints()


@contextmanager
def flushed_once(path: Path, **settings: Any) -> Iterator[Any]:
    """A log whose only segment has a durable record, and one that is not durable."""
    with opened(str(path), **settings) as log:
        log.append(batch(1))
        log.flush()
        log.append(batch(1))
        yield log


def usual(log: Any) -> bool:
    """Flush if it is the usual flush; return whether it was."""
    with _core.TryMutex(log.flusher._flushing) as mine:
        assert mine
        return bool(log.flusher._flush_one())


def under_way(log: Any) -> bool:
    return bool(log.session.control.slot_view(log.slot)["flush_under_way"])


def is_free(log: Any) -> bool:
    """Whether no description holds the flush lock."""
    fd, at = log.flusher._lock_fd, log.flusher._flush_at
    if not _core.try_lock(fd, at):
        return False
    _core.unlock(fd, at)
    return not log.flusher._flushing.locked()


def test_a_usual_flush_syncs_one_file_and_nothing_else(tmp_path: Path) -> None:
    with flushed_once(tmp_path) as log:
        calls = "fdatasync", "fsync", "pwrite"
        before = [_core.fault_count(call) for call in calls]
        assert usual(log)
        found = [_core.fault_count(call) - old for call, old in zip(calls, before, strict=True)]
        assert found == [1, 0, 0]
        assert log.durable_end == 2
        assert is_free(log)


def test_a_usual_flush_without_new_records_syncs_nothing(tmp_path: Path) -> None:
    with flushed_once(tmp_path) as log:
        log.flush()
        before = _core.fault_count("fdatasync")
        assert usual(log)
        assert _core.fault_count("fdatasync") == before


def test_a_new_segment_gets_its_name_synced(tmp_path: Path) -> None:
    with flushed_once(tmp_path) as log:
        log.flush()
        log.roll()
        log.append(batch(1))
        assert not usual(log)
        before = _core.fault_count("fsync")
        log.flush()
        assert _core.fault_count("fsync") == before + 1
        assert log.durable_end == 3


def test_records_in_an_earlier_segment_are_flushed_too(tmp_path: Path) -> None:
    """Also if the roll came after the caller chose the segment."""
    with flushed_once(tmp_path) as log:
        flusher, held = log.flusher, log.flusher._fds[0]
        log.roll()
        log.append(batch(1))
        assert not usual(log)
        lock = flusher._lock_fd, flusher._flush_at
        assert not log.core.lead_flush(*lock, 0, *held, files.failpoint)
        assert log.durable_end == 1
        before = _core.fault_count("fdatasync")
        log.flush()
        assert _core.fault_count("fdatasync") == before + 2
        assert log.durable_end == 3


def test_a_descriptor_opened_after_a_write_is_not_trusted(tmp_path: Path) -> None:
    """The kernel does not report a failed write of older bytes through it (row 7)."""
    with flushed_once(tmp_path), opened(str(tmp_path)) as late:
        late.append(batch(1))
        assert late.flusher._fds[0][1] == 2
        assert not usual(late)
        before = _core.fault_count("pwrite")
        late.flush()
        assert _core.fault_count("pwrite") == before + 1  # the second record, again
        assert late.durable_end == 3


def test_a_flush_of_another_process_is_left_alone(tmp_path: Path) -> None:
    with flushed_once(tmp_path) as log, opened(str(tmp_path)) as other:
        fd, at = other.flusher._lock_fd, other.flusher._flush_at
        assert _core.try_lock(fd, at)
        assert not usual(log)
        _core.unlock(fd, at)
        log.core.begin_flush(2)
        assert not usual(log)
        assert log.durable_end == 1
        log.core.give_up_flush()
        assert usual(log)
        assert log.durable_end == 2


def test_a_poisoned_partition_is_not_synced_again(tmp_path: Path) -> None:
    """The kernel has reported the error, so the next sync would succeed (row 7)."""
    with flushed_once(tmp_path) as log:
        log.core.poison()
        before = _core.fault_count("fdatasync")
        assert not usual(log)
        assert _core.fault_count("fdatasync") == before
        with pytest.raises(LogPoisoned):
            log.flush()
        assert log.durable_end == 1


def test_a_failed_sync_poisons_the_partition(tmp_path: Path) -> None:
    with flushed_once(tmp_path) as log, opened(str(tmp_path)) as other:
        files.arm_failpoint("fdatasync", "EIO")
        with pytest.raises(LogPoisoned, match=r"flush failed \(\[Errno 5\]"):
            log.flush()
        files.disarm_failpoints()
        assert log.durable_end == 1
        assert not under_way(log)
        assert is_free(log)
        with pytest.raises(LogPoisoned):
            other.append(batch(1))


@pytest.mark.parametrize("point", ["flush.before", "flush.after"])
@pytest.mark.parametrize("error", [TooManyOpenFiles("no descriptor is free"), KeyboardInterrupt()])
def test_an_error_that_is_not_of_the_disk_ends_the_round_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, error: BaseException
) -> None:
    def failing(name: str) -> bool:
        if name == point:
            raise error
        return False

    with flushed_once(tmp_path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(files, "failpoint", failing)
            with pytest.raises(type(error)):
                log.flush()
        assert log.durable_end == 1
        assert not under_way(log)
        assert is_free(log)
        log.flush()
        assert log.durable_end == 2


def test_a_record_appended_during_a_sync_is_left_to_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flushed_once(tmp_path) as log, opened(str(tmp_path)) as other:

        def late(name: str) -> bool:
            if name == "flush.before" and log.log_end == 2:
                other.append(batch(1))
            return False

        monkeypatch.setattr(files, "failpoint", late)
        log.flush()
        assert (log.durable_end, log.log_end) == (2, 3)
        other.flush()
        assert log.durable_end == 3


def test_a_flush_that_waits_during_a_sync_is_woken_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flushed_once(tmp_path) as log, opened(str(tmp_path)) as other:
        second: list[threading.Thread] = []

        def late(name: str) -> bool:
            if name == "flush.before" and not second:
                other.append(batch(1))
                second.append(threading.Thread(target=other.flush, daemon=True))
                second[0].start()
                while not any(log.session.control.slot_view(log.slot)["flush_waiters"]):
                    pass
            return False

        monkeypatch.setattr(files, "failpoint", late)
        log.flush()
        assert log.durable_end >= 2
        second[0].join(PATIENCE_S)
        assert not second[0].is_alive()
        assert log.durable_end == 3


def test_trying_to_flush_leaves_its_errors_to_the_flush(tmp_path: Path) -> None:
    with flushed_once(tmp_path) as log:
        log.try_flush(log.log_end)
        assert log.durable_end == 2
        log.append(batch(1))
        files.arm_failpoint("fdatasync", "EIO")
        log.try_flush(log.log_end)
        files.disarm_failpoints()
        assert log.durable_end == 2
        with pytest.raises(LogPoisoned):
            log.flush()
        assert [offset for offset, _ in payloads(log)] == [0, 1, 2]


def test_trying_to_flush_wakes_the_next_flusher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flushed_once(tmp_path) as log, opened(str(tmp_path)) as other:
        before = log.core.flush_counters
        log.try_flush(log.log_end)
        found = log.core.flush_counters - before
        assert [found >> shift & 0xFFFF for shift in (0, 32)] == [1, 1]
        assert other.durable_end == 2


def test_a_blocked_reader_is_woken_by_a_usual_flush(tmp_path: Path) -> None:
    with flushed_once(tmp_path) as log:
        before = log.session.control.wake_counters([log.slot])
        assert usual(log)
        assert log.session.control.wake_counters([log.slot]) != before


def test_an_os_directory_is_not_flushed_by_trying(tmp_path: Path) -> None:
    with flushed_once(tmp_path, strict=False) as log:
        before = _core.fault_count("fdatasync")
        log.try_flush(log.log_end)
        assert _core.fault_count("fdatasync") == before
