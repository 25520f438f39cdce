"""Every lock is taken, excludes the others and is released.

The tests look from a second descriptor. OFD locks belong to the open file, so another descriptor in
this process is as good as another process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import LockTimeout, StorageError
from eoslog.storage.broker.repair import alone
from eoslog.storage.directory import session
from eoslog.storage.directory.session import LOCK_FILES, SESSION_FILE, Session, bootstrap_lock
from eoslog.storage.fs import files
from eoslog.storage.log import loader as log_loader
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.published_end import PublishedEnd
from tests.faults.harness import Child, start
from tests.storage.helpers import SLOT, batch, opened

BOOTSTRAP, SESSION = 0, 1


@contextmanager
def beside(path: Path, name: str) -> Iterator[int]:
    """A descriptor of a lock file that has no lock yet."""
    fd = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def lock_of(log: PartitionLog) -> tuple[str, int]:
    """The lock file of a partition, and its append byte; the flush byte follows."""
    return f"eoslog.lock-{SLOT % LOCK_FILES:02d}", log.session.append_lock(SLOT)[1]


def test_an_open_session_is_locked_shared_and_never_exclusively(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = Session(str(tmp_path))
        stack.callback(first.close)
        fd = stack.enter_context(beside(tmp_path, SESSION_FILE))
        assert not _core.try_lock(fd, SESSION)
        assert _core.try_lock(fd, SESSION, shared=True)
        _core.unlock(fd, SESSION)
        second = Session(str(tmp_path))
        stack.callback(second.close)
        assert first.process_number != second.process_number
        assert not first.try_alone()
        assert not second.try_alone()


def test_a_read_only_session_keeps_no_writer_out(tmp_path: Path) -> None:
    Session(str(tmp_path)).close()
    reader = Session(str(tmp_path), read_only=True)
    Session(str(tmp_path)).close()
    reader.close()


def test_joining_an_open_session_takes_its_number(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = Session(str(tmp_path))
        stack.callback(first.close)
        number = first.control.session
        second = Session(str(tmp_path))
        stack.callback(second.close)
        assert not second.began
        assert first.control.session == second.control.session == number


def test_a_process_that_joined_keeps_the_session_of_one_that_leaves(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = Session(str(tmp_path))
        stack.callback(first.close)
        second = Session(str(tmp_path))
        stack.callback(second.close)
        first.close()
        fd = stack.enter_context(beside(tmp_path, SESSION_FILE))
        assert not _core.try_lock(fd, SESSION)


def test_a_reader_next_to_writers_shares_their_session_and_its_lock(tmp_path: Path) -> None:
    writer = Session(str(tmp_path))
    reader = Session(str(tmp_path), read_only=True)
    try:
        assert not reader.private
        writer.close()
        with beside(tmp_path, SESSION_FILE) as fd:
            assert not _core.try_lock(fd, SESSION)  # not free while it looks at the page
            reader.close()
            assert _core.try_lock(fd, SESSION)
    finally:
        reader.close()
        writer.close()


def _joins(child: Child, path: Path, read_only: bool) -> None:
    child.armed()
    joined = Session(str(path), read_only=read_only)
    child.tell("began", joined.began)
    child.tell("private", joined.private)
    joined.close()


@pytest.mark.process
@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("read_only", [True, False], ids=["reader", "writer"])
def test_P06_joining_while_the_last_process_leaves_joins_no_dead_session(
    tmp_path: Path, read_only: bool, call: int
) -> None:
    """It is stopped before each of the calls by which it looks who is there."""
    Session(str(tmp_path)).close()
    with beside(tmp_path, SESSION_FILE) as fd:
        assert _core.try_lock(fd, SESSION)  # as the last one out, or a reader that looks
        running = start(_joins, tmp_path, read_only, faults=(("lock", "stop", call),))
        found = os.waitid(os.P_PID, running.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        _core.unlock(fd, SESSION)
        if found is not None and found.si_code == os.CLD_STOPPED:
            running.signal(signal.SIGCONT)
        life = running.end().fine()
    assert life.of("private" if read_only else "began") == [True]


def test_a_forked_child_does_not_keep_the_bootstrap_lock(tmp_path: Path) -> None:
    with bootstrap_lock(str(tmp_path)):
        running = start(lambda child: child.tell("there", 1) or time.sleep(60))
        running.heard("there")
    try:
        with beside(tmp_path, SESSION_FILE) as fd:
            assert _core.try_lock(fd, BOOTSTRAP)
    finally:
        running.kill()


def test_a_process_is_alive_while_it_holds_its_lock_byte(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = Session(str(tmp_path)), Session(str(tmp_path))
        stack.callback(first.close)
        stack.callback(second.close)
        place = second.process_number, second.process_nonce
        assert first.process_alive(*place)
        assert not first.process_alive(place[0], place[1] ^ 2)
        second.close()
        assert not first.process_alive(*place)


def test_opening_growing_and_preparing_a_directory_need_the_bootstrap_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LOCK_TIMEOUT_S", 0.02)
    one, two = Session(str(tmp_path)), Session(str(tmp_path))
    with one.bootstrap():
        with beside(tmp_path, SESSION_FILE) as fd:
            assert not _core.try_lock(fd, BOOTSTRAP)
        with pytest.raises(LockTimeout, match="bootstrap"):
            Session(str(tmp_path))
        with pytest.raises(LockTimeout, match="bootstrap"):
            Session(str(tmp_path), read_only=True)  # this look would be mistaken for one
        with pytest.raises(LockTimeout, match="bootstrap"):
            two.ensure_slot(6000)
    two.ensure_slot(6000)
    one.close()
    two.close()


def test_creating_a_directory_holds_the_bootstrap_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def probe(path: str, properties: object) -> None:
        with beside(tmp_path / "new", SESSION_FILE) as fd:
            seen.append(_core.try_lock(fd, BOOTSTRAP))
        write(path, properties)

    from eoslog.storage.format import checkpoints

    write = checkpoints.write_meta_properties
    monkeypatch.setattr(checkpoints, "write_meta_properties", probe)
    eoslog.open(tmp_path / "new").close()
    assert seen == [False]


def test_recovery_of_a_partition_takes_and_releases_its_append_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path)) as log:
        name, at = lock_of(log)
        with beside(tmp_path, name) as fd:
            assert _core.try_lock(fd, at), "recovery and an opening keep no lock"
    monkeypatch.setattr(log_loader, "LOCK_TIMEOUT_S", 0.02)
    with beside(tmp_path, name) as fd:
        assert _core.try_lock(fd, at)
        with pytest.raises(LockTimeout, match="append lock"), opened(str(tmp_path)):
            pass


def test_an_append_releases_its_lock_after_every_result(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        name, at = lock_of(log)
        with beside(tmp_path, name) as fd:

            def free() -> bool:
                taken = _core.try_lock(fd, at)
                _core.unlock(fd, at)
                return taken

            log.append(batch(1))
            assert free()
            assert log.append(batch(1), expect=[(log, 99)]) is None  # CHANGED
            assert free()
            files.arm_failpoint("pwrite", "ENOSPC")
            with pytest.raises(StorageError):
                log.append(batch(1))
            files.disarm_failpoints()
            assert free()
            log.append(batch(1, producer_id=1, sequence=0))
            assert log.append(batch(1, producer_id=1, sequence=0)).duplicate
            assert free()
            log.roll()
            assert free()
            log.append(batch(1))
            log.mark_swap(True, 0)
            assert free()
            log.mark_swap(False, 0)
            assert free()
            log.publish_log_start(0, segments_changed=False)
            assert free()
            log.expire_producers(log.log_end, 0)
            assert free()
            assert not log.core.append_under_way
            assert free()
            log.core.poison()
            with pytest.raises(StorageError):
                log.append(batch(1))
            assert free()


def test_an_append_that_is_under_way_ends_with_its_lock(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        name, at = lock_of(log)
        with beside(tmp_path, name) as fd:
            assert _core.try_lock(fd, at)  # another process appends
            assert not log.await_append(time.monotonic())
            threading.Timer(0.05, _core.unlock, (fd, at)).start()
            assert log.await_append(time.monotonic() + 60)
            log.append(batch(1))
            files.arm_failpoint("lock", "ENOLCK")
            with pytest.raises(StorageError, match="append lock"):
                log.await_append(time.monotonic() + 60)
            files.disarm_failpoints()


@pytest.mark.parametrize(("call", "nth"), [("rename", 1), ("rename", 3), ("pwrite", 2)])
def test_an_append_that_fails_during_or_after_a_roll_releases_its_lock(
    tmp_path: Path, call: str, nth: int
) -> None:
    """Of the writes the first is the sealed segment's last time, the second data."""
    with opened(str(tmp_path), segment_bytes=1000, index_interval_bytes=200) as log:
        name, at = lock_of(log)
        log.append(batch(1, size=800))
        log.writer_files.prepare_roll()
        with beside(tmp_path, name) as fd:
            files.arm_failpoint(call, "EIO", nth)
            with pytest.raises(StorageError):
                log.append(batch(3, size=200))
            files.disarm_failpoints()
            assert _core.try_lock(fd, at)


def test_an_append_whose_index_entry_fails_releases_its_lock(tmp_path: Path) -> None:
    with opened(str(tmp_path), index_interval_bytes=200) as log:
        name, at = lock_of(log)
        log.append(batch(1, size=300))
        with beside(tmp_path, name) as fd:
            files.arm_failpoint("pwrite", "EIO", 2)  # the data, the entry
            with pytest.raises(StorageError):
                log.append(batch(1, size=300))
            files.disarm_failpoints()
            assert _core.try_lock(fd, at)


def test_a_flush_holds_the_flush_lock_and_releases_it_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path)) as log:
        name, at = lock_of(log)
        with beside(tmp_path, name) as fd:
            seen = []

            def probe(point: str) -> bool:
                if point == "flush.before":
                    seen.append(_core.try_lock(fd, at + 1))
                return False

            monkeypatch.setattr(files, "failpoint", probe)
            log.append(batch(1))
            log.flush()
            assert seen == [False]
            assert _core.try_lock(fd, at + 1)


def test_a_sync_makes_records_durable_in_an_os_directory(tmp_path: Path) -> None:
    with opened(str(tmp_path), strict=False) as log:
        log.append(batch(1))
        log.sync()
        assert log.durable_end == log.log_end == 1


def test_only_one_process_cleans_a_partition_at_a_time(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as one, opened(str(tmp_path)) as two:
        assert one.cleaner_lock.try_take()
        assert not two.cleaner_lock.try_take()
        one.cleaner_lock.release()
        assert two.cleaner_lock.try_take()
        two.cleaner_lock.release()


def test_recovery_as_kafka_requires_that_no_process_has_the_log_open(tmp_path: Path) -> None:
    first = Session(str(tmp_path))
    with pytest.raises(LockTimeout, match="open"), alone(str(tmp_path)):
        pass
    first.close()
    with alone(str(tmp_path)), beside(tmp_path, SESSION_FILE) as fd:
        assert not _core.try_lock(fd, SESSION)


def test_a_reader_alone_publishes_its_results_only_to_itself(tmp_path: Path) -> None:
    with opened(str(tmp_path)):
        pass
    for name in (tmp_path / "t-0").iterdir():
        name.unlink()
    with opened(str(tmp_path), read_only=True) as log:
        assert log.core.session == log.session.control.session
        assert log.log_end == 0


def test_the_next_segment_is_prepared_without_the_append_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path), segment_bytes=1000) as log:
        name, at = lock_of(log)
        log.append(batch(1, size=800))
        log.writer_files.drop_prepared()
        with beside(tmp_path, name) as fd:
            seen, prepare = [], log.writer_files.prepare_roll

            def probe() -> None:
                seen.append(_core.try_lock(fd, at))
                _core.unlock(fd, at)
                prepare()

            monkeypatch.setattr(log.writer_files, "prepare_roll", probe)
            log.append(batch(1, size=800))
        assert seen[0]
        assert log.core.active_base == 1


def test_a_waiter_for_durability_flushes_if_no_other_process_does(tmp_path: Path) -> None:
    with opened(str(tmp_path), flush_ms=1) as log:
        log.append(batch(3))
        assert log.wait(2, 60.0, of=PublishedEnd.DURABLE_END)
        assert log.durable_end == 3
