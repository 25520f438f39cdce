"""Rows H: consumer recipes and settings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from eoslog import Consumer, TopicPartition
from eoslog.config.keys import ConsumerConfig
from eoslog.errors import ConfigError, NoOffset, OffsetOutOfRange
from tests.rows.tools import assigned, put, reader, transactional, values

T0 = TopicPartition("t", 0)


def fill(log: Any, count: int = 10) -> None:
    with log.producer() as producer:
        put(producer, *map(str, range(count)))


def test_H01_auto_commit_commits_records_that_were_returned_before(log: Any) -> None:
    fill(log)
    settings: dict[str, Any] = {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 105,
    }
    with log.consumer("t", **settings) as consumer:
        assert len(consumer.consume(4, 60)) == 4
        time.sleep(0.15)
        consumer.poll(1)
        deadline = time.monotonic() + 60
        while (consumer.committed([T0])[0].offset or -1) < 4 and time.monotonic() < deadline:
            consumer.poll(0.05)
        assert consumer.committed([T0])[0].offset >= 4


def test_H01_at_most_once_commits_before_it_returns_records(log: Any) -> None:
    fill(log)
    with log.consumer(
        "t", group_id="g", auto_offset_reset="earliest", processing_guarantee="at_most_once"
    ) as consumer:
        record = consumer.poll(60)
        with reader(log, "g") as other:
            assert other.committed([T0])[0].offset > record.offset


def test_H02_a_commit_after_processing_stores_the_position(log: Any) -> None:
    fill(log)
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        consumer.consume(4, 60)
        consumer.commit()
        assert consumer.committed([T0])[0].offset == 4


@pytest.mark.parametrize("name", ["exactly_once", "exactly_once_v2", "exact_once"])
def test_H03_exactly_once_requires_a_bound_producer(log: Any, directory: Path, name: str) -> None:
    settings = {
        "log.dir": str(directory),
        "group.id": "g",
        "processing.guarantee": name,
        "auto.offset.reset": "earliest",
    }
    with pytest.raises(ConfigError, match="producer"):
        Consumer(settings)
    with log.producer() as plain, pytest.raises(ConfigError):
        Consumer(settings, producer=plain)
    fill(log, 3)
    with transactional(log) as producer, Consumer(settings, producer=producer) as consumer:
        consumer.subscribe(["t"])
        records = consumer.consume(3, 60)
        with producer.transaction() as tx:
            for record in records:
                tx.produce("two", record.value, partition=0)
            tx.commit_offsets(consumer)
        assert consumer.committed([T0])[0].offset == len(records)
    assert ConsumerConfig.of({"group.id": "g", "processing.guarantee": name}).exactly_once


@pytest.mark.slow
def test_H04_poll_waits_for_its_timeout_and_returns_records(log: Any) -> None:
    with reader(log, "g1") as consumer:
        consumer.subscribe(["t"])
        started = time.monotonic()
        assert consumer.poll(0.3) is None
        assert time.monotonic() - started > 0.25
        with log.producer() as producer:
            producer.produce("t", "v", key="k")
        record = consumer.poll(60)
        assert (record.topic, record.partition, record.offset, record.key, record.value) == (
            "t",
            0,
            0,
            b"k",
            b"v",
        )
    with reader(log, "g2") as consumer:
        consumer.subscribe("^t.*")
        assert consumer.poll(60).value == b"v"


def test_H05_a_committed_offset_is_that_of_the_next_record(log: Any) -> None:
    fill(log, 3)
    for life in range(3):
        with reader(log, "g") as consumer:
            consumer.subscribe(["t"])
            record = consumer.poll(60)
            assert record.offset == life
            consumer.commit()
            assert consumer.position([T0])[0].offset == life + 1
            assert consumer.committed([T0])[0].offset == life + 1
            with pytest.warns(RuntimeWarning, match=f"commit {life + 1} to resume after it"):
                consumer.commit({T0: record.offset})
            consumer.commit({T0: life + 1})


def test_H06_seek_moves_the_position_to_any_offset(log: Any) -> None:
    fill(log)
    with assigned(log) as consumer:
        consumer.seek(T0, 7)
        assert consumer.poll(60).offset == 7
        consumer.seek_to_beginning([T0])
        assert consumer.poll(60).offset == 0
        consumer.seek_to_end([T0])
        assert consumer.poll(0.1) is None
    with assigned(log, auto_offset_reset="none") as strict:
        strict.seek(T0, 1000)
        with pytest.raises(OffsetOutOfRange):
            strict.poll(1)
    with reader(log, "fresh", auto_offset_reset="none") as strict:
        strict.subscribe(["t"])
        with pytest.raises(NoOffset):
            strict.poll(2)


def test_H07_exactly_once_and_auto_commit_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="auto"):
        ConsumerConfig.of(
            {"group.id": "g", "processing.guarantee": "exactly_once", "enable.auto.commit": True}
        )


@pytest.mark.parametrize("group", ["g1", "group0323", "group1"])
def test_H08_a_group_can_be_named_by_a_string(log: Any, group: str) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition("t", 0, 0)], group)
        producer.commit_transaction()
    with reader(log, group) as consumer:
        assert consumer.committed([T0])[0].offset == 0


def test_H02_offsets_survive_reopening(log: Any, directory: Path) -> None:
    import eoslog

    fill(log, 3)
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(60)
        consumer.commit()
    log.close()
    with eoslog.open(directory) as again, reader(again, "g") as consumer:
        assert consumer.committed([T0])[0].offset == 1
        assert len(values(again)) == 3
