"""Rows N and L12 to L14: half messages and prepared transactions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import eoslog
from eoslog import Outcome, TopicPartition
from eoslog.coordinator.transactions.prepared_records import (
    PreparedEntry,
    PreparedFold,
    check_key,
    check_value,
    encode_entry,
    token_key,
)
from eoslog.coordinator.transactions.state import PREPARED
from tests.rows.tools import transactional, values


def prepared(producer: Any, mode: str, *items: str, topic: str = "t") -> Any:
    producer.begin_transaction(mode=mode)
    for item in items:
        producer.produce(topic, item, partition=0)
    return producer.prepare_transaction()


def test_L12_a_transaction_has_several_records_and_a_local_decision(log: Any) -> None:
    """RocketMQ has the local decision, Kafka several records."""
    producer = transactional(log)
    producer.begin_transaction(mode="staged")
    for number in range(10):
        producer.produce("two", str(number), partition=number % 2)
    producer.produce("t", "last", partition=0)
    state = producer.prepare_transaction()
    assert values(log, "two") == values(log, "t") == []
    log.resolve(state.token, Outcome.COMMIT)
    assert len(values(log, "two")) == 10
    assert values(log, "t") == [b"last"]


def test_L13_a_program_uses_stream_transactions_and_half_messages(log: Any) -> None:
    """An order is a half message; its processing commits the input's offset."""
    orders, worker = transactional(log, "orders"), transactional(log, "worker")
    state = prepared(orders, "staged", "order")
    with log.consumer(
        "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        assert consumer.consume(1, timeout=0.3) == []
        log.resolve(state.token, Outcome.COMMIT)
        (record,) = consumer.consume(1, timeout=30)
        with worker.transaction() as tx:
            tx.produce("two", record.value + b" done", partition=0)
            tx.commit_offsets(consumer)
        assert consumer.committed([TopicPartition("t", 0)])[0].offset == record.offset + 1
    assert values(log, "two") == [b"order done"]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_L14_N01_a_staged_record_is_invisible_to_every_reader_of_its_topic(
    log: Any, isolation: str
) -> None:
    state = prepared(transactional(log), "staged", "half")
    assert values(log, "t", isolation) == []
    assert log.offsets("t", 0).log_end == 0
    inline = prepared(transactional(log, "other"), "inline", "open")
    assert values(log, "t", "read_uncommitted") == [b"open"]
    assert values(log, "t") == []
    for one in (state, inline):
        log.resolve(one.token, Outcome.COMMIT)
    assert sorted(values(log, "t", isolation)) == [b"half", b"open"]


def test_N01_N08_the_payload_waits_in_an_internal_topic_with_its_target(
    log: Any, directory: Any
) -> None:
    prepared(transactional(log), "staged", "half")
    dump = eoslog.inspect(str(directory / "__staged_transactions-0"))
    (batch,) = dump["segments"][0]["batches"]
    (record,) = batch["records"]
    headers = {name: bytes.fromhex(value) for name, value in record["headers"]}
    assert (headers["topic"], headers["partition"]) == (b"t", b"0")
    assert b"half" in bytes.fromhex(record["value"])
    assert "__staged_transactions" not in log.topics()


def test_N08_N09_dump_takes_the_names_of_rocketmqs_topics(log: Any, directory: Any) -> None:
    def decoded(topic: str, name: str) -> list[dict[str, Any]]:
        return [
            record["decoded"]
            for path in sorted(directory.glob(f"{topic}-*"))
            for segment in eoslog.inspect(path, decoder=name)["segments"]
            for batch in segment["batches"]
            for record in batch["records"]
        ]

    log.resolve(prepared(transactional(log), "staged", "half").token, Outcome.COMMIT)
    half, freed = decoded("__staged_transactions", "RMQ_SYS_TRANS_HALF_TOPIC")
    assert bytes.fromhex(half["records"][0]["value"]) == b"half"
    assert freed["tombstone"]
    states = [
        record["state"]
        for record in decoded("__transaction_state", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
        if record["type"] == "prepared_transaction"
    ]
    assert (states[0], states[-1]) == ("Prepared", "CompleteCommit")


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
def test_N05_N09_a_decision_is_a_record_that_survives_the_session(
    directory: Any, outcome: Outcome
) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("t")
        token = prepared(transactional(log), "staged", "half").token
        log.resolve(token, outcome)
    with eoslog.open(directory) as log:
        assert log.outcome(token) is outcome
        assert log.pending() == []
        assert values(log, "t") == ([b"half"] if outcome is Outcome.COMMIT else [])


def test_N04_sixteen_processes_that_commit_append_one_copy(log: Any) -> None:
    producer = transactional(log)
    producer.begin_transaction(mode="staged")
    for number in range(50):
        producer.produce("two", str(number), partition=number % 2)
    token = producer.prepare_transaction().token
    program = (
        "import eoslog, sys; eoslog.open(sys.argv[1]).resolve(sys.argv[2], eoslog.Outcome.COMMIT)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, log.path, token]) for _ in range(16)
    ]
    assert [child.wait() for child in children] == [0] * 16
    assert sorted(map(int, values(log, "two"))) == list(range(50))


def test_N10_N11_an_outcome_is_found_without_reading_other_transactions() -> None:
    """A fold with 10,000 pending ones answers from its tables: no list is searched."""
    fold = PreparedFold()
    for number in range(10_000):
        fold.apply(
            100,
            (number, 0),
            encode_entry(PreparedEntry((number, 0), "staged", PREPARED, f"i{number}")),
        )

    class Unread(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError("searched")

        values = items = keys = __iter__

    fold.entries = Unread(fold.entries)
    assert fold.entries[(7, 0)].transactional_id == "i7"
    fold.apply(101, (7, 0), check_value(5, 1, PREPARED))
    assert fold.entries[(7, 0)].checks == 1
    assert [entry.key for entry in fold.of_id("i9")] == [(9, 0)]


def test_N12_a_check_is_a_record_of_its_own_that_leaves_the_payload_alone() -> None:
    assert len(check_key((1 << 40, 3))) + len(check_value(1 << 41, 15, PREPARED)) == 23
    assert token_key((1, 0)) != check_key((1, 0))


LEAVES = """
import os, signal, sys
import eoslog

log = eoslog.open(sys.argv[1])
for mode in ("inline", "staged", "open"):
    producer = log.producer(transactional_id=mode)
    producer.init_transactions()
    producer.begin_transaction(mode="inline" if mode == "open" else mode)
    producer.produce("t", mode, partition=0)
    if mode == "open":
        producer.flush()
    else:
        producer.prepare_transaction()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_P21_recovery_aborts_open_transactions_and_keeps_prepared_ones(directory: Any) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("t")
    assert (
        subprocess.run([sys.executable, "-c", LEAVES, str(directory)], check=False).returncode == -9
    )
    with eoslog.open(directory) as log:
        log._engine.transactions.abort_timed_out()
        assert {state.mode for state in log.pending()} == {"inline", "staged"}
        for state in log.pending():
            log.resolve(state.token, Outcome.COMMIT)
        assert sorted(values(log, "t")) == [b"inline", b"staged"]
