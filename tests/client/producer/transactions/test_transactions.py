"""Transactions for the producer's caller: states, atomicity, fencing, doubt."""

from __future__ import annotations

import time
from typing import Any

import pytest

from eoslog.client.producer.producer import Producer
from eoslog.client.producer.transactions.manager import PREDECESSORS, ClientState
from eoslog.errors import (
    CommitOutcomeUnknown,
    ConcurrentTransactions,
    IllegalState,
    LockTimeout,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    TransactionAborted,
)
from eoslog.log import Log
from eoslog.model import TopicPartition
from eoslog.storage.fs import files
from tests.client.helpers import FakeConsumer, log_sizes, visible

# --- states ---------------------------------------------------------------------------------


def test_legal_transitions_are_those_of_kafka_and_reach_every_state() -> None:
    assert set(PREDECESSORS) == set(ClientState)
    assert all(PREDECESSORS.values())
    assert ClientState.READY not in PREDECESSORS[ClientState.COMMITTING]
    assert PREDECESSORS[ClientState.FATAL_ERROR] == set(ClientState)


CALLS: dict[str, Any] = {
    "init_transactions": lambda p: p.init_transactions(),
    "begin_transaction": lambda p: p.begin_transaction(),
    "commit_transaction": lambda p: p.commit_transaction(),
    "abort_transaction": lambda p: p.abort_transaction(),
    "send_offsets": lambda p: p.send_offsets_to_transaction({TopicPartition("b"): 1}, "g"),
    "produce": lambda p: p.produce("b", b"v"),
}


@pytest.mark.parametrize(
    ("reach", "legal"),
    [
        ([], {"init_transactions"}),
        (["init_transactions"], {"begin_transaction"}),
        (
            ["init_transactions", "begin_transaction"],
            {"commit_transaction", "abort_transaction", "send_offsets", "produce"},
        ),
        (["init_transactions", "begin_transaction", "commit_transaction"], {"begin_transaction"}),
        (["init_transactions", "begin_transaction", "abort_transaction"], {"begin_transaction"}),
    ],
)
def test_calls_out_of_order_raise_and_change_nothing(
    log: Log, reach: list[str], legal: set[str]
) -> None:
    with log.producer(transactional_id="x") as producer:
        for name in reach:
            CALLS[name](producer)
        state = producer.transaction_state
        for name in set(CALLS) - legal:
            with pytest.raises(IllegalState):
                CALLS[name](producer)
            assert producer.transaction_state == state


BEGIN = "no transaction is open; call begin_transaction(), or use `with producer.transaction()`"
INIT = "the producer is not initialized; call init_transactions() first"
OPEN = "a transaction is open already; commit or abort it first"


@pytest.mark.parametrize(
    ("before", "call", "told"),
    [
        ([], "begin_transaction", f"begin_transaction: {INIT}"),
        ([], "commit_transaction", f"commit_transaction: {INIT}"),
        ([], "produce", f"produce: {INIT}"),
        (["init_transactions"], "init_transactions", "init_transactions: called already; call it once per producer"),
        (["init_transactions"], "produce", f"produce: {BEGIN}"),
        (["init_transactions"], "send_offsets", f"send_offsets_to_transaction: {BEGIN}"),
        (["init_transactions"], "abort_transaction", f"abort_transaction: {BEGIN}"),
        (["init_transactions", "begin_transaction"], "begin_transaction",
         f"begin_transaction: {OPEN}"),
    ],
)  # fmt: skip
def test_a_call_out_of_order_says_which_call_must_come_first(
    log: Log, before: list[str], call: str, told: str
) -> None:
    with log.producer(transactional_id="order") as producer:
        for name in before:
            CALLS[name](producer)
        with pytest.raises(IllegalState) as caught:
            CALLS[call](producer)
        assert str(caught.value) == told


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_block_raises_if_its_transaction_was_ended_inside(producer: Producer, end: str) -> None:
    told = "already committed or aborted inside its `with` block, which does that on exit"
    with pytest.raises(IllegalState, match=told), producer.transaction():
        getattr(producer, end)()
    assert producer.transaction_state == "READY"


def test_a_producer_without_an_id_rejects_transactions(log: Log) -> None:
    with log.producer() as producer:
        for name in set(CALLS) - {"produce"}:
            with pytest.raises(IllegalState, match="transactional.id"):
                CALLS[name](producer)
        assert producer.transaction_state is None


# --- all or nothing -------------------------------------------------------------------------


def test_records_become_visible_together_at_the_commit(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
        producer.produce(topic, b"v", partition=partition)
    producer.flush()
    assert [visible(log, *p) for p in (("a", 0), ("a", 1), ("b", 0))] == [[], [], []]
    producer.commit_transaction()
    assert [visible(log, *p) for p in (("a", 0), ("a", 1), ("b", 0))] == [[b"v"]] * 3
    assert log.transactions() == []


def test_begin_is_local_and_an_empty_transaction_writes_nothing(
    log: Log, producer: Producer
) -> None:
    before = log_sizes(log)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        assert log_sizes(log) == before
        end()
    assert log_sizes(log) == before
    assert producer.producer_epoch == 0


def test_abort_drops_buffered_records_and_hides_stored_ones(log: Log, opened: list[Any]) -> None:
    producer = log.producer(transactional_id="x", linger_ms=60_000)
    opened.append(producer)
    producer.init_transactions()
    told: list[Any] = []
    producer.begin_transaction()
    producer.produce("b", b"stored")
    producer.flush()
    producer.produce("b", b"buffered", on_delivery=lambda e, m: told.append(e))
    producer.abort_transaction()
    part = log._engine.partition("b", 0)
    assert [b.count for b in part.batches(0, part.log_end)] == [1, 1]  # and the marker
    assert visible(log) == []
    assert isinstance(told[0], TransactionAborted)
    assert producer.buffered == 0
    producer.begin_transaction()
    producer.produce("b", b"next")
    producer.commit_transaction()
    assert visible(log) == [b"next"]


def test_every_end_bumps_the_epoch_and_restarts_the_sequences(log: Log, producer: Producer) -> None:
    for i in range(3):
        producer.begin_transaction()
        producer.produce("b", b"v")
        producer.flush()
        (producer.commit_transaction if i != 1 else producer.abort_transaction)()
    part = log._engine.partition("b", 0)
    data = [b for b in part.batches(0, part.log_end) if not b.control]
    assert [(b.producer_epoch, b.base_sequence) for b in data] == [(0, 0), (1, 0), (2, 0)]
    assert producer.producer_epoch == 3


def test_a_transaction_commits_many_batches_in_many_partitions(
    log: Log, producer: Producer
) -> None:
    log.create_topic("wide", 40)
    producer.begin_transaction()
    for i in range(4000):
        producer.produce("wide", bytes(200), partition=i % 40)
    producer.commit_transaction()
    assert [len(visible(log, "wide", p)) for p in range(40)] == [100] * 40
    (described,) = [t for t in log.transactions(False) if t.transactional_id == "x"]
    assert described.state == "CompleteCommit"


def test_a_commit_survives_reopening_the_log(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce("b", b"v")
    producer.commit_transaction()
    part = log._engine.partition("b", 0)
    assert part.high_watermark >= 1  # its files may lack it, and the decision has it


def test_a_lost_acknowledgement_in_a_transaction_stores_one_copy(
    log: Log, producer: Producer
) -> None:
    for i in range(2):
        producer.begin_transaction()
        files.arm_failpoint("producer.ack_lost", "trip")
        delivery = producer.send("b", b"%d" % i)
        producer.flush()
        assert delivery.result(0).duplicate
        producer.produce("b", b"more")
        producer.commit_transaction()
    assert visible(log) == [b"0", b"more", b"1", b"more"]


# --- failures -------------------------------------------------------------------------------


def test_a_batch_above_a_lowered_limit_is_split_in_its_transaction(
    log: Log, producer: Producer
) -> None:
    values = [b"%04d" % i * 250 for i in range(10)]
    with producer.transaction() as tx:
        for value in values:
            tx.produce("b", value)
        log.alter_topic("b", {"max.message.bytes": 3000})
    assert visible(log) == values


def test_a_failed_record_makes_the_commit_raise_and_hides_every_record(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = log._engine.partition("a", 0)
    real = part.append

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise RecordTooLarge("no")

    monkeypatch.setattr(part, "append", refuse)
    producer.begin_transaction()
    producer.produce("b", b"v")
    producer.produce("a", b"v", partition=0)
    with pytest.raises(RecordTooLarge):
        producer.commit_transaction()
    assert producer.transaction_state == "ABORTABLE_ERROR"
    with pytest.raises(RecordTooLarge):
        producer.produce("b", b"v")
    with pytest.raises(RecordTooLarge):
        producer.commit_transaction()
    producer.abort_transaction()
    assert visible(log) == []
    monkeypatch.setattr(part, "append", real)
    producer.begin_transaction()
    producer.produce("a", b"w", partition=0)
    producer.commit_transaction()
    assert visible(log, "a", 0) == [b"w"]


def test_a_newer_instance_fences_the_older(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce("b", b"old")
    producer.flush()
    with log.producer(transactional_id="x") as newer:
        outcome = newer.init_transactions()
        assert outcome is not None and not outcome.committed
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
        assert producer.transaction_state == "FATAL_ERROR"
        for name, call in CALLS.items():
            with pytest.raises(ProducerFenced) as raised:
                call(producer)
            assert raised.value.fatal, name
        producer.close()
        newer.begin_transaction()
        newer.produce("b", b"new")
        newer.commit_transaction()
    assert visible(log) == [b"new"]


def test_abort_by_a_fenced_producer_raises_each_time(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce("b", b"old")
    producer.flush()
    with log.producer(transactional_id="x") as newer:
        newer.init_transactions()
        for call in (producer.abort_transaction, producer.abort_transaction):
            with pytest.raises(ProducerFenced) as raised:
                call()
            assert (raised.value.fatal, raised.value.abortable) == (True, False)
    producer.close()


def test_an_abort_during_which_the_sender_is_fenced_raises_that_error(
    log: Log, producer: Producer
) -> None:
    """The sender can fail after the abort has begun."""
    manager = producer._transactions
    assert manager is not None
    producer.begin_transaction()
    manager.transition(ClientState.ABORTING, "abort_transaction")
    manager.fail(ProducerFenced("another producer took over"))
    for _ in range(2):
        with pytest.raises(ProducerFenced, match="another producer took over"):
            manager.end(False, time.monotonic() + 60)
    assert producer.transaction_state == "FATAL_ERROR"


def test_a_fenced_instance_cannot_write_records(log: Log, producer: Producer) -> None:
    producer.begin_transaction()
    with log.producer(transactional_id="x") as newer:
        newer.init_transactions()
        producer.produce("b", b"zombie")
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
    assert log._engine.partition("b", 0).log_end == 0


def test_init_transactions_returns_the_outcome_of_the_last_transaction(log: Log) -> None:
    with log.producer(transactional_id="y") as producer:
        assert producer.init_transactions() is None
        producer.begin_transaction()
        producer.produce("b", b"v")
        producer.commit_transaction()
    with log.producer(transactional_id="y") as producer:
        outcome = producer.init_transactions()
        assert outcome is not None and outcome.committed


def test_a_commit_that_may_have_happened_is_fatal_without_abort_or_rewind(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*arguments: Any) -> Any:
        raise CommitOutcomeUnknown("the flush failed")

    monkeypatch.setattr(log._engine.transactions, "end_txn", unknown)
    monkeypatch.setattr(producer, "abort_transaction", None)
    consumer = FakeConsumer(log)
    with pytest.raises(CommitOutcomeUnknown), producer.transaction() as tx:
        tx.produce("b", b"v")
        tx.commit_offsets(consumer)
    assert producer.transaction_state == "FATAL_ERROR"
    assert consumer.rewound == 0
    monkeypatch.undo()
    with log.producer(transactional_id="x") as next_one:
        assert next_one.init_transactions() is not None  # settles it


@pytest.mark.parametrize("point", ["txn.flushed", "txn.prepared", "txn.decided"])
def test_an_interrupt_in_a_commit_neither_aborts_nor_rewinds(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    from eoslog.coordinator.transactions import commit as transaction_ending

    def interrupt(name: str) -> bool:
        if name == point:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(transaction_ending, "failpoint", interrupt)
    monkeypatch.setattr(producer, "abort_transaction", None)
    consumer = FakeConsumer(log)
    with (
        pytest.raises(CommitOutcomeUnknown, match="KeyboardInterrupt"),
        producer.transaction() as tx,
    ):
        tx.produce("b", b"v")
        tx._consumers[consumer._link] = consumer
    assert consumer.rewound == 0
    assert producer.transaction_state == "FATAL_ERROR"
    monkeypatch.undo()
    with log.producer(transactional_id="x") as successor:
        outcome = successor.init_transactions()
        assert outcome is not None and outcome.committed == (point != "txn.flushed")
    assert visible(log) == ([] if point == "txn.flushed" else [b"v"])


def test_J01_a_commit_that_timed_out_can_only_be_committed_again(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = log._engine.transactions.end_txn

    def busy(*arguments: Any) -> Any:
        raise ConcurrentTransactions("markers are missing")

    producer.begin_transaction()
    producer.produce("b", b"v")
    producer.flush()
    monkeypatch.setattr(log._engine.transactions, "end_txn", busy)
    with pytest.raises(RequestTimedOut):
        producer.commit_transaction(timeout=0.05)
    with pytest.raises(IllegalState):
        producer.abort_transaction()
    with pytest.raises(IllegalState):
        producer.produce("b", b"v")
    monkeypatch.setattr(log._engine.transactions, "end_txn", real)
    producer.commit_transaction()
    assert visible(log) == [b"v"]


def test_a_commit_can_be_retried_after_records_were_not_sent_in_time(
    log: Log, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = log._engine.partition("b", 0)
    real = part.append
    busy = [True]

    def append(*arguments: Any, **keywords: Any) -> Any:
        if busy[0]:
            raise LockTimeout("busy")
        return real(*arguments, **keywords)

    monkeypatch.setattr(part, "append", append)
    producer.begin_transaction()
    producer.produce("b", b"v")
    with pytest.raises(RequestTimedOut):
        producer.commit_transaction(timeout=0.05)
    busy[0] = False
    producer.commit_transaction()
    assert visible(log) == [b"v"]


def test_close_aborts_an_open_transaction(log: Log) -> None:
    producer = log.producer(transactional_id="z")
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("b", b"v")
    producer.flush()
    producer.close()
    part = log._engine.partition("b", 0)
    assert part.stable_end == part.log_end == 2
    assert visible(log) == []


@pytest.mark.parametrize("caught", [True, False])
def test_a_callback_of_a_commit_cannot_commit(log: Log, producer: Producer, caught: bool) -> None:
    refused: list[str] = []

    def commit(error: Any, metadata: Any) -> None:
        try:
            producer.commit_transaction()
        except IllegalState as refusal:
            refused.append(str(refusal))
            if not caught:
                raise

    producer.begin_transaction()
    producer.produce("b", b"v", on_delivery=commit)
    if not caught:
        with pytest.raises(IllegalState, match="delivery callback of the same commit"):
            producer.commit_transaction()
        assert visible(log) == []
        assert producer.transaction_state == "IN_TRANSACTION", "as open as before"
    producer.commit_transaction()
    assert len(refused) == 1
    assert visible(log) == [b"v"]
    with producer.transaction() as tx:
        tx.produce("b", b"w")
    assert visible(log) == [b"v", b"w"]


class Told(Exception):
    """Raised by a callback."""


def _closing_with_failing_callbacks(log: Log) -> tuple[Producer, list[Any]]:
    producer = log.producer(transactional_id="z", linger_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    heard: list[Any] = []

    def told(error: Any, metadata: Any) -> None:
        heard.append(error)
        raise Told

    for value in (b"1", b"2"):
        producer.produce("b", value, on_delivery=told)
    return producer, heard


def test_close_completes_although_callbacks_raise(log: Log) -> None:
    references = log._engine.references.count
    producer, heard = _closing_with_failing_callbacks(log)
    with pytest.raises(Told):
        producer.close()
    assert [type(error) for error in heard] == [TransactionAborted] * 2
    assert log._engine.references.count == references
    sender = producer._sender._thread
    assert sender is None or not sender.is_alive()
    with pytest.raises(IllegalState, match="closed"):
        producer.begin_transaction()
    producer.close()


def test_a_with_block_raises_its_own_error_and_not_that_of_a_callback(log: Log) -> None:
    producer, heard = _closing_with_failing_callbacks(log)
    with pytest.raises(ZeroDivisionError), producer:
        raise ZeroDivisionError
    assert len(heard) == 2
    with pytest.raises(IllegalState, match="closed"):
        producer.poll()


def test_encoded_batches_belong_to_the_open_transaction(log: Log, producer: Producer) -> None:
    from eoslog import _core

    encoded = [_core.build_batch([(1, None, b"%d" % i, ())]) for i in range(3)]
    with producer.transaction() as tx:
        tx.produce("b", b"first")
        assert tx.produce_batches("b", 0, encoded) == 3
    assert visible(log) == [b"first", b"0", b"1", b"2"]
    with pytest.raises(IllegalState):
        producer.produce_batches("b", 0, encoded)
