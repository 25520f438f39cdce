"""The cost of transactions: against flushes, against none, and against the disk.

One small commit is compared with the disk.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from bench import data
from bench.contest import Contender, Contest
from bench.peers import kafka_broker, limits, stores

State = tuple[eoslog.Log, Any]
COMMITS = 40
_ids = itertools.count()


@contextlib.contextmanager
def producing(
    place: Path, durability: str, *, transactional: bool, partitions: int = 1
) -> Iterator[State]:
    config: dict[str, Any] = {"linger.ms": 5}
    if transactional:
        config["transactional.id"] = f"bench-{next(_ids)}"
    with (
        data.fresh_log(place, durability, partitions) as log,
        log.producer(config) as producer,
    ):
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(data.TOPIC, b"first", partition=partition)
        producer.commit_transaction() if transactional else producer.flush()
        yield log, producer


def in_transactions(place: Path, durability: str, count: int, each: int) -> Contender:
    keys, values = data.keys(count), data.values(count)

    def run(state: State) -> None:
        _, producer = state
        call = producer.produce
        for at in range(0, count, each):
            producer.begin_transaction()
            for i in range(at, at + each):
                call(data.TOPIC, values[i], keys[i], partition=0)
            producer.commit_transaction()

    def check(state: State, _result: Any) -> None:
        log, _ = state
        data.assert_durable(log, 1 + count + count // each)
        assert data.scanned(log, start=2) == data.expected(count)

    return Contender(
        "transactions", run, lambda: producing(place, durability, transactional=True), check
    )


def in_flushes(place: Path, durability: str, count: int, each: int) -> Contender:
    keys, values = data.keys(count), data.values(count)

    def run(state: State) -> None:
        _, producer = state
        call = producer.produce
        for at in range(0, count, each):
            for i in range(at, at + each):
                call(data.TOPIC, values[i], keys[i], partition=0)
            producer.flush()

    def check(state: State, _result: Any) -> None:
        log, _ = state
        data.assert_durable(log, 1 + count)
        assert data.scanned(log, start=1) == data.expected(count)

    return Contender(
        "flushes", run, lambda: producing(place, durability, transactional=False), check
    )


@pytest.mark.parametrize("durability", ["strict", "os"])
def test_transactions_of_1000(
    contest: Contest, place: Path, broker: Callable[[], Any], durability: str
) -> None:
    count, each = 20_000, 1_000
    peers: list[Any] = [in_flushes(place, durability, count, each)]
    if durability == "strict":
        peers.append(("confluent-kafka", lambda: kafka_broker.transactions(broker(), count, each)))
    contest(
        in_transactions(place, durability, count, each), *peers,
        units=count, disk=durability == "strict", rounds=9,
    )  # fmt: skip


@pytest.mark.parametrize("durability", ["strict", "os"])
def test_transaction_of_100000(contest: Contest, place: Path, durability: str) -> None:
    count = 100_000
    contest(
        in_transactions(place, durability, count, count), in_flushes(place, durability, count, count),
        units=count, disk=durability == "strict", rounds=11,
    )  # fmt: skip


# --- one small commit -----------------------------------------------------------------------------


def commits(place: Path, durability: str, count: int, partitions: int = 1) -> Contender:
    """Transactions of one record into each of the partitions."""

    def run(state: State) -> None:
        _, producer = state
        for _ in range(count):
            producer.begin_transaction()
            for partition in range(partitions):
                producer.produce(data.TOPIC, b"v" * 100, partition=partition)
            producer.commit_transaction()

    def check(state: State, _result: Any) -> None:
        log, _ = state
        for partition in range(partitions):
            data.assert_durable(log, 2 * count + 1, partition)
            found = data.scanned(log, partitions=[partition], start=2)
            assert found == data.checksum([b"v" * 100] * count)

    return Contender(
        "commit", run,
        lambda: producing(place, durability, transactional=True, partitions=partitions), check,
    )  # fmt: skip


def test_commit_of_one_record(contest: Contest, place: Path, broker: Callable[[], Any]) -> None:
    contest(
        commits(place, "strict", COMMITS),
        limits.appends(place, COMMITS, name="4 KiB append+fdatasync"),
        ("confluent-kafka", lambda: kafka_broker.transactions(broker(), 5, 1)),
        units=COMMITS, unit="commits", disk=True, rounds=15,
    )  # fmt: skip


def test_commit_of_one_record_to_the_page_cache(contest: Contest, place: Path) -> None:
    contest(commits(place, "os", 500), units=500, unit="commits")


def test_commit_over_ten_partitions(contest: Contest, place: Path) -> None:
    contest(
        commits(place, "strict", COMMITS, 10), limits.parallel_appends(place, COMMITS, 10),
        units=COMMITS, unit="commits", disk=True, rounds=15,
    )  # fmt: skip


def sqlite_commits(place: Path, count: int) -> Contender:
    """One row into each of two tables."""

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with stores.sqlite(place) as base:
            base.execute("create table u (value blob)")
            yield base

    def run(base: Any) -> None:
        for _ in range(count):
            base.execute("begin")
            base.execute("insert into t (value) values (?)", (b"v" * 100,))
            base.execute("insert into u (value) values (?)", (b"v" * 100,))
            base.execute("commit")

    def check(base: Any, _result: Any) -> None:
        for name in "tu":
            found = data.checksum(value for (value,) in base.execute(f"select value from {name}"))
            assert found == data.checksum([b"v" * 100] * count)

    return Contender("sqlite", run, opened, check)


def lmdb_commits(place: Path, count: int) -> Contender:
    """Two records each."""
    import lmdb

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with data.folder(place) as path, lmdb.open(str(path), map_size=1 << 28) as base:
            yield base

    def run(base: Any) -> None:
        for i in range(count):
            with base.begin(write=True) as transaction:
                transaction.put(b"a%012d" % i, b"v" * 100)
                transaction.put(b"b%012d" % i, b"v" * 100)

    def check(base: Any, _result: Any) -> None:
        assert base.stat()["entries"] == 2 * count

    return Contender("lmdb", run, opened, check)


def test_commit_on_two_partitions(contest: Contest, place: Path) -> None:
    contest(
        commits(place, "strict", COMMITS, 2),
        limits.appends(place, COMMITS, 100, name="2 fdatasyncs", each=2),
        sqlite_commits(place, COMMITS),
        ("lmdb", lambda: lmdb_commits(place, COMMITS)),
        units=COMMITS, unit="commits", disk=True,
    )  # fmt: skip
