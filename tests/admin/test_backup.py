"""`Log.backup`: the content of a copy taken during work, and its errors."""

from __future__ import annotations

import collections
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import Log, TopicPartition, _core, errors
from eoslog.storage.directory import session
from eoslog.storage.fs import files
from tests.faults.harness import Child, live

LOG_END = 5
"""Where the core can be killed in an append: `eoslog/_core/partition/partition_state.pxi`."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t", 2, {"segment.bytes": 2000})
        yield opened
    files.disarm_failpoints()


def fill(log: Log, transactions: int = 20, transactional_id: str = "x") -> None:
    """Transactions of two records in two partitions, every fourth aborted."""
    with log.producer(transactional_id=transactional_id) as producer:
        producer.init_transactions()
        for number in range(transactions):
            producer.begin_transaction()
            for partition in range(2):
                producer.produce("t", b"%d" % number + bytes(200), partition=partition)
            producer.abort_transaction() if number % 4 == 3 else producer.commit_transaction()


def read(log: Log) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """(offset, value) of all that a read_committed reader sees, by partition."""
    found = collections.defaultdict(list)
    with log.consumer() as consumer:
        consumer.assign([tp for name in log.topics() for tp in log.partitions_of(name)])
        consumer.seek_to_beginning()
        for record in iter(lambda: consumer.poll(0.05), None):
            found[TopicPartition(record.topic, record.partition)].append(
                (record.offset, record.value)
            )
    return found


def test_a_copy_is_a_separate_log_with_all_committed_records(log: Log, tmp_path: Path) -> None:
    log.create_topic("compacted", 1, {"cleanup.policy": "compact", "segment.bytes": 500})
    fill(log)
    with log.producer() as producer:
        for number in range(50):
            producer.produce("compacted", b"v%d" % number, b"k%d" % (number % 3))
            producer.flush()
    log.clean("compacted", roll=True)
    log.delete_records({TopicPartition("t", 0): 7})
    with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.consume(5, 60)
        consumer.commit()
        positions = {tp: consumer.committed(tp) for tp in consumer.assignment()}
    assert len([offset for offset in positions.values() if offset]) > 0
    steps: list[tuple[int, int]] = []
    report = log.backup(tmp_path / "copy", progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (report.bytes, report.bytes)
    assert not report.problems
    with eoslog.open(tmp_path / "copy", create=False) as copy:
        assert copy._engine.partitions.last_run.clean
        assert copy.topics() == log.topics()
        assert read(copy) == read(log) != {}
        for tp in log.partitions_of("t"):
            here, there = (one.offsets(tp.topic, tp.partition) for one in (copy, log))
            assert here.log_start == there.log_start
        assert copy.describe_topic("compacted").config == log.describe_topic("compacted").config
        with copy.consumer(group_id="g") as consumer:
            assert {tp: consumer.committed(tp) for tp in positions} == positions
        fill(copy, 1, "y")  # the ids that the copy gives are new to it
        assert len(read(copy)[TopicPartition("t", 1)]) == len(read(log)[TopicPartition("t", 1)]) + 1


def test_an_open_transaction_is_aborted_in_the_copy_and_continues_in_the_log(
    log: Log, tmp_path: Path
) -> None:
    fill(log, 3)
    with log.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", b"undecided", partition=0)
        producer.flush()
        log.backup(tmp_path / "copy")
        producer.commit_transaction()
    values = [value for _, value in read(log)[TopicPartition("t", 0)]]
    assert values.count(b"undecided") == 1
    with eoslog.open(tmp_path / "copy") as copy:
        offsets = copy.offsets("t", 0)
        assert offsets.last_stable == offsets.log_end
        found = [value for _, value in read(copy)[TopicPartition("t", 0)]]
        assert found == [value for value in values if value != b"undecided"]


def _commits(child: Child, path: Path, point: str) -> None:
    with eoslog.open(path) as log, log.producer(transactional_id="killed") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("t", b"half", partition=partition)
        child.armed()
        files.arm_failpoint(point, "kill")
        producer.commit_transaction()


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "copies"),
    [("txn.flushed", 0), ("txn.prepared", 1), ("txn.decided", 1), ("txn.marked", 1)],
)
def test_a_transaction_of_a_killed_owner_is_complete_or_absent_in_the_copy(
    log: Log, tmp_path: Path, point: str, copies: int
) -> None:
    fill(log, 1)
    assert live(_commits, tmp_path / "log", point).killed
    log.backup(tmp_path / "copy")
    with eoslog.open(tmp_path / "copy") as copy:
        found = read(copy)
        for partition in range(2):
            values = [value for _, value in found[TopicPartition("t", partition)]]
            assert values.count(b"half") == copies


def _appends(child: Child, path: Path) -> None:
    with eoslog.open(path) as log, log.producer() as producer:
        producer.produce("t", b"first", partition=0)
        producer.flush()
        child.armed()
        producer.produce("t", b"torn", partition=0)
        producer.flush()


@pytest.mark.process
@pytest.mark.parametrize("point", range(1, 8))
def test_a_partition_with_a_killed_lock_holder_is_repaired_before_its_copy(
    log: Log, tmp_path: Path, point: int
) -> None:
    fill(log, 6)
    life = live(_appends, tmp_path / "log", faults=(("point", "kill", point),))
    report = log.backup(tmp_path / "copy")
    assert not report.problems
    with eoslog.open(tmp_path / "copy") as copy:
        assert read(copy) == read(log)
    assert life.killed or point == 2  # it had nothing to roll


def _instant(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        logs = [log._engine.partition("t", number) for number in range(2)]
        child.armed()
        files.arm_failpoint("lock", "kill-after", 2)
        log._engine.session.consistent_cut([one.slot for one in logs])


@pytest.mark.process
def test_a_process_killed_while_it_holds_all_locks_blocks_no_other(
    log: Log, tmp_path: Path
) -> None:
    fill(log, 1)
    assert live(_instant, tmp_path / "log").killed
    fill(log, 4)
    log.backup(tmp_path / "copy")
    assert sum(map(len, read(log).values())) == 2 * (1 + 3)


def test_a_lock_that_is_never_free_raises_and_releases_all_others(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 1)
    monkeypatch.setattr(session, "LOCK_TIMEOUT_S", 0.1)
    slot = log._engine.partition("t", 1).slot
    _, at = log._engine.session.append_lock(slot)
    fd = files.open_file(str(tmp_path / "log" / f"eoslog.lock-{slot % session.LOCK_FILES:02d}"))
    try:
        assert _core.try_lock(fd, at)
        with pytest.raises(errors.LockTimeout, match="append locks"):
            log.backup(tmp_path / "copy")
        with log.producer() as producer:
            producer.produce("t", b"goes on", partition=0)
            producer.flush(5)
    finally:
        files.close(fd)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
    log.backup(tmp_path / "copy")


def test_backup_blocks_cleaning_but_not_appends(log: Log, tmp_path: Path) -> None:
    fill(log)
    before = read(log)
    partition = log._engine.partition("t", 0)
    tried: list[bool] = []

    def meanwhile(done: int, total: int) -> None:
        if not tried:
            tried.append(partition.cleaner_lock.try_take())
            fill(log, 2, "meanwhile")

    log.backup(tmp_path / "copy", progress=meanwhile)
    assert tried == [False]
    assert partition.cleaner_lock.try_take()
    partition.cleaner_lock.release()
    assert sum(map(len, read(log).values())) == sum(map(len, before.values())) + 4
    with eoslog.open(tmp_path / "copy") as copy:
        assert read(copy) == before


def test_a_topic_deleted_during_a_backup_is_not_in_the_copy(log: Log, tmp_path: Path) -> None:
    log.create_topic("z-gone", 1)
    with log.producer() as producer:
        producer.produce("z-gone", b"v")
    deleting = iter([True])

    def meanwhile(done: int, total: int) -> None:
        if next(deleting, False):
            log.delete_topic("z-gone")

    report = log.backup(tmp_path / "copy", progress=meanwhile)
    assert not report.problems
    with eoslog.open(tmp_path / "copy") as copy:
        assert copy.topics() == ["t"]


@pytest.mark.process
@pytest.mark.parametrize("point", ["backup.lock", "backup.cut"])
def test_a_topic_deleted_before_its_files_are_listed_is_not_in_the_copy(
    log: Log, tmp_path: Path, point: str
) -> None:
    log.create_topic("z-gone", 1)
    with log.producer() as producer:
        producer.produce("z-gone", b"v")
    script = f"import eoslog; eoslog.open({str(log.path)!r}).backup({str(tmp_path / 'copy')!r})"
    copying = subprocess.Popen(
        [sys.executable, "-c", script], env={"EOSLOG_FAILPOINTS": f"{point}=stop"}
    )
    os.waitid(os.P_PID, copying.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    log.delete_topic("z-gone")
    copying.send_signal(signal.SIGCONT)
    assert copying.wait(60) == 0
    with eoslog.open(tmp_path / "copy") as copy:
        assert copy.topics() == ["t"]


@pytest.mark.process
@pytest.mark.parametrize("point", ["backup.file:2", "backup.copied", "aside.renaming"])
def test_a_backup_that_another_process_is_writing_is_left_alone(
    log: Log, tmp_path: Path, point: str
) -> None:
    fill(log)
    before = [record.value for record in log.read("t")]
    script = f"import eoslog; eoslog.open({str(log.path)!r}).backup({str(tmp_path / 'copy')!r})"
    copying = subprocess.Popen(
        [sys.executable, "-c", script], env={"EOSLOG_FAILPOINTS": f"{point}=stop"}
    )
    os.waitid(os.P_PID, copying.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with pytest.raises(errors.LockTimeout, match="another process is creating this directory"):
        log.backup(tmp_path / "copy")
    copying.send_signal(signal.SIGCONT)
    assert copying.wait(60) == 0
    with eoslog.open(tmp_path / "copy") as copy:
        assert [record.value for record in copy.read("t")] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "log"]


def test_a_log_file_without_its_last_byte_is_rejected_as_a_copy(log: Log, tmp_path: Path) -> None:
    fill(log)
    active = max((tmp_path / "log" / "t-0").glob("*.log"))
    os.truncate(active, active.stat().st_size - 1)
    with pytest.raises(errors.StorageError, match=f"{active.name} ends at byte"):
        log.backup(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_damage_is_copied_and_reported(log: Log, tmp_path: Path) -> None:
    fill(log)
    first = tmp_path / "log" / "t-0" / f"{0:020}.log"
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    report = log.backup(tmp_path / "copy")
    assert [Path(problem.path) for problem in report.problems] == [
        tmp_path / "copy" / "t-0" / first.name
    ]
    assert not log.backup(tmp_path / "unchecked", check=False).problems


def test_damage_that_prevents_opening_the_copy_is_named_by_its_source(
    log: Log, tmp_path: Path
) -> None:
    with log.producer() as producer:
        producer.produce("t", b"x" * 100, partition=0)
    file = tmp_path / "log" / "t-0" / f"{0:020}.log"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        errors.CorruptRecord, match=f"not copied: .*run `eoslog repair`.*{file} at "
    ):
        log.backup(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_targets_that_exist_are_rejected_and_unchanged(log: Log, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "way.copying").mkdir()
    (tmp_path / "way.copying" / "mine").write_text("mine")
    (tmp_path / "empty.copying").mkdir()  # of a backup that died at its first step
    for target, message in [
        ("full", "not an empty directory"),
        ("way", "eoslog did not create it"),
        ("log/inside", "is inside the log"),
    ]:
        with pytest.raises(errors.ConfigError, match=message):
            log.backup(tmp_path / target)
    assert (tmp_path / "full" / "mine").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    log.backup(tmp_path / "empty")
    with eoslog.open(tmp_path / "log", read_only=True) as reader:
        with pytest.raises(errors.IllegalState, match="for writing"):
            reader.backup(tmp_path / "copy")


def test_a_full_disk_leaves_no_copy(log: Log, tmp_path: Path) -> None:
    fill(log)
    files.arm_failpoint("pwrite", "ENOSPC", 5)
    with pytest.raises(errors.DiskFull):
        log.backup(tmp_path / "copy")
    files.disarm_failpoints()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
    log.backup(tmp_path / "copy")


@pytest.mark.process
@pytest.mark.parametrize("point", ["backup.file", "backup.copied", "aside.renaming"])
def test_a_killed_backup_leaves_no_log_and_can_be_repeated(
    log: Log, tmp_path: Path, point: str
) -> None:
    fill(log, 3)
    script = f"import eoslog; eoslog.open({str(log.path)!r}).backup({str(tmp_path / 'copy')!r})"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"EOSLOG_FAILPOINTS": f"{point}=kill"}, check=False
    )
    assert done.returncode == -9
    assert not (tmp_path / "copy").exists()
    log.backup(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "log"]
    with eoslog.open(tmp_path / "copy") as copy:
        assert read(copy) == read(log)


@pytest.mark.slow
def test_each_of_many_copies_splits_no_transaction_of_many_writers(
    log: Log, tmp_path: Path
) -> None:
    """Threads commit to both partitions concurrently.

    What was acknowledged before is in the copy. Each transaction is in both partitions or in
    none.
    """
    acknowledged: list[str] = []
    stopped = threading.Event()

    def write(name: str) -> None:
        with log.producer(transactional_id=name) as producer:
            producer.init_transactions()
            for number in itertools.count():
                if stopped.is_set():
                    return
                producer.begin_transaction()
                for partition in range(2):
                    producer.produce("t", f"{name}-{number}", partition=partition)
                producer.commit_transaction()
                acknowledged.append(f"{name}-{number}")

    writers = [threading.Thread(target=write, args=(f"w{number}",)) for number in range(4)]
    for writer in writers:
        writer.start()
    try:
        for number in range(5):
            before = list(acknowledged)
            log.backup(tmp_path / f"copy-{number}")
            with eoslog.open(tmp_path / f"copy-{number}") as copy:
                here, there = (
                    collections.Counter(value.decode() for _, value in read(copy)[tp])
                    for tp in copy.partitions_of("t")
                )
            assert here == there
            assert set(here.values()) <= {1}
            assert set(before) <= set(here)
    finally:
        stopped.set()
        for writer in writers:
            writer.join()
    assert len(acknowledged) > 5
