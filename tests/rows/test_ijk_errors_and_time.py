"""Rows I (errors), J (a coordinator that fails) and K (time-outs and expiry)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, errors
from eoslog.engine.engine import Engine
from tests.faults.harness import Child, live
from tests.rows.tools import (
    NOW,
    batches,
    clock,
    data,
    locked_elsewhere,
    markers,
    put,
    state_of,
    transact,
    transactional,
    values,
)

T0 = TopicPartition("t", 0)


def test_I01_the_errors_of_the_recipes_have_their_classes_and_flags() -> None:
    assert errors.ProducerFenced("x").fatal
    assert errors.ProducerFencedException is errors.ProducerFenced
    assert errors.OutOfOrderSequenceException is errors.OutOfOrderSequence
    assert errors.AuthorizationException("x").fatal
    for name in ("ProducerFenced", "OutOfOrderSequence", "AuthorizationFailed"):
        assert issubclass(getattr(errors, name), errors.KafkaError)


def test_I02_an_old_epoch_is_abortable_when_data_is_appended(log: Any, engine: Any) -> None:
    assert errors.InvalidProducerEpoch("x").abortable and not errors.InvalidProducerEpoch("x").fatal
    with transactional(log) as producer:
        transact(producer, "a")
        late = data(
            ["late"], producer_id=producer.producer_id, epoch=0, sequence=9, transactional=True
        )
        with pytest.raises(errors.InvalidProducerEpoch):
            engine.partition("t", 0).append(late)


def test_I03_an_unknown_or_changed_producer_id_raises(log: Any, engine: Any) -> None:
    assert errors.InvalidPidMapping is errors.InvalidProducerIdMapping
    with pytest.raises(errors.InvalidProducerIdMapping):
        engine.transactions.end_txn("nobody", 123, 0, True)
    pid, epoch, _ = engine.transactions.init_producer_id("a", 60_000)
    with pytest.raises(errors.InvalidProducerIdMapping):
        engine.transactions.end_txn("a", pid + 1, epoch, True)


def test_I03_an_abort_replaces_an_expired_id_and_the_producer_continues(
    log: Any, engine: Any
) -> None:
    with transactional(log) as producer:
        transact(producer, "a")
        before = producer.producer_id
        with clock(engine, time.time()) as tick:
            tick(8 * 24 * 3600)
            assert engine.transactions.expire() == 1
        producer.begin_transaction()
        producer.produce("t", "b")
        with pytest.raises(errors.InvalidProducerIdMapping) as expired:
            producer.commit_transaction()
        assert not expired.value.fatal
        producer.abort_transaction()
        assert producer.producer_id != before
        transact(producer, "c")
    assert values(log) == [b"a", b"c"]


def test_I03_an_expired_id_with_a_new_owner_is_fenced(log: Any, engine: Any) -> None:
    with transactional(log) as old:
        with clock(engine, time.time()) as tick:
            tick(8 * 24 * 3600)
            assert engine.transactions.expire() == 1
        with transactional(log) as new:
            old.begin_transaction()
            old.produce("t", "zombie")
            with pytest.raises(errors.KafkaError):
                old.commit_transaction()
            with pytest.raises(errors.ProducerFenced):
                old.abort_transaction()
            transact(new, "alive")
    assert values(log) == [b"alive"]


def test_I04_a_closed_handle_raises_and_a_new_one_continues(directory: Path) -> None:
    log = eoslog.open(directory)
    log.create_topic("t")
    producer = transactional(log)
    producer.close()
    log.close()
    with pytest.raises(errors.IllegalState):
        transact(producer, "a")
    with pytest.raises(errors.IllegalState):
        log.topics()
    with eoslog.open(directory) as again, transactional(again) as producer:
        transact(producer, "b")
        assert values(again) == [b"b"]
    assert errors.NotCoordinatorForTransactionalId is errors.NotCoordinator


def test_I05_a_protocol_violation_raises_invalid_txn_state(log: Any, engine: Any) -> None:
    assert errors.InvalidTxnRequest is errors.InvalidTxnState
    pid, epoch, _ = engine.transactions.init_producer_id("a", 60_000)
    coordinator, end = engine.transactions.add_partitions_to_txn("a", pid, epoch, [T0])
    log_t = engine.partition("t", 0)
    log_t.append(
        data(["x"], producer_id=pid, epoch=epoch, sequence=0, transactional=True),
        expect=[(coordinator, end)],
    )
    with pytest.raises(errors.InvalidTxnState):
        log_t.append(data(["y"], producer_id=pid, epoch=epoch, sequence=1))
    engine.transactions.abort_transaction("a")


def test_I06_errors_of_an_unavailable_coordinator_are_retriable() -> None:
    for error in (
        errors.CoordinatorNotAvailable,
        errors.CoordinatorLoadInProgress,
        errors.NotCoordinator,
    ):
        assert error("x").retriable


@pytest.mark.slow
def test_I06_a_send_waits_for_its_coordinator_and_succeeds(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        with locked_elsewhere(engine.transaction_partition("tx")):  # as another process recovers it
            delivery = producer.send("t", "a")
            time.sleep(0.3)
            assert not delivery.done()
        assert delivery.result(60).offset == 0
        tries = iter([errors.CoordinatorLoadInProgress("not yet"), errors.NotCoordinator("moved")])
        end_txn = engine.transactions.end_txn

        def slow(*arguments: Any) -> Any:
            for error in tries:
                raise error
            return end_txn(*arguments)

        engine.transactions.end_txn = slow
        try:
            producer.commit_transaction()
        finally:
            del engine.transactions.end_txn
    assert values(log) == [b"a"]


def test_I07_a_duplicate_succeeds(log: Any, engine: Any) -> None:
    batch = data(["a"], producer_id=5, epoch=0, sequence=0)
    log_t = engine.partition("t", 0)
    assert not log_t.append(batch).duplicate
    assert log_t.append(batch).duplicate
    assert errors.DuplicateSequenceNumber is errors.DuplicateSequence


def test_I08_a_file_truncated_by_another_program_raises_a_fatal_error(
    log: Any, directory: Path
) -> None:
    with log.producer(linger_ms=0) as producer:
        put(producer, *"abcde")
        file = directory / "t-0" / "00000000000000000000.log"
        with file.open("r+b") as handle:
            handle.truncate(file.stat().st_size - 10)
        with pytest.raises(errors.CorruptRecord, match="another program truncated it") as lost:
            producer.send("t", "f").result(60)
        assert lost.value.fatal


def test_I08_the_next_sequence_reveals_that_a_log_lost_its_end(directory: Path) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("t")
        engine = Engine.open(directory)
        for sequence in range(5):
            engine.partition("t", 0).append(
                data([str(sequence)], producer_id=9, epoch=0, sequence=sequence)
            )
        size = batches(engine)[2].position
        engine.partition("t", 0).flush()
        engine.close()
    file = directory / "t-0" / "00000000000000000000.log"
    with file.open("r+b") as handle:
        handle.truncate(size)
    for path in directory.glob("t-0/*.snapshot"):
        path.unlink()
    with (
        pytest.raises((errors.OutOfOrderSequence, errors.CorruptRecord)),
        eoslog.open(directory) as log,
    ):
        engine = Engine.open(directory)
        try:
            engine.partition("t", 0).append(data(["5"], producer_id=9, epoch=0, sequence=5))
        finally:
            engine.close()


@pytest.mark.parametrize("timeout", [0, -1, 900_001])
def test_I09_a_timeout_out_of_range_is_rejected(log: Any, timeout: int) -> None:
    with pytest.raises(errors.InvalidTransactionTimeout, match=str(timeout)):
        log.producer(transactional_id="a", transaction_timeout_ms=timeout)


def test_J03_a_commit_can_be_repeated_after_it_is_complete(log: Any, engine: Any) -> None:
    pid, epoch, _ = engine.transactions.init_producer_id("a", 60_000)
    coordinator, end = engine.transactions.add_partitions_to_txn("a", pid, epoch, [T0])
    batch = data(["x"], producer_id=pid, epoch=epoch, sequence=0, transactional=True)
    engine.partition("t", 0).append(batch, expect=[(coordinator, end)])
    first = engine.transactions.end_txn("a", pid, epoch, True, {T0: (0, 0)})
    assert engine.transactions.end_txn("a", pid, epoch, True, {T0: (0, 0)}) == first
    assert len(markers(engine)) == 1
    with pytest.raises(errors.InvalidTxnState):
        engine.transactions.end_txn("a", pid, epoch, False, {T0: (0, 0)})


def begun(log: Any, transactional_id: str = "tx", timeout: int = 1000) -> Any:
    producer = transactional(log, transactional_id, transaction_timeout_ms=timeout)
    producer.begin_transaction()
    put(producer, "open")
    return producer


def test_K02_open_transactions_are_counted(log: Any) -> None:
    producer = begun(log, timeout=60_000)
    assert len(log.transactions()) == 1
    offsets = log.offsets("t", 0)
    assert offsets.log_end - offsets.last_stable == 1
    stats = log.stats()
    assert (stats["open_transactions"], stats["partitions"]["t-0"]["open_transactions"]) == (1, 1)
    assert stats["partitions"]["t-0"]["lso_lag"] == 1
    assert stats["transaction_log_bytes"] > 0
    producer.abort_transaction()
    producer.close()
    after = log.stats()
    assert (after["open_transactions"], after["partitions"]["t-0"]["lso_lag"]) == (0, 0)
    assert after["transaction_log_bytes"] > stats["transaction_log_bytes"]


def test_K06_an_idle_id_expires_and_an_open_one_does_not(log: Any, engine: Any) -> None:
    with transactional(log, "idle") as idle:
        transact(idle, "a")
    producer = begun(log, "busy", timeout=900_000)
    with clock(engine, NOW) as tick:
        engine.transactions.expire()
        tick(400 * 24 * 3600 * 1000)
        engine.transactions.expire()
    names = [row.transactional_id for row in log.transactions(open_only=False)]
    assert "busy" in names and "idle" not in names
    producer.abort_transaction()
    producer.close()


def test_K06_transactional_ids_expire_after_seven_days_by_default() -> None:
    from eoslog.config.keys import LogConfig

    assert LogConfig.of({}).transactional_id_expiration_ms == 7 * 24 * 3600 * 1000


@pytest.fixture
def passing(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`passing(s)`: so many seconds pass on the clock that transactions are timed by."""
    now = [time.monotonic()]
    monkeypatch.setattr(engine.transactions.logs, "_clock", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds
        engine.transactions.abort_timed_out()

    return passes


def test_K01_a_transaction_is_aborted_after_its_timeout(
    log: Any, passing: Callable[[float], None]
) -> None:
    producer = begun(log, timeout=60_000)
    for seconds in (0, 59):
        passing(seconds)
        assert len(log.transactions()) == 1
    passing(2)
    assert log.transactions() == [] and state_of(log) == "CompleteAbort"
    with pytest.raises(errors.KafkaError):
        producer.commit_transaction()
    assert values(log) == []
    producer.close()


def test_K03_an_abort_raises_the_epoch_before_the_marker(log: Any, engine: Any) -> None:
    producer = begun(log, timeout=900_000)
    pid, epoch = producer.producer_id, producer.producer_epoch
    log.abort_transaction("tx")
    (marker,) = markers(engine)
    assert (marker.producer_id, marker.control_type) == (pid, 0) and marker.producer_epoch > epoch
    late = data(["late"], producer_id=pid, epoch=epoch, sequence=1, transactional=True)
    with pytest.raises(errors.KafkaError):
        engine.partition("t", 0).append(late)
    with pytest.raises(errors.KafkaError):
        producer.commit_transaction()
    producer.close()
    assert values(log) == []


@pytest.mark.process
@pytest.mark.parametrize("point", ["txn.prepared", "txn.decided", "txn.marked"])
def test_K03_a_kill_between_the_bump_and_the_marker_lets_no_late_write_in(
    tmp_path: Path, point: str
) -> None:
    path = tmp_path / "log"

    def scan(child: Child) -> None:
        with eoslog.open(path) as log:
            log.create_topic("t")
            log.create_topic("two", partitions=2)
            producer = begun(log, timeout=900_000)
            child.tell("who", [producer.producer_id, producer.producer_epoch])
            child.armed()
            log.abort_transaction("tx")

    def late(child: Child, pid: int, epoch: int) -> None:
        with eoslog.open(path) as log:
            engine = Engine.open(path)
            batch = data(["late"], producer_id=pid, epoch=epoch, sequence=1, transactional=True)
            with pytest.raises(errors.KafkaError):
                engine.partition("t", 0).append(batch)
            with pytest.raises(errors.ProducerFenced):
                engine.transactions.add_partitions_to_txn("tx", pid, epoch, [T0])
            child.tell("seen", [v.decode() for v in values(log)])
            engine.close()

    life = live(scan, faults=((point, "kill", 1),))
    assert life.killed
    assert live(late, *life.of("who")[0]).fine().of("seen") == [[]]


def test_K04_a_marker_sets_the_new_epoch_in_the_partition(log: Any, engine: Any) -> None:
    producer = begun(log, timeout=900_000)
    pid, epoch = producer.producer_id, producer.producer_epoch
    log.abort_transaction("tx")
    assert engine.partition("t", 0).producer_state(pid).producer_epoch > epoch
    producer.close()


def test_K07_each_transaction_has_its_own_timeout(
    log: Any, passing: Callable[[float], None]
) -> None:
    short, long = begun(log, "short", 60_000), begun(log, "long", 900_000)
    passing(61)
    assert [row.transactional_id for row in log.transactions()] == ["long"]
    long.commit_transaction()
    assert values(log) == [b"open"]
    for producer in (short, long):
        producer.close()
