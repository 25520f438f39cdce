"""Rows B: producer recipes and settings."""

from __future__ import annotations

import logging
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Producer, TopicPartition
from eoslog.config.keys import ProducerConfig
from eoslog.errors import ConfigError, IllegalState, InvalidTransactionTimeout, RequestTimedOut
from eoslog.storage.fs import files
from tests.rows.tools import (
    assigned,
    drain,
    locked_elsewhere,
    markers,
    put,
    state_of,
    transact,
    transactional,
    values,
)


def test_B01_acks_0_resolves_immediately_with_offset_minus_1(log: Any) -> None:
    with log.producer(acks=0, linger_ms=60_000) as producer:
        delivery = producer.send("t", "v")
        assert delivery.done() and delivery.result(0).offset == -1
        assert log.offsets("t", 0).log_end == 0  # it was not waited for
        for number in range(99):
            producer.send("t", str(number))
    assert len(values(log)) == 100


def test_B01_acks_0_loses_records_silently_on_a_failing_disk(log: Any) -> None:
    with log.producer(acks=0, linger_ms=0, retries=0) as producer:
        put(producer, "kept")
        files.arm_failpoint("pwrite", "ENOSPC")
        try:
            put(producer, "lost")
        finally:
            files.disarm_failpoints()
        put(producer, "kept too")
        assert producer.stats()["errors"] == 1
    assert values(log) == [b"kept", b"kept too"]


def test_B02_the_last_value_of_acks_is_used_and_names_the_guarantee(log: Any) -> None:
    settings = {"acks": "all"}
    settings["acks"] = "1"
    with log.producer(**settings) as producer:
        put(producer, "in the page cache")
    with log.producer(acks="all") as producer:
        put(producer, "on the disk")
        assert log.offsets("t", 0).high_watermark == 2
    assert values(log) == [b"in the page cache", b"on the disk"]


def test_B03_a_hundred_sends_are_a_hundred_records_in_order(log: Any, ack_lost: Any) -> None:
    settings = {"linger_ms": 0, "batch_size": 1, "retry_backoff_ms": 1}
    with log.producer(acks="all", enable_idempotence=True, **settings) as producer:
        offsets = []
        for n in range(100):
            if n % 10 == 0:
                producer.flush()
                ack_lost()
            offsets.append(producer.send("t", str(n)))
            if n % 10 == 0:
                producer.flush()
        assert [d.result(30).offset for d in offsets] == list(range(100))
        assert producer.stats()["acks_lost"] == producer.stats()["duplicates"] == 10
    assert values(log) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("package", ["org.apache.kafka.common.serialization."])
def test_B04_java_class_names_of_serializers_are_accepted(log: Any, package: str) -> None:
    with log.producer(
        key_serializer=package + "IntegerSerializer", value_serializer=package + "StringSerializer"
    ) as producer:
        producer.produce("t", "grün", key=258)
    with assigned(log) as raw:
        record = raw.poll(60)
        assert (record.key, record.value) == (struct.pack(">i", 258), "grün".encode())
    with assigned(
        log,
        key_deserializer=package + "IntegerDeserializer",
        value_deserializer=package + "StringDeserializer",
    ) as typed:
        record = typed.poll(60)
        assert (record.key, record.value) == (258, "grün")
    with log.producer(value_serializer=lambda value: value[::-1].encode()) as producer:
        put(producer, "abc")
    assert values(log)[-1] == b"cba"


def test_B05_bootstrap_servers_are_accepted_and_never_contacted(
    log: Any, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="eoslog")
    with Producer(
        {"log.dir": str(directory), "bootstrap.servers": "192.0.2.1:9092,192.0.2.2:9092"}
    ) as producer:
        put(producer, "offline")
    assert values(log) == [b"offline"]
    assert "bootstrap.servers" in caplog.text


def test_B06_produce_accepts_key_partition_timestamp_and_headers(log: Any) -> None:
    with log.producer() as producer:
        producer.produce("two", "only a value", partition=0)
        producer.produce(
            "two", "v", "k", partition=1, timestamp=1234, headers=[("h", b"x"), ("n", None)]
        )
    with assigned(log, 1, topic="two") as consumer:
        record = consumer.poll(60)
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("two", 1, 0, 1234)
    assert (record.key, record.value, list(record.headers)) == (
        b"k",
        b"v",
        [("h", b"x"), ("n", None)],
    )


@pytest.mark.slow
def test_B07_records_arrive_without_further_calls_on_the_producer(log: Any) -> None:
    with log.producer(linger_ms=5) as producer, assigned(log) as consumer:
        for number in range(10):
            producer.send("t", str(number))
        found: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(found) < 10 and time.monotonic() < deadline:
            found += drain(consumer)
    assert len(found) == 10


def test_B08_a_transactional_id_turns_idempotence_on() -> None:
    assert ProducerConfig.of({"transactional.id": "a"}).enable_idempotence
    with pytest.raises(ConfigError, match="enable.idempotence"):
        ProducerConfig.of({"transactional.id": "a", "enable.idempotence": False})


def test_B09_retries_are_bounded_by_time_and_not_by_number() -> None:
    config = ProducerConfig.of({})
    assert (config.retries, config.delivery_timeout_ms) == (2**31 - 1, 120_000)


@pytest.mark.parametrize(
    ("settings", "fine"),
    [
        ({"max.in.flight.requests.per.connection": 1}, True),
        ({"max.in.flight.requests.per.connection": 5}, True),
        ({"max.in.flight.requests.per.connection": 6, "enable.idempotence": True}, False),
        ({"acks": 1, "enable.idempotence": True}, False),
        ({"acks": "all", "enable.idempotence": True}, True),
        ({"acks": 1, "transactional.id": "a"}, False),
        ({"retries": 0, "enable.idempotence": True}, False),
    ],
)
def test_B10_idempotence_rejects_settings_that_it_cannot_work_with(
    settings: dict[str, Any], fine: bool
) -> None:
    if fine:
        assert ProducerConfig.of(settings).enable_idempotence
    else:
        with pytest.raises(ConfigError):
            ProducerConfig.of(settings)


@pytest.mark.slow
def test_B10_batches_after_a_rejected_one_do_not_overtake_it(log: Any, busy: Any) -> None:
    with log.producer(linger_ms=0, batch_size=1, retry_backoff_ms=5) as producer:
        for round_ in range(5):
            busy(True)
            for number in range(5):
                producer.produce("t", str(5 * round_ + number))
            assert producer.flush(0.05) == 5
            busy(False)
            producer.flush()
    assert values(log) == [b"%d" % n for n in range(25)]


def test_B11_transaction_id_is_an_alias_that_warns() -> None:
    with pytest.warns(DeprecationWarning, match="transactional.id"):
        assert ProducerConfig.of({"transaction.id": "a"}).transactional_id == "a"
    assert ProducerConfig.of({"transactional_id": "a"}).transactional_id == "a"


def test_B12_transaction_timeout_has_a_default_and_a_cap(log: Any) -> None:
    assert ProducerConfig.of({}).transaction_timeout_ms == 60_000
    with pytest.raises(InvalidTransactionTimeout, match="900001"):
        log.producer(transactional_id="tx", transaction_timeout_ms=900_001)
    log.producer(transaction_timeout_ms=900_001).close()  # it has no transactions


def test_B13_a_producer_shows_its_identity_and_enforces_the_call_order(log: Any) -> None:
    producer = log.producer(transactional_id="tx", linger_ms=0)
    with pytest.raises(IllegalState):
        producer.begin_transaction()
    producer.init_transactions()
    first = (producer.producer_id, producer.producer_epoch)
    assert first[0] >= 0 and first[1] >= 0
    transact(producer, "a")
    assert producer.producer_id == first[0] and producer.producer_epoch > first[1]
    producer.close()


def test_B14_close_aborts_an_open_transaction_and_can_be_repeated(log: Any) -> None:
    producer = transactional(log)
    producer.begin_transaction()
    put(producer, "half")
    producer.close()
    producer.close()
    consumer = assigned(log)
    consumer.close()
    consumer.close()
    assert values(log) == []
    assert log.transactions() == []
    with pytest.raises(IllegalState):
        producer.produce("t", "late")
    with pytest.raises(IllegalState):
        consumer.poll(0)


def test_B15_a_full_buffer_blocks_for_max_block_ms_and_then_raises(log: Any, busy: Any) -> None:
    with log.producer(
        buffer_memory=65_536, max_block_ms=100, linger_ms=0, retry_backoff_ms=10
    ) as producer:
        put(producer, "first")
        busy(True)
        with pytest.raises(eoslog.errors.QueueFull):
            for _ in range(1000):
                producer.produce("t", bytes(1000))
        busy(False)
        producer.flush()
        producer.produce("t", b"again")
        producer.flush()
    assert values(log)[-1] == b"again"


def test_B15_a_commit_that_timed_out_can_be_repeated(log: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        put(producer, "a")
        files.arm_failpoint("pwrite", "ENOSPC")
        with pytest.raises(RequestTimedOut):
            producer.commit_transaction(timeout=0)
        files.disarm_failpoints()
        assert values(log) == []
        producer.commit_transaction()
    assert values(log) == [b"a"]


def test_B16_no_data_is_written_while_the_registration_is_blocked(log: Any, engine: Any) -> None:
    producer = transactional(log)
    producer.begin_transaction()
    with locked_elsewhere(engine.transaction_partition("tx")):
        producer.produce("two", "a", partition=1)
        time.sleep(0.2)  # the background sender is at it
        assert engine.partition("two", 1).log_end == 0
    producer.commit_transaction()
    producer.close()
    assert values(log, "two") == [b"a"]


def test_B16_no_data_of_a_partition_precedes_its_registration(log: Any, engine: Any) -> None:
    producer = transactional(log)
    producer.begin_transaction()
    put(producer, "a", topic="two", partition=1)
    (row,) = log.transactions()
    assert TopicPartition("two", 1) in row.partitions
    producer.abort_transaction()
    from tests.rows.tools import data

    stranger = data(
        ["x"],
        producer_id=producer.producer_id,
        epoch=producer.producer_epoch,
        sequence=0,
        transactional=True,
    )
    partition = engine.partition("two", 0)
    end = partition.log_end
    coordinator = engine.transaction_partition("tx")
    assert partition.append(stranger, expect=[(coordinator, coordinator.log_end - 1)]) is None
    assert partition.log_end == end
    producer.close()
    assert state_of(log) in ("CompleteAbort", "COMPLETE_ABORT")


def test_B16_threads_can_share_a_producer(log: Any) -> None:
    with log.producer() as producer:
        threads = [
            threading.Thread(
                target=lambda n=n: [producer.produce("t", f"{n}-{i}") for i in range(200)]
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values(log)
    assert len(set(found)) == 800
    for n in range(4):
        mine = [v for v in found if v.startswith(b"%d-" % n)]
        assert mine == [b"%d-%d" % (n, i) for i in range(200)]


def test_B10_close_writes_no_marker_without_a_transaction(log: Any, engine: Any) -> None:
    with log.producer() as producer:
        put(producer, "a")
    assert markers(engine) == []
