"""Consume, transform, produce: a transaction for every 100 records."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import eoslog
from bench import data
from bench.contest import Contender, Contest
from bench.peers import kafka_broker

EACH = 100
COUNT = 2_000
OUT = "out"
TUNED = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 2}
"""With the defaults, librdkafka waits 100 ms and more for the end of the transaction before."""

_UNTUNED = "confluent-kafka with defaults"


def transform(value: bytes) -> bytes:
    """The task: cheap, so that the clients and their commits are measured."""
    return value.upper()


def transformed(count: int) -> tuple[int, int]:
    """The checksum of the output."""
    return data.checksum(map(transform, data.values(count)))


def ours(place: Path, count: int) -> Contender:
    """`consume`, `produce`, `send_offsets_to_transaction`, and a commit on the disk."""

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with data.fresh_log(place) as log:
            log.create_topic(OUT)
            data.fill(log, count, per_batch=125)
            with (
                log.consumer(group_id="bench", enable_auto_commit=False) as consumer,
                log.producer(transactional_id="bench", linger_ms=5) as producer,
            ):
                consumer.assign([eoslog.TopicPartition(data.TOPIC, 0, 0)])
                producer.init_transactions()
                step((consumer, producer, log))
                yield consumer, producer, log

    def step(state: Any) -> None:
        consumer, producer, _ = state
        records = consumer.consume(EACH, 10)
        assert len(records) == EACH
        producer.begin_transaction()
        for record in records:
            producer.produce(OUT, transform(record.value), record.key, partition=0)
        after = eoslog.TopicPartition(data.TOPIC, 0, records[-1].offset + 1)
        producer.send_offsets_to_transaction([after], consumer.group_metadata())
        producer.commit_transaction()

    def run(state: Any) -> None:
        for _ in range(count // EACH - 1):
            step(state)

    def check(state: Any, _result: Any) -> None:
        log = state[2]
        found = data.checksum(
            value for batch in log.scan(OUT, columns=["value"])
            for value in batch.column(0).to_pylist()
        )  # fmt: skip
        assert found == transformed(count)
        assert state[0].committed(eoslog.TopicPartition(data.TOPIC, 0)) == count

    return Contender("pipeline", run, opened, check, count - EACH)


def with_kafka(broker: Any, count: int, name: str = "confluent-kafka", **config: Any) -> Contender:
    """The same calls of confluent-kafka; the broker does not wait for its disk."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    source = kafka_broker.filled_topic(broker, count)
    numbers = itertools.count()

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        target, group = kafka_broker.new_topic(broker), f"pipeline-{source}-{next(numbers)}"
        with kafka_broker.reader(broker, group) as consumer:
            consumer.assign([TopicPartition(source, 0, OFFSET_BEGINNING)])
            producer = kafka_broker.producer(broker, transactional_id=group, **config)
            producer.init_transactions(30)
            step((consumer, producer, target))
            yield consumer, producer, target

    def step(state: Any) -> None:
        consumer, producer, target = state
        messages: list[Any] = []
        while len(messages) < EACH:
            messages += consumer.consume(EACH - len(messages), 10)
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, transform(message.value()), message.key(), 0)
        after = TopicPartition(source, 0, messages[-1].offset() + 1)
        producer.send_offsets_to_transaction([after], consumer.consumer_group_metadata())
        producer.commit_transaction(60)

    def run(state: Any) -> None:
        for _ in range(count // EACH - 1):
            step(state)

    def check(state: Any, _result: Any) -> None:
        consumer, _, target = state
        found = kafka_broker.values_of(broker, target, count)
        assert data.checksum(found) == transformed(count)
        committed = consumer.committed([TopicPartition(source, 0)], timeout=10)
        assert committed[0].offset == count

    return Contender(name, run, opened, check, count - EACH)


def test_consume_transform_produce(
    contest: Contest, place: Path, broker: Callable[[], Any]
) -> None:
    contest(
        ours(place, COUNT),
        ("confluent-kafka", lambda: with_kafka(broker(), COUNT, **TUNED)),
        (_UNTUNED, lambda: with_kafka(broker(), COUNT, _UNTUNED)),
        units=COUNT - EACH, disk=True, rounds=7,
    )  # fmt: skip
