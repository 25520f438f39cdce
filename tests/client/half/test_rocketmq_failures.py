"""Failures that users of RocketMQ's half messages report, R1 to R14.

R5 and R9 are in `tests/coordinator/checks`, R8 and R14 also in `test_kills.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Outcome, errors
from eoslog.model import STAGED_TRANSACTIONS_TOPIC
from tests.client.half.helpers import (
    QUICK,
    Orders,
    connect,
    created,
    expected,
    settled,
    visible,
)
from tests.waiting import until

COMMIT, ABORT, UNKNOWN = Outcome.COMMIT, Outcome.ABORT, Outcome.UNKNOWN


class Listener(eoslog.TransactionListener):
    """A listener of two functions."""

    def __init__(self, execute: Any, check: Any = lambda msg: UNKNOWN) -> None:
        self.execute, self.check = execute, check
        self.checked: list[str] = []

    def execute_local_transaction(self, msg: eoslog.PreparedTransaction, arg: Any) -> Any:
        return self.execute(msg)

    def check_local_transaction(self, msg: eoslog.PreparedTransaction) -> Any:
        self.checked.append(msg.token)
        return self.check(msg)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(created(tmp_path / "d")) as opened:
        yield opened


def staged_bytes(log: eoslog.Log) -> int:
    """The end of the log that holds the payload of halves."""
    return log._engine.partition(STAGED_TRANSACTIONS_TOPIC, 0).log_end


def unknown(msg: eoslog.PreparedTransaction) -> Outcome:
    return UNKNOWN


def test_R1_many_commits_of_one_half_make_one_copy(log: eoslog.Log) -> None:
    with log.half_producer("g", Listener(unknown)) as producer:
        token = producer.send_message_in_transaction(("orders", "1")).transaction_id
    threads = [threading.Thread(target=log.resolve, args=(token, COMMIT)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.resolve(token, COMMIT)
    assert visible(log)["orders"] == [1]


def test_R2_a_commit_after_a_rollback_is_a_conflict(log: eoslog.Log) -> None:
    def execute(msg: eoslog.PreparedTransaction) -> Outcome:
        log.resolve(msg.token, ABORT)  # as a check in another process does
        return COMMIT

    with log.half_producer("g", Listener(execute)) as producer:
        with pytest.raises(errors.OutcomeConflict, match="was decided to abort, and this decision"):
            producer.send_message_in_transaction(("orders", "1"))
    assert visible(log)["orders"] == []


def test_R3_checks_end_with_the_decision_and_move_no_payload(log: eoslog.Log) -> None:
    listener = Listener(unknown)
    with log.half_producer("g", listener, first_check=0, interval=0.02) as producer:
        token = producer.send_message_in_transaction(("orders", "1")).transaction_id
        end = staged_bytes(log)
        until(lambda: len(listener.checked) > 2)
        assert staged_bytes(log) == end
        log.resolve(token, COMMIT)
        asked = len(listener.checked)
        log._engine.checks.look(lambda what, run: run())
        other = producer.send_message_in_transaction(("orders", "2")).transaction_id
        until(lambda: other in listener.checked[asked:])
    assert token not in listener.checked[asked + 1 :]  # one call may have been running
    assert visible(log)["orders"] == [1]


def test_R4_a_parked_half_survives_and_can_be_decided(tmp_path: Path) -> None:
    path = created(tmp_path / "d")
    settings = {"first_check": 0, "interval": 0.01, "max_checks": 2}
    with eoslog.open(path) as log:
        with log.half_producer("g", Listener(unknown), **settings) as producer:
            token = producer.send_message_in_transaction(("orders", "1")).transaction_id
            until(lambda: log.pending()[0].state == "PARKED")
    with eoslog.open(path) as log:
        assert [(half.token, half.state, half.checks, half.due_at) for half in log.pending()] == [
            (token, "PARKED", 2, None)
        ]
        listener = Listener(unknown, lambda msg: COMMIT)
        with log.half_producer("g", listener, **settings):
            log._engine.checks.look(lambda what, run: run())
            assert listener.checked == []  # a parked half is not asked about
            assert log.recheck(token)
            until(lambda: visible(log)["orders"] == [1])
        assert log.pending() == []


def test_R6_a_first_check_later_than_all_intervals_comes(log: eoslog.Log) -> None:
    listener = Listener(unknown, lambda msg: COMMIT)
    settings = {"first_check": 0.5, "interval": 0.01, "max_checks": 1}
    with log.half_producer("g", listener, **settings) as producer:
        producer.send_message_in_transaction(("orders", "1"))
        until(lambda: visible(log)["orders"] == [1])
    assert len(listener.checked) == 1


def test_R8_a_half_is_durable_before_the_local_transaction_begins(log: eoslog.Log) -> None:
    volatile: list[str] = []

    def execute(msg: eoslog.PreparedTransaction) -> Outcome:
        engine, number = log._engine, int(msg.token.rsplit(":")[-1])
        payload = engine.partition(STAGED_TRANSACTIONS_TOPIC, 0)
        parts = [payload, engine.transaction_partition_at(number)]
        volatile.extend(part.name for part in parts if part.durable_end < part.log_end)
        return COMMIT

    with log.half_producer("g", Listener(execute)) as producer:
        for number in range(3):
            producer.send_message_in_transaction(("orders", str(number)))
    assert volatile == []


def test_r10_delay_and_half_compose(log: eoslog.Log) -> None:
    log._engine.clock = lambda: 1_700_000_000.0
    with log.half_producer("g", Listener(lambda msg: COMMIT)) as producer:
        result = producer.send_message_in_transaction(("orders", "1"), deliver_at=1_700_000_060_000)
        assert result.outcome is COMMIT
        with pytest.raises(errors.OutcomeConflict):
            log.resolve(result.transaction_id, ABORT)
        log._engine.clock = lambda: 1_700_000_059.0
        log._engine.checks.look(lambda what, run: run())
        assert visible(log)["orders"] == []
        log._engine.clock = lambda: 1_700_000_061.0
        until(lambda: visible(log)["orders"] == [1])


def test_r11_a_half_has_many_records_in_many_partitions(log: eoslog.Log) -> None:
    records = [("paid", str(number), str(number)) for number in range(50)] + [("orders", "50")]
    with log.half_producer("g", Listener(lambda msg: COMMIT)) as producer:
        producer.send_message_in_transaction(records)
    assert visible(log) == {"orders": [50], "paid": list(range(50))}
    assert len({record.partition for record in log.read("paid")}) == 3


def test_r12_r13_a_half_keeps_its_token_and_its_outcome(tmp_path: Path) -> None:
    path = created(tmp_path / "d")
    tokens: list[str] = []

    def execute(msg: eoslog.PreparedTransaction) -> Outcome:
        tokens.append(msg.token)
        return UNKNOWN

    with eoslog.open(path) as log:
        listener = Listener(execute, lambda msg: COMMIT)
        with log.half_producer("g", listener, **QUICK) as producer:
            result = producer.send_message_in_transaction(("orders", "1"))
            tokens.append(result.transaction_id)
            until(lambda: settled(log))
        tokens += listener.checked
    assert len(tokens) == 3
    assert len(set(tokens)) == 1
    with eoslog.open(path) as log:
        assert log.outcome(tokens[0]) is COMMIT


STOPPED = """
import os
import signal
import sys
import eoslog
from tests.client.half.helpers import Orders

class Stopping(Orders):
    def step(self, name):
        if name == "execute":
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

with eoslog.open(sys.argv[1]) as log, log.half_producer("service", Stopping(sys.argv[1])) as producer:
    result = producer.send_message_in_transaction(("orders", b"1"), 1)
    print(type(result.error).__name__, result.outcome.name, flush=True)
"""


@pytest.mark.process
def test_R2_a_suspended_service_finds_the_decision_of_another(tmp_path: Path) -> None:
    """Row 4 of the crash matrix: the check's row makes the local transaction fail."""
    path = created(tmp_path / "d")
    service = subprocess.Popen(
        [sys.executable, "-c", STOPPED, path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert service.stdout is not None
        assert service.stdout.readline() == "stopped\n"
        os.waitpid(service.pid, os.WUNTRACED)
        with (
            eoslog.open(path) as log,
            log.half_producer("service", Orders(path), first_check=0, interval=0.1, timeout=0.2),
        ):
            until(lambda: log.pending() == [])
            os.kill(service.pid, signal.SIGCONT)
            assert service.stdout.readline() == "IntegrityError ABORT\n"
            assert visible(log) == expected(path) == {"orders": [], "paid": []}
    finally:
        service.kill()
        service.wait()
        service.stdout and service.stdout.close()


RACING = """
import sys
import eoslog
from tests.client.half.helpers import Orders, settled
from tests.waiting import until

path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
class Unsure(Orders):
    def execute_local_transaction(self, msg, arg):
        outcome = super().execute_local_transaction(msg, arg)
        return eoslog.Outcome.UNKNOWN if arg % 2 else outcome

settings = {"first_check": 0, "interval": 0.1, "timeout": 1.0, "max_checks": 10_000}
with eoslog.open(path) as log, log.half_producer("service", Unsure(path), **settings) as producer:
    for number in range(first, first + count):
        producer.send_message_in_transaction(("orders", str(number)), number)
    until(lambda: settled(log))
"""


@pytest.mark.process
def test_r14_processes_of_a_group_settle_each_half_once(tmp_path: Path) -> None:
    path = created(tmp_path / "d")
    connect(path).close()
    services = [
        subprocess.Popen([sys.executable, "-c", RACING, path, str(first), "10"])
        for first in (0, 10)
    ]
    assert [service.wait() for service in services] == [0, 0]
    with eoslog.open(path) as log:
        assert visible(log)["orders"] == list(range(20))
        assert log.pending() == []
