"""A directory as processes share it: opening, closing, crashes of the whole, bad directories."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from eoslog._core import build_batch
from eoslog.client.offline import repair
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    DiskFull,
    IllegalState,
    LockTimeout,
    LogPoisoned,
    StorageError,
    TooManyOpenFiles,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eoslog.log import open as open_log
from eoslog.model import TopicPartition
from eoslog.storage import checkpoints, files
from eoslog.storage.metadata_records import TopicRecord
from tests.storage.helpers import batch


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "log")


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    files.disarm_failpoints()


def test_a_new_directory_is_private_and_says_what_it_is(path):
    with open_log(path) as log:
        log.create_topic("t", 2)
    assert os.stat(path).st_mode & 0o777 == 0o700
    assert all(os.stat(os.path.join(path, n)).st_mode & 0o077 == 0 for n in os.listdir(path))
    assert "eoslog.durability=strict" in open(os.path.join(path, "meta.properties")).read()


def test_work_that_begins_while_a_log_is_closed_does_not_stop_the_closing(path):
    log = open_log(path)
    engine, ran = log.engine, []

    def first() -> None:
        engine.cleaning._stop.wait(30)  # the closing has begun, and waits for this thread
        time.sleep(0.05)
        engine._aside("second", lambda: ran.append("second"))

    engine._aside("first", first)
    log.close()
    assert ran == ["second"]
    assert os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_topics_and_records_survive_close_and_reopen(path):
    with open_log(path) as log:
        log.create_topic("t", 2, {"retention.ms": 1000})
        log.engine.partition("t", 1).append(batch(3))
    assert os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))
    with open_log(path) as log:
        assert log.topics() == ["t"]
        assert log.describe_topic("t").config == {"retention.ms": "1000"}
        assert log.offsets("t", 1) == (0, 3, 3, 3)
        assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_handles_of_one_process_share_the_engine(path):
    with open_log(path) as one, open_log(path) as two:
        assert one.engine is two.engine
        one.close()
        two.create_topic("t")
        assert two.topics() == ["t"]


def test_a_closed_log_says_so(path):
    log = open_log(path)
    log.close()
    log.close()
    with pytest.raises(IllegalState, match="closed"):
        log.topics()


def test_another_durability_than_the_stored_one_is_refused_with_both(path):
    open_log(path, durability="os").close()
    with pytest.raises(ConfigError, match="strict.*os"):
        open_log(path, durability="strict")
    with open_log(path) as log:
        assert log.engine.durability == "os"


def test_a_foreign_directory_is_refused_and_untouched(tmp_path):
    (tmp_path / "precious.txt").write_text("data")
    with pytest.raises(StorageError, match=r"precious.txt"):
        open_log(tmp_path)
    assert os.listdir(tmp_path) == ["precious.txt"]


def test_a_missing_directory_is_an_error_without_create(path):
    with pytest.raises(StorageError, match="no log to open"):
        open_log(path, create=False)
    with pytest.raises(StorageError, match="no log to open"):
        open_log(path, read_only=True)


def test_duplicate_and_unknown_topics_are_typed_errors(path):
    with open_log(path) as log:
        log.create_topic("t")
        with pytest.raises(TopicAlreadyExists):
            log.create_topic("t")
        with pytest.raises(UnknownTopicOrPartition):
            log.offsets("nope", 0)
        with pytest.raises(UnknownTopicOrPartition):
            log.offsets("t", 1)


def test_a_deleted_topic_is_gone_for_open_handles_and_may_come_back_empty(path):
    with open_log(path) as log:
        log.create_topic("t")
        handle = log.engine.partition("t", 0)
        handle.append(batch(2))
        log.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartition):
            handle.append(batch(1))
        log.create_topic("t")
        assert log.offsets("t", 0).log_end == 0
        assert log.engine.partition("t", 0).append(batch(1)).base_offset == 0


@pytest.mark.process
def test_a_program_that_forgets_to_close_ends_clean_and_silent(path):
    script = (
        "import sys; from eoslog.log import open as o; log = o(sys.argv[1]); log.create_topic('t')\n"
        "p = log.producer(); p.produce('t', 'v'); p.flush()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


@pytest.mark.parametrize("point", ["topic.deleted", "topic.forgotten"])
def test_a_deletion_that_failed_half_way_is_finished_by_the_next_call(path, point):
    with open_log(path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", b"v")
        files.arm_failpoint(point, "EMFILE")
        with pytest.raises(TooManyOpenFiles):
            log.delete_topic("t")
        log.delete_topic("t")
        assert not os.path.exists(os.path.join(path, "t-0"))
        with pytest.raises(UnknownTopicOrPartition):
            log.delete_topic("t")


def test_a_crash_in_mid_delete_finishes_it_at_the_next_open(path):
    script = (
        "import sys; from eoslog.log import open as o; from eoslog.storage import files\n"
        "log = o(sys.argv[1]); log.create_topic('t'); log.engine.partition('t', 0)\n"
        "files.arm_failpoint('topic.deleted', 'kill'); log.delete_topic('t')"
    )
    assert (
        subprocess.run([sys.executable, "-c", script, path], check=False).returncode
        == -signal.SIGKILL
    )
    with open_log(path) as log:
        assert log.topics() == []
        assert not [n for n in os.listdir(path) if n.startswith("t-0")]


def _append_and_die(path, ready):
    log = open_log(path)
    log.engine.partition("t", 0).append(batch(5))
    ready.set()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.process
def test_what_a_killed_process_appended_is_there_for_others_and_after_restart(path):
    context = multiprocessing.get_context("spawn")
    with open_log(path) as log:
        log.create_topic("t")
        ready = context.Event()
        child = context.Process(target=_append_and_die, args=(path, ready))
        child.start()
        child.join(300)
        assert child.exitcode == -signal.SIGKILL
        partition = log.engine.partition("t", 0)
        assert partition.log_end == 5
        assert partition.wait(0, 60)
        assert partition.high_watermark == 5
    with open_log(path) as log:
        assert log.offsets("t", 0).high_watermark == 5


@pytest.mark.process
def test_a_handle_inherited_through_fork_is_dead_and_reopening_works(path):
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(1))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    log.topics()
                except IllegalState:
                    log.close()
                    with open_log(path) as again:
                        again.engine.partition("t", 0).append(batch(1))
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert log.offsets("t", 0).log_end == 2
        log.engine.partition("t", 0).append(batch(1))
        assert log.offsets("t", 0).log_end == 3


@pytest.mark.process
def test_a_forked_child_does_not_keep_a_dead_parent_s_locks(path):
    script = (
        "import os, sys, time; from eoslog.log import open as o\n"
        "log = o(sys.argv[1]); log.create_topic('t'); log.engine.partition('t', 0)\n"
        "read, write = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    os.write(write, b'x'); time.sleep(600); os._exit(0)\n"
        "os.read(read, 1)\n"  # it has run: only then has it let go
        "print(pid, flush=True); os.kill(os.getpid(), 9)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    process.wait(timeout=300)
    try:
        with open_log(path) as log:
            assert log.engine.session.began
            log.engine.partition("t", 0).append(batch(1))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_copied_directory_is_recovered_and_not_trusted(path, tmp_path):
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(3))
        log.engine.partition("t", 0).flush()
        shutil.copytree(path, tmp_path / "copy")
        log.engine.partition("t", 0).append(batch(3))
    with open_log(tmp_path / "copy") as copy:
        assert copy.offsets("t", 0) == (0, 3, 3, 3)


def test_a_close_beside_a_flush_that_fails_syncs_nothing_again(path, monkeypatch):
    """The kernel tells a failed writeback once to a descriptor: the next sync of it succeeds, over
    lost bytes (protocol.md row 7).
    """
    log = open_log(path)
    log.create_topic("t", config={"flush.ms": 100000})
    partition = log.engine.partition("t", 0)
    partition.append(batch(2))
    real, begun, closing = files.failpoint, threading.Event(), threading.Event()
    looked = type(partition).sync

    def sync(self):  # a close that has found the partition well
        if self is partition:
            closing.set()
            flushing.join()
        try:
            looked(self)
        finally:
            durable[self.name] = self.durable_end

    def meanwhile(point):
        if point == "flush.before" and threading.current_thread() is flushing:
            begun.set()
            assert closing.wait(60)
            files.arm_failpoint("fdatasync", "EIO", 1)
        return real(point)

    monkeypatch.setattr(files, "failpoint", meanwhile)
    monkeypatch.setattr(type(partition), "sync", sync)
    failed, durable = [], {}

    def flush():
        try:
            partition.flush()
        except LogPoisoned as error:
            failed.append(error)

    flushing = threading.Thread(target=flush)
    flushing.start()
    assert begun.wait(60)
    log.close()
    assert failed
    assert durable["t-0"] == 0
    assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_a_recovery_point_stays_where_an_index_could_not_be_synced(path):
    """However often it is tried: the next sync of a lost index would succeed."""
    with open_log(path) as log:
        log.create_topic("t", config={"segment.bytes": "1000"})
        partition = log.engine.partition("t", 0)
        for _ in range(3):
            partition.append(batch(1, size=800))
        partition.flush()
        files.arm_failpoint("fdatasync", "EIO", 1)
        with pytest.raises(LogPoisoned):
            log.engine._checkpointer.checkpoint()
        files.disarm_failpoints()
        log.engine._checkpointer.checkpoint()
        points = checkpoints.read_offsets(
            os.path.join(path, checkpoints.RECOVERY_POINT_CHECKPOINT), lenient=True
        )
        assert points.get(("t", 0), 0) == 0


CREATE_ANEW = """
import sys
import eoslog

with eoslog.open(sys.argv[1]) as log:
    log.delete_topic("t")
    log.create_topic("t")
    with log.producer() as producer:
        for i in range(5):
            producer.produce("t", b"new%d" % i)
"""


@pytest.mark.parametrize("leaves", ["close", "checkpoint"])
def test_a_topic_created_anew_by_another_process_is_not_taken_for_its_namesake(path, leaves):
    """What a process knows of a deleted topic says nothing of the one that has its name now."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log.engine.partition("t", 0)
        partition.append(batch(20))
        partition.flush()
        subprocess.run([sys.executable, "-c", CREATE_ANEW, path], check=True)
        if leaves == "checkpoint":
            log.engine._checkpointer.checkpoint()
            log.engine._checkpointer.note_log_start(partition)
            partition.flush()
        with pytest.raises(UnknownTopicOrPartition):
            partition.append(batch(1))
    with open_log(path) as log:
        assert log.offsets("t", 0) == (0, 5, 5, 5)


def test_a_signal_in_a_failing_flush_does_not_keep_the_poison_back(path, monkeypatch):
    """Ctrl-C comes before any line of Python that follows the sync."""
    with open_log(path) as log:
        log.create_topic("t", config={"flush.ms": 100000})
        partition = log.engine.partition("t", 0)
        partition.append(batch(2))

        def interrupted(self, error):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(partition.flusher), "_poison", interrupted)
            files.arm_failpoint("fdatasync", "EIO", 1)
            with pytest.raises(KeyboardInterrupt):
                partition.flush()
        with pytest.raises(LogPoisoned):
            partition.flush()
        assert partition.durable_end == 0
    assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_no_background_work_follows_the_mark_of_a_clean_end(path, monkeypatch):
    log = open_log(path)
    background, alive = log.engine._background, []
    real = type(log.engine._checkpointer).close_clean

    def look(self, quiet):
        alive.append(background._thread.is_alive())
        assert quiet
        real(self, quiet)

    monkeypatch.setattr(type(log.engine._checkpointer), "close_clean", look)
    log.close()
    assert alive == [False]


def test_what_outlives_a_close_keeps_the_end_from_being_marked_clean(path, monkeypatch):
    log = open_log(path)
    monkeypatch.setattr(type(log.engine), "_end_threads", lambda self: False)
    log.close()
    assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


OPEN_AND_CLOSE = """
import sys
import eoslog

for _ in range(60):
    eoslog.open(sys.argv[1]).close()
"""


def test_who_opens_while_the_last_holder_closes_waits_for_it(path):
    with open_log(path) as log:
        log.create_topic("t", 20)
        for number in range(20):
            log.engine.partition("t", number)
    running = [
        subprocess.Popen([sys.executable, "-c", OPEN_AND_CLOSE, path], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=300)[1] for process in running] == [b"", b""]
    assert [process.returncode for process in running] == [0, 0]


def test_a_failed_flush_poisons_the_partition_until_all_have_closed(path):
    with open_log(path) as log:
        log.create_topic("t", config={"flush.ms": 100000})
        partition = log.engine.partition("t", 0)
        partition.append(batch(2))
        partition.flush()
        partition.append(batch(2))
        files.arm_failpoint("fdatasync", "EIO")
        with pytest.raises(LogPoisoned):
            partition.flush()
        files.disarm_failpoints()
        with pytest.raises(LogPoisoned):
            partition.append(batch(1))
        with pytest.raises(LogPoisoned):
            partition.flush()
        assert partition.high_watermark == 2
    with open_log(path) as log:
        assert log.engine.partition("t", 0).append(batch(1)).base_offset in (2, 4)
        log.engine.partition("t", 0).flush()


def test_a_full_disk_is_an_error_and_the_log_goes_on_when_there_is_room(path):
    """R66 of docs/reliability.md."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log.engine.partition("t", 0)
        partition.append(batch(2, producer_id=7, sequence=0))
        files.arm_failpoint("pwrite", "ENOSPC")
        with pytest.raises(DiskFull):
            partition.append(batch(50, producer_id=7, sequence=2, size=100))
        files.disarm_failpoints()
        assert partition.log_end == 2
        assert partition.append(batch(2, producer_id=7, sequence=2)).base_offset == 2
        assert log.check(full=True).ok


@pytest.mark.slow
@pytest.mark.parametrize("call", ["open", "pread", "pwrite", "fdatasync", "fsync", "rename"])
def test_an_opening_that_failed_keeps_nobody_out_and_nothing_open(path, call):
    """Each call of an unclean opening fails once; what it had taken by then is given back."""
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(2))
    before = sorted(os.listdir("/proc/self/fd"))
    failed = 0
    for nth in range(1, 200):
        for mark in (".kafka_cleanshutdown", "eoslog.control"):
            if os.path.exists(os.path.join(path, mark)):
                os.unlink(os.path.join(path, mark))
        files.arm_failpoint(call, "EIO", nth)
        try:
            log = open_log(path)
        except StorageError:
            failed += 1
        else:
            files.disarm_failpoints()
            log.close()
        files.disarm_failpoints()
        with open_log(path) as log:
            assert log.engine.partition("t", 0).log_end == 2
        assert sorted(os.listdir("/proc/self/fd")) == before, f"{call} {nth}"
        if failed < nth - 3:
            break
    assert failed


def test_short_writes_are_continued(path):
    """R53 of docs/reliability.md."""
    with open_log(path) as log:
        log.create_topic("t")
        partition = log.engine.partition("t", 0)
        files.arm_failpoint("pwrite", "short")
        partition.append(batch(50, size=100))
        assert log.check(full=True).ok


@pytest.mark.process
def test_a_stopped_lock_holder_is_not_overtaken_and_is_named(path):
    script = (
        "import sys, os; from eoslog.log import open as o; from tests.storage.helpers import batch\n"
        "log = o(sys.argv[1]); p = log.engine.partition('t', 0)\n"
        "assert p.core.lock_for_recovery(5) == 0\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with open_log(path) as log:
        log.create_topic("t")
        partition = log.engine.partition("t", 0)
        holder = subprocess.Popen(
            [sys.executable, "-c", script, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout.readline() == "locked\n"
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(LockTimeout, match=f"process {holder.pid}") as caught:
            partition.append(batch(1), timeout=0.2)
        assert caught.value.retriable
        assert partition.read(0, 0) == []
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert partition.append(batch(1), timeout=60).base_offset == 0


def test_check_finds_a_flipped_bit_in_any_file(path):
    with open_log(path) as log:
        log.create_topic("t", config={"segment.bytes": 2000, "segment.index.bytes": 4096})
        partition = log.engine.partition("t", 0)
        for i in range(50):
            partition.append(batch(2, size=40, timestamp=i))
        assert log.check(full=True).ok
    name = sorted(p for p in os.listdir(os.path.join(path, "t-0")) if p.endswith(".log"))[1]
    where = os.path.join(path, "t-0", name)
    data = bytearray(open(where, "rb").read())
    data[200] ^= 4
    open(where, "wb").write(data)
    with open_log(path) as log:
        report = log.check()
        assert not report.ok
        assert report.problems[0].path == where
        with pytest.raises(LockTimeout):
            repair(path)
    assert repair(path).problems
    assert repair(path, "cut").bytes_cut > 0
    with open_log(path) as log:
        assert log.check(full=True).ok
        assert log.offsets("t", 0).log_end < 100


def test_a_damaged_meta_properties_is_refused(path):
    open_log(path).close()
    with open(os.path.join(path, "meta.properties"), "w") as file:
        file.write("version=9\n")
    with pytest.raises(CorruptRecord, match=r"meta.properties"):
        open_log(path)


def test_a_missing_partition_directory_is_not_taken_for_an_empty_one(path):
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(2))
    shutil.rmtree(os.path.join(path, "t-0"))
    with (
        open_log(path) as log,
        pytest.raises(StorageError, match="missing; it held offsets up to 2"),
    ):
        log.offsets("t", 0)


def test_a_read_only_log_reads_beside_writers_and_alone(path):
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(2))
        log.engine.partition("t", 0).flush()
        with open_log(path, read_only=True) as reader:
            assert reader.offsets("t", 0).high_watermark == 2
    with open_log(path, read_only=True) as reader:
        assert reader.offsets("t", 0).log_end == 2
        assert len(list(reader.engine.partition("t", 0).batches(0, 2))) == 1


@pytest.mark.process
@pytest.mark.parametrize("point", ["topic.deleted", "topic.forgotten"])
def test_a_deletion_that_was_killed_is_finished_with_the_groups_offsets(path, point):
    script = (
        "import sys; from eoslog.log import open as o; from eoslog.storage import files\n"
        "from eoslog.model import OffsetAndMetadata as O, TopicPartition as T\n"
        "log = o(sys.argv[1]); log.create_topic('t'); log.create_topic('kept')\n"
        "for name in ('t', 'kept'):\n"
        "    log.engine.partition(name, 0)\n"
        "    log.engine.groups.commit_offsets('g', '', -1, {T(name, 0): O(5)})\n"
        "files.arm_failpoint(sys.argv[2], 'kill'); log.delete_topic('t')"
    )
    done = subprocess.run([sys.executable, "-c", script, path, point], check=False)
    assert done.returncode == -signal.SIGKILL
    with open_log(path) as log:
        assert not [n for n in os.listdir(path) if n.startswith("t-0")]
        log.create_topic("t")
        found = log.engine.groups.fetch_offsets(
            "g", [TopicPartition("t", 0), TopicPartition("kept", 0)]
        )
    assert {tp: o.offset for tp, o in found.items()} == {TopicPartition("kept", 0): 5}


def test_bytes_behind_a_clean_end_are_called_foreign(path):
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(2))
    with open(os.path.join(path, "t-0", f"{0:020d}.log"), "ab") as file:
        file.write(b"junk" * 20)
    with open_log(path) as log, pytest.raises(CorruptRecord) as caught:
        log.offsets("t", 0)
    assert "80 bytes lie behind the end that the last session closed with" in str(caught.value)
    assert "it was durable" not in str(caught.value)


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_missing(path):
    with open_log(path) as log:
        log.create_topic("t", 1)
        log.engine.partition("t", 0).append(batch())
    name = os.path.join(path, "t-0", "leader-epoch-checkpoint")
    os.remove(name)
    os.symlink(name, name)  # ELOOP, as EIO would be
    with open_log(path) as log, pytest.raises(StorageError, match="leader-epoch-checkpoint"):
        log.engine.partition("t", 0)
    loop = os.path.join(path, "loop")
    os.symlink(loop, loop)
    with pytest.raises(StorageError, match="loop"):
        open_log(loop)


def test_a_reader_sees_the_topics_that_are_durable_and_flushes_nothing(path):
    """Somebody was stopped between the append of a topic and its flush."""
    with open_log(path) as log:
        log.create_topic("there", 1)
        record = TopicRecord("coming", bytes(range(16)))
        metadata = log.engine.partitions.known("__cluster_metadata", 0)
        metadata.on_append = None  # the flush in the background
        metadata.append(build_batch([(0, None, record.encode(), ())]))
        with open_log(path, read_only=True) as reader:
            assert reader.topics() == ["there"]
            assert metadata.durable_end < metadata.log_end
            log.engine.metadata.refresh()
            assert reader.topics() == ["coming", "there"]
