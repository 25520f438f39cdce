"""Group A of regressions.md: bugs that transaction coordinators had."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from eoslog import errors
from eoslog.coordinator.transactions.coordinator import TransactionCoordinator
from eoslog.coordinator.transactions.records import decode_value
from eoslog.errors import IllegalState, LockTimeout, ProducerFenced, RequestTimedOut
from tests.client.helpers import visible
from tests.coordinator.world import A0, B0, World, Writer


@pytest.mark.parametrize("late", [True, False])
def test_R01_a_late_end_of_one_transaction_does_not_decide_the_next(
    world: World, late: bool
) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"first")
    old = writer.identity
    writer.commit()
    writer.write(A0, b"second")
    with pytest.raises((ProducerFenced, errors.InvalidTxnState)):
        world.coordinator.end_txn(*old, late)
    assert world.values(A0) == [b"first"], "the second transaction is open, not decided"
    writer.commit()
    assert world.values(A0) == [b"first", b"second"]


def test_R02_a_batch_after_the_abort_opens_no_transaction(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    late = Writer.__new__(Writer)
    late.__dict__.update(writer.__dict__, sequences=dict(writer.sequences), spans={})
    writer.abort()
    with pytest.raises(errors.InvalidProducerEpoch):
        late.append(A0, b"late")
    assert world.log(A0).open_transactions() == []
    world.log(A0).flush()
    assert world.log(A0).last_stable_offset == world.log(A0).log_end


def test_R06_many_threads_that_end_a_transaction_write_one_marker(
    log: Any,
) -> None:
    producer = log.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    for partition in (0, 1):
        producer.send("two", b"v", partition=partition).result(30)
    coordinator = log._engine.transactions
    identity = ("x", producer.producer_id, producer.producer_epoch)
    answers: list[Any] = []

    def end() -> None:
        while True:
            try:
                answers.append(coordinator.end_txn(*identity, True))
                return
            except errors.ConcurrentTransactions:
                continue

    threads = [threading.Thread(target=end) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1 and len(answers) == 16
    for partition in (0, 1):
        part = log._engine.partition("two", partition)
        assert [b.control_type for b in part.batches(0, part.log_end) if b.control] == [1]
    clog = log._engine.transaction_partition("x")
    records = [r for b in clog.batches(0, clog.log_end) for r in b.records()]
    states = [decode_value("x", record[3]).state.name for record in records]
    assert states.count("PREPARE_COMMIT") == states.count("COMPLETE_COMMIT") == 1
    producer.close()


def test_R11_an_empty_abort_after_a_commit_fences_no_producer(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.commit()
    writer.abort()
    writer.write(A0, b"2")
    writer.commit()
    assert world.values(A0) == [b"1", b"2"]


def test_R14_an_epoch_that_was_never_assigned_is_rejected(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    for epoch in (writer.epoch + 1, writer.epoch + 2, 32767):
        for commit in (True, False):
            with pytest.raises(ProducerFenced):
                world.coordinator.end_txn("t", writer.producer_id, epoch, commit)
    writer.commit()
    assert world.values(A0) == [b"1"]


def test_R17_late_data_after_an_abort_without_data_is_rejected(world: World) -> None:
    writer = Writer(world, "t")
    expect = world.coordinator.add_partitions_to_txn(*writer.identity, [A0])
    late = Writer.__new__(Writer)
    late.__dict__.update(writer.__dict__, sequences={}, spans={})
    writer.abort()
    assert late.append(A0, b"late", expect=[expect]) is None, "what it rested on has moved"
    with pytest.raises(ProducerFenced):
        late.write(A0, b"late")
    assert world.values(A0, "read_uncommitted") == []


def test_R18_registering_a_partition_twice_writes_one_registration(world: World) -> None:
    writer = Writer(world, "t")
    world.coordinator.add_partitions_to_txn(*writer.identity, [A0, B0])
    end = world.clog("t").log_end
    world.coordinator.add_partitions_to_txn(*writer.identity, [B0, A0])
    assert world.clog("t").log_end == end


def test_R20_an_abort_hides_only_the_records_of_its_own_epoch(log: Any) -> None:
    with log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        for value, commit in (("a", False), ("b", True), ("c", False), ("d", True)):
            producer.begin_transaction()
            producer.produce("t", value)
            producer.flush()
            producer.end_transaction(commit)
    assert visible(log, "t") == [b"b", b"d"]


def test_R24_an_id_that_was_never_used_expires_like_any_other(log: Any) -> None:
    log._engine.transactions.init_producer_id("idle", 60_000)
    writer = log.producer(transactional_id="open")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send("t", "v").result(30)
    now = log._engine.clock()
    log._engine.clock = lambda: now + 8 * 86_400
    log._engine.transactions.expire()
    assert [t.transactional_id for t in log.transactions(open_only=False)] == ["open"]
    writer.abort_transaction()
    writer.close()


@pytest.mark.parametrize("name", ["x", "é" * 100, "a b", "\u0000", "x" * 32767])
def test_R25_any_id_that_is_not_empty_is_accepted_and_found_again(log: Any, name: str) -> None:
    first = log._engine.transactions.init_producer_id(name, 60_000)
    second = log._engine.transactions.init_producer_id(name, 60_000)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)


@pytest.mark.parametrize("name", ["", "x" * 32768])
def test_R25_an_id_that_no_record_can_contain_is_rejected(log: Any, name: str) -> None:
    with pytest.raises(errors.KafkaError):
        log._engine.transactions.init_producer_id(name, 60_000)


def test_R29_each_process_folds_the_coordinator_state_from_the_log(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.commit()
    for _ in range(3):  # each process folds from nothing
        process, other = world.open()
        assert other.describe_transactions(["t"])[0].state == "CompleteCommit"
    assert isinstance(other, TransactionCoordinator) and process is not world.process


def test_R30_an_init_that_timed_out_can_be_repeated(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = log._engine.transaction_partition("x")
    real = part.append

    def busy(*arguments: Any, **keywords: Any) -> Any:
        raise LockTimeout("busy")

    producer = log.producer(transactional_id="x")
    monkeypatch.setattr(part, "append", busy)
    with pytest.raises(RequestTimedOut):
        producer.init_transactions(timeout=0.05)
    with pytest.raises(IllegalState):
        producer.begin_transaction()
    monkeypatch.setattr(part, "append", real)
    producer.init_transactions()
    with producer.transaction() as tx:
        tx.produce("t", "v")
    producer.close()
    assert visible(log, "t") == [b"v"]


def test_R13_a_producer_cannot_write_or_commit_after_its_timeout(log: Any) -> None:
    producer = log.producer(transactional_id="x", transaction_timeout_ms=1, linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", "v").result(30)
    part = log._engine.partition("t", 0)
    while part.open_transactions():
        log._engine.transactions.abort_timed_out()
    with pytest.raises(ProducerFenced):
        producer.commit_transaction()
    producer.close()
    assert visible(log, "t") == []
