"""Position and records agree after kills and races of processes that set it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog import Log

pytestmark = pytest.mark.process

COPY = """
import sys
import eoslog

# Copies the items 0 to 9 of a source, two in each transaction, from its position on.
# Only the commit appends: a process that is stopped at a failpoint would keep a lock of its sender.
config = {"transactional.id": sys.argv[2], "linger.ms": 60_000}
with eoslog.open(sys.argv[1]) as log, log.producer(config) as producer:
    producer.init_transactions()
    at = log.position("source")
    while (at or 0) < 10:
        with producer.transaction() as tx:
            for item in range(at or 0, (at or 0) + 2):
                tx.produce("t", value=str(item), partition=item % 2)
            tx.set_position("source", (at or 0) + 2, expected=at)
        at = log.position("source")
"""
COUNT = """
import sys
import eoslog
from eoslog import errors

# Adds 1 to a position as often as told, and gives the value that each commit had.
with eoslog.open(sys.argv[1]) as log, log.producer(transactional_id=sys.argv[2]) as producer:
    producer.init_transactions()
    sys.stdin.readline()
    done = 0
    while done < int(sys.argv[3]):
        at = log.position("counter")
        try:
            with producer.transaction() as tx:
                tx.set_position("counter", (at or 0) + 1, expected=at)
                tx.produce("t", value=str((at or 0) + 1))
        except errors.PositionConflict:
            continue
        done += 1
"""


def run(script: str, *arguments: str, failpoint: str = "") -> int:
    environment = {**os.environ, "EOSLOG_FAILPOINTS": failpoint}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, check=False, timeout=120).returncode


def copied(log: Log) -> list[int]:
    return sorted(int(record.value) for record in log.read("t"))


@pytest.fixture
def path(path: str) -> str:
    with eoslog.open(path) as log:
        log.create_topic("t", 2)
    return path


@pytest.mark.parametrize(
    "point",
    [
        "topic.first_use:1", "position.checked:1", "position.checked:3", "position.set:1",
        "position.set:3", "txn.added:2", "txn.flushed:3", "txn.prepared:1", "txn.prepared:3",
        "txn.decided:3",
    ],
)  # fmt: skip
def test_a_copy_that_is_killed_leaves_position_and_records_agreed(path: str, point: str) -> None:
    assert run(COPY, path, "job", failpoint=f"{point}=kill") == -signal.SIGKILL
    with eoslog.open(path) as log:
        at = log.position("source") or 0
        assert copied(log) == list(range(at))
        assert log.check(full=True).ok
    assert run(COPY, path, "job") == 0
    with eoslog.open(path, read_only=True) as log:
        assert (log.position("source"), copied(log)) == (10, list(range(10)))


@pytest.mark.parametrize("point", ["position.set:2", "txn.flushed:2", "txn.prepared:2"])
def test_another_job_continues_where_a_killed_process_stopped(path: str, point: str) -> None:
    """It has another transactional id, so its init does not end the dead transaction."""
    with eoslog.open(path) as log:
        assert run(COPY, path, "job", failpoint=f"{point}=kill") == -signal.SIGKILL
        at = log.position("source") or 0
        assert run(COPY, path, "other") == 0
        assert at in (2, 4)
        assert (log.position("source"), copied(log)) == (10, list(range(10)))


def test_a_copy_that_sleeps_through_its_replacement_is_fenced(path: str) -> None:
    """The zombie has checked the position already, and appends when it wakes."""
    environment = {**os.environ, "EOSLOG_FAILPOINTS": "position.checked:2=stop"}
    command = [sys.executable, "-c", COPY, path, "job"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
        assert run(COPY, path, "job") == 0
        zombie.send_signal(signal.SIGCONT)
        _, told = zombie.communicate(timeout=300)
    assert zombie.returncode == 1 and "ProducerFenced" in told
    with eoslog.open(path) as log:
        assert (log.position("source"), copied(log)) == (10, list(range(10)))


def test_a_fenced_process_leaves_no_pending_record(path: str) -> None:
    """Its successor has not set the position, so only the epoch tells."""
    environment = {**os.environ, "EOSLOG_FAILPOINTS": "position.checked:1=stop"}
    command = [sys.executable, "-c", COPY, path, "job"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
        with eoslog.open(path) as log, log.producer(transactional_id="job") as producer:
            producer.init_transactions()
            topic = log._engine.internal_topic("__positions")
            end = topic.log_end
            zombie.send_signal(signal.SIGCONT)
            _, told = zombie.communicate(timeout=300)
            assert zombie.returncode == 1 and "ProducerFenced" in told
            assert (topic.log_end, topic.open_transactions()) == (end, [])


def test_a_zombie_with_another_id_loses_to_the_one_that_was_faster(path: str) -> None:
    environment = {**os.environ, "EOSLOG_FAILPOINTS": "position.checked:2=stop"}
    command = [sys.executable, "-c", COPY, path, "slow"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as slow:
        os.waitid(os.P_PID, slow.pid, os.WSTOPPED | os.WNOWAIT)
        assert run(COPY, path, "fast") == 0
        slow.send_signal(signal.SIGCONT)
        _, told = slow.communicate(timeout=300)
    assert slow.returncode == 1 and "PositionConflict" in told
    with eoslog.open(path) as log:
        assert (log.position("source"), copied(log)) == (10, list(range(10)))


def test_no_two_processes_replace_the_same_position(path: str) -> None:
    processes, rounds = 4, 25
    children = [
        subprocess.Popen(
            [sys.executable, "-c", COUNT, path, f"p{number}", str(rounds)],
            stdin=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for child in children:
        child.communicate("\n", timeout=300)
    assert [child.returncode for child in children] == [0] * processes
    with eoslog.open(path) as log:
        total = processes * rounds
        assert log.position("counter") == total
        assert copied(log) == list(range(1, total + 1))


def test_a_deletion_that_was_killed_is_complete_or_absent(path: str) -> None:
    assert run(COPY, path, "job") == 0
    delete = (
        "import sys, eoslog\nwith eoslog.open(sys.argv[1]) as log: log.delete_position('source')"
    )
    assert run(delete, path, failpoint="position.deleted=kill") == -signal.SIGKILL
    with eoslog.open(path) as log:
        assert log.position("source") is None
    assert (Path(path) / "__positions-0").is_dir()
