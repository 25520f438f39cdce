"""A re-created topic takes nothing from the deleted topic of the same name.

The checkpoint files are Kafka's and know topics by name: entries of the deleted topic must not be
mistaken for those of the new one. A stale log start hid every record of the new topic after a reopen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import LockTimeout, UnknownTopicOrPartition
from eoslog.storage.directory import session
from eoslog.storage.directory.last_run import LastSession
from eoslog.storage.log.loader import open_partition
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.segment import SNAPSHOT, file_name
from tests.faults.harness import Child, exclusive_locks, start
from tests.rows.tools import values
from tests.storage.helpers import batch

TP = TopicPartition("t", 0)


def put(log, count):
    with log.producer() as producer:
        for number in range(count):
            producer.produce("t", str(number))


@pytest.fixture
def path(tmp_path):
    """A directory whose checkpoints say: t-0 starts at 10 and is durable up to 20."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        put(log, 20)
        log.delete_records({TP: 10})
    return tmp_path / "log"


@pytest.mark.parametrize("reopen", [False, True])
def test_a_recreated_topic_starts_at_0_and_shows_all_its_records(path, reopen):
    with eoslog.open(path) as log:
        log.delete_topic("t")
        log.create_topic("t")
        if not reopen:
            put(log, 5)
    with eoslog.open(path) as log:
        if reopen:
            put(log, 5)
        assert values(log) == [b"0", b"1", b"2", b"3", b"4"]
    with eoslog.open(path) as log:
        assert values(log) == [b"0", b"1", b"2", b"3", b"4"]
        assert tuple(log.offsets("t", 0)) == (0, 5, 5, 5)


def test_recovery_of_a_recreated_topic_ignores_checkpoints_of_the_old_one(path):
    """The checkpoints that it read at its opening are those of the old topic."""
    with eoslog.open(path) as log:
        log.delete_topic("t")
        log._engine.metadata.create_topic("t")
        maker = f"import eoslog; eoslog.open({str(path)!r}).offsets('t', 0)"
        kill = {**os.environ, "EOSLOG_FAILPOINTS": "partition.made=kill"}
        assert subprocess.run([sys.executable, "-c", maker], env=kill, timeout=300).returncode == -9
        assert (path / "t-0").is_dir()
        put(log, 5)
        assert values(log) == [b"0", b"1", b"2", b"3", b"4"]
        assert log.offsets("t", 0).log_start == 0


def test_a_loss_in_a_recreated_topic_is_reported(path):
    with eoslog.open(path) as log:
        log.delete_topic("t")
        log.create_topic("t")
        put(log, 5)
    (path / ".kafka_cleanshutdown").unlink()
    os.truncate(path / "t-0" / "00000000000000000000.log", 0)
    with eoslog.open(path) as log, pytest.raises(eoslog.errors.CorruptRecord, match="up to offset"):
        log.offsets("t", 0)


def test_a_missing_partition_directory_of_a_recreated_topic_is_reported(path):
    import shutil

    shutil.rmtree(path / "t-0")
    with eoslog.open(path) as log, pytest.raises(eoslog.errors.StorageError, match="up to 20"):
        log.offsets("t", 0)


@pytest.mark.parametrize("records", [0, 2])
def test_opening_a_partition_of_a_deleted_topic_by_old_metadata_raises(tmp_path, records):
    """Otherwise it would acknowledge records that no reader can find."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        info = log._engine.topic("t")
        put(log, records)
        log.delete_topic("t")
        with pytest.raises(
            eoslog.errors.UnknownTopicOrPartition, match="t-0: the topic was deleted"
        ):
            log._engine.partitions.open("t", 0, info.partition(0), info.topic_id, info.config)
        assert not (tmp_path / "log" / "t-0").exists()
        log.create_topic("t")
        put(log, 3)
        assert values(log) == [b"0", b"1", b"2"]


def test_an_opening_that_meets_the_files_of_a_new_topic_raises(tmp_path):
    """The topic is deleted and re-created after the opening has read the metadata."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        known = log._engine.partition("t", 0)
        known.append(batch(5))
        opening = PartitionLog(
            known.session, "t", 0, slot=known.slot, topic_id=known.topic_id, strict=known.strict,
            settings=known.settings,
        )  # fmt: skip
        log.delete_topic("t")
        log.create_topic("t")
        assert log.offsets("t", 0).log_end == 0
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            open_partition(opening, LastSession(clean=False))
        opening.close()


def test_an_append_raises_after_another_process_rolled_and_deleted_the_topic(tmp_path):
    """Its own state ends in an earlier segment, so it opens files before the slot."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"segment.bytes": 256})
        partition = log._engine.partition("t", 0)
        partition.append(batch(1))
        others = (
            f"import eoslog\n"
            f"with eoslog.open({str(path)!r}) as log:\n"
            f"    with log.producer() as producer:\n"
            f"        for number in range(9):\n"
            f"            producer.produce('t', 'x' * 99); producer.flush()\n"
            f"    log.delete_topic('t')\n"
        )
        subprocess.run([sys.executable, "-c", others], check=True)
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            partition.append(batch(1))


def release(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        values(log, "t")
        log._engine.partition("t", 0).append(batch(1))
        os.kill(os.getpid(), signal.SIGSTOP)  # its segment is sealed and deleted in the meantime
        child.armed()
        log._engine.partitions.release_removed()


def test_a_topic_deleted_while_its_files_are_released_raises_nothing(tmp_path):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"segment.bytes": 256})
        child = start(release, path, faults=(("open", "stop", 1),))
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        put(log, 9)
        log.delete_records({TP: -1})
        child.signal(signal.SIGCONT)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        log.delete_topic("t")
        child.signal(signal.SIGCONT)
        child.end().fine()


def test_a_checkpoint_of_a_topic_that_is_deleted_poisons_nothing(tmp_path):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"segment.bytes": 256})
        put(log, 9)
        partition = log._engine.partition("t", 0)
        others = (
            f"import eoslog\nwith eoslog.open({str(path)!r}) as log:\n    log.delete_topic('t')\n"
        )
        subprocess.run([sys.executable, "-c", others], check=True)
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            partition.flusher.sync_sealed(0, partition.log_end)
        assert not partition.core.poisoned
        log.create_topic("t")
        put(log, 1)
        log._engine._checkpointer.checkpoint()
        assert values(log, "t") == [b"0"]
    assert not (path / "eoslog.poison").exists()


def test_a_partition_raises_after_another_thread_dropped_its_deleted_topic(tmp_path):
    """It has records to fold and reads no file that may have the number by then."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        put(log, 1)
        partition = log._engine.partition("t", 0)
        others = (
            f"import eoslog\n"
            f"with eoslog.open({str(path)!r}) as log:\n"
            f"    with log.producer() as producer:\n"
            f"        producer.produce('t', 'x')\n"
            f"    log.delete_topic('t')\n"
        )
        subprocess.run([sys.executable, "-c", others], check=True)
        log._engine.partitions.drop("t", 0)
        for use in (lambda: partition.append(batch(1)), partition.fold):
            with pytest.raises(UnknownTopicOrPartition, match="deleted"):
                use()


def delete(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        child.armed()
        log.delete_topic("t")


def recreate(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        log.create_topic("t", 2)
        with log.producer() as producer:
            for partition in (0, 1):
                producer.produce_many("t", [b"new"] * 3, partition=partition)
        child.tell("written", True)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_suspended_deletion_keeps_the_directories_of_a_new_topic(
    tmp_path: Path, nth: int
) -> None:
    """It resumes at a removal, after another process has used the name again."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", 2)
    deleting = start(delete, path, faults=(("rename", "stop", nth),))
    os.waitid(os.P_PID, deleting.pid, os.WSTOPPED | os.WNOWAIT)
    creating = start(recreate, path)
    if not exclusive_locks(deleting.pid):  # otherwise the other process waits for it
        creating.heard("written")
    deleting.signal(signal.SIGCONT)
    deleting.end().fine()
    creating.end().fine()
    with eoslog.open(path) as log:
        assert values(log) == [b"new"] * 6


def use(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        child.armed()
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            log._engine.partition("t", 0)


def delete_impatiently(child: Child, path: Path) -> None:
    session.LOCK_TIMEOUT_S = 0.1
    with eoslog.open(path) as log:
        with pytest.raises(LockTimeout) as refused:
            log.delete_topic("t")
        child.tell("refused", str(refused.value))
    with eoslog.open(path) as log:
        session.LOCK_TIMEOUT_S = 60
        log.create_topic("t")
        put(log, 3)


def left_behind(path: Path) -> Path:
    """A file that recovery removes: a snapshot that was not completed."""
    left = path / "t-0" / (file_name(9, SNAPSHOT) + ".tmp")
    left.touch()
    return left


def test_a_deletion_waits_for_a_process_that_is_recovering_the_partition(path: Path) -> None:
    """It is suspended there; it would continue in the directory of the new topic."""
    left_behind(path)
    recovering = start(use, path, faults=(("unlink", "stop", 1),))
    os.waitid(os.P_PID, recovering.pid, os.WSTOPPED | os.WNOWAIT)
    deleting = start(delete_impatiently, path)
    [text] = deleting.heard("refused")
    assert f"held by process {recovering.pid} " in text, text
    recovering.signal(signal.SIGCONT)
    recovering.end().fine()
    deleting.end().fine()
    with eoslog.open(path) as log:
        assert values(log) == [b"0", b"1", b"2"]


def test_a_process_does_not_recover_the_directory_of_a_new_topic(path: Path) -> None:
    """It was suspended before it took the append lock of the deleted topic."""
    recovering = start(use, path, faults=(("lock", "stop", 1),))
    os.waitid(os.P_PID, recovering.pid, os.WSTOPPED | os.WNOWAIT)
    with eoslog.open(path) as log:
        log.delete_topic("t")
        log.create_topic("t")
        put(log, 3)
        snapshot = left_behind(path)
        recovering.signal(signal.SIGCONT)
        recovering.end().fine()
        assert snapshot.exists()
        assert values(log) == [b"0", b"1", b"2"]


def test_the_size_of_a_deleted_topic_is_not_that_of_the_new_one(tmp_path):
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        put(log, 5)
        partition = log._engine.partition("t", 0)
        log.delete_topic("t")
        log.create_topic("t")
        put(log, 9)
        with pytest.raises(UnknownTopicOrPartition, match="deleted"):
            partition.segments.sizes()
