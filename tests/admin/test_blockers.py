"""C1: one call names what blocks a consumer.

The answer has the process, the start time, and the command to type.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Blocker, TopicPartition
from eoslog.coordinator.transactions import deadlines
from eoslog.errors import GroupNotFound, LockTimeout
from eoslog.log import Log
from eoslog.storage.directory import processes
from eoslog.storage.fs import files
from tests.admin.blocking_process import (
    OPEN_TRANSACTION,
    STOPS_AS_DECIDED,
    STOPS_IN_A_FLUSH,
    STOPS_IN_AN_APPEND,
    BlockingProcess,
)
from tests.client.consumer.group_process import GroupProcess
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]
ONE = TopicPartition("one", 0)


def only(found: list[Blocker]) -> Blocker:
    assert len(found) == 1, "\n".join(blocker.reason for blocker in found)
    (blocker,) = found
    return blocker


def typed(remedy: str, *, codes: tuple[int, ...] = (0,)) -> None:
    """Run what a blocker says in a shell, with this environment's command line."""
    bin_ = os.path.dirname(sys.executable)
    environment = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", remedy], env=environment, capture_output=True, cwd="/")
    assert done.returncode in codes, done.stderr


@pytest.fixture
def members(log: Log) -> Iterator[Callable[..., GroupProcess]]:
    """Starts consumers of the group `g` in processes of their own."""
    started: list[GroupProcess] = []

    def start(*topics: str, **config: Any) -> GroupProcess:
        started.append(GroupProcess(log.path, *topics, group_id="g", **config))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_field_C1_an_unblocked_log_has_no_blockers(log: Log, producer: Any) -> None:
    with producer.transaction() as tx:
        tx.produce("one", "v")
    log.reset_offsets("g", {ONE: 0})
    assert log.blockers() == log.blockers("g") == []
    assert log.describe_group("g").blocked_by == []


def test_field_C1_an_unknown_group_raises(log: Log) -> None:
    with pytest.raises(GroupNotFound):
        log.blockers("none")


def test_field_C1_a_suspended_process_with_a_transaction_is_named(log: Log) -> None:
    log.reset_offsets("g", {ONE: 0})
    with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
        with log.producer() as producer:
            producer.produce_many("one", ["a", "b"])
        before = time.time_ns() // 1_000_000
        running = only(log.blockers("g"))
        assert running.stopped is False
        other.stop()
        found = only(log.blockers("g"))
        assert log.blockers() == [found]
        assert log.describe_group("g").blocked_by == [found]
        assert log.describe_group("g").offsets[ONE].offset == 0
        assert (found.kind, found.group_id) == ("open_transaction", "g")
        assert (found.topic, found.partition, found.waiting) == ("one", 0, 3)
        assert (found.transactional_id, found.producer_id) == (
            "x",
            log.transactions()[0].producer_id,
        )
        assert (found.pid, found.stopped) == (other.pid, True)
        assert found.command is not None
        assert found.command.startswith(f"{sys.executable} -c")
        assert found.command.endswith(log.path)
        assert found.since is not None
        assert before - 60_000 < found.since <= before
        assert found.remedy.startswith(f"kill -CONT {other.pid}")
        typed(found.remedy)
        assert until(lambda: not only(log.blockers("g")).stopped)
        typed(only(log.blockers("g")).remedy, codes=(0, 3))  # eoslog -d ... txn abort x
        assert log.blockers("g") == []
    assert [r.value for r in log.read("one")] == [b"a", b"b"]


def test_field_C1_a_partition_that_no_group_reads_is_named_without_a_group(log: Log) -> None:
    with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
        found = only(log.blockers())
        assert (found.group_id, found.topic, found.pid) == (None, "one", other.pid)


def test_a_group_of_publishing_ids_is_not_blocked(log: Log) -> None:
    with log.producer(name="relay") as named:
        named.produce("one", "a", partition=0, publishing_id=7)
    with BlockingProcess(log.path, OPEN_TRANSACTION):
        assert only(log.blockers()).group_id is None
        assert log.blockers("__eoslog-ids-relay") == []


def test_field_C1_a_group_that_reads_other_partitions_is_not_blocked(log: Log) -> None:
    log.reset_offsets("g", {TopicPartition("b", 0): 0})
    with BlockingProcess(log.path, OPEN_TRANSACTION):
        assert log.blockers("g") == []


def test_field_C1_a_killed_owner_is_not_named_even_if_its_pid_is_reused(log: Log) -> None:
    log.reset_offsets("g", {ONE: 0})
    with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
        number = next(
            n for n in range(1024) if log._engine.session.control.process_entry(n)[1] == other.pid
        )
        nonce = log._engine.session.control.process_entry(number)[0]
        other.kill()
        # A background thread may abort the transaction at any time: then nothing blocks.
        found = log.blockers("g")
        assert all((one.pid, one.command, one.stopped) == (None, None, None) for one in found)
        assert all("its process has exited" in one.reason for one in found)
        # The kernel gives the pid to another process: here, to this one.
        log._engine.session.control.register_process(number, nonce, os.getpid(), 1, 0, 0)
        found = log.blockers("g")
        assert all((one.pid, one.command, one.stopped) == (None, None, None) for one in found)
        assert all(transaction.pid is None for transaction in log.transactions())
        for one in found:
            typed(one.remedy, codes=(0, 3))  # 3: the thread has aborted it since
        assert log.blockers("g") == []


def test_field_C1_an_entry_with_the_pid_of_another_process_is_recognised(log: Log) -> None:
    with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
        control = log._engine.session.control
        number = next(n for n in range(1024) if control.process_entry(n)[1] == other.pid)
        _, start, namespace, since = control.process_identity(number)
        now = processes.start_and_state(other.pid)
        assert now is not None and now[0] == start
        assert namespace == os.stat("/proc/self/ns/pid").st_ino
        nonce = control.process_entry(number)[0]
        # Its pid as of before a checkpoint and restore, say: a living process has that one now.
        control.register_process(number, nonce, os.getpid(), start, namespace, since)
        found = only(log.blockers())
        assert found.pid == other.pid, "the holder of the process's lock byte, not the pid's owner"
        assert found.command is not None and found.command.endswith(log.path)


def test_field_C1_a_process_in_another_pid_namespace_is_recognised(log: Log) -> None:
    unshare = ["unshare", "-pf", "--kill-child"]
    able = subprocess.run([*unshare, "true"], capture_output=True, check=False)
    if able.returncode:
        pytest.skip(f"no new pid namespace here: {able.stderr!r}")
    with BlockingProcess(log.path, OPEN_TRANSACTION, *unshare) as outer:
        found = only(log.blockers())
        inner = found.pid
        assert inner == 1, "its pid within its own namespace"
        assert found.command is None
        assert "process 1 (in another pid namespace)" in found.reason
        (about,) = [p for p in log.processes() if p.other_namespace]
        assert (about.pid, about.command, about.transactions) == (1, None, ["x"])
        assert only(log.transactions()).command is None
        # This one sees it under another pid, which is the one to type.
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGSTOP)
        found = until(lambda: next((b for b in log.blockers() if b.stopped), None))
        assert found.remedy.startswith(f"kill -CONT {children[0]}")
        os.kill(int(children[0]), signal.SIGKILL)


def test_field_C1_a_decided_transaction_without_markers_is_named(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_DRIVER_S", 3600.0)  # this process would write the markers
    log.reset_offsets("g", {ONE: 0})
    with BlockingProcess(log.path, STOPS_AS_DECIDED, stops=True) as other:
        found = only(log.blockers("g"))
        assert (found.kind, found.transactional_id) == ("decided_transaction", "x")
        assert (found.pid, found.stopped, found.waiting) == (other.pid, True, 1)
        assert f"kill -CONT {other.pid}" in found.remedy
        assert f"eoslog -d {log.path} txn abort x" in found.remedy
        assert list(log.read("one")) == [], "looking completes nothing"


def test_field_C1_a_suspended_holder_of_an_append_lock_is_named(log: Log) -> None:
    log.reset_offsets("g", {ONE: 0})
    with BlockingProcess(log.path, STOPS_IN_AN_APPEND, stops=True) as other:
        found = only(log.blockers("g"))
        assert (found.kind, found.topic, found.partition) == ("append_lock", "one", 0)
        assert (found.pid, found.stopped) == (other.pid, True)
        assert found.remedy == f"kill -CONT {other.pid}"
        assert found.since is not None
        held = log.locks()[ONE]
        assert (held.pid, held.stopped) == (other.pid, True)
        assert held.command is not None and held.command.endswith(log.path)
        with pytest.raises(LockTimeout, match=rf"held by process {other.pid} \(.*, stopped\) for "):
            log._engine.partition("one", 0).append(eoslog._core.build_batch([(0, None, b"v", ())]),
                                                  timeout=0.05)  # fmt: skip
        other.kill()
        assert log.locks() == {}, "the kernel has freed it, though its pid is still in the slot"
        assert log.blockers("g") == []


def test_field_C1_a_suspended_flush_is_named_with_the_waiting_records(log: Log) -> None:
    log.reset_offsets("g", {ONE: 0})
    with BlockingProcess(log.path, STOPS_IN_A_FLUSH, stops=True) as other:
        found = only(log.blockers("g"))
        assert (found.kind, found.topic, found.waiting) == ("flush_lock", "one", 1)
        assert (found.pid, found.stopped) == (other.pid, True)
        typed(found.remedy)
        assert until(lambda: log.blockers("g") == [])


def test_field_C1_a_suspended_cleaner_is_named(log: Log) -> None:
    log.create_topic("kept", 1, {"cleanup.policy": "compact", "segment.bytes": 1_048_576})
    with log.producer() as producer:
        for _ in range(3):
            producer.produce_many("kept", ["v" * 1000] * 50, ["k"] * 50)
            producer.flush()
    log.reset_offsets("g", {TopicPartition("kept", 0): 0})
    cleans = (
        'print("ready", flush=True)\n'
        'files.arm_failpoint("clean.swap.begun", "stop")\n'
        'log.clean("kept", roll=True)\n'
    )
    with BlockingProcess(log.path, cleans, stops=True) as other:
        found = only(log.blockers("g"))
        assert (found.kind, found.topic) == ("cleaner_lock", "kept")
        assert (found.pid, found.stopped) == (other.pid, True)
        assert found.remedy == f"kill -CONT {other.pid}"


def test_field_C1_a_suspended_process_with_an_internal_lock_is_named(
    log: Log, tmp_path: Any
) -> None:
    holds = (
        'core = log._engine.group_partition("g").core\n'
        "core.lock_for_recovery(1.0)\n"
        'print("ready", flush=True)\n'
        "sys.stdin.readline()\n"
    )
    log.reset_offsets("g", {ONE: 0})
    with BlockingProcess(log.path, holds) as other:
        os.kill(other.pid, signal.SIGSTOP)
        other.await_stop()
        found = only(log.blockers("g"))
        assert (found.kind, found.topic, found.group_id) == (
            "append_lock",
            "__consumer_offsets",
            "g",
        )
        assert found.pid == other.pid


def test_field_C1_a_process_suspended_with_the_bootstrap_lock_is_named(log: Log) -> None:
    holds = (
        "with log._engine.session.bootstrap():\n"
        '    print("ready", flush=True)\n'
        "    sys.stdin.readline()\n"
    )
    with BlockingProcess(log.path, holds) as other:
        assert log.blockers() == [], "a running process is about to release it"
        other.stop()
        found = only(log.blockers())
        assert (found.kind, found.topic, found.waiting) == ("directory_lock", None, None)
        assert (found.pid, found.stopped) == (other.pid, True)
        assert processes.holder_text(log.path, processes.SESSION_FILE, 0).startswith(
            f"process {other.pid} ("
        )


def test_field_C1_repair_names_the_processes_that_have_the_directory_open(log: Log) -> None:
    with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
        other.stop()
        with pytest.raises(LockTimeout, match="has the directory open: ") as raised:
            eoslog.repair(log.path)
    assert "this process" in str(raised.value)
    assert f"process {other.pid} ({sys.executable} -c" in str(raised.value)
    assert "stopped" in str(raised.value)


def test_field_C1_pending_offsets_of_a_suspended_transaction_are_named(log: Log) -> None:
    lines = """
producer = log.producer(transactional_id="x")
producer.init_transactions()
producer.begin_transaction()
producer.send_offsets_to_transaction({eoslog.TopicPartition("one", 0): 1}, "g")
print("ready", flush=True)
sys.stdin.readline()
"""
    with log.producer() as producer:
        producer.produce("one", "v")
    log.reset_offsets("g", {ONE: 0})
    with BlockingProcess(log.path, lines) as other:
        assert log.blockers("g") == [], "it may be the group's own reader"
        other.stop()
        found = only(log.blockers("g"))
        assert (found.kind, found.topic, found.waiting) == ("open_transaction", "one", 1)
        assert (found.pid, found.transactional_id) == (other.pid, "x")
        assert "the committed offset of group 'g' in one-0 waits" in found.reason


def test_field_C1_staged_offsets_of_a_group_without_another_trace_are_named(log: Log) -> None:
    with pytest.raises(GroupNotFound):
        log.blockers("g")
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction(mode="staged")
        producer.send_offsets_to_transaction({ONE: 1}, "g")
        token = producer.prepare_transaction().token
    found = only(log.blockers("g"))
    assert (found.kind, found.token) == ("prepared_transaction", token)
    typed(found.remedy)
    assert log.blockers("g") == []


def test_field_C1_pending_offsets_of_a_group_without_another_trace_are_named(log: Log) -> None:
    lines = """
producer = log.producer(transactional_id="-x")
producer.init_transactions()
producer.begin_transaction()
producer.send_offsets_to_transaction({eoslog.TopicPartition("one", 0): 1}, "g")
print("ready", flush=True)
sys.stdin.readline()
"""
    with BlockingProcess(log.path, lines) as other:
        other.stop()
        found = only(log.blockers("g"))
        assert (found.kind, found.pid) == ("open_transaction", other.pid)
        assert found.remedy.endswith("txn abort -- -x"), "the id is no option"
        typed(found.remedy.partition("# or: ")[2])
    with pytest.raises(GroupNotFound):
        log.blockers("g")


def test_field_C1_a_suspended_member_is_named_for_each_partition_it_owns(
    log: Log, members: Callable[..., GroupProcess]
) -> None:
    member = members("a")
    until(lambda: member.consume(1, 0.1) is not None and len(member.assignment()) == 2)
    with log.producer() as producer:
        producer.produce_many("a", ["v"] * 3, partition=1)
    for one in log.blockers("g"):  # a slow machine may not have polled for 5 s
        assert one.kind != "idle_member" or one.since <= time.time() * 1000 - 5000
    member.signal(signal.SIGSTOP)
    found = until(lambda: [b for b in log.blockers("g") if b.stopped])
    assert {(b.kind, b.topic, b.partition, b.waiting) for b in found} == {
        ("idle_member", "a", 0, 0),
        ("idle_member", "a", 1, 3),
    }
    assert {b.pid for b in found} == {member.pid}
    assert found[0].remedy == f"kill -CONT {member.pid}"
    assert found[0].since is not None
    named = log.describe_group("g").blocked_by
    assert [(b.kind, b.partition, b.pid) for b in named] == [
        (b.kind, b.partition, b.pid) for b in found
    ]


def test_field_C1_a_running_member_that_does_not_poll_is_named(
    log: Log, members: Callable[..., GroupProcess]
) -> None:
    member = members("one")
    first = time.time_ns() // 1_000_000
    until(lambda: member.consume(1, 0.1) is not None and member.assignment())
    last = time.time_ns() // 1_000_000
    with log.producer() as producer:
        producer.produce_many("one", ["v"] * 3)
    found = only(until(lambda: log.blockers("g")))
    assert (found.kind, found.waiting, found.stopped) == ("idle_member", 3, False)
    assert found.pid == member.pid
    assert found.since is not None
    assert first - 2000 < found.since <= last + 1000
    assert found.remedy.startswith(f"kill {member.pid} ")
    member.consume(10, 1.0)
    member.commit()
    assert log.blockers("g") == []


def test_field_C1_a_member_without_a_partition_is_shown_its_owner(
    log: Log, members: Callable[..., GroupProcess]
) -> None:
    first = members("one")
    until(lambda: first.consume(1, 0.1) is not None and first.assignment())
    second = members("one")
    second.consume(1, 0.1)
    first.consume(1, 0.1)

    def held() -> list[Blocker]:
        first.consume(1, 0.05)
        second.consume(1, 0.05)
        return [b for b in log.blockers("g") if b.kind == "partition_held"]

    found = only(until(held))
    pids = {first.pid, second.pid}
    assert found.pid in pids
    assert (found.topic, found.partition, found.stopped) == ("one", 0, False)
    assert f"eoslog -d {log.path} group describe g --members" in found.remedy
    assert "without a partition" in found.reason


def test_field_C1_a_poisoned_partition_is_named(log: Log) -> None:
    log.reset_offsets("g", {ONE: 0})
    with log.producer(acks=1) as producer:
        producer.produce("one", "v")
        producer.flush()
        part = log._engine.partition("one", 0)
        part.flush()
        files.arm_failpoint("fdatasync", "EIO")
        producer.produce("one", "v")
        producer.flush()
        with pytest.raises(eoslog.errors.LogPoisoned):
            part.flush()  # or the background flush has failed
        found = only(log.blockers("g"))
        assert (found.kind, found.topic) == ("poisoned_partition", "one")
        assert found.remedy.startswith(f"eoslog -d {log.path} ps ")


def test_field_C1_a_damaged_partition_is_named_and_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("one", 1)
        log.create_topic("b", 1)
        with log.producer() as producer:
            producer.produce("one", "v" * 100)
        log.reset_offsets("g", {ONE: 0, TopicPartition("b", 0): 0})
    data = path / "one-0" / f"{0:020}.log"
    data.write_bytes(b"\xff" * 40 + data.read_bytes()[40:])
    os.unlink(path / ".kafka_cleanshutdown")
    with eoslog.open(path) as log:
        found = only(log.blockers("g"))
        assert (found.kind, found.topic, found.waiting) == ("damaged_partition", "one", None)
        assert found.remedy.startswith(f"eoslog -d {path} check ")
        assert "one-0 cannot be opened" in found.reason


def test_field_C1_processes_list_what_each_holds(
    log: Log, members: Callable[..., GroupProcess]
) -> None:
    member = members("b")
    until(lambda: member.consume(1, 0.1) is not None and member.assignment())
    reads = 'print("ready", flush=True)\nsys.stdin.readline()\n'
    with (
        BlockingProcess(log.path, OPEN_TRANSACTION) as other,
        BlockingProcess(log.path, STOPS_IN_A_FLUSH, stops=True) as stopped,
        BlockingProcess(log.path, f"ro = eoslog.open({log.path!r}, read_only=True)\n"
                        "log.close()\n" + reads) as reader,
    ):  # fmt: skip
        found = {p.pid: p for p in log.processes()}
        assert {os.getpid(), member.pid, other.pid, stopped.pid, reader.pid} == set(found)
        assert found[other.pid].transactions == ["x"]
        assert found[member.pid].groups == [f"g/{log.describe_group('g').members[0].member_id}"]
        assert found[stopped.pid].locks == ["one-0 flush"]
        assert found[reader.pid].read_only is True
        assert [found[p].read_only for p in (other.pid, member.pid)] == [False, False]
        assert [p.pid for p in found.values() if p.stopped] == [stopped.pid]
        now = time.time_ns() // 1_000_000
        for about in found.values():
            assert about.command and about.since
            assert now - 600_000 < about.since <= now


def test_field_C1_transactions_name_their_process(log: Log) -> None:
    with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
        found = only(log.transactions())
        assert found.pid == other.pid
        assert found.command is not None and found.command.endswith(log.path)


def test_field_C1_a_read_only_log_names_blockers_too(log: Log) -> None:
    log.reset_offsets("g", {ONE: 0})
    with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
        other.stop()
        with eoslog.open(log.path, read_only=True) as reader:
            found = only(reader.blockers("g"))
        assert (found.kind, found.pid, found.stopped) == ("open_transaction", other.pid, True)
        assert found.waiting == 1
