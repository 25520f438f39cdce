"""C3: a producer that lost its transaction gets an error that says why.

The error names the other producer and the time, or the timeout.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, _core
from eoslog.coordinator.transactions.lost_producers import lost
from eoslog.coordinator.transactions.state import Cause, TransactionMetadata
from eoslog.errors import (
    EoslogError,
    ErrorCode,
    InvalidProducerEpoch,
    ProducerFenced,
    TransactionAborted,
    TransactionTimedOut,
)
from eoslog.log import Log

pytestmark = [pytest.mark.process, pytest.mark.slow]

TAKES_OVER = """
import sys
import eoslog
with eoslog.open(sys.argv[1]) as log, log.producer(transactional_id="x") as producer:
    outcome = producer.init_transactions()
    print(outcome and outcome.cause, flush=True)
    sys.stdin.readline()
"""
SWEEPS = """
import sys
import eoslog
with eoslog.open(sys.argv[1]) as log:
    print(log._engine.transactions.abort_timed_out())
"""

CALLS: dict[str, Callable[[Any], object]] = {
    "produce": lambda p: p.send("a", "w", partition=0).result(30),
    "produce to another partition": lambda p: p.send("a", "w", partition=1).result(30),
    "send_offsets": lambda p: p.send_offsets_to_transaction({TopicPartition("a", 0): 1}, "g"),
    "commit": lambda p: p.commit_transaction(),
}


@pytest.fixture
def others() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def begun(log: Log, **config: Any) -> Any:
    producer = log.producer(transactional_id="x", **config)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("a", "v", partition=0).result(30)
    return producer


def end_by_timeout(log: Log) -> None:
    while log.transactions():
        log._engine.transactions.abort_timed_out()
        time.sleep(0.01)


def take_over(log: Log, others: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Another process initialises the id, and lives on."""
    other = subprocess.Popen(
        [sys.executable, "-c", TAKES_OVER, log.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    others.append(other)
    assert other.stdout is not None
    assert other.stdout.readline()
    return other


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_field_C3_each_call_names_the_timeout_that_ended_its_transaction(
    log: Log, call: Callable[[Any], object]
) -> None:
    producer = begun(log, transaction_timeout_ms=1000)
    end_by_timeout(log)
    with pytest.raises(TransactionTimedOut) as raised:
        call(producer)
    text = str(raised.value)
    assert "transactional id 'x'" in text
    assert "transaction.timeout.ms is 1000" in text
    assert "it was open for " in text
    for known in (ProducerFenced, InvalidProducerEpoch, TransactionAborted):
        assert isinstance(raised.value, known), "programs that catch it still do"
    with pytest.raises(TransactionTimedOut, match=r"transaction\.timeout\.ms is 1000"):
        producer.commit_transaction()
    with pytest.raises(EoslogError):
        producer.begin_transaction()
    producer.close()


def test_field_C3_a_producer_timed_out_while_sending_aborts_and_continues(log: Log) -> None:
    producer = begun(log, transaction_timeout_ms=6000)  # enough for the next one
    end_by_timeout(log)
    with pytest.raises(TransactionTimedOut) as raised:
        producer.send("a", "w", partition=0).result(30)
    assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert (raised.value.abortable, raised.value.fatal) == (True, False)
    assert "abort the transaction, then begin the next one" in str(raised.value)
    producer.abort_transaction()
    with producer.transaction() as tx:
        tx.produce("a", "after", partition=0)
    assert [r.value for r in log.read("a", partitions=[0])] == [b"after"]
    producer.close()


def test_field_C3_commit_after_the_timeout_is_fatal_with_the_code_of_kafka(log: Log) -> None:
    producer = begun(log, transaction_timeout_ms=1000)
    end_by_timeout(log)
    with pytest.raises(TransactionTimedOut, match="the commit has not taken effect") as raised:
        producer.commit_transaction()
    assert raised.value.code is ErrorCode.PRODUCER_FENCED
    assert (raised.value.abortable, raised.value.fatal) == (False, True)
    producer.close()
    assert list(log.read("a", partitions=[0])) == []


@pytest.mark.parametrize("call", [*CALLS.values(), lambda p: p.abort_transaction()])
def test_field_C3_each_call_names_the_process_that_took_the_id_over(
    log: Log, others: list[Any], call: Callable[[Any], object]
) -> None:
    producer = begun(log)
    other = take_over(log, others)
    with pytest.raises((ProducerFenced, InvalidProducerEpoch)) as raised:
        call(producer)
    assert not isinstance(raised.value, TransactionTimedOut)
    text = str(raised.value)
    assert "transactional id 'x' is fenced: another instance took over at 20" in text
    assert f"process {other.pid} ({sys.executable} -c" in text
    assert "close this producer and create a new one" in text
    with pytest.raises(EoslogError, match=f"process {other.pid} "):
        producer.abort_transaction()
    producer.close()


def test_field_C3_a_fenced_producer_without_a_transaction_names_its_rival(
    log: Log, others: list[Any]
) -> None:
    producer = log.producer(transactional_id="x")
    producer.init_transactions()
    other = take_over(log, others)
    os.kill(other.pid, signal.SIGSTOP)
    producer.begin_transaction()
    with pytest.raises(ProducerFenced, match=rf"process {other.pid} \(.*, stopped\)"):
        producer.send("a", "v", partition=0).result(30)
    producer.close()


def test_field_C3_an_exited_fencing_process_is_not_named_by_its_pid(
    log: Log, others: list[Any]
) -> None:
    producer = begun(log)
    other = take_over(log, others)
    other.kill()
    other.wait()
    with pytest.raises(ProducerFenced, match="a process that has exited since") as raised:
        producer.commit_transaction()
    assert str(other.pid) not in str(raised.value)
    producer.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_field_C3_each_call_names_an_abort_by_an_operator(
    log: Log, call: Callable[[Any], object]
) -> None:
    producer = begun(log)
    assert log.abort_transaction("x")
    with pytest.raises(EoslogError, match=r"aborted by an operator \(`eoslog txn abort`"):
        call(producer)
    producer.close()


def test_field_C3_the_error_names_a_process_that_was_considered_dead(log: Log) -> None:
    producer = begun(log)
    session = log._engine.session
    _core.unlock(session._process_fd, session.process_number)  # what the kernel does at its death
    sweep = [sys.executable, "-c", SWEEPS, log.path]
    done = subprocess.run(sweep, capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout == "1\n"
    with pytest.raises(ProducerFenced, match=r"had exited: its lock in eoslog\.process"):
        producer.commit_transaction()
    producer.close()


def test_field_C3_init_reports_why_the_last_instance_lost_its_transaction(log: Log) -> None:
    producer = begun(log, transaction_timeout_ms=1000)
    end_by_timeout(log)
    with log.producer(transactional_id="x") as newer:
        outcome = newer.init_transactions()
    assert outcome is not None and not outcome.committed
    assert outcome.cause == "it was open for longer than transaction.timeout.ms"
    with pytest.raises(TransactionTimedOut, match="since then another instance took over"):
        producer.commit_transaction()
    producer.close()


@pytest.mark.parametrize("cause", [c for c in Cause if c is not Cause.REQUEST])
def test_field_C3_the_stored_cause_alone_decides_the_exception_class(cause: Cause) -> None:
    opened = TransactionMetadata("x", 7, 3, 500).ongoing([TopicPartition("a", 0)], None, 1000)
    ended = opened.prepared(False, {}, 1900, cause=cause)
    for code in (
        ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE,
    ):  # fmt: skip
        error = lost("x", ended, 7, 3, code=code)
        assert error.code is code
        assert isinstance(error, TransactionTimedOut) == (cause is Cause.TIMED_OUT)
        assert "this producer has epoch 3, the current epoch is 4" in str(error)
        if cause is Cause.TIMED_OUT:
            assert "open for 900 ms, transaction.timeout.ms is 500" in str(error)


def test_field_C3_the_class_of_the_timeout_error_is_public() -> None:
    assert eoslog.errors.TransactionTimedOut is TransactionTimedOut
    assert "TransactionTimedOut" in eoslog.errors.__all__
