"""Other processes that use the directory are killed, forked or suspended."""

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

from eoslog import _core
from eoslog.errors import IllegalState, LockTimeout, UnknownTopicOrPartition
from eoslog.opening import open as open_log
from tests.faults.harness import Child, exclusive_locks, start
from tests.storage.helpers import batch


def _append_and_die(path, ready):
    log = open_log(path)
    log._engine.partition("t", 0).append(batch(5))
    ready.set()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.process
def test_records_of_a_killed_process_are_readable_and_survive_a_restart(path):
    context = multiprocessing.get_context("spawn")
    with open_log(path) as log:
        log.create_topic("t")
        ready = context.Event()
        child = context.Process(target=_append_and_die, args=(path, ready))
        child.start()
        child.join(300)
        assert child.exitcode == -signal.SIGKILL
        partition = log._engine.partition("t", 0)
        assert partition.log_end == 5
        assert partition.wait(0, 60)
        assert partition.high_watermark == 5
    with open_log(path) as log:
        assert log.offsets("t", 0).high_watermark == 5


@pytest.mark.process
def test_a_handle_inherited_through_fork_raises_and_reopening_works(path):
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(1))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    log.topics()
                except IllegalState:
                    log.close()
                    with open_log(path) as again:
                        again._engine.partition("t", 0).append(batch(1))
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert log.offsets("t", 0).log_end == 2
        log._engine.partition("t", 0).append(batch(1))
        assert log.offsets("t", 0).log_end == 3


@pytest.mark.process
def test_a_forked_child_does_not_keep_the_locks_of_a_dead_parent(path):
    script = (
        "import os, sys, time; from eoslog.opening import open as o\n"
        "log = o(sys.argv[1]); log.create_topic('t'); log._engine.partition('t', 0)\n"
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
            assert log._engine.session.began
            log._engine.partition("t", 0).append(batch(1))
    finally:
        os.kill(child, signal.SIGKILL)


def stopped_holder(path, partition):
    """Start a process and suspend it while it holds the append lock of `expression`."""
    script = (
        "import sys; from eoslog.opening import open as o\n"
        "engine = o(sys.argv[1])._engine; engine._background.close()\n"
        f"p = engine.{partition}\n"
        "assert p.core.lock_for_recovery(5) == 0\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "locked\n"
    os.kill(holder.pid, signal.SIGSTOP)
    return holder


@pytest.mark.process
def test_a_suspended_lock_holder_is_named_and_not_overtaken(path):
    with open_log(path) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        holder = stopped_holder(path, "partition('t', 0)")
        with pytest.raises(LockTimeout, match=f"process {holder.pid}") as caught:
            partition.append(batch(1), timeout=0.2)
        assert caught.value.retriable
        assert partition.read(0, 0) == []
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert partition.append(batch(1), timeout=60).base_offset == 0


@pytest.mark.process
def test_a_forked_child_that_holds_a_lock_is_named_by_its_own_id(path):
    with open_log(path) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        partition.append(batch(1))  # this process has noted its own id
        pid = os.fork()
        if pid == 0:
            try:
                with open_log(path) as again:
                    core = again._engine.partition("t", 0).core
                    assert core.lock_for_recovery(5) == 0
                    os.kill(os.getpid(), signal.SIGSTOP)
            finally:
                os._exit(1)
        try:
            os.waitpid(pid, os.WUNTRACED)
            with pytest.raises(LockTimeout, match=f"process {pid}"):
                partition.append(batch(1), timeout=0.2)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


_BEHIND_THE_FIRST_CHUNK = 3999
"""A partition whose slot lies in the second MiB of the control file."""


def _append_and_die_before_it_is_published(path):
    log = open_log(path)
    log._engine.partition("t", _BEHIND_THE_FIRST_CHUNK).append(batch(1))
    _core.arm_fault("pwrite", 1, -1)  # killed as it returns
    log._engine.partition("t", _BEHIND_THE_FIRST_CHUNK).append(batch(1))


@pytest.mark.process
@pytest.mark.parametrize("clean", [True, False])
def test_a_process_killed_in_a_longer_control_file_prevents_the_clean_mark(path, clean):
    with open_log(path) as log:
        log._engine.topics.create("t", _BEHIND_THE_FIRST_CHUNK + 1, {})
    mark = os.path.join(path, ".kafka_cleanshutdown")
    if not clean:
        os.unlink(mark)
    with open_log(path) as log:
        child = multiprocessing.get_context("spawn").Process(
            target=_append_and_die_before_it_is_published, args=(path,)
        )
        child.start()
        child.join(300)
        assert child.exitcode == -signal.SIGKILL
    assert not os.path.exists(mark)
    with open_log(path) as log:
        assert log._engine.partition("t", _BEHIND_THE_FIRST_CHUNK).high_watermark == 2
        log._engine.partition("t", _BEHIND_THE_FIRST_CHUNK).append(batch(1))
    assert os.path.exists(mark)


def _read_what_nobody_wrote_to(path, refused, written, seen):
    with open_log(path, read_only=True) as log:
        try:
            log.offsets("t", _BEHIND_THE_FIRST_CHUNK)
        except LockTimeout as error:
            seen.put(str(error))
        refused.set()
        written.wait(300)
        seen.put(log.offsets("t", _BEHIND_THE_FIRST_CHUNK).log_end)


@pytest.mark.process
def test_a_reader_is_rejected_until_the_control_file_contains_its_slot(path):
    context = multiprocessing.get_context("spawn")
    refused, written, seen = context.Event(), context.Event(), context.Queue()
    with open_log(path) as log:
        log._engine.topics.create("t", _BEHIND_THE_FIRST_CHUNK + 1, {})
        child = context.Process(
            target=_read_what_nobody_wrote_to, args=(path, refused, written, seen)
        )
        child.start()
        assert refused.wait(300)
        log._engine.partition("t", _BEHIND_THE_FIRST_CHUNK).append(batch(3))
        written.set()
        child.join(300)
        assert child.exitcode == 0
        assert "is not recovered yet" in seen.get(timeout=60)
        assert seen.get(timeout=60) == 3


@pytest.mark.process
def test_heartbeats_continue_while_a_suspended_process_holds_a_group_lock(path):
    with open_log(path) as log:
        log.create_topic("t")
        engine = log._engine
        engine.groups.join("g", subscription=["t", "later"])
        holder = stopped_holder(path, "group_partition('g')")
        log.create_topic("later")  # for the look after the group to write down
        waiting = threading.Thread(
            target=engine.groups.join, args=("g",), kwargs={"subscription": ["t"]}
        )
        try:
            waiting.start()
            beats, age = 0, 0.0
            while beats < 3:
                before, age = age, engine.process_heartbeat_age(engine.process_number)
                beats += age < before
                assert waiting.is_alive(), "it waits for the lock as the look after the group does"
                time.sleep(0.01)
        finally:
            holder.kill()
            holder.communicate()
            waiting.join()
        assert len(engine.groups.describe_group("g").members) == 2


_COMMITS = (
    "import sys; from eoslog.opening import open as o\n"
    "log = o(sys.argv[1]); producer = log.producer(transactional_id='x')\n"
    "producer.init_transactions()\n"
    "with producer.transaction() as tx: tx.produce('t', b'v')\n"
)


@pytest.mark.process
@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed at mkdir"])
def test_internal_partitions_of_another_process_are_found(path, killed):
    command = [sys.executable, "-c", _COMMITS, str(path)]
    with open_log(path) as log:
        log.create_topic("t")
        assert log._engine.transaction_partitions() == []
        if killed:
            point = os.environ | {"EOSLOG_FAILPOINTS": "mkdir=kill-after"}
            assert subprocess.run(command, env=point, check=False).returncode == -signal.SIGKILL
            assert all(c.log_end == 0 for c in log._engine.transaction_partitions())
        subprocess.run(command, check=True)
        [found] = log._engine.transaction_partitions()
        assert found.log_end == 4  # Empty, Ongoing, PREPARE_COMMIT, COMPLETE_COMMIT


def use_partition(child: Child, path: str) -> None:
    with open_log(path) as log:
        child.armed()
        try:
            child.tell("end", log.offsets("t", 0).log_end)
        except UnknownTopicOrPartition as error:
            child.tell("refused", str(error))


@pytest.mark.slow
def test_a_topic_deleted_while_its_partition_is_created_is_unknown(path):
    """The creation is suspended at each open of a file; its folder is removed."""
    refused = []
    for nth in range(1, 40):
        place = f"{path}-{nth}"
        with open_log(place) as log:
            log.create_topic("t")
        shutil.rmtree(f"{place}/t-0")  # it was never used, so the next use creates it again
        with open_log(place) as log:
            child = start(use_partition, place, faults=(("open", "stop", nth),))
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                life = child.ended(status).fine()
                assert life.of("end") == [0]
                break
            deleting = threading.Thread(target=log.delete_topic, args=("t",))
            deleting.start()
            if not exclusive_locks(child.pid):  # otherwise the deletion waits for it
                deleting.join()
                shutil.rmtree(f"{place}/t-0", ignore_errors=True)  # as a deletion ends
            child.signal(signal.SIGCONT)
            refused += child.end().fine().of("refused")
            deleting.join()
    else:
        raise AssertionError("no run came to its end")
    assert len(refused) >= 3
    assert all("the topic was deleted" in text for text in refused)
