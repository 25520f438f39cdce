"""Rows C: the idempotent producer, told on the partition log itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.client.producer.batch_dispatch import BatchDispatch
from eoslog.engine.engine import Engine
from eoslog.errors import DeliveryTimeout, InvalidProducerEpoch, OutOfOrderSequence
from tests.rows.tools import data, put, values

PID = 4711


def send(engine: Engine, sequence: int, *items: str, epoch: int = 0, producer_id: int = PID) -> Any:
    return engine.partition("t", 0).append(
        data(items or (f"s{sequence}",), producer_id=producer_id, epoch=epoch, sequence=sequence)
    )


@pytest.mark.slow
def test_C01_producer_ids_are_never_reused(tmp_path: Path) -> None:
    seen: set[int] = set()
    for _ in range(100):
        with eoslog.open(tmp_path / "log", durability="os"):
            engine = Engine.open(tmp_path / "log")
            ids = [engine.producer_ids.next_producer_id() for _ in range(100)]
            engine.close()
        assert seen.isdisjoint(ids)
        seen.update(ids)
    assert len(seen) == 10_000


def test_C02_sequences_count_records_and_wrap(log: Any, engine: Engine) -> None:
    top = 2**31 - 1
    assert send(engine, top - 1, "a", "b", "c").base_offset == 0
    assert send(engine, 1, "d").base_offset == 3
    with pytest.raises(OutOfOrderSequence):
        send(engine, 3, "f")
    assert engine.partition("t", 0).producer_state(PID).last_sequence == 1


def test_C03_a_reopened_log_continues_the_sequences(directory: Path) -> None:
    for sequence in range(6):
        with eoslog.open(directory) as log:
            if not sequence:  # a segment for each batch: what precedes it is known from a snapshot
                log.create_topic("t", config={"segment.bytes": 100})
            engine = Engine.open(directory)
            assert send(engine, sequence).base_offset == sequence
            again = send(engine, sequence)
            assert (again.duplicate, again.base_offset) == (True, sequence)
            engine.close()


def test_C04_a_sequence_gap_is_rejected_and_the_log_is_unchanged(log: Any, engine: Engine) -> None:
    send(engine, 0)
    with pytest.raises(OutOfOrderSequence, match=r"2.*1|1.*2"):
        send(engine, 2)
    assert engine.partition("t", 0).log_end == 1
    assert eoslog.errors.InvalidSequenceNumber is OutOfOrderSequence


def test_C05_a_resent_batch_is_stored_once_however_late_it_comes(log: Any, engine: Engine) -> None:
    for sequence in range(0, 200, 2):
        send(engine, sequence, "x", "y")
    end = engine.partition("t", 0).log_end
    for sequence in range(190, 200, 2):
        result = send(engine, sequence, "x", "y")
        assert (result.duplicate, result.base_offset, result.last_offset) == (
            True,
            sequence,
            sequence + 1,
        )
    old = send(engine, 0, "x", "y")
    assert (old.duplicate, old.base_offset) == (True, -1)
    with pytest.raises(OutOfOrderSequence):
        send(engine, 199, "y", "z")
    assert engine.partition("t", 0).log_end == end


def test_C07_five_batches_are_known_with_their_offsets(log: Any, engine: Engine) -> None:
    for sequence in range(7):
        send(engine, sequence)
    known = [send(engine, sequence).base_offset for sequence in range(7)]
    assert known == [-1, -1, 2, 3, 4, 5, 6]


def test_C09_a_batch_that_overtakes_another_is_rejected(log: Any, engine: Engine) -> None:
    send(engine, 0)
    for early in (2, 3):
        with pytest.raises(OutOfOrderSequence):
            send(engine, early)
    for sequence in (1, 2, 3):
        send(engine, sequence)
    assert values(log) == [b"s0", b"s1", b"s2", b"s3"]


def test_C10_a_new_producer_session_does_not_know_earlier_records(log: Any) -> None:
    for _ in range(2):
        with log.producer() as producer:
            put(producer, "same")
    assert values(log) == [b"same", b"same"]


def test_C11_two_producers_have_two_ids(log: Any) -> None:
    with log.producer() as one, log.producer() as two:
        put(one, "a")
        put(two, "b")
        assert one.producer_id != two.producer_id
        assert (one.producer_epoch, two.producer_epoch) == (0, 0)


def test_C12_the_first_send_assigns_the_producer_id(log: Any, engine: Engine) -> None:
    with log.producer() as producer:
        put(producer, "a")
        (row,) = log.producers("t", 0)
        assert (row.producer_id, row.producer_epoch, row.last_sequence) == (
            producer.producer_id,
            0,
            0,
        )


def test_C05_an_older_epoch_is_rejected_even_for_an_old_sequence(log: Any, engine: Engine) -> None:
    send(engine, 0)
    send(engine, 0, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        send(engine, 0)
    with pytest.raises(OutOfOrderSequence):
        send(engine, 5, epoch=2)


@pytest.mark.parametrize(("idempotent", "copies"), [(False, 2), (True, 1)])
def test_A16_a_lost_acknowledgement_duplicates_only_without_idempotence(
    log: Any, ack_lost: Any, idempotent: bool, copies: int
) -> None:
    with log.producer(enable_idempotence=idempotent, linger_ms=0, retry_backoff_ms=1) as producer:
        put(producer, "before")
        ack_lost()
        delivery = producer.send("t", "once")
        assert delivery.result(60).offset == copies
    assert values(log) == [b"before"] + [b"once"] * copies


def test_C06_a_retry_keeps_its_sequence(log: Any, engine: Engine, ack_lost: Any) -> None:
    with log.producer(linger_ms=0, retry_backoff_ms=1) as producer:
        for number in range(10):
            ack_lost(number % 3)
            put(producer, str(number))
    partition = engine.partition("t", 0)
    sequences = [b.base_sequence for b in partition.batches(0, partition.log_end)]
    assert sequences == list(range(10))


def test_C08_a_lost_answer_to_an_append_leaves_one_copy(log: Any, ack_lost: Any) -> None:
    with log.producer(linger_ms=0, retry_backoff_ms=1) as producer:
        ack_lost(3)
        metadata = producer.send("t", "a").result(60)
        assert (metadata.offset, metadata.duplicate) == (0, True)
    assert values(log) == [b"a"]


@pytest.mark.slow
def test_C13_a_producer_continues_after_a_delivery_timed_out_in_doubt(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [False]
    monkeypatch.setattr(BatchDispatch, "_ack_is_lost", lambda self: time.sleep(0.01) or lost[0])
    with log.producer(
        linger_ms=0, retry_backoff_ms=10, delivery_timeout_ms=6000, request_timeout_ms=500
    ) as producer:
        put(producer, "before")
        epoch = producer.producer_epoch
        lost[0] = True
        with pytest.raises(DeliveryTimeout):
            producer.send("t", "unknown").result(60)
        lost[0] = False
        for value in ("after", "wards"):
            assert producer.send("t", value).result(60).offset >= 1
        assert producer.producer_epoch > epoch
    found = values(log)
    assert found[0] == b"before" and found[-2:] == [b"after", b"wards"]


@pytest.mark.slow
def test_B09_a_permanent_fault_ends_at_the_delivery_timeout(log: Any, busy: Any) -> None:
    with log.producer(
        linger_ms=0, retry_backoff_ms=10, delivery_timeout_ms=6000, request_timeout_ms=500
    ) as producer:
        put(producer, "before")
        busy(True)
        started = time.monotonic()
        with pytest.raises(DeliveryTimeout, match="were not written"):
            producer.send("t", "never").result()
        assert time.monotonic() - started > 5.9  # and tried again until then
        busy(False)
    assert values(log) == [b"before"]
