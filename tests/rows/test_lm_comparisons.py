"""Rows L and M: the comparisons, as far as they are behaviour."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from eoslog import TopicPartition, errors
from tests.paths import ROOT
from tests.rows.tools import (
    assigned,
    data,
    drain,
    locked_elsewhere,
    markers,
    put,
    transact,
    transactional,
    values,
)

T0 = TopicPartition("t", 0)
DOCS = ROOT / "docs"


def test_L01_an_abort_deletes_nothing_and_readers_filter(log: Any) -> None:
    with transactional(log) as producer:
        transact(producer, "rolled back", commit=False)
    assert values(log) == [] and values(log, isolation="read_uncommitted") == [b"rolled back"]
    assert log.snapshot(["t"])[T0] == log.offsets("t", 0).last_stable


def test_L02_a_prepare_states_the_decision_and_needs_no_vote(log: Any, engine: Any) -> None:
    pid, epoch, _ = engine.transactions.init_producer_id("a", 60_000)
    coordinator, end = engine.transactions.add_partitions_to_txn("a", pid, epoch, [T0])
    batch = data(["x"], producer_id=pid, epoch=epoch, sequence=0, transactional=True)
    engine.partition("t", 0).append(batch, expect=[(coordinator, end)])
    before = engine.partition("t", 0).log_end
    engine.transactions.end_txn("a", pid, epoch, False, {T0: (0, 0)})
    assert engine.partition("t", 0).log_end == before + 1  # one marker and no vote
    rows = [r[3] for b in coordinator.batches(0, coordinator.log_end) for r in b.records()]
    assert [value[16] for value in rows] == [
        0,
        1,
        3,
        5,
    ]  # Empty, Ongoing, PrepareAbort, CompleteAbort
    assert [m.control_type for m in markers(engine)] == [0]


def test_L04_a_decision_is_final(log: Any, engine: Any) -> None:
    for name, commit in (("a", True), ("b", False)):
        pid, epoch, _ = engine.transactions.init_producer_id(name, 60_000)
        coordinator, end = engine.transactions.add_partitions_to_txn(name, pid, epoch, [T0])
        log_t = engine.partition("t", 0)
        first = log_t.log_end
        batch = data([name], producer_id=pid, epoch=epoch, sequence=0, transactional=True)
        log_t.append(batch, expect=[(coordinator, end)])
        engine.transactions.end_txn(name, pid, epoch, commit, {T0: (first, first)})
        with pytest.raises((errors.InvalidTxnState, errors.ProducerFenced)):
            engine.transactions.end_txn(name, pid, epoch, not commit, {T0: (first, first)})
    assert values(log) == [b"a"]


def test_L06_an_operator_can_abort_a_hung_transaction(log: Any) -> None:
    producer = transactional(log)
    producer.begin_transaction()
    put(producer, "hung")
    with log.producer() as plain:
        put(plain, "behind")
    assert values(log) == []
    log.abort_transaction("tx")
    assert values(log) == [b"behind"]
    producer.close()


def test_L07_many_coordinator_shards_share_one_directory(log: Any, engine: Any) -> None:
    shards = {
        engine.transaction_partition(name).partition
        for name in ("my-txn", "tx-1", "payments-0", "foo")
    }
    assert len(shards) == 4


def test_L09_a_plain_append_cannot_be_aborted(log: Any) -> None:
    with log.producer(acks="all") as producer:
        put(producer, "there")
        with pytest.raises(errors.IllegalState):
            producer.abort_transaction()
    assert values(log) == [b"there"]


def test_L10_readers_take_no_lock(log: Any, engine: Any) -> None:
    with log.producer() as producer:
        put(producer, *"abc")
    with locked_elsewhere(engine.partition("t", 0)), assigned(log) as consumer:
        assert drain(consumer, 0.05) == values(log) == [b"a", b"b", b"c"]


def test_L10_readers_do_not_wait_for_writers(log: Any) -> None:
    stop = threading.Event()
    counts = [0, 0, 0]

    def write() -> None:
        with log.producer() as producer:
            while not stop.is_set():
                producer.produce("t", b"x" * 100)

    def read(index: int) -> None:
        with assigned(log) as consumer:
            while not stop.is_set():
                counts[index] += len(consumer.consume(1000, 0.05))

    threads = [
        threading.Thread(target=write),
        *(threading.Thread(target=read, args=(i,)) for i in range(3)),
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 120
    while min(counts) <= 100 and time.monotonic() < deadline:  # all while it writes
        stop.wait(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert all(count > 100 for count in counts)


def test_L11_the_decision_of_the_client_is_durable_after_a_commit(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        transact(producer, "a")
        coordinator = engine.transaction_partition("tx")
        states = [
            record[3]
            for b in coordinator.batches(0, coordinator.durable_end)
            for record in b.records()
        ]
        assert any(
            value is not None and value[16] == 2 for value in states
        )  # PrepareCommit is durable


def test_M01_acks_0_sends_without_waiting_for_an_offset(log: Any) -> None:
    with log.producer(acks=0) as producer:
        assert producer.send("t", "a").result(60).offset == -1
    assert values(log) == [b"a"]


def test_M02_deliveries_are_confirmed_one_by_one_after_a_flush(log: Any) -> None:
    confirmed: list[int] = []
    with log.producer(linger_ms=0) as producer:
        for number in range(10):
            producer.produce(
                "t", str(number), on_delivery=lambda error, meta: confirmed.append(meta.offset)
            )
        producer.flush()
        producer.poll(0)
    assert confirmed == list(range(10))


def test_M02_a_rejected_record_is_reported_to_its_callback(log: Any) -> None:
    refused: list[Any] = []
    with log.producer(linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.produce("t", "a", on_delivery=lambda error, meta: refused.append(error))
        log.delete_topic("t")
        producer.flush()
        producer.poll(0)
    assert len(refused) == 1 and isinstance(refused[0], errors.KafkaError)


@pytest.mark.parametrize(
    "system", ["RabbitMQ", "RocketMQ", "PostgreSQL", "ZooKeeper", "two-phase commit", "Kafka"]
)
def test_L01_the_comparison_page_names_every_system(system: str) -> None:
    assert system.lower() in (DOCS / "explanation" / "comparison.md").read_text().lower()
