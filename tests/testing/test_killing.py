"""Functions in a process that is killed at a point, or that misses the point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import ConfigError
from eoslog.testing import TemporaryLogs, assert_records, failpoint, kill

pytestmark = pytest.mark.process


@pytest.fixture
def log(tmp_path: Path):
    with TemporaryLogs(tmp_path) as create:
        yield create(topics=["payments"])


def pay(log: eoslog.Log, *amounts: str) -> None:
    with log.producer(transactional_id="pay") as producer:
        producer.init_transactions()
        for amount in amounts:
            with producer.transaction() as tx:
                tx.produce("payments", amount)
                failpoint("paying")


def restart(log: eoslog.Log) -> None:
    with log.producer(transactional_id="pay") as producer:
        producer.init_transactions()


def test_a_kill_before_the_decision_leaves_no_record(log):
    kill(pay, log, "10", at="txn.flushed")
    restart(log)
    assert_records(log, "payments", [])


def test_a_kill_after_the_decision_leaves_the_record(log):
    kill(pay, log, "10", at="txn.decided")
    restart(log)
    assert_records(log, "payments", ["10"])


def test_the_nth_pass_of_a_point_of_the_program_kills_it(log):
    kill(pay, log, "10", "20", "30", at="paying", nth=3)
    restart(log)
    assert_records(log, "payments", ["10", "20"])


def test_a_system_call_is_a_point(log):
    kill(pay, log, "10", at="pwrite")
    restart(log)
    assert_records(log, "payments", [])


def test_a_function_may_kill_its_own_process(log):
    closed_over = "10"

    def dies() -> None:
        with eoslog.open(log.path) as own:
            pay(own, closed_over)
            os.kill(os.getpid(), signal.SIGKILL)

    kill(dies)
    assert_records(log, "payments", ["10"])


def test_a_point_that_is_not_passed_is_an_error_with_those_that_were(log):
    with pytest.raises(AssertionError) as raised:
        kill(pay, log, "10", at="txn.flused")
    assert "pay returned without passing 'txn.flused'" in str(raised.value)
    assert "points that it passed: " in str(raised.value)
    assert "txn.flushed, " in str(raised.value)
    assert_records(log, "payments", ["10"])


def test_a_function_that_raises_is_an_error_with_its_output(log):
    def fails(log: eoslog.Log) -> None:
        print("printed before")
        raise ValueError("no money")

    with pytest.raises(AssertionError) as raised:
        kill(fails, log, at="txn.decided", nth=2)
    assert "fails raised without passing 'txn.decided' 2 times" in str(raised.value)
    assert "printed before" in str(raised.value)
    assert "ValueError: no money" in str(raised.value)


def test_a_function_that_hangs_is_ended_after_the_timeout(log):
    with pytest.raises(AssertionError, match=r"sleep ran for 0.2 s without being killed"):
        kill(time.sleep, 600, timeout=0.2)


def test_no_process_of_the_function_is_left(tmp_path):
    number = tmp_path / "pid"

    def starts_another() -> None:
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        number.write_text(str(other.pid))
        os.kill(os.getpid(), signal.SIGKILL)

    kill(starts_another)
    state = Path(f"/proc/{number.read_text()}/stat")
    for _ in range(2000):  # the system needs a moment to end it
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.005)
    else:
        pytest.fail("it runs")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [({"nth": 0}, "nth: expected 1 or more"), ({"at": 5}, "at: expected"),
     ({"timeout": "soon"}, "timeout: expected")],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_a_process_is_started(options, wrong):
    with pytest.raises(ConfigError, match=wrong):
        kill(os.abort, **options)
