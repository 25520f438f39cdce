"""Each segment keeps its own descriptors while another thread rolls."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eoslog import _core
from eoslog._core import build_marker
from eoslog.errors import TooManyOpenFiles, UnknownTopicOrPartition
from eoslog.model import AppendOrigin, AppendResult
from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.log import flusher as flushers
from eoslog.storage.log import segment_writer as writer_files
from eoslog.storage.log.flusher import LogFlusher
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.segment_list import Listing
from eoslog.storage.log.segment_writer import files as writers
from eoslog.storage.segment.segment import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    file_path,
    offsets_in,
)
from tests.descriptors import opened_files
from tests.storage.helpers import batch, opened, payloads, state

SEGMENT = 2000


class Meanwhile:
    """An append in another thread, just before the first file of a kind is opened."""

    def __init__(
        self, patch: pytest.MonkeyPatch, log: PartitionLog, suffix: str, data: bytes
    ) -> None:
        real, end = writers.open_file, log.log_end
        self.thread = threading.Thread(target=lambda: log.append(data))
        self.begun = False

        def open_file(path: str, **how: bool) -> int:
            if path.endswith(suffix) and not self.begun:
                self.begun = True
                self.thread.start()
                while self.thread.is_alive() and log.log_end == end:
                    time.sleep(0.001)  # then it may wait for us: rolls are settled one at a time
            return real(path, **how)

        patch.setattr(writers, "open_file", open_file)

    def over(self) -> None:
        assert self.begun
        self.thread.join()


def opened_to_write(log: PartitionLog) -> list[str]:
    files = opened_files(log.path)
    return [name for name, flags in files if name.endswith(LOG) and flags & os.O_RDWR]


def begin(log: PartitionLog, size: int) -> None:
    """Append data of a transaction of producer 7, and prepare the next segment."""
    data = batch(1, producer_id=7, sequence=0, size=size, transactional=True)
    log.append(data, expect=[(log, log.log_end)])
    log.writer_files.prepare_roll()


def abort(log: PartitionLog) -> int:
    done = log.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)
    assert done is not None
    return done.base_offset


def test_a_roll_during_the_creation_of_an_abort_index_keeps_each_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the entry is in the wrong segment, and aborted records are read."""
    with opened(str(tmp_path), segment_bytes=SEGMENT) as log:
        begin(log, 1600)
        other = Meanwhile(monkeypatch, log, TXN_INDEX, batch(1, size=1000))
        marker = abort(log)
        other.over()
        assert (marker, offsets_in(log.path, LOG)) == (2, [0, 1])
        assert log.aborted(marker, marker + 1) == [(7, 0, marker)]
        assert os.path.getsize(file_path(log.path, 1, TXN_INDEX)) == 34


def test_a_roll_while_the_fold_enters_a_segment_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path), segment_bytes=SEGMENT) as log:
        begin(log, 1600)
        other = Meanwhile(monkeypatch, log, LOG, batch(1, size=1000))
        log.writer_files.enter(0, leaving=0)
        other.over()
        assert (log.core.segment_base, log.core.next_offset) == (1, 2)
        log.append(batch(1, size=500))
        log.flush()
        assert [offset for offset, _ in payloads(log)] == [0, 1, 2]
        log.flusher.close_retired()
        assert len(opened_to_write(log)) == len(set(opened_to_write(log)))


def write_without_snapshots(log: PartitionLog) -> None:
    """Several segments of one producer each; only a complete fold knows them all."""
    for producer in range(6):
        log.append(batch(1, producer_id=producer, sequence=0, size=800))
    assert len(offsets_in(log.path, LOG)) > 2
    for offset in offsets_in(log.path, SNAPSHOT):
        os.remove(file_path(log.path, offset, SNAPSHOT))


def test_an_append_during_a_restart_of_the_fold_uses_the_folds_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the fold restarts in its old file and knows too few producers."""
    with opened(str(tmp_path), segment_bytes=SEGMENT) as log:
        write_without_snapshots(log)
        late = batch(1, producer_id=9, sequence=0, size=10)
        other = Meanwhile(monkeypatch, log, file_name(0, LOG), late)
        log.writer_files.restart_fold()
        other.over()
        assert sorted(p.producer_id for p in log.producers()) == [0, 1, 2, 3, 4, 5, 9]
        before = state(log)
        log.writer_files.restart_fold()
        assert state(log) == before


def test_a_fold_restarted_in_segments_that_a_swap_replaces_is_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the fold knows too few producers, and a resend is stored again.

    An append after the swap would continue from the old first segment past the part that the merged
    segment holds of the second.
    """
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        for producer in range(3):
            log.append(batch(1, producer_id=producer, sequence=0))
            log.roll()
        for offset in offsets_in(log.path, SNAPSHOT):
            os.remove(file_path(log.path, offset, SNAPSHOT))
        log.append(batch(1))
        again: list[AppendResult | None] = []
        real_open, real_newest = writers.open_file, writer_files.newest_snapshot
        looks: list[int] = []

        def open_file(path: str, **how: bool) -> int:
            fd = real_open(path, **how)
            if not looks[1:] and path.endswith(file_name(0, LOG)):
                monkeypatch.setattr(writers, "open_file", real_open)
                other.fold()
                assert clean_partition(other, 0, 0, force=True) is not None
            return fd

        def newest(path: str, found: list[int], **how: bool) -> tuple[int, bytes]:
            looks.append(1)
            if len(looks) == 2:
                late = batch(1, producer_id=1, sequence=0)
                appender = threading.Thread(target=lambda: again.append(log.append(late)))
                appender.start()
                appender.join()
            return real_newest(path, found, **how)

        monkeypatch.setattr(writers, "open_file", open_file)
        monkeypatch.setattr(writer_files, "newest_snapshot", newest)
        log.writer_files.restart_fold()
        assert other.segments.bases() == [0, 3]
        assert [done and (done.base_offset, done.duplicate) for done in again] == [(1, True)]
        assert sorted(p.producer_id for p in log.producers()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("use", "kept"),
    [
        (lambda flusher, fds: (flusher.keep(0, fds[0], 5), flusher.keep(0, fds[1], 7)), 0),
        (lambda flusher, fds: (flusher.keep(0, fds[0], 7), flusher.keep(0, fds[1], 5)), 1),
        (lambda flusher, fds: (flusher.keep(0, fds[0], 5), flusher.replace(0, fds[1], 7)), 1),
        (lambda flusher, fds: (flusher.keep(0, fds[0], 5), flusher.retire(0, fds[1])), 0),
    ],
)
def test_a_flusher_keeps_one_of_two_descriptors_of_a_segment(
    tmp_path: Path, use: Callable[[LogFlusher, list[int]], object], kept: int
) -> None:
    """The one opened first reports every failed write since; the other is in use."""
    with opened(str(tmp_path)) as log:
        fds = [os.open(tmp_path / "t-0" / file_name(0, LOG), os.O_RDWR) for _ in range(2)]
        flusher = LogFlusher(log.context, log.segments, log.reader, -1, 0)
        use(flusher, fds)
        os.fstat(fds[kept])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fds[1 - kept])
        flusher.close(-1)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fds[kept])


def test_a_descriptor_in_use_by_a_flush_is_closed_once_by_that_flush(tmp_path: Path) -> None:
    """The number may be another file's by then: written to, or closed again."""
    with opened(str(tmp_path)) as log:
        own, others = (os.open(tmp_path / "t-0" / file_name(0, LOG), os.O_RDWR) for _ in range(2))
        flusher = LogFlusher(log.context, log.segments, log.reader, -1, 0)
        flusher.keep(0, own, 5)
        with flusher._flushing:  # as a thread has it that flushes
            flusher.close(own)
            os.fstat(own)
        flusher.sync()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(own)
        os.dup2(others, own)
        flusher.retire(0, own)
        flusher.keep(0, own, 5)
        flusher.close(-1)
        os.fstat(own)
        os.close(own)
        os.close(others)


def test_appends_and_rolls_during_a_segment_listing_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread finds all folded; others append and roll before it lists."""
    with (
        opened(str(tmp_path), segment_bytes=SEGMENT) as log,
        opened(str(tmp_path), segment_bytes=SEGMENT) as other,
    ):
        log.append(batch(1, producer_id=1, sequence=0, size=1000))
        real = log.segments.listing

        def listing() -> Listing:
            other.append(batch(1, producer_id=2, sequence=0, size=500))
            other.append(batch(1, producer_id=3, sequence=0, size=1000))
            return real()

        monkeypatch.setattr(log.segments, "listing", listing)
        log.writer_files.enter_next()
        monkeypatch.undo()
        assert offsets_in(log.path, LOG) == [0, 2]
        assert state(log) == state(other)
        log.append(batch(1, producer_id=2, sequence=1, size=20))


def test_a_fold_that_restarts_during_a_flush_keeps_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush no longer needs it, but the fold returns to the first segment."""
    with opened(str(tmp_path), segment_bytes=SEGMENT) as log:
        write_without_snapshots(log)
        before, flushed = state(log), threading.Event()
        real_pairwise, real_replace = flushers.pairwise, log.flusher.replace
        again = threading.Thread(target=log.writer_files.restart_fold, daemon=True)

        def replace(base: int, fd: int, opened_at: int) -> None:
            real_replace(base, fd, opened_at)
            flushed.wait()

        def found(bases: list[int]) -> object:
            if again.ident is None and threading.current_thread() is threading.main_thread():
                again.start()
                while log.core.segment_base:
                    time.sleep(0.001)
                again.join(0.05)  # then it may have to wait for us
            return real_pairwise(bases)

        monkeypatch.setattr(log.flusher, "replace", replace)
        monkeypatch.setattr(flushers, "pairwise", found)
        log.flush()
        flushed.set()
        again.join()
        assert again.ident is not None
        base, log_fd, *_ = log.core.current_files()
        assert os.readlink(f"/proc/self/fd/{log_fd}") == os.path.join(
            os.path.realpath(log.path), file_name(base, LOG)
        )
        assert state(log) == before
        log.append(batch(1, producer_id=1, sequence=1))


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_roll_without_a_free_descriptor_leaves_no_file_and_leaks_none(
    tmp_path: Path, nth: int
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        before = opened_files(log.path), sorted(os.listdir(log.path))
        writers.arm_failpoint("open", "EMFILE", nth)
        with pytest.raises(TooManyOpenFiles):
            log.writer_files.prepare_roll()
        assert (opened_files(log.path), sorted(os.listdir(log.path))) == before
        log.roll()
        assert log.core.active_base == 1


@pytest.mark.parametrize("nth", [1, 2])
def test_creating_an_abort_index_without_a_free_descriptor_leaks_none(
    tmp_path: Path, nth: int
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        before = opened_files(log.path)
        writers.arm_failpoint("open", "EMFILE", nth)
        with pytest.raises(TooManyOpenFiles):
            log.writer_files.make_txnindex()
        assert opened_files(log.path) == before
        log.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)


def test_a_flush_rewrites_all_bytes_older_than_its_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few bytes each read returns."""
    monkeypatch.setattr(flushers, "_REREAD_BYTES", 1)
    with opened(str(tmp_path)) as older:
        for _ in range(2):
            for _ in range(3):
                older.append(batch(1))
            older.roll()
        with opened(str(tmp_path)) as log:
            _core.fault_count("pwrite", reset=True)
            log.flush()
            assert _core.fault_count("pwrite") == 6
            assert log.durable_end == 6


def held(log: PartitionLog) -> list[str]:
    files = opened_files(log.path)
    return sorted(os.path.basename(name) for name, _ in files if name != os.path.realpath(log.path))


def test_a_partition_that_is_only_read_has_no_index_open(tmp_path: Path) -> None:
    """Ten thousand are opened at `ulimit -n 20000`."""
    with opened(str(tmp_path)) as log:
        log.append(batch(3))
        log.flush()
    with opened(str(tmp_path), clean=True) as log:
        assert held(log) == [file_name(0, LOG)]  # the fold's
        assert len(payloads(log)) == 3 and log.offset_for_time(1001, 3) == 1
        assert held(log) == [file_name(0, LOG)] * 2
        log.append(batch(1))
        assert held(log) == [file_name(0, suffix) for suffix in (INDEX, LOG, LOG, TIME_INDEX)]


def test_opening_indexes_of_a_deleted_segment_moves_to_the_active_one(
    tmp_path: Path,
) -> None:
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        other.append(batch(1))
        other.flush()
        log.fold()
        other.roll()
        other.publish_log_start(1, segments_changed=True)
        for suffix in (LOG, INDEX, TIME_INDEX):
            os.unlink(file_path(log.path, 0, suffix))
        log.writer_files.open_indexes()
        result = log.append(batch(1))
        assert result is not None and result.base_offset == 1
        assert not os.path.exists(file_path(log.path, 0, INDEX))


def test_indexes_that_another_thread_opened_first_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path)) as log:
        before = held(log)
        real = writers.open_file

        def open_file(path: str, **how: bool) -> int:
            if path.endswith(TIME_INDEX):
                monkeypatch.setattr(writers, "open_file", real)
                log.writer_files.open_indexes()
            return real(path, **how)

        monkeypatch.setattr(writers, "open_file", open_file)
        log.writer_files.open_indexes()
        assert held(log) == sorted([*before, file_name(0, INDEX), file_name(0, TIME_INDEX)])


def test_an_abort_index_is_created_after_the_other_indexes_of_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the others would be opened with one too many, and appends fail."""
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        begin(log, 100)
        log.writer_files.drop_prepared()
        real = log.writer_files.make_txnindex

        def entered_meanwhile() -> None:
            monkeypatch.setattr(log.writer_files, "make_txnindex", real)
            other.append(batch(1))
            other.roll()
            other.append(batch(1))
            folding = threading.Thread(target=log.fold)
            folding.start()
            folding.join()
            assert log.core.current_files()[2] < 0
            real()

        monkeypatch.setattr(log.writer_files, "make_txnindex", entered_meanwhile)
        marker = abort(log)
        assert log.aborted(0, log.log_end) == [(7, 0, marker)]
        assert log.append(batch(1)) is not None


@pytest.mark.parametrize("needed", ["open_indexes", "prepare_roll", "make_txnindex"])
def test_an_append_to_a_topic_deleted_during_its_preparation_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: str
) -> None:
    with opened(str(tmp_path), segment_bytes=SEGMENT) as log:
        if needed != "open_indexes":
            begin(log, SEGMENT - 400)
            log.writer_files.drop_prepared()
        real = getattr(log.writer_files, needed)

        def deleted_meanwhile() -> None:
            log.session.control.mark_deleted(log.slot)
            shutil.rmtree(log.path)
            real()

        monkeypatch.setattr(log.writer_files, needed, deleted_meanwhile)
        with pytest.raises(UnknownTopicOrPartition):
            if needed == "make_txnindex":
                abort(log)
            else:
                log.append(batch(1, size=1000))


def test_closing_a_partition_whose_directory_disappears_closes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion renames the directory while other threads drop the partition."""
    with opened(str(tmp_path)) as log:
        begin(log, 100)
        before, real = held(log), writers.names

        def gone_meanwhile(path: str) -> list[str]:
            shutil.rmtree(path)
            return real(path)

        monkeypatch.setattr(writers, "names", gone_meanwhile)
        log.close()
        assert before and not held(log)
