"""Limits of docs/reference/limits.md that a program meets: what it sees, exactly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import CorruptRecord, KafkaError, UnknownTopicOrPartition

T = eoslog.TopicPartition("t", 0)


def test_a_producer_buffers_records_of_a_deleted_topic_until_it_sends_them(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer({"linger.ms": 60_000}) as producer:
            found: list[KafkaError | None] = []
            producer.produce("t", b"before")
            producer.flush()
            log.delete_topic("t")
            producer.produce("t", b"late", on_delivery=lambda error, _: found.append(error))
            producer.flush()
            assert [type(error) for error in found] == [UnknownTopicOrPartition]


def test_a_position_in_a_recreated_topic_is_the_old_one_until_a_poll(
    tmp_path: Path,
) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce_many("t", [b"1", b"2", b"3"])
        consumer = log.consumer(auto_offset_reset="earliest")
        consumer.assign([T])
        assert len(consumer.consume(3, timeout=60)) == 3
        log.delete_topic("t")
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", b"new")
        assert consumer.position(T) == 3
        consumer.close()


def test_a_backup_of_a_damaged_partition_fails_and_names_it(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        for name in ("good", "bad"):
            log.create_topic(name)
            with log.producer() as producer:
                producer.produce(name, b"v")
    with (tmp_path / "log" / "bad-0" / f"{0:020d}.log").open("r+b") as file:
        file.seek(8)
        file.write(b"\x7f\xff\xff\xff")
    os.remove(tmp_path / "log" / ".kafka_cleanshutdown")
    with eoslog.open(tmp_path / "log") as log:
        with pytest.raises(CorruptRecord, match="bad-0"):
            log.backup(tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        log.delete_topic("bad")
        log.backup(tmp_path / "copy")
    with eoslog.open(tmp_path / "copy") as log:
        assert [record.value for record in log.read("good")] == [b"v"]
