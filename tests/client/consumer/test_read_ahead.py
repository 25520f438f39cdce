"""Consumers decode records before they are durable, and return them after that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog._core import build_marker
from eoslog.errors import OffsetOutOfRange
from eoslog.model import AppendOrigin, TopicPartition
from tests.rows.tools import data
from tests.storage.helpers import batch

T0 = TopicPartition("t", 0)
NO_FLUSH = {"flush.ms": "600000"}
SHORT_S = 0.1


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with eoslog.open(tmp_path, durability="strict") as log:
        log.create_topic("t", 1, NO_FLUSH)
        yield log


def partition_of(log: Any) -> Any:
    return log._engine.partition("t", 0)


def reader(log: Any, **config: Any) -> Any:
    consumer = log.consumer(**{"auto_offset_reset": "earliest", **config})
    consumer.assign([T0])
    return consumer


def ahead(consumer: Any) -> Any:
    return consumer._subscription.states[T0].ahead


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def test_a_record_decoded_ahead_is_returned_once_it_is_durable(log: Any) -> None:
    consumer, partition = reader(log), partition_of(log)
    assert consumer.poll(0) is None
    partition.append(data(["a"]))
    assert consumer.poll(SHORT_S) is None
    [record] = ahead(consumer).records
    assert consumer.poll(SHORT_S) is None
    assert partition.durable_end == 0
    partition.flush()
    assert consumer.poll(60) is record
    assert ahead(consumer) is None
    assert consumer.poll(0) is None


def test_records_above_the_durable_end_wait_for_their_flush(log: Any) -> None:
    consumer, partition = reader(log), partition_of(log)
    consumer.poll(0)
    for value in "abc":
        partition.append(data([value]))
    assert consumer.consume(10, SHORT_S) == []
    partition.core.publish_durable(1, 1)
    assert values(consumer.consume(10, 60)) == [b"a"]
    assert consumer.consume(10, SHORT_S) == []
    assert consumer.position([T0])[0].offset == 1
    partition.core.publish_durable(2, 1)
    assert values(consumer.consume(10, 60)) == [b"b"]
    partition.flush()
    assert values(consumer.consume(10, 60)) == [b"c"]
    assert consumer.position([T0])[0].offset == 3


def test_records_of_undecided_transactions_are_not_decoded_ahead(log: Any) -> None:
    consumer, partition = reader(log), partition_of(log)
    consumer.poll(0)
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", b"aborted")
        producer.flush()
        partition.append(data(["plain"]))
        assert consumer.consume(10, SHORT_S) == []
        assert ahead(consumer) is None
        producer.abort_transaction()
        partition.flush()
        assert values(consumer.consume(10, 60)) == [b"plain"]
        producer.begin_transaction()
        producer.produce("t", b"open")
        producer.flush()
        partition.append(data(["late"]))
        assert consumer.consume(10, SHORT_S) == []
        partition.flush()
        assert consumer.consume(10, SHORT_S) == []
        producer.abort_transaction()
        partition.flush()
        assert values(consumer.consume(10, 60)) == [b"late"]


def test_aborted_records_decoded_ahead_are_not_returned(log: Any) -> None:
    consumer, partition = reader(log), partition_of(log)
    consumer.poll(0)
    aborted = batch(2, producer_id=7, sequence=0, transactional=True)
    partition.append(aborted, expect=[(partition, 0)])
    partition.append(build_marker(7, 1, False, timestamp=1000), origin=AppendOrigin.COORDINATOR)
    partition.append(data(["a"]))
    assert consumer.consume(10, SHORT_S) == []
    assert values(ahead(consumer).records) == [b"a"]
    partition.flush()
    assert values(consumer.consume(10, 60)) == [b"a"]


def test_a_seek_drops_what_was_decoded_ahead(log: Any) -> None:
    consumer, partition = reader(log), partition_of(log)
    consumer.poll(0)
    for value in "ab":
        partition.append(data([value]))
    assert consumer.poll(SHORT_S) is None
    assert len(ahead(consumer).records) == 2
    consumer.seek(T0, 1)
    partition.flush()
    assert values(consumer.consume(10, 60)) == [b"b"]
    consumer.seek(T0, 0)
    assert values(consumer.consume(10, 60)) == [b"a", b"b"]


def test_deleted_records_decoded_ahead_are_not_returned(log: Any) -> None:
    consumer, partition = reader(log), partition_of(log)
    consumer.poll(0)
    for value in "ab":
        partition.append(data([value]))
    assert consumer.poll(SHORT_S) is None
    partition.flush()
    log.delete_records({T0: 1})
    assert values(consumer.consume(10, 60)) == [b"b"]
    strict = reader(log, auto_offset_reset="none")
    strict.seek(T0, 0)
    with pytest.raises(OffsetOutOfRange):
        strict.poll(0)


def test_records_of_a_deleted_topic_decoded_ahead_are_not_returned(log: Any) -> None:
    consumer, partition = reader(log), partition_of(log)
    consumer.poll(0)
    partition.append(data(["old"]))
    assert consumer.poll(SHORT_S) is None
    assert ahead(consumer) is not None
    log.delete_topic("t")
    log.create_topic("t", 1, NO_FLUSH)
    again = partition_of(log)
    again.append(data(["new"]))
    again.flush()
    consumer.seek(T0, 0)
    assert consumer.poll(60).value == b"new"


def test_a_deserializer_gets_no_record_that_is_not_durable(log: Any) -> None:
    seen: list[bytes] = []

    def note(value: bytes) -> bytes:
        seen.append(value)
        return value

    consumer, partition = reader(log, value_deserializer=note), partition_of(log)
    consumer.poll(0)
    partition.append(data(["a"]))
    assert consumer.poll(SHORT_S) is None
    assert seen == []
    partition.flush()
    assert consumer.poll(60).value == b"a"
    assert seen == [b"a"]
