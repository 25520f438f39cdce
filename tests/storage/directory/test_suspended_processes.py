"""A suspended process changes no file of a new topic of the same name."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog._core import build_marker
from eoslog.errors import LockTimeout, TooManyOpenFiles
from eoslog.model import AppendOrigin
from eoslog.storage.directory import processes, session
from eoslog.storage.directory.cleaner_lock import CleanerLock
from eoslog.storage.segment.segment import LOG, SEAL, file_name
from tests.faults.harness import Child, live, start
from tests.rows.tools import values
from tests.storage.helpers import batch
from tests.waiting import until


def append_after(child: Child, path: Path, go: Path) -> None:
    with eoslog.open(path) as log:
        partition = log._engine.partition("t", 0)
        partition.append(batch(1))
        child.tell("ready", True)
        until(go.exists)
        child.armed()
        try:
            partition.append(batch(1))
            child.tell("appended", True)
        except eoslog.errors.EoslogError as error:
            child.tell("raised", repr(error))


def die(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        partition = log._engine.partition("t", 0)
        partition.append(batch(1))
        child.armed()
        partition.append(batch(1))


def read(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        child.tell("values", [value.decode() for value in values(log)])


def seen(path: Path) -> list[str]:
    """The records of the topic, as a process sees them that opens the log now."""
    [found] = live(read, path).fine().of("values")
    return list(found)


def write_both(log: eoslog.Log) -> None:
    """Append one record that is aborted, and one that is committed."""
    with log.producer(transactional_id="y") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", "aborted")
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.produce("t", "committed")
        producer.commit_transaction()


def recreate(child: Child, path: Path, end: Path) -> None:
    with eoslog.open(path) as log:
        log.delete_topic("t")
        session.LOCK_TIMEOUT_S = 0.1
        try:
            log.create_topic("t")  # and opens the partition
            child.tell("refused", "")
        except LockTimeout as refused:
            child.tell("refused", str(refused))
        session.LOCK_TIMEOUT_S = 60
        write_both(log)
        child.tell("written", True)
        until(end.exists)


def test_a_suspended_repair_keeps_the_abort_index_of_a_new_topic(tmp_path: Path) -> None:
    """It would truncate it: a reader would get the aborted record."""
    path, go, end = tmp_path / "log", tmp_path / "go", tmp_path / "end"
    with eoslog.open(path) as log:
        log.create_topic("t")
    suspended = start(append_after, path, go, faults=(("unlink", "stop", 1),))
    suspended.heard("ready")
    assert live(die, path, faults=(("point", "kill", 1),)).killed  # it leaves the slot busy
    go.touch()
    os.waitid(os.P_PID, suspended.pid, os.WSTOPPED | os.WNOWAIT)
    creating = start(recreate, path, end)
    [text] = creating.heard("refused")
    if not text:  # the rule is missing
        creating.heard("written")
        assert seen(path) == ["committed"]
    suspended.signal(signal.SIGCONT)
    suspended.end().fine()
    creating.heard("written")
    assert seen(path) == ["committed"]
    assert f"held by process {suspended.pid} " in text, text
    end.touch()
    creating.end().fine()


def close_suspended(child: Child, path: Path) -> None:
    log = eoslog.open(path)
    assert len(values(log)) == 2
    take = CleanerLock.try_take

    def stop_first(lock: CleanerLock) -> bool:
        os.kill(os.getpid(), signal.SIGSTOP)
        return take(lock)

    CleanerLock.try_take = stop_first  # type: ignore[method-assign]
    log.close()


def test_a_suspended_close_keeps_the_abort_index_of_a_new_topic(tmp_path: Path) -> None:
    """It writes the index of a segment that it had to scan."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", "0")
            producer.flush()
            log._engine.partition("t", 0).roll()
            producer.produce("t", "1")
        (path / "t-0" / file_name(1, SEAL)).unlink()  # as after a kill before it was written
        closing = start(close_suspended, path)
        os.waitid(os.P_PID, closing.pid, os.WSTOPPED | os.WNOWAIT)
        log.delete_topic("t")
        log.create_topic("t")
        write_both(log)
        assert seen(path) == ["committed"]
        closing.signal(signal.SIGCONT)
        closing.end().fine()
        assert seen(path) == ["committed"]


def roll_in_a_transaction(child: Child, path: Path) -> None:
    with eoslog.open(path) as log, log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        child.armed()
        try:
            for _ in range(99):
                producer.produce("t", b"o" * 200)
                producer.flush()
        except eoslog.errors.EoslogError as error:
            child.tell("raised", repr(error))
        os._exit(0)


def test_a_late_snapshot_hides_no_committed_record_of_a_new_topic(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"segment.bytes": 1500})
    suspended = start(roll_in_a_transaction, path, faults=(("log.rolled", "stop", 1),))
    os.waitid(os.P_PID, suspended.pid, os.WSTOPPED | os.WNOWAIT)
    names = sorted(os.listdir(path / "t-0"))
    base = int(next(n for n in reversed(names) if n.endswith(".log"))[:20])
    assert base > 3, names
    with eoslog.open(path) as log:
        log.delete_topic("t")
        log.create_topic("t")
        with log.producer(transactional_id="x", linger_ms=0) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("t", b"committed")
            producer.commit_transaction()
        partition = log._engine.partition("t", 0)
        with log.producer(linger_ms=0) as producer:
            while partition.log_end < base:
                producer.produce("t", b"plain")
                producer.flush()
            assert partition.log_end == base
            partition.roll()
            producer.produce("t", b"last")
            producer.flush()
        expected = values(log)
        assert expected[0] == b"committed" and expected[-1] == b"last"
        suspended.signal(signal.SIGCONT)
        suspended.end().fine()
        assert values(log) == expected
    with eoslog.open(path) as log:
        assert values(log) == expected


def abort_with_a_roll(child: Child, path: Path) -> None:
    """The marker of an abort is the first batch of a new segment."""
    with eoslog.open(path) as log:
        partition = log._engine.partition("t", 0)
        end = partition.append(batch(1, producer_id=7, sequence=0, size=900, transactional=True),
                               expect=[(partition, partition.log_end)]).last_offset  # fmt: skip
        assert end == 0
        partition.append(batch(1, size=350))
        child.armed()
        partition.append(build_marker(7, 1, False, timestamp=1), origin=AppendOrigin.COORDINATOR)


def recreate_rolled(child: Child, path: Path, end: Path) -> None:
    with eoslog.open(path) as log:
        log.delete_topic("t")
        session.LOCK_TIMEOUT_S = 0.1
        try:
            log.create_topic("t")
            child.tell("refused", "")
        except LockTimeout as refused:
            child.tell("refused", str(refused))
        session.LOCK_TIMEOUT_S = 60
        with log.producer() as producer:
            producer.produce("t", "0")
            producer.flush()
            producer.produce("t", "1")
            producer.flush()
        log._engine.partition("t", 0).roll()
        write_both(log)
        child.tell("written", True)
        until(end.exists)


def test_a_suspended_roll_keeps_the_abort_index_of_a_new_topic(tmp_path: Path) -> None:
    """It would replace the first entry: a reader would get the aborted record."""
    path, end = tmp_path / "log", tmp_path / "end"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"segment.bytes": 1400})
        suspended = start(abort_with_a_roll, path, faults=(("point", "stop", 2),))
        os.waitid(os.P_PID, suspended.pid, os.WSTOPPED | os.WNOWAIT)
        assert (path / "t-0" / file_name(2, LOG)).exists()
        creating = start(recreate_rolled, path, end)
        [text] = creating.heard("refused")
        if not text:  # the rule is missing
            creating.heard("written")
            assert seen(path) == ["0", "1", "committed"]
        suspended.signal(signal.SIGCONT)
        suspended.end()
        creating.heard("written")
        assert seen(path) == ["0", "1", "committed"]
        assert f"held by process {suspended.pid} " in text, text
        end.touch()
        creating.end().fine()


def test_the_end_of_a_deletion_closes_no_partition_of_a_new_topic(tmp_path: Path) -> None:
    """Its thread may have waited while others created the topic again, and use it."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        old = log._engine.topic("t")
        log.delete_topic("t")
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        partition.append(batch(1))
        log._engine.topics._deletion._finish(old)
        partition.append(batch(1))
        partition.flush()
        assert log._engine.partition("t", 0) is partition


def test_a_lock_that_cannot_be_seen_counts_as_held(tmp_path: Path) -> None:
    """Otherwise a deletion without a free descriptor would not wait."""
    with eoslog.open(tmp_path / "log") as log:
        log._engine.metadata.create_topic("t")  # not used, so not recovered
        slot = log._engine.topic("t").partition(0).slot
        _core.arm_fault("open", 1, errno.EMFILE)
        try:
            with pytest.raises(TooManyOpenFiles):
                log._engine.session.await_recovery(slot)
        finally:
            _core.disarm_faults()


def test_a_directory_whose_lock_cannot_be_seen_does_not_count_as_unused(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log"):
        _core.arm_fault("open", 1, errno.EMFILE)
        try:
            with pytest.raises(TooManyOpenFiles):
                processes.is_locked(str(tmp_path / "log"), processes.SESSION_FILE, 1)
        finally:
            _core.disarm_faults()
        assert processes.is_locked(str(tmp_path / "log"), processes.SESSION_FILE, 1)
    assert not processes.is_locked(str(tmp_path / "log"), processes.SESSION_FILE, 1)
