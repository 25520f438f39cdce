"""What the calls of prepared transactions have made durable when they return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import Outcome, errors
from eoslog.coordinator.transactions.log import TransactionLog
from tests.rows.tools import locked_elsewhere


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    """A directory whose background flush comes too late to help."""
    with eoslog.open(tmp_path / "d") as log:
        log.create_topic("orders", config={"flush.ms": 3_600_000})
        yield log


def prepared(log: eoslog.Log, mode: str) -> tuple[eoslog.Producer, eoslog.PreparedTransaction]:
    producer = log.producer(transactional_id="till")
    producer.init_transactions()
    producer.begin_transaction(mode=mode)
    producer.produce("orders", b"1", partition=0)
    return producer, producer.prepare_transaction()


def place(log: eoslog.Log, token: str) -> TransactionLog:
    return log._engine.transactions.prepared.index.find(token)[0]


def assert_durable(log: eoslog.Log, token: str) -> None:
    clog = place(log, token).log
    assert clog.high_watermark == clog.log_end


def test_preparing_inline_makes_the_data_and_then_the_record_durable(log):
    _, state = prepared(log, "inline")
    assert_durable(log, state.token)
    offsets = log.offsets("orders", 0)
    assert offsets.high_watermark == offsets.log_end == 1


def test_preparing_staged_makes_the_payload_and_then_the_record_durable(log):
    _, state = prepared(log, "staged")
    assert_durable(log, state.token)
    room = log._engine.existing_internal_topic("__staged_transactions")
    assert room is not None
    assert room.high_watermark == room.log_end == 1


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
def test_a_staged_decision_is_durable_before_its_delivery(log, outcome, monkeypatch):
    _, state = prepared(log, "staged")
    clog = place(log, state.token)
    seen = []
    staged = log._engine.staged
    for name in ("deliver", "forget"):
        whole = getattr(staged, name)

        def noted(*arguments, whole=whole):
            seen.append((clog.log.high_watermark, clog.log.log_end))
            return whole(*arguments)

        monkeypatch.setattr(staged, name, noted)
    log.resolve(state.token, outcome)
    assert seen and all(durable == end for durable, end in seen)


def test_taking_over_a_prepared_transaction_is_durable(log):
    producer, state = prepared(log, "inline")
    producer.close()
    log.producer(transactional_id="till").init_transactions(keep_prepared=True)
    assert_durable(log, state.token)


def test_a_prepared_id_takes_no_partition_no_end_and_no_offsets(log):
    producer, state = prepared(log, "inline")
    transactions = log._engine.transactions
    me = ("till", producer.producer_id, producer.producer_epoch)
    tp = eoslog.TopicPartition("orders", 0)
    for call in (
        lambda: transactions.add_partitions_to_txn(*me, [tp]),
        lambda: transactions.add_offsets_to_txn(*me, "readers"),
        lambda: transactions.end_txn(*me, True),
        lambda: transactions.end_txn(*me, False),
    ):
        with pytest.raises(errors.PreparedTransactionPending, match=state.token):
            call()
    assert log.outcome(state.token) is Outcome.UNKNOWN


def test_preparing_again_returns_the_same_token(log):
    producer, state = prepared(log, "inline")
    again, _ = log._engine.transactions.prepared.prepare(
        "till", producer.producer_id, producer.producer_epoch, {}
    )
    assert again == state.token
    assert [one.token for one in log.pending()] == [state.token]


def test_a_decision_without_its_markers_is_retriable_and_then_complete(log):
    """The other process holds the lock longer than a driver waits for it."""
    _, state = prepared(log, "inline")
    resolve = log._engine.transactions.prepared.resolve
    with locked_elsewhere(log._engine.partition("orders", 0)):
        with pytest.raises(errors.ConcurrentTransactions, match="markers are missing"):
            resolve(state.token, True)
        assert log.outcome(state.token) is Outcome.COMMIT
        with pytest.raises(errors.OutcomeConflict):
            resolve(state.token, False)
    resolve(state.token, True)
    assert [record.value for record in log.read("orders")] == [b"1"]


def test_an_outcome_is_forgotten_after_its_retention(tmp_path):
    path = tmp_path / "retained"
    with eoslog.open(path, outcome_retention_ms=1000) as log:
        log.create_topic("orders")
        tokens = []
        for mode in ("inline", "staged"):
            producer, state = prepared(log, mode)
            log.resolve(state.token, Outcome.COMMIT)
            producer.close()
            tokens.append(state.token)
        _, waiting = prepared(log, "staged")
        engine = log._engine
        now = engine.clock()
        engine.clock = lambda: now + 2
        engine.transactions.expire()
        assert [log.outcome(token) for token in tokens] == [None, None]
        assert log.outcome(waiting.token) is Outcome.UNKNOWN
        with pytest.raises(errors.UnknownToken, match="outcome.retention.ms"):
            log.resolve(tokens[0], Outcome.COMMIT)


def test_the_limits_on_pending_transactions_refuse_the_next_one_only(tmp_path):
    path = tmp_path / "limited"
    with eoslog.open(path, pending_max_count=2, pending_max_bytes=400) as log:
        log.create_topic("orders")
        producer = log.producer(transactional_id="till")
        producer.init_transactions()

        def staged(value: bytes) -> eoslog.PreparedTransaction:
            producer.begin_transaction(mode="staged")
            producer.produce("orders", value, partition=0)
            return producer.prepare_transaction()

        first = staged(b"1")
        with pytest.raises(errors.PolicyViolation, match="pending.max.bytes"):
            staged(b"x" * 1000)
        producer.abort_transaction()
        staged(b"2")
        with pytest.raises(errors.PolicyViolation, match="pending.max.count"):
            staged(b"3")
        producer.abort_transaction()
        log.resolve(first.token, Outcome.COMMIT)
        staged(b"4")
        assert [record.value for record in log.read("orders")] == [b"1"]
