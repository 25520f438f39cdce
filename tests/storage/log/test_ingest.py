"""An adopted staged file leaves the log as if its batches had been appended."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog import _core
from eoslog._core import build_marker
from eoslog.errors import (
    CorruptRecord,
    DiskFull,
    IllegalState,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendOrigin, AppendResult
from eoslog.storage.fs import files
from eoslog.storage.log import ingest as adoption
from eoslog.storage.log.ingest import CannotAdopt, StagedSegment, adopt
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.segment import LOG, PREPARED, SNAPSHOT, offsets_in
from tests.descriptors import opened_files
from tests.faults.harness import Child, start
from tests.storage.helpers import SLOT, batch, opened, payloads, staged, state
from tests.storage.helpers import STAGER as PRODUCER


def adopted(log: PartitionLog, *counts: int, **more: int) -> AppendResult:
    done = adopt(log, staged(log, *counts, **more))  # type: ignore[arg-type]
    assert done is not None
    return done


def indexes(log: PartitionLog) -> dict[str, bytes]:
    found = {p.name: p.read_bytes() for p in Path(log.path).iterdir() if p.suffix.endswith("index")}
    return {name: image for name, image in found.items() if image}


def at(patched: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """Do something whenever a named step is passed."""
    real = files.failpoint

    def passed(step: str) -> bool:
        if step == name:
            act()
        return real(step)

    patched.setattr(files, "failpoint", passed)


def leftovers(log: PartitionLog) -> list[str]:
    return [name for name in os.listdir(log.path) if name.endswith((PREPARED, ".tmp"))]


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=12), min_size=1, max_size=4),
    st.integers(1, 400),
)
def test_an_adopted_segment_reads_folds_and_recovers_as_appended_batches_do(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]], interval: int
) -> None:
    one, two = (str(tmp_path_factory.mktemp("log")) for _ in range(2))
    with (
        opened(one, index_interval_bytes=interval) as log,
        opened(two, index_interval_bytes=interval) as twin,
    ):
        for other in (log, twin):
            other.append(batch(2))
        sequence = 0
        for counts in parts:
            base = log.log_end
            assert adopted(log, *counts, sequence=sequence) == AppendResult(
                base, base + sum(counts) - 1, False, 999 + max(counts)
            )
            twin.roll()
            for count in counts:
                made = batch(count, size=40, producer_id=PRODUCER, sequence=sequence)
                assert twin.append(made) is not None
                sequence += count
            for other in (log, twin):
                other.append(batch(1))  # continues after it, in the same segment
        assert state(log) == state(twin)
        assert offsets_in(log.path, LOG) == offsets_in(twin.path, LOG)
        assert indexes(log) == indexes(twin)
        assert leftovers(log) == []
        log.flush()
        expected, images = state(log), indexes(log)
        copy = one + ".copy"
        shutil.copytree(one, copy)
    for path in (one, copy):  # after a clean end, and after none
        with opened(path, clean=path == one, index_interval_bytes=interval) as log:
            assert state(log) == expected
    with opened(copy, index_interval_bytes=interval) as log:
        assert indexes(log) == images


def test_handles_with_an_open_partition_append_after_an_adopted_segment(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        log.append(batch(1))
        assert other.append(batch(1)) is not None
        assert adopted(log, 3, 2).base_offset == 2
        assert other.append(batch(1, producer_id=PRODUCER, sequence=5)) is not None
        assert adopted(other, 4, sequence=6).base_offset == 8
        assert log.append(batch(1, producer_id=PRODUCER, sequence=10)) is not None
        other.fold()
        assert state(log) == state(other)
        assert [offset for offset, _ in payloads(log)] == list(range(13))
        assert offsets_in(log.path, SNAPSHOT) == [2, 8]


def test_adoption_of_a_segment_wakes_waiting_readers(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        segment = staged(log, 3)
        before = log.session.control.wake_counters((SLOT,))
        adopt(log, segment)
        assert log.session.control.wake_counters((SLOT,)) != before


def test_an_adopted_segment_is_durable_before_it_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        segment = staged(log, 3)
        synced: list[tuple[int, int]] = []
        _core.fault_count("fdatasync", reset=True)
        at(
            monkeypatch,
            "adopt.durable",
            lambda: synced.append((_core.fault_count("fdatasync"), log.log_end)),
        )
        adopt(log, segment)
        assert synced == [(1, 1)]
        assert log.flusher._fds[1][1] <= 1, "an error of its bytes is told to this descriptor"


def test_an_append_during_an_adoption_gets_the_offsets_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        log.append(batch(1))
        segment = staged(log, 3)
        came = 0

        def append() -> None:
            nonlocal came
            came += 1
            if came < 4:
                other.append(batch(1))

        at(monkeypatch, "adopt.durable", append)
        done = adopt(log, segment)
        assert came == 4 and done == AppendResult(4, 6, False, 1002)
        assert [offset for offset, _ in payloads(other)] == list(range(7))


@pytest.mark.parametrize("strict", [True, False])
def test_adoption_of_many_segments_does_not_keep_a_descriptor_for_each(
    tmp_path: Path, strict: bool
) -> None:
    with opened(str(tmp_path), strict=strict) as log:
        log.append(batch(1))
        before = len(opened_files(tmp_path))
        for number in range(60):
            adopted(log, 1, sequence=number)
        assert len(opened_files(tmp_path)) < before + 30
        assert len(offsets_in(log.path, LOG)) == 61


def test_adoption_gives_up_if_the_log_end_moves_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        log.append(batch(1))
        segment = staged(log, 3)
        at(monkeypatch, "adopt.durable", lambda: other.append(batch(1)))
        with pytest.raises(CannotAdopt):
            adopt(log, segment)
        assert offsets_in(log.path, LOG) == [0]
        assert leftovers(log) == [os.path.basename(segment.path)], "to be appended instead"
        segment.close()
    assert not [n for n in os.listdir(tmp_path / "t-0") if n.endswith((PREPARED, ".tmp"))]


def test_adoption_can_be_retried_after_an_expected_end_moved(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with opened(str(one)) as log, opened(str(two)) as coordinator:
        log.append(batch(1))
        segment = staged(log, 3, transactional=True)
        seen = coordinator.log_end
        coordinator.append(batch(1))
        assert adopt(log, segment, expect=[(coordinator, seen)]) is None
        assert log.log_end == 1
        done = adopt(log, segment, expect=[(coordinator, coordinator.log_end)])
        assert done is not None and done.base_offset == 1
        assert log.stable_end == 1, "its transaction is open"
        log.append(build_marker(PRODUCER, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)
        assert log.aborted(0, log.log_end) == [(PRODUCER, 1, 4)]


def unverified(log: PartitionLog) -> StagedSegment:
    return staged(log, 3, transactional=True)


def fenced(log: PartitionLog) -> StagedSegment:
    log.append(batch(1, producer_id=PRODUCER, sequence=0, epoch=3))
    return staged(log, 3, epoch=2)


def gapped(log: PartitionLog) -> StagedSegment:
    log.append(batch(1, producer_id=PRODUCER, sequence=0))
    return staged(log, 3, sequence=2)


@pytest.mark.parametrize(
    ("make", "error"),
    [(unverified, InvalidTxnState), (fenced, InvalidProducerEpoch), (gapped, OutOfOrderSequence)],
)
def test_adoption_checks_the_producer_as_an_append_does(
    tmp_path: Path, make: Callable[[PartitionLog], StagedSegment], error: type[Exception]
) -> None:
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        log.append(batch(1))
        segment = make(log)
        before = state(log)
        with pytest.raises(error):
            adopt(log, segment)
        assert state(log) == before
        assert leftovers(log) == [os.path.basename(segment.path)]
        segment.close()
        assert other.append(batch(1), timeout=60) is not None, "the lock is free again"


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup_policy": "compact"},
        {"log_append_time": True},
        {"compression_type": "zstd"},
        {"message_timestamp_before_max_ms": 10},
        {"max_message_bytes": 200},
        {"segment_bytes": 600},
        {"segment_index_bytes": 60},
    ],
)
def test_adoption_is_rejected_by_a_topic_that_rewrites_its_records(
    tmp_path: Path, settings: dict[str, int | str]
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        log.configure(log.settings.__class__(**settings))
        segment = staged(log, 3, 3, 3, 3, 3, 3)
        with pytest.raises(CannotAdopt):
            adopt(log, segment)
        assert log.log_end == 1
        segment.close()


def test_adoption_is_rejected_while_the_active_segment_is_empty(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        segment = staged(log, 3)
        with pytest.raises(CannotAdopt):
            adopt(log, segment)
        log.append(batch(1))
        log.roll()  # empty again
        with pytest.raises(CannotAdopt):
            adopt(log, segment)
        log.append(batch(1))
        assert adopt(log, segment) == AppendResult(2, 4, False, 1002)


def test_damage_of_a_staged_segment_is_found_before_anything_changes(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        path = tmp_path / "x.batches"
        with pytest.raises(CorruptRecord, match="the staged file is missing"):
            StagedSegment(str(path), 10)
        path.write_bytes(batch(3))
        with pytest.raises(CorruptRecord, match="bytes, but the task wrote 10"):
            StagedSegment(str(path), 10)
        wrong = bytearray(batch(3))
        wrong[-1] ^= 1
        path.write_bytes(wrong)
        with pytest.raises(CorruptRecord, match="x.batches: byte 0: the batch does not match"):
            StagedSegment(str(path), len(wrong))
        assert log.log_end == 0


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "open", "rename", "fsync"])
def test_a_failed_call_during_an_adoption_leaves_a_usable_log(tmp_path: Path, call: str) -> None:
    """Whichever of them: the file is in the log, whole and once, or not at all."""
    for nth in range(1, 40):
        path = tmp_path / f"{nth}"
        path.mkdir()
        with opened(str(path)) as log, opened(str(path)) as other:
            log.append(batch(1))
            segment = staged(log, 2, 1)
            _core.arm_fault(call, nth, errno.ENOSPC)
            try:
                done, failed = adopt(log, segment), False
            except DiskFull:
                done, failed = None, True
            except CannotAdopt as error:
                assert isinstance(error.__cause__, DiskFull)
                assert os.path.exists(segment.path), "its batches can be appended"
                done, failed = None, True
            finally:
                _core.disarm_faults()
            other.append(batch(1))
            log.append(batch(1))
            log.fold()
            other.fold()
            assert state(log) == state(other)
            assert len(payloads(log)) == 3 + (3 if done is not None else 0)
            segment.close()
            shutil.copytree(path, path.with_suffix(".copy"))
            expected = state(log)
        with opened(str(path.with_suffix(".copy"))) as log:
            assert state(log) == expected and leftovers(log) == []
        if not failed:
            break
    assert nth > 1 and not failed


@pytest.mark.process
@pytest.mark.parametrize("point", [1, 2, 4, 5, 6, 7])
def test_an_interrupt_during_an_adoption_closes_no_file_of_the_log(
    tmp_path: Path, point: int
) -> None:
    """Ctrl-C as the core returns: another file may have those numbers by then."""

    def adopts(child: Child) -> None:
        with opened(str(tmp_path)) as log:
            log.append(batch(1))
            segment = staged(log, *[2] * 5)
            child.armed()
            try:
                adopt(log, segment)
            except KeyboardInterrupt:
                child.tell("interrupted")
            segment.close()
            others = [os.open(tmp_path / f"other-{n}", os.O_RDWR | os.O_CREAT) for n in range(8)]
            for fd in others:
                os.write(fd, b"x" * 10_000)
            log.append(batch(1, producer_id=9, sequence=0))
            log.append(batch(1, producer_id=9, sequence=1))
            log.flush()
            log.fold()
            assert all(os.fstat(fd).st_size == 10_000 for fd in others)
            assert [offset for offset, _ in payloads(log)] == list(range(log.log_end))

    life = start(adopts, faults=(("point", "stop", point),))
    os.waitid(os.P_PID, life.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    life.signal(signal.SIGINT)
    life.signal(signal.SIGCONT)
    assert life.end().fine().told[0] == ["interrupted"]


def test_two_rolls_without_completion_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Another thread's append comes between an adoption and what it leaves to do."""
    with opened(str(tmp_path), segment_bytes=2000) as log:
        log.append(batch(1))
        log.writer_files.prepare_roll()  # of a thread that has to, and is suspended
        segment = staged(log, *[1] * 10)
        segment.bear(PRODUCER, 0, 0, False)
        real = log.writer_files.after_roll
        came: list[int] = []

        def late() -> None:
            if not came and log.core.segment_base == 1:
                came.append(1)
                log.append(batch(1, size=1500))
            real()

        log.writer_files.after_roll = late  # type: ignore[method-assign]
        adopt(log, segment)
        assert came and offsets_in(log.path, LOG) == [0, 1, 11]
        assert offsets_in(log.path, SNAPSHOT) == [1, 11]
        log.flush()
    with opened(str(tmp_path)) as log:
        assert [offset for offset, _ in payloads(log)] == list(range(12))
    assert opened_files(tmp_path) == []


def test_a_stamp_whose_flush_failed_is_not_trusted(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        segment = staged(log, 3)
        _core.arm_fault("fdatasync", 1, errno.EIO)
        try:
            with pytest.raises(StorageError):
                adopt(log, segment)
        finally:
            _core.disarm_faults()
        assert segment.ready_for == -1 and not os.path.exists(segment.path)
        segment.close()
        other = staged(log, 3)
        other.stamp(log, log.log_end)
        other.bear(99, 0, 0, False)
        adopt(log, other)
        assert [p.producer_id for p in log.producers()] == [99]


def test_adoption_is_rejected_across_devices_and_for_very_many_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        segment = staged(log, 3)
        _core.arm_fault("rename", 1, errno.EXDEV)
        try:
            with pytest.raises(CannotAdopt):
                adopt(log, segment)
        finally:
            _core.disarm_faults()
        assert os.path.exists(segment.path) and leftovers(log) == []
        monkeypatch.setattr(adoption, "_BATCHES", 2)
        many = staged(log, 1, 1, 1)
        with pytest.raises(CannotAdopt):
            adopt(log, many)
        for one in (segment, many):
            one.close()


def test_adoption_is_rejected_by_a_read_only_log_and_a_deleted_topic(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        segment = staged(log, 3)
        with opened(str(tmp_path), read_only=True) as reader, pytest.raises(IllegalState):
            adopt(reader, segment)
        log.session.control.mark_deleted(log.slot)
        with pytest.raises(UnknownTopicOrPartition):
            adopt(log, segment)
        segment.close()
