"""Records as one object each: `consume` in thousands and `poll`.

The peers are a broker's client and cursors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import eoslog
from bench import data
from bench.contest import Contender, Contest
from bench.peers import codecs, kafka_broker, servers, stores

COUNT = 200_000
POLLED = 50_000
PLACE = eoslog.TopicPartition(data.TOPIC, 0)


@contextlib.contextmanager
def consumer(log: eoslog.Log) -> Iterator[Any]:
    with log.consumer(auto_offset_reset="error") as made:
        yield made


def consume(log: eoslog.Log, count: int) -> Contender:
    def run(made: Any) -> list[bytes]:
        made.assign([eoslog.TopicPartition(data.TOPIC, 0, 0)])
        kept: list[bytes] = []
        while len(kept) < count:
            for record in made.consume(1000, 10):
                record.key  # noqa: B018
                record.offset  # noqa: B018
                kept.append(record.value)
        return kept

    return Contender("consume(1000)", run, lambda: consumer(log), _checker(log, run, count))


def poll(log: eoslog.Log, count: int) -> Contender:
    def run(made: Any) -> list[bytes]:
        made.assign([eoslog.TopicPartition(data.TOPIC, 0, 0)])
        kept: list[bytes] = []
        while len(kept) < count:
            record = made.poll(10)
            record.key  # noqa: B018
            record.offset  # noqa: B018
            kept.append(record.value)
        return kept

    return Contender("poll()", run, lambda: consumer(log), _checker(log, run, count))


def _checker(
    log: eoslog.Log, run: Callable[[Any], Any], count: int
) -> Callable[[Any, list[bytes]], None]:
    def check(_made: Any, kept: list[bytes]) -> None:
        assert data.checksum(kept) == data.expected(count)

        def again() -> None:
            with consumer(log) as other:
                run(other)

        data.assert_checks_crc(log, again)

    return check


def test_consume(contest: Contest, place: Path, broker: Callable[[], Any]) -> None:
    with data.fresh_log(place, "os") as log, contextlib.ExitStack() as stack:
        data.fill(log, COUNT, per_batch=PER_BATCH)

        def confluent() -> Contender:
            running = broker()
            topic = kafka_broker.filled_topic(running, COUNT)
            return kafka_broker.consumer(running, topic, COUNT)

        contest(
            consume(log, COUNT),
            ("confluent-kafka", confluent),
            ("lmdb cursor", lambda: stores.lmdb_cursor(place, COUNT, stack)),
            ("lmdb cursor, bare", lambda: stores.lmdb_bare_cursor(place, COUNT, stack)),
            ("aiokafka reader", lambda: codecs.aiokafka_reader(
                b"".join(data.batches(COUNT, PER_BATCH)), COUNT)),
            ("Redis Streams", lambda: servers.redis_streams(place, 20_000, stack)[1]),
            units=COUNT,
        )  # fmt: skip


PER_BATCH = 125
"""Records of a batch of about 16 KiB, as a client with the defaults sends them."""


def test_poll(contest: Contest, place: Path, broker: Callable[[], Any]) -> None:
    with data.fresh_log(place, "os") as log:
        data.fill(log, POLLED, per_batch=PER_BATCH)

        def confluent() -> Contender:
            running = broker()
            topic = kafka_broker.filled_topic(running, POLLED)
            return kafka_broker.consumer(running, topic, POLLED, one_by_one=True)

        contest(poll(log, POLLED), ("confluent-kafka", confluent), units=POLLED)
