"""Every process enforces the timeout of a transaction, whichever process owns it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import eoslog
from tests.faults.harness import stop
from tests.waiting import until

pytestmark = pytest.mark.process

OWNER = """
import sys
import eoslog
from tests.field.test_timeouts import without_sweep
path, timeout = sys.argv[1], int(sys.argv[2])
log = eoslog.open(path)
without_sweep(log)
while True:  # a stall between the registration and the append aborts it
    producer = log.producer(transactional_id="owner", transaction_timeout_ms=timeout)
    producer.init_transactions()
    producer.begin_transaction()
    try:
        producer.send("t", b"undecided").result(30)
        break
    except eoslog.errors.ProducerFenced:
        producer.close()
print("open", flush=True)
for line in sys.stdin:
    try:
        producer.commit_transaction()
        print("committed", flush=True)
    except eoslog.errors.EoslogError as error:
        print(" ".join(one.__name__ for one in type(error).__mro__), flush=True)
"""

IDLE = """
import sys
import eoslog
from tests.field.test_timeouts import without_sweep
log = eoslog.open(sys.argv[1])
without_sweep(log)
print("idle", flush=True)
sys.stdin.readline()
"""


def without_sweep(log: eoslog.Log) -> None:
    """Stop the sweep of all transactions that comes every 10 s."""
    background = log._engine._background
    with background._mutex:
        kept = [timer for timer in background._timers if timer.interval_s != 10]
        assert len(kept) < len(background._timers)
        background._timers = kept


@contextmanager
def running(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str]) -> str:
    print("commit", file=process.stdin, flush=True)
    return line_of(process)


def made(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("t")


def until_ended(path: str) -> None:
    """Wait for the end of the open transaction, at which this process only looks."""
    with eoslog.open(path, read_only=True) as log:
        part = log._engine.partition("t", 0)
        until(lambda: part.stable_end == part.log_end >= 2)


def test_field_B10_an_idle_running_owner_keeps_its_own_timeout(path: str) -> None:
    made(path)
    with running(OWNER, path, "500") as owner:
        assert line_of(owner) == "open"
        until_ended(path)
        assert "ProducerFenced" in say(owner)


def test_field_B10_a_commit_after_the_timeout_is_rejected_before_any_sweep(path: str) -> None:
    made(path)
    with eoslog.open(
        path, {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 3_600_000}
    ) as log:
        producer = log.producer(transactional_id="owner", transaction_timeout_ms=200)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"late").result(30)
        time.sleep(0.3)
        with pytest.raises(eoslog.errors.ProducerFenced):
            producer.commit_transaction()
        assert list(log.read("t")) == []
        producer.close()


def test_field_B10_a_partition_added_after_the_timeout_is_rejected(path: str) -> None:
    with eoslog.open(
        path, {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 3_600_000}
    ) as log:
        log.create_topic("t", 2)
        coordinator = log._engine.transactions
        identity = coordinator.init_producer_id("owner", 200)
        first, second = eoslog.TopicPartition("t", 0), eoslog.TopicPartition("t", 1)
        coordinator.add_partitions_to_txn("owner", *identity[:2], [first])
        time.sleep(0.3)
        with pytest.raises(eoslog.errors.ProducerFenced):
            coordinator.add_partitions_to_txn("owner", *identity[:2], [second])


@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_field_B10_an_idle_process_ends_the_timed_out_transaction_of_another(
    path: str, end: signal.Signals
) -> None:
    made(path)
    timeout = "500" if end == signal.SIGSTOP else "600000"  # a dead owner's is due immediately
    with running(IDLE, path) as idle, running(OWNER, path, timeout) as owner:
        assert (line_of(idle), line_of(owner)) == ("idle", "open")
        stop(owner.pid) if end == signal.SIGSTOP else os.kill(owner.pid, end)
        until_ended(path)
        if end == signal.SIGSTOP:
            os.kill(owner.pid, signal.SIGCONT)
            assert "ProducerFenced" in say(owner)
    with eoslog.open(path) as log:
        assert list(log.read("t")) == []


def test_field_B10_a_process_that_starts_later_counts_from_the_begin(path: str) -> None:
    """Not from its own start: that would block readers for the timeout again."""
    made(path)
    with running(OWNER, path, "600000") as owner:
        assert line_of(owner) == "open"
        begun = time.monotonic()
        time.sleep(2)
        waited = time.monotonic() - begun
        with eoslog.open(path) as log:
            coordinator = log._engine.transaction_partition("owner").partition
            transactions = log._engine.transactions.logs.at(coordinator)
            transactions.refresh()
            [found] = transactions.open()
            assert transactions.seconds_left(found) < 600 - waited + 0.1


def test_field_B10_a_jump_of_the_wall_clock_causes_no_early_timeout(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("t")
        log._engine.clock = lambda: time.time() + 86_400
        producer = log.producer(transactional_id="owner", transaction_timeout_ms=60_000)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"in time").result(30)
        log._engine.clock = lambda: time.time() + 10 * 86_400
        time.sleep(1.5)
        producer.commit_transaction()
        assert [record.value for record in log.read("t")] == [b"in time"]
        producer.close()


def test_field_B10_a_suspended_lock_holder_delays_no_other_timeout(path: str) -> None:
    """One marker waits for a lock, and those of other transactions do not."""
    holder = """
import sys
import eoslog
from eoslog import _core
log = eoslog.open(sys.argv[1])
part = log._engine.partition("held", 0)
fd, at = log._engine.session.append_lock(part.slot)
print("ready", flush=True)
sys.stdin.readline()
assert _core.try_lock(fd, at)
print("held", flush=True)
sys.stdin.readline()
"""
    with eoslog.open(path) as log:
        without_sweep(log)
        log.create_topic("held")
        log.create_topic("t")
        begun = []
        with running(holder, path) as process:
            assert line_of(process) == "ready"
            for name, topic in (("one", "held"), ("two", "t")):
                producer = log.producer(transactional_id=name, transaction_timeout_ms=8000)
                producer.init_transactions()
                producer.begin_transaction()
                producer.send(topic, b"v").result(30)
                begun.append(producer)
            assert say(process) == "held"
            os.kill(process.pid, signal.SIGSTOP)  # else its own background ends both
            until_ended(path)
            part = log._engine.partition("held", 0)
            assert part.stable_end < part.log_end
        for producer in begun:
            with pytest.raises(eoslog.errors.EoslogError):
                producer.commit_transaction()
            producer.close()
