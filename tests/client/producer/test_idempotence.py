"""Each record once and in order, despite lost answers, busy locks and timeouts."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import Any

import pytest

from eoslog import _core
from eoslog.client.producer.batch_dispatch import BatchDispatch
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    DeliveryTimeout,
    DuplicateSequence,
    LockTimeout,
    OutOfOrderSequence,
    RecordTooLarge,
)
from eoslog.log import Log
from eoslog.model import RecordMetadata
from eoslog.storage.fs import files
from tests.client.helpers import Refusing, batches, stored

# --- idempotence ----------------------------------------------------------------------------


def test_sequence_numbers_continue_across_batches(log: Log) -> None:
    with log.producer(linger_ms=60_000) as producer:
        for _ in range(3):
            for _ in range(5):
                producer.produce("one", b"v")
            producer.flush()
        identity = (producer.producer_id, producer.producer_epoch)
    assert [(b.base_sequence, b.last_sequence) for b in batches(log)] == [(0, 4), (5, 9), (10, 14)]
    assert {(b.producer_id, b.producer_epoch) for b in batches(log)} == {identity}


def test_a_producer_is_assigned_its_own_id_at_its_first_batch(log: Log) -> None:
    with log.producer() as first, log.producer() as second:
        assert first.producer_id == -1
        first.send("one", b"v").result(60)
        second.send("one", b"v").result(60)
        assert first.producer_id != second.producer_id >= 0


def test_a_lost_acknowledgement_stores_one_copy_and_returns_its_offset(log: Log) -> None:
    with log.producer() as producer:
        producer.send("one", b"before").result(60)
        files.arm_failpoint("producer.ack_lost", "trip")
        delivery = producer.send("one", b"lost")
        producer.flush()
        assert delivery.result(0) == RecordMetadata("one", 0, 1, delivery.result(0).timestamp, True)
        assert producer.stats()["acks_lost"] == producer.stats()["duplicates"] == 1
        assert producer.send("one", b"after").result(60).offset == 2
    assert [value for _, _, value in stored(log)] == [b"before", b"lost", b"after"]


def test_many_lost_acknowledgements_store_each_record_once_in_order(log: Log) -> None:
    """R41 of docs/contributing/regressions.md."""
    files.arm_failpoint("producer.never", "trip")
    with log.producer(eoslog_test_lose_acks=0.5, batch_size=500, linger_ms=0) as producer:
        for i in range(3000):
            producer.produce("t", b"%d" % i, partition=i % 3)
            if i % 100 == 99:
                producer.flush()
        assert producer.stats()["acks_lost"] > 5
    for partition in range(3):
        values = [int(value) for _, _, value in stored(log, "t", partition)]
        assert values == list(range(partition, 3000, 3))


def test_losing_acknowledgements_requires_an_armed_failpoint(log: Log) -> None:
    with pytest.raises(ConfigError, match=r"eoslog\.test\.lose\.acks: 0\.5 is for tests.*remove"):
        log.producer(eoslog_test_lose_acks=0.5)


def test_a_process_with_failpoints_armed_by_environment_logs_it_once() -> None:
    environment = {**os.environ, "EOSLOG_FAILPOINTS": "some.point=trip,other.point:3=EIO"}
    run = subprocess.run(
        [sys.executable, "-c", "import eoslog.engine.engine, eoslog.client.producer.producer"],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert run.stderr.splitlines() == [
        "EOSLOG_FAILPOINTS=some.point=trip,other.point:3=EIO: "
        "failpoints armed, failing at these points"
    ]


def test_a_lost_acknowledgement_of_several_batches_keeps_every_offset(
    log: Log,
) -> None:
    told: list[int] = []
    with log.producer(batch_size=200, linger_ms=10_000) as producer:
        files.arm_failpoint("producer.ack_lost", "trip")
        with producer._sender._lock:  # so that one append has all batches
            for i in range(100):
                producer.produce(
                    "one", b"%d" % i * 10, on_delivery=lambda e, m: told.append(m.offset)
                )
            producer.flush()
        assert producer.stats()["duplicates"] > 4
    assert sorted(o for o in told if o >= 0) == [o for o, *_ in stored(log) if o in set(told)]
    assert [offset for offset, *_ in stored(log)] == list(range(100))


def test_without_idempotence_a_lost_acknowledgement_stores_two_copies(log: Log) -> None:
    with log.producer(enable_idempotence=False) as producer:
        files.arm_failpoint("producer.ack_lost", "trip")
        producer.send("one", b"v").result(60)
    assert [value for _, _, value in stored(log)] == [b"v", b"v"]


def test_strict_duplicates_are_reported_as_errors(log: Log) -> None:
    with log.producer(strict_duplicates=True) as producer:
        files.arm_failpoint("producer.ack_lost", "trip")
        delivery = producer.send("one", b"v")
        with pytest.raises(DuplicateSequence):
            delivery.result(60)
    assert len(stored(log)) == 1


def test_a_locked_partition_is_retried_with_the_same_sequence(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [LockTimeout("held by process 1"), LockTimeout("held by process 1")]
    with log.producer(retry_backoff_ms=1) as producer:
        assert producer.send("one", b"a").result(60).offset == 0
        producer.send("one", b"b").result(60)
        assert producer.stats()["retries"] == 1
    assert [(b.base_sequence, b.producer_epoch) for b in batches(log)] == [(0, 0), (1, 0)]


def test_later_batches_do_not_overtake_a_waiting_batch(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [LockTimeout("busy"), None, LockTimeout("busy"), LockTimeout("busy")]
    with log.producer(retry_backoff_ms=5, batch_size=100, linger_ms=0) as producer:
        for i in range(200):
            producer.produce("one", b"%d" % i)
        producer.flush()
    assert [int(value) for _, _, value in stored(log)] == list(range(200))


def test_a_permanently_rejected_batch_leaves_no_sequence_gap(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [RecordTooLarge("no")]
    with log.producer() as producer:
        delivery = producer.send("one", b"a")
        with pytest.raises(RecordTooLarge):
            delivery.result(60)
        assert producer.send("one", b"b").result(60).offset == 0
    assert [(b.base_sequence, b.producer_epoch) for b in batches(log)] == [(0, 0)]


def test_flush_raises_the_first_error_without_a_callback_once(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    with log.producer(linger_ms=10_000) as producer:
        refusing.errors = [RecordTooLarge("first")]
        producer.produce("one", b"a")
        with pytest.raises(RecordTooLarge, match="first"):
            producer.flush()
        assert producer.flush() == 0
        told: list[Any] = []
        refusing.errors = [RecordTooLarge("second")]
        producer.produce("one", b"a", on_delivery=lambda e, m: told.append(e))
        assert producer.flush() == 0
        assert isinstance(told[0], RecordTooLarge)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_batch_above_a_lowered_size_limit_is_split(log: Log, compression: str) -> None:
    chance = random.Random(7)
    values = [chance.randbytes(1000) for _ in range(40)]
    headers = [("h", b"x"), ("none", None)]
    options = {"linger_ms": 60_000, "batch_size": 1 << 20, "compression_type": compression}
    with log.producer(**options) as producer:
        sent = [
            producer.send("one", value, b"k%d" % i, timestamp=1000 + i, headers=headers)
            for i, value in enumerate(values)
        ]
        log.alter_topic("one", {"max.message.bytes": 3000})
        producer.flush()
        assert [delivery.result(0).offset for delivery in sent] == list(range(40))
        assert [delivery.result(0).timestamp for delivery in sent] == [1000 + i for i in range(40)]
        assert (producer.buffered, producer.stats()["buffered_bytes"]) == (0, 0)
        producer.produce_many("one", values)
        producer.flush()
        refused = producer.stats()["errors"]
    assert [value for _, _, value in stored(log)] == values * 2
    first = next(iter(batches(log)[0].records()))
    assert first == (0, 1000, b"k0", values[0], headers)
    found = batches(log)
    assert [b.base_sequence for b in found] == [b.base_offset for b in found]
    assert {(b.producer_epoch, b.compression) for b in found} <= {(0, compression), (0, "none")}
    assert max(b.size for b in found) <= 3000
    assert refused == 0


def test_only_the_largest_record_fails_in_a_batch_above_a_lowered_limit(log: Log) -> None:
    sizes = [100, 100, 5000, 100, 100]
    with log.producer(linger_ms=60_000) as producer:
        sent = [producer.send("one", b"x" * size) for size in sizes]
        log.alter_topic("one", {"max.message.bytes": 3000})
        producer.flush()
        failed = [isinstance(d.exception(0), RecordTooLarge) for d in sent]
        assert failed == [size > 3000 for size in sizes]
        more = producer.send("one", b"more")
        producer.flush()
        assert more.result(0).offset == 4
    assert [len(value) for _, _, value in stored(log)] == [100] * 4 + [4]
    assert {b.producer_epoch for b in batches(log)} == {0}


def test_a_batch_that_the_caller_encoded_is_not_split(log: Log) -> None:
    encoded = _core.build_batch([(1, None, b"x" * 1000, ()) for _ in range(10)])
    log.alter_topic("one", {"max.message.bytes": 3000})
    with pytest.raises(RecordTooLarge), log.producer() as producer:
        producer.produce_batches("one", 0, [encoded])
    assert not batches(log)


def test_a_batch_that_may_be_stored_is_not_split(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records may be stored: they would be stored again, under other sequences."""
    refusing = Refusing(log, monkeypatch)
    lost = iter([True])
    monkeypatch.setattr(BatchDispatch, "_ack_is_lost", lambda sender: next(lost, False))
    with log.producer(linger_ms=60_000) as producer:
        sent = [producer.send("one", b"%d" % i) for i in range(4)]

        def answer(data: Any, **keywords: Any) -> Any:
            if refusing.calls == 1:
                refusing.errors = [RecordTooLarge("lowered")]
            return refusing.append(data, **keywords)

        monkeypatch.setattr(refusing.part, "append", answer)
        producer.flush()
        assert all(isinstance(d.exception(0), RecordTooLarge) for d in sent)
    assert [value for _, _, value in stored(log)] == [b"0", b"1", b"2", b"3"]


def test_a_new_epoch_resolves_a_gap_that_the_log_reports(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    with log.producer() as producer:
        producer.send("one", b"a").result(60)
        refusing.errors = [OutOfOrderSequence("7 after 0")]
        assert producer.send("one", b"b").result(60).offset == 1
        assert (producer.producer_epoch, producer.stats()["epoch_bumps"]) == (1, 1)
    assert [(b.producer_epoch, b.base_sequence) for b in batches(log)] == [(0, 0), (1, 0)]


@pytest.mark.slow
def test_delivery_timeout_of_an_unwritten_batch_keeps_the_epoch(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [LockTimeout("busy")] * 1000
    with log.producer(delivery_timeout_ms=6000, linger_ms=0, retry_backoff_ms=20) as producer:
        delivery = producer.send("one", b"a")
        with pytest.raises(DeliveryTimeout, match="were not written"):
            delivery.result()
        refusing.errors.clear()
        assert producer.send("one", b"b").result(60).offset == 0
        assert producer.producer_epoch == 0


@pytest.mark.slow
def test_delivery_timeout_in_doubt_starts_a_new_epoch(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40 of docs/contributing/regressions.md."""
    refusing = Refusing(log, monkeypatch)
    monkeypatch.setattr(BatchDispatch, "_ack_is_lost", lambda self: self._lose_acks > 0)
    with log.producer(delivery_timeout_ms=6000, linger_ms=0, retry_backoff_ms=5) as producer:
        producer._sender._dispatch._lose_acks = 1.0
        real = refusing.real

        def slow(data: Any, **keywords: Any) -> Any:
            time.sleep(0.02)
            return real(data, **keywords)

        refusing.real = slow
        delivery = producer.send("one", b"a")
        with pytest.raises(DeliveryTimeout, match="outcome is unknown"):
            delivery.result()
        producer._sender._dispatch._lose_acks = 0
        assert producer.send("one", b"b").result(60).offset == 1
        assert producer.producer_epoch == 1
    assert [value for _, _, value in stored(log)] == [b"a", b"b"]


def test_sequence_numbers_wrap_after_the_largest_integer(log: Log) -> None:
    part = log._engine.partition("one", 0)
    with log.producer(linger_ms=60_000) as producer:
        producer._identity.ensure()
        part.append(
            _core.build_batch(
                [(0, None, b"x", ())] * 3,
                producer_id=producer.producer_id,
                producer_epoch=0,
                base_sequence=2**31 - 5,
            )
        )
        producer._identity.advance(("one", 0), 2**31 - 5, 3)
        for _ in range(4):
            producer.produce("one", b"y")
        producer.flush()
        producer.produce("one", b"z")
        producer.flush()
    assert [(b.base_sequence, b.last_sequence) for b in batches(log)][1:] == [
        (2**31 - 2, 1),
        (2, 2),
    ]


# --- batches that others encoded ------------------------------------------------------------


def test_encoded_batches_are_stamped_and_appended_after_buffered_records(log: Log) -> None:
    encoded = [
        _core.build_batch([(5, b"k", b"%d" % i, ())] * 2, base_offset=900, compression="zstd")
        for i in range(4)
    ]
    with log.producer(linger_ms=10_000) as producer:
        producer.produce("one", b"first")
        assert producer.produce_batches("one", 0, iter(encoded)) == 8
        producer.produce("one", b"last")
    values = [value for _, _, value in stored(log)]
    assert values == [b"first"] + [b"%d" % (i // 2) for i in range(8)] + [b"last"]
    assert [b.base_sequence for b in batches(log)] == [0, 1, 3, 5, 7, 9]


@pytest.mark.parametrize("writable", [False, True])
def test_runs_of_encoded_batches_are_stamped_in_sequence(log: Log, writable: bool) -> None:
    encoded = [_core.build_batch([(5, None, b"%d" % i * 700, ())] * 2) for i in range(700)]
    runs = [b"".join(encoded[:300]), encoded[300], b"".join(encoded[301:])]
    given = [bytearray(run) for run in runs] if writable else runs
    with log.producer() as producer:
        assert producer.produce_batches("one", 0, given) == 1400
        assert producer.stats()["batches"] == 700
    assert [value for _, _, value in stored(log)] == [
        b"%d" % i * 700 for i in range(700) for _ in range(2)
    ]
    assert [b.base_sequence for b in batches(log)] == list(range(0, 1400, 2))
    if not writable:
        assert runs[0] == b"".join(encoded[:300])


def test_a_run_of_batches_is_stored_once_after_a_lost_acknowledgement(log: Log) -> None:
    run = b"".join(_core.build_batch([(5, None, b"%d" % i, ())]) for i in range(500))
    with log.producer(delivery_timeout_ms=60_000) as producer:
        for lost in (False, True, True):
            if lost:
                files.arm_failpoint("producer.ack_lost", "trip")
            assert producer.produce_batches("one", 0, [run]) == 500
        assert producer.stats()["acks_lost"] == 2
    assert [value for _, _, value in stored(log)] == [b"%d" % i for i in range(500)] * 3


def test_a_damaged_encoded_batch_is_rejected(log: Log) -> None:
    good = _core.build_batch([(5, b"k", b"v", ())])
    damaged = bytearray(good)
    damaged[-1] ^= 1
    with log.producer() as producer:
        for bad in (
            damaged,
            good[:-1],
            good + good[:-1],
            b"",
            _core.build_marker(1, 0, True, timestamp=1),
        ):
            with pytest.raises(CorruptRecord):
                producer.produce_batches("one", 0, [bad])
        assert producer.produce_batches("one", 0, []) == 0
        assert producer.produce_batches("one", 0, [good]) == 1
    assert len(stored(log)) == 1
