"""Producing, from the call to the disk or the page cache.

The peers are the disk itself and other stores. Each run has a new log; its topic exists and its
partition is open when the clock starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import eoslog
from bench import data
from bench.contest import Contender, Contest
from bench.peers import codecs, kafka_broker, limits, servers, stores

COUNT = 200_000
MANY = 400_000
SMALL = 20_000
State = tuple[eoslog.Log, Any]


@contextlib.contextmanager
def producing(place: Path, durability: str, **config: Any) -> Iterator[State]:
    with (
        data.fresh_log(place, durability) as log,
        log.producer({"linger.ms": 5} | config) as producer,
    ):
        producer.produce(data.TOPIC, b"first", partition=0)  # whatever starts at first use
        producer.flush()
        yield log, producer


def stored(count: int) -> Callable[[State, Any], None]:
    def check(state: State, _result: Any) -> None:
        log, _ = state
        data.assert_durable(log, count + 1)
        assert data.scanned(log, start=1) == data.expected(count)
        data.assert_checks_crc(log, lambda: data.scanned(log))

    return check


def produce(place: Path, count: int, durability: str = "strict", **config: Any) -> Contender:
    """One call a record, then `flush`."""
    keys, values = data.keys(count), data.values(count)

    def run(state: State) -> None:
        _, producer = state
        call = producer.produce
        for key, value in zip(keys, values, strict=True):
            call(data.TOPIC, value, key)
        producer.flush()

    return Contender(
        "produce()", run, lambda: producing(place, durability, **config), stored(count)
    )


def produce_many(place: Path, count: int, durability: str = "strict") -> Contender:
    """One call, then `flush`."""
    keys, values = data.keys(count), data.values(count)

    def run(state: State) -> None:
        _, producer = state
        producer.produce_many(data.TOPIC, values, keys, partition=0)
        producer.flush()

    return Contender("produce_many()", run, lambda: producing(place, durability), stored(count))


def produce_arrow(place: Path, count: int, durability: str = "strict") -> Contender:
    """One call with a table of keys and values, then `flush`."""
    table = stores.columns(count).select(["key", "value"])

    def run(state: State) -> None:
        _, producer = state
        producer.produce_arrow(data.TOPIC, table)
        producer.flush()

    return Contender("produce_arrow()", run, lambda: producing(place, durability), stored(count))


def size_of_log(ours: Contender) -> int:
    """Bytes of the log file that a run makes: what the raw peer writes."""
    with ours.around() as state:
        ours.run(state)
        return data.log_bytes(state[0])


def test_produce(contest: Contest, place: Path, broker: Callable[[], Any]) -> None:
    ours = produce(place, COUNT)
    contest(
        ours,
        limits.write(place, size_of_log(ours)),
        ("aiokafka builder", lambda: codecs.aiokafka_builder(COUNT)),
        ("confluent-kafka", lambda: kafka_broker.sender(broker(), COUNT)),
        units=COUNT,
        disk=True,
    )


def test_produce_to_the_page_cache(contest: Contest, place: Path) -> None:
    contest(
        produce(place, SMALL, "os", acks=1),
        ("aiokafka builder", lambda: codecs.aiokafka_builder(SMALL)),
        units=SMALL,
    )


@pytest.mark.parametrize("durability", ["strict", "os"])
@pytest.mark.parametrize("way", [produce_many, produce_arrow])
def test_produce_in_bulk(contest: Contest, place: Path, way: Any, durability: str) -> None:
    ours = way(place, MANY, durability)
    size = size_of_log(ours)
    contest(ours, limits.write(place, size, sync=durability == "strict"), units=MANY, disk=True)


def test_produce_many_against_produce(contest: Contest, place: Path) -> None:
    contest(produce_many(place, SMALL, "os"), produce(place, SMALL, "os"), units=SMALL)


def test_produce_many_against_stores(contest: Contest, place: Path) -> None:
    count = 100_000
    with contextlib.ExitStack() as stack:
        contest(
            produce_many(place, count),
            ("Arrow IPC", lambda: stores.file_writer("Arrow IPC", place, count)),
            ("Parquet", lambda: stores.file_writer("Parquet", place, count)),
            ("lmdb", lambda: stores.lmdb_writer(place, count)),
            ("sqlite", lambda: stores.sqlite_writer(place, count)),
            ("rocksdict", lambda: stores.rocksdb_writer(place, count)),
            ("Redis Streams", lambda: servers.redis_streams(place, 5_000, stack)[0]),
            ("NATS JetStream", lambda: servers.nats_jetstream(place, 5_000, stack)),
            units=count,
            disk=True,
        )


def test_append_of_1_mib_batches(contest: Contest, place: Path) -> None:
    """The log alone: batches that are encoded already, each durable before the next."""
    times = 24
    batch = data.batches(9_000, 9_000)[0]

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with data.fresh_log(place) as log:
            partition = log._engine.partition(data.TOPIC, 0)
            partition.configure(replace(partition.settings, max_message_bytes=2 << 20))
            yield log, partition

    def run(state: tuple[eoslog.Log, Any]) -> None:
        _, partition = state
        for _ in range(times):
            partition.append(batch)
            partition.flush()

    def check(state: tuple[eoslog.Log, Any], _result: Any) -> None:
        log, _ = state
        data.assert_durable(log, times * 9_000)
        count, total = data.expected(9_000)
        assert data.scanned(log) == (times * count, times * total)

    raw = limits.write(place, len(batch) * times, piece=len(batch), sync_each=True)
    contest(Contender("append", run, opened, check), raw, units=times, unit="batches", disk=True)
