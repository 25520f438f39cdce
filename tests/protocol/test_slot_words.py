"""Each word of a partition's slot has its value after each step and kill.

Other tests show what the words do for others. These look at the words, so that a missing store is
not hidden by the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eoslog._core import STATUS, build_marker
from eoslog.errors import (
    CorruptRecord,
    IllegalState,
    LockTimeout,
    LogPoisoned,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendOrigin
from eoslog.storage.directory.session import CONTROL_FILE
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.segment import INDEX, LOG, TIME_INDEX, offsets_in
from tests.faults.harness import Child, live
from tests.protocol.test_locks import beside, lock_of
from tests.storage.helpers import SLOT, TOPIC_ID, batch, opened

SMALL = {"segment_bytes": 1000, "index_interval_bytes": 200}
BUSY, ROLLED, WRITTEN, INDEXED, LOG_END = range(1, 6)
"""Where the core can be killed in an append: `eoslog/_core/partition/partition_state.pxi`."""


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    files.disarm_failpoints()


def slot(log: PartitionLog) -> dict[str, Any]:
    return dict(log.session.control.slot_view(SLOT))


def transactional(log: PartitionLog, sequence: int = 0, size: int = 20) -> None:
    data = batch(1, producer_id=1, sequence=sequence, transactional=True, size=size)
    log.append(data, expect=[(log, log.log_end)])


def abort(log: PartitionLog) -> None:
    log.append(build_marker(1, 1, False, timestamp=1), origin=AppendOrigin.COORDINATOR)


def test_an_append_publishes_its_end_and_stable_end_and_clears_busy(
    tmp_path: Path,
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(2))
        transactional(log)
        log.append(batch(1))
        found = slot(log)
        assert (found["log_end"], found["stable_end"], found["busy"]) == (4, 2, 0)
        assert found["end_position"] == os.path.getsize(tmp_path / "t-0" / f"{0:020}.log")
        abort(log)
        found = slot(log)
        assert (found["log_end"], found["stable_end"], found["busy"]) == (5, 5, 0)
        assert found["holder_pid"] == 0


def test_a_failed_append_leaves_the_slot_unchanged(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(2))
        before = slot(log)
        files.arm_failpoint("pwrite", "ENOSPC")
        with pytest.raises(StorageError):
            log.append(batch(1))
        assert {**slot(log), "holder_since_ns": 0} == {**before, "holder_since_ns": 0}


def test_a_roll_publishes_the_new_segment(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(2))
        log.roll()
        found = slot(log)
        assert (found["active_base"], found["end_position"], found["busy"]) == (2, 0, 0)


def test_recovery_publishes_its_results_and_the_session_last(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(3))
        transactional(log)
    (tmp_path / CONTROL_FILE).unlink()  # it would still say so
    with opened(str(tmp_path)) as log:
        found = slot(log)
        assert found["session"] == log.session.control.session
        assert (found["log_end"], found["stable_end"], found["durable_end"]) == (4, 3, 4)
        assert found["busy"] == 0


def test_a_flush_and_a_poison_are_published(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(3))
        assert slot(log)["durable_end"] == 0
        log.flush()
        assert slot(log)["durable_end"] == 3
        log.core.poison()
        assert slot(log)["poison"] == 1


def test_log_start_and_swaps_are_published(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(3))
        version = slot(log)["segments_version"]
        log.publish_log_start(2, segments_changed=True)
        found = slot(log)
        assert (found["log_start"], found["segments_version"]) == (2, version + 1)
        log.mark_swap(True, 3)
        found = slot(log)
        assert (found["cleaned_version"], found["cleaned_to"]) == (1, 3)
        assert found["segments_version"] == version + 2
        log.mark_swap(False, 3)
        assert slot(log)["cleaned_version"] == 2


def _flushed(log: PartitionLog) -> None:
    log.core.publish_durable(log.log_end, 1)


def flush_words(log: PartitionLog) -> tuple[int, int]:
    return divmod(log.core.flush_counters, 1 << 32)


@pytest.mark.parametrize(
    ("change", "flushes"),
    [
        (lambda log: log.append(batch(1)), 0),
        (_flushed, 1),
        (lambda log: log.core.poison(), 2),
        (lambda log: log.publish_log_start(0, segments_changed=False), 0),
        (lambda log: log.mark_swap(True, 0), 0),
        (lambda log: log.session.control.mark_deleted(SLOT), 2),
    ],
    ids=["append", "flush", "poison", "log start", "swap", "deletion"],
)
def test_waiters_are_woken_by_every_change(
    tmp_path: Path, change: Callable[[PartitionLog], object], flushes: int
) -> None:
    """A waiter for a flush is not woken by the rest: one word for each round."""
    with opened(str(tmp_path)) as log:
        control = log.session.control
        before, words = control.wake_counters((SLOT,)), flush_words(log)
        change(log)
        assert control.wake_counters((SLOT,)) != before
        assert sum(a != b for a, b in zip(words, flush_words(log), strict=True)) == flushes


# --- what an append refuses under the lock ------------------------------------------------------


def test_an_append_waits_for_its_lock_until_its_timeout(tmp_path: Path) -> None:
    from eoslog import _core

    with opened(str(tmp_path)) as log:
        name, at = lock_of(log)
        with beside(tmp_path, name) as fd:
            assert _core.try_lock(fd, at)
            with pytest.raises(LockTimeout):
                log.append(batch(1), timeout=0.02)


def test_the_end_of_a_swap_waits_for_the_append_lock(tmp_path: Path) -> None:
    from eoslog import _core

    with opened(str(tmp_path)) as log:
        log.mark_swap(True, 0)
        name, at = lock_of(log)
        with beside(tmp_path, name) as fd:
            assert _core.try_lock(fd, at)
            assert log.core.mark_swap(False, 0, 0.02)[0] == _core.STATUS["LOCKED_OUT"]
            assert slot(log)["cleaned_version"] == 1
        log.mark_swap(False, 0)


def of_another_session(path: Path, log: PartitionLog) -> None:
    page = (path / CONTROL_FILE).read_bytes()
    at = page.index(slot(log)["session"].to_bytes(8, "little") + TOPIC_ID)
    fd = os.open(path / CONTROL_FILE, os.O_RDWR)
    os.pwrite(fd, (7).to_bytes(8, "little"), at)
    os.close(fd)


def test_a_slot_of_an_earlier_session_rejects_appends(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        of_another_session(tmp_path, log)
        with pytest.raises(IllegalState, match="an earlier session"):
            log.append(batch(1))


def test_a_slot_of_an_earlier_session_or_deleted_topic_rejects_a_swaps_end(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.mark_swap(True, 0)
        log.session.control.mark_deleted(SLOT)
        with pytest.raises(UnknownTopicOrPartition):
            log.mark_swap(False, 0)
        of_another_session(tmp_path, log)
        with pytest.raises(IllegalState, match="an earlier session"):
            log.mark_swap(False, 0)


def test_a_deleted_and_a_poisoned_partition_reject_appends(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.core.poison()
        with pytest.raises(LogPoisoned):
            log.append(batch(1))
    with opened(str(tmp_path)) as log:
        log.session.control.mark_deleted(SLOT)
        with pytest.raises(UnknownTopicOrPartition):
            log.append(batch(1))


def test_a_log_that_was_truncated_under_its_writer_rejects_appends(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(3))
        os.truncate(tmp_path / "t-0" / f"{0:020}.log", 10)
        with pytest.raises(CorruptRecord, match="truncated"):
            log.append(batch(1))


# --- what a dead holder leaves ------------------------------------------------------------------


def _dies(child: Child, path: Path, ends: bool, size: int) -> None:
    with opened(str(path), **SMALL) as log:
        child.armed()
        abort(log) if ends else transactional(log, 1, size)


def _sizes(path: Path) -> dict[str, int]:
    """Sizes of the segment files, without abort indexes that were never written."""
    found = {file.name: file.stat().st_size for file in (path / "t-0").glob("0*")}
    return {name: size for name, size in found.items() if size or not name.endswith(".txnindex")}


@pytest.mark.parametrize("ends", [True, False], ids=["abort marker", "data"])
@pytest.mark.parametrize("point", [BUSY, WRITTEN, INDEXED])
def test_P09_bytes_of_a_dead_lock_holder_are_removed_by_the_next_holder(
    tmp_path: Path, point: int, ends: bool
) -> None:
    """The next append would hide it: here the next lock holder appends nothing."""
    with opened(str(tmp_path), **SMALL) as log:
        transactional(log, size=300)
        before, words = _sizes(tmp_path), slot(log)
        life = live(_dies, tmp_path, ends, 300, faults=(("point", "kill", point),))
        assert life.killed
        assert slot(log)["busy"] == 1
        log.publish_log_start(0, segments_changed=False)
        assert _sizes(tmp_path) == before
        assert {**slot(log), "holder_since_ns": 0} == {**words, "holder_since_ns": 0}
        assert log.aborted(0, log.log_end) == []


def test_P09_a_stable_end_that_a_dead_holder_did_not_publish_is_published(tmp_path: Path) -> None:
    with opened(str(tmp_path), **SMALL) as log:
        transactional(log)
        assert live(_dies, tmp_path, True, 0, faults=(("point", "kill", LOG_END),)).killed
        assert (slot(log)["log_end"], slot(log)["stable_end"]) == (2, 0)
        log.publish_log_start(0, segments_changed=False)
        found = slot(log)
        assert (found["log_end"], found["stable_end"], found["busy"]) == (2, 2, 0)
        assert log.aborted(0, 2) == [(1, 0, 1)]


def _seals(child: Child, path: Path) -> None:
    with opened(str(path)) as log:
        child.armed()
        log.roll()


@pytest.mark.parametrize(
    ("death", "bases"), [(("rename", "kill", 3), [0]), (("point", "kill", ROLLED), [0, 3])]
)
def test_P09_a_roll_of_a_dead_holder_is_completed_once_its_log_has_a_name(
    tmp_path: Path, death: tuple[str, str, int], bases: list[int]
) -> None:
    """From then on another process may be in the new segment."""
    with opened(str(tmp_path)) as log:
        log.append(batch(3))
        assert live(_seals, tmp_path, faults=(death,)).killed
        assert slot(log)["busy"] == 1
        log.publish_log_start(0, segments_changed=False)
        assert (slot(log)["busy"], slot(log)["active_base"]) == (0, bases[-1])
        assert [offsets_in(log.path, suffix) for suffix in (LOG, INDEX, TIME_INDEX)] == [bases] * 3
        assert log.append(batch(1)).base_offset == 3


def test_a_fold_in_a_segment_that_was_swapped_restarts(tmp_path: Path) -> None:
    """The fold is at the published end, in a segment that was sealed and cleaned.

    The files of that segment no longer belong to the log, and the next segment may be deleted as well.
    """
    path = str(tmp_path)
    with opened(path, **SMALL) as one, opened(path, **SMALL) as other:
        one.append(batch(2))
        other.fold()
        one.roll()
        for begins in (True, False):
            one.core.mark_swap(begins, -1, 1.0)
        assert other.core.segment_base == 0 and other.core.next_offset == other.log_end == 2
        status, *_ = other.core.append(bytearray(batch(1)), True, [], 1.0, 1 << 20, -1)
        assert status == STATUS["REOPEN"]
        assert other.append(batch(1)).base_offset == 2
