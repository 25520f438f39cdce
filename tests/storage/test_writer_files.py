"""A writer's descriptors while another thread rolls: each segment keeps its own, and none is lost."""

from __future__ import annotations

import contextlib
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
from eoslog.storage import log_flusher as flushers
from eoslog.storage import log_loader
from eoslog.storage.cleaner import clean_partition
from eoslog.storage.log_flusher import LogFlusher
from eoslog.storage.partition_log import PartitionLog
from eoslog.storage.segments import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offsets_in,
)
from eoslog.storage.writer_files import files as writers
from tests.storage.helpers import batch, opened, payloads, state

SEGMENT = 2000


class Meanwhile:
    """An append in a thread of its own, just before the first file of a kind is opened."""

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
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
            info = Path(f"/proc/self/fdinfo/{fd}").read_text()
        except FileNotFoundError:
            continue  # what listed them
        flags = int(info.split("flags:")[1].split()[0], 8)
        if name.startswith(log.path) and name.endswith(LOG) and flags & os.O_RDWR:
            found.append(name)
    return sorted(found)


def begin(log: PartitionLog, size: int) -> None:
    """Data of a transaction of producer 7, and the next segment's files ready for a roll."""
    data = batch(1, producer_id=7, sequence=0, size=size, transactional=True)
    log.append(data, expect=[(log, log.log_end)])
    log.writer_files.prepare_roll()


def abort(log: PartitionLog) -> int:
    done = log.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)
    assert done is not None
    return done.base_offset


def test_a_roll_while_an_abort_index_is_made_leaves_each_segment_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the entry stands in the segment before its marker's, and what was aborted is read."""
    with opened(str(tmp_path), segment_bytes=SEGMENT) as log:
        begin(log, 1600)
        other = Meanwhile(monkeypatch, log, TXN_INDEX, batch(1, size=1000))
        marker = abort(log)
        other.over()
        assert (marker, offsets_in(log.path, LOG)) == (2, [0, 1])
        assert log.aborted(marker, marker + 1) == [(7, 0, marker)]
        assert os.path.getsize(os.path.join(log.path, file_name(1, TXN_INDEX))) == 34


def test_a_roll_while_a_segment_is_entered_is_not_taken_back(
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
    """Several segments of one producer each; only a fold from the start knows them all."""
    for producer in range(6):
        log.append(batch(1, producer_id=producer, sequence=0, size=800))
    assert len(offsets_in(log.path, LOG)) > 2
    for offset in offsets_in(log.path, SNAPSHOT):
        os.remove(os.path.join(log.path, file_name(offset, SNAPSHOT)))


def test_an_append_while_the_fold_begins_anew_is_folded_from_its_own_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the fold goes on in the file it had, from the start, and knows too few producers."""
    with opened(str(tmp_path), segment_bytes=SEGMENT) as log:
        write_without_snapshots(log)
        late = batch(1, producer_id=9, sequence=0, size=10)
        other = Meanwhile(monkeypatch, log, file_name(0, LOG), late)
        log.reload()
        other.over()
        assert sorted(p.producer_id for p in log.producers()) == [0, 1, 2, 3, 4, 5, 9]
        before = state(log)
        log.reload()
        assert state(log) == before


def test_a_fold_that_begins_anew_in_what_a_swap_replaces_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append behind the swap would go from the old first segment past what the merged one holds of
    the second, and know too few producers: what is sent again would be stored again.
    """
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        for producer in range(3):
            log.append(batch(1, producer_id=producer, sequence=0))
            log.roll()
        for offset in offsets_in(log.path, SNAPSHOT):
            os.remove(os.path.join(log.path, file_name(offset, SNAPSHOT)))
        log.append(batch(1))
        again: list[AppendResult | None] = []
        real_open, real_newest = writers.open_file, log_loader.newest_snapshot
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
        monkeypatch.setattr(log_loader, "newest_snapshot", newest)
        log.reload()
        assert other.reader.bases() == [0, 3]
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
def test_of_two_descriptors_of_a_segment_one_is_kept_and_the_other_closed(
    tmp_path: Path, use: Callable[[LogFlusher, list[int]], object], kept: int
) -> None:
    """The one that was opened first hears of every failed write since; a writer's own is in use."""
    with opened(str(tmp_path)) as log:
        fds = [os.open(tmp_path / "t-0" / file_name(0, LOG), os.O_RDWR) for _ in range(2)]
        flusher = LogFlusher(log, -1, 0)
        use(flusher, fds)
        os.fstat(fds[kept])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fds[1 - kept])
        flusher.close(-1)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fds[kept])


def test_what_a_flush_under_way_writes_through_is_closed_by_it_and_once(tmp_path: Path) -> None:
    """The number may be another file's by then: written to, or closed again."""
    with opened(str(tmp_path)) as log:
        own, others = (os.open(tmp_path / "t-0" / file_name(0, LOG), os.O_RDWR) for _ in range(2))
        flusher = LogFlusher(log, -1, 0)
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


def test_what_is_appended_and_rolled_over_while_segments_are_listed_is_not_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that comes second finds all folded; then others append, and roll, before it lists."""
    with (
        opened(str(tmp_path), segment_bytes=SEGMENT) as log,
        opened(str(tmp_path), segment_bytes=SEGMENT) as other,
    ):
        log.append(batch(1, producer_id=1, sequence=0, size=1000))
        real = log.reader.listing

        def listing() -> tuple[int, int, list[int]]:
            other.append(batch(1, producer_id=2, sequence=0, size=500))
            other.append(batch(1, producer_id=3, sequence=0, size=1000))
            return real()

        monkeypatch.setattr(log.reader, "listing", listing)
        log.writer_files.enter_next()
        monkeypatch.undo()
        assert offsets_in(log.path, LOG) == [0, 2]
        assert state(log) == state(other)
        log.append(batch(1, producer_id=2, sequence=1, size=20))


def test_a_fold_that_begins_anew_beside_a_flush_keeps_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush has found what it needs no more; the fold goes back to the first of these segments."""
    with opened(str(tmp_path), segment_bytes=SEGMENT) as log:
        write_without_snapshots(log)
        before, flushed = state(log), threading.Event()
        real_pairwise, real_replace = flushers.pairwise, log.flusher.replace
        again = threading.Thread(target=log.reload, daemon=True)

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
            log.path, file_name(base, LOG)
        )
        assert state(log) == before
        log.append(batch(1, producer_id=1, sequence=1))


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_without_a_free_descriptor_a_roll_leaves_nothing_open_and_nothing_behind(
    tmp_path: Path, nth: int
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        before = sorted(os.listdir("/proc/self/fd")), sorted(os.listdir(log.path))
        writers.arm_failpoint("open", "EMFILE", nth)
        with pytest.raises(TooManyOpenFiles):
            log.writer_files.prepare_roll()
        assert (sorted(os.listdir("/proc/self/fd")), sorted(os.listdir(log.path))) == before
        log.roll()
        assert log.core.active_base == 1


@pytest.mark.parametrize("nth", [1, 2])
def test_without_a_free_descriptor_an_abort_index_is_not_left_open(
    tmp_path: Path, nth: int
) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        before = sorted(os.listdir("/proc/self/fd"))
        writers.arm_failpoint("open", "EMFILE", nth)
        with pytest.raises(TooManyOpenFiles):
            log.writer_files.make_txnindex()
        assert sorted(os.listdir("/proc/self/fd")) == before
        log.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)


def test_all_that_is_older_than_a_flushs_descriptors_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little of it is read at once."""
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
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # what listed them
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(os.path.basename(name) for name in links if name.startswith(log.path + "/"))


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


def test_a_segment_that_is_gone_when_its_indexes_are_opened_is_left_for_the_active_one(
    tmp_path: Path,
) -> None:
    with opened(str(tmp_path)) as log, opened(str(tmp_path)) as other:
        other.append(batch(1))
        other.flush()
        log.fold()
        other.roll()
        other.publish_log_start(1, segments_changed=True)
        for suffix in (LOG, INDEX, TIME_INDEX):
            os.unlink(os.path.join(log.path, file_name(0, suffix)))
        log.writer_files.open_indexes()
        result = log.append(batch(1))
        assert result is not None and result.base_offset == 1
        assert not os.path.exists(os.path.join(log.path, file_name(0, INDEX)))


def test_indexes_that_another_thread_opened_first_stay(
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


def test_an_abort_index_is_not_made_before_the_others_of_a_segment_that_was_entered_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could be appended any more: the others would have been opened with one too many."""
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
def test_a_topic_that_is_deleted_while_files_are_made_ready_says_so(
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


def test_a_partition_whose_directory_goes_while_it_is_let_go_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a deleted topic: whoever deletes it renames the directory while others forget the partition."""
    with opened(str(tmp_path)) as log:
        begin(log, 100)
        before, real = held(log), writers.names

        def gone_meanwhile(path: str) -> list[str]:
            shutil.rmtree(path)
            return real(path)

        monkeypatch.setattr(writers, "names", gone_meanwhile)
        log.close()
        assert before and not held(log)
