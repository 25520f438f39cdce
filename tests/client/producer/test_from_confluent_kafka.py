"""Each row of docs/how-to/move-from-confluent-kafka.md is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import ConfigError, ErrorCode, KafkaError, UnknownTopicOrPartition

T0 = TopicPartition("t", 0)


def test_the_confluent_kafka_table_holds_row_by_row(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        assert log.topics() == ["t"]
        assert len(log.describe_topic("t").partitions) == 1
        produced(log, str(tmp_path / "log"))
        read(log)
        assert log.offsets("t", 0).high_watermark == log.offsets("t", 0).last_stable == 2
        assert log.offset_for_time("t", 0, 60) == 1
        in_a_transaction(log)


def produced(log: eoslog.Log, path: str) -> None:
    told: list[Any] = []
    with eoslog.Producer({"log.dir": path}) as producer:
        with pytest.raises(UnknownTopicOrPartition) as unknown:
            producer.produce("nope", b"v")
        assert isinstance(unknown.value, KafkaError)
        assert unknown.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.value.name == "UNKNOWN_TOPIC_OR_PARTITION"
        assert (unknown.value.retriable, unknown.value.fatal) == (True, False)
        with pytest.raises(TypeError):
            producer.produce("t", b"v", b"k", callback=print)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            producer.produce("t", b"v", b"k", 0)  # type: ignore[misc]
        with pytest.raises(UnknownTopicOrPartition):
            producer.produce("t", b"v", partition=-1)
        producer.produce("t", b"v", b"k", partition=0, timestamp=50,
                         on_delivery=lambda *what: told.append(what))  # fmt: skip
        producer.produce("t", b"w", timestamp=60)
        assert producer.flush(10) == 0
    [(error, place)] = told
    assert error is None
    assert (place.topic, place.partition, place.offset) == ("t", 0, 0)


def read(log: eoslog.Log) -> None:
    assert [record.value for record in log.read("t")] == [b"v", b"w"]
    with log.consumer("t", group_id="g", auto_offset_reset="earliest",
                      enable_auto_commit=False) as consumer:  # fmt: skip
        record = consumer.poll(60)
        assert record is not None
        assert (record.value, record.key, record.offset, record.headers) == (b"v", b"k", 0, [])
        assert (record.timestamp, record.timestamp_type) == (50, 0)
        assert consumer.current_lag() == {T0: 1}
        consumer.commit(record)
        assert consumer.committed(T0) == 1
        consumer.commit()
        assert consumer.group_metadata().group_id == "g"
        with pytest.raises(TypeError):
            consumer.commit(asynchronous=False)  # type: ignore[call-arg]
    with log.consumer() as consumer:
        with pytest.raises(ConfigError, match="earliest"):
            consumer.assign([TopicPartition("t", 0, -2)])
        consumer.assign([TopicPartition("t", 0, "latest")])
        assert consumer.position(T0) == 2
        consumer.seek_to_time(T0, 60)
        assert consumer.position(T0) == 1


def in_a_transaction(log: eoslog.Log) -> None:
    with (
        log.producer(transactional_id="a") as producer,
        log.consumer("t", group_id="h", auto_offset_reset="earliest",
                     enable_auto_commit=False) as consumer,
    ):  # fmt: skip
        producer.init_transactions()
        with producer.transaction() as tx:
            assert consumer.poll(60) is not None
            tx.commit_offsets(consumer)
        assert consumer.committed(T0) == 1
