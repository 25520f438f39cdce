"""Transactions of a log and a database, half messages, and what is pending."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from bench import data, probe
from bench.contest import Contender, Contest, scaled
from bench.peers import kafka_broker
from bench.test_transactions import commits
from eoslog.sql import Database, OutboxRelay
from tests.faults.harness import Child, start

COMMITS = 40
VALUE = b"v" * 100
PENDING = scaled(50_000, 1_000_000)
SYNCHRONOUS = {"wal": "full", "delete": "extra"}
"""What eoslog sets, so that commits of SQLite are durable."""

# --- a database -----------------------------------------------------------------------------------


def connect(path: Path, mode: str) -> sqlite3.Connection:
    base = sqlite3.connect(path, isolation_level=None)
    base.execute(f"pragma journal_mode={mode}")
    base.execute(f"pragma synchronous={SYNCHRONOUS[mode]}")
    return base


@contextlib.contextmanager
def base_in(folder: Path, mode: str) -> Iterator[sqlite3.Connection]:
    base = connect(folder / "base", mode)
    base.execute("create table placed (value blob)")
    yield base
    base.close()


def atomic(place: Path, mode: str, count: int) -> Contender:
    """One row and one record in each transaction."""

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with (
            data.fresh_log(place) as log,
            data.folder(place) as folder,
            base_in(folder, mode) as base,
            Database(lambda: connect(folder / "base", mode)) as database,
            log.producer(transactional_id="bench", linger_ms=5) as producer,
        ):
            state = log, database, producer, base
            commit(state)
            yield state

    def commit(state: Any) -> None:
        log, database, producer, _ = state
        with log.atomic(producer, database) as tx:
            tx.connection.execute("insert into placed values (?)", (VALUE,))
            tx.produce(data.TOPIC, VALUE, partition=0)

    def run(state: Any) -> None:
        for _ in range(count):
            commit(state)

    def check(state: Any, _result: Any) -> None:
        log, _, _, base = state
        rows = [value for (value,) in base.execute("select value from placed")]
        assert data.checksum(rows) == data.scanned(log) == data.checksum([VALUE] * (count + 1))

    return Contender("atomic", run, opened, check)


def alone(place: Path, mode: str, count: int) -> Contender:
    """The same row in a transaction of SQLite, then an append with one fdatasync."""

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with data.folder(place) as folder, base_in(folder, mode) as base:
            fd = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY)
            yield base, fd
            os.close(fd)

    def run(state: Any) -> None:
        base, fd = state
        for _ in range(count):
            base.execute("begin immediate")
            base.execute("insert into placed values (?)", (VALUE,))
            base.execute("commit")
            os.write(fd, VALUE)
            os.fdatasync(fd)

    def check(state: Any, _result: Any) -> None:
        base, fd = state
        assert base.execute("select count(*) from placed").fetchall() == [(count,)]
        assert os.fstat(fd).st_size == count * len(VALUE)

    return Contender("sqlite+fdatasync", run, opened, check)


@pytest.mark.parametrize("mode", list(SYNCHRONOUS))
def test_atomic_with_sqlite(contest: Contest, place: Path, mode: str) -> None:
    contest(
        atomic(place, mode, COMMITS), alone(place, mode, COMMITS),
        units=COMMITS, unit="commits", disk=True, rounds=15,
    )  # fmt: skip


# --- an outbox ----------------------------------------------------------------------------------

OUTBOX_ROWS = 5_000


def fill(base: sqlite3.Connection) -> None:
    base.execute("begin")
    base.executemany(
        "insert into outbox (topic, value) values (?, ?)",
        ((data.TOPIC, value) for value in data.values(OUTBOX_ROWS)),
    )
    base.execute("commit")


def relay(place: Path) -> Contender:
    """`OutboxRelay`: each row once, durable before it is deleted."""

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with (
            data.fresh_log(place) as log,
            data.folder(place) as folder,
            base_in(folder, "wal") as base,
            Database(lambda: connect(folder / "base", "wal")) as database,
            OutboxRelay(database, log, name="bench") as relay,
        ):
            relay.create()
            relay.step()  # takes the lead
            fill(base)
            yield log, relay, base

    def run(state: Any) -> None:
        _, relay, _ = state
        relay.run("caught_up")

    def check(state: Any, _result: Any) -> None:
        log, _, base = state
        assert base.execute("select count(*) from outbox").fetchall() == [(0,)]
        assert data.scanned(log) == data.expected(OUTBOX_ROWS)

    return Contender("OutboxRelay", run, opened, check)


def plain_relay(place: Path, broker: Any) -> Contender:
    """The loop that people write, which a kill lets repeat rows: read, send, flush, delete."""

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with data.folder(place) as folder, base_in(folder, "wal") as base:
            base.execute("create table outbox (id integer primary key, topic text, value blob)")
            fill(base)
            topic = kafka_broker.new_topic(broker)
            client = kafka_broker.producer(broker, linger_ms=0)
            client.list_topics(topic, timeout=10)  # connected
            yield base, client, topic

    def run(state: Any) -> None:
        base, client, topic = state
        read = "select id, value from outbox order by id limit 500"
        while rows := base.execute(read).fetchall():
            for _, value in rows:
                client.produce(topic, value)
            assert client.flush(60) == 0
            base.execute("begin immediate")
            base.executemany("delete from outbox where id = ?", [(number,) for number, _ in rows])
            base.execute("commit")

    def check(state: Any, _result: Any) -> None:
        base, _, topic = state
        assert base.execute("select count(*) from outbox").fetchall() == [(0,)]
        assert kafka_broker.end_of(broker, topic) == OUTBOX_ROWS

    return Contender("confluent-kafka", run, opened, check)


def test_outbox_relay(contest: Contest, place: Path, broker: Callable[[], Any]) -> None:
    contest(
        relay(place), ("confluent-kafka", lambda: plain_relay(place, broker())),
        units=OUTBOX_ROWS, unit="rows", disk=True, rounds=9,
    )  # fmt: skip


# --- half messages --------------------------------------------------------------------------------


class Yes(eoslog.TransactionListener):
    """A local transaction that always commits."""

    def execute_local_transaction(self, msg: Any, arg: Any) -> eoslog.Outcome:
        return eoslog.Outcome.COMMIT

    def check_local_transaction(self, msg: Any) -> eoslog.Outcome:
        return eoslog.Outcome.COMMIT


def halves(place: Path, durability: str, count: int) -> Contender:
    """One record each: prepared, decided and delivered before the next."""

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with data.fresh_log(place, durability) as log, log.half_producer("bench", Yes()) as half:
            half.send_message_in_transaction((data.TOPIC, VALUE))
            yield log, half

    def run(state: Any) -> None:
        _, half = state
        for _ in range(count):
            half.send_message_in_transaction((data.TOPIC, VALUE))

    def check(state: Any, _result: Any) -> None:
        log, _ = state
        assert data.scanned(log) == data.checksum([VALUE] * (count + 1))
        assert log.pending() == []

    return Contender("half messages", run, opened, check)


@pytest.mark.parametrize("durability", ["strict", "os"])
def test_half_messages(contest: Contest, place: Path, durability: str) -> None:
    count = COMMITS if durability == "strict" else 200
    contest(
        halves(place, durability, count), commits(place, durability, count),
        units=count, unit="half messages",
        disk=durability == "strict", rounds=9,
    )  # fmt: skip


# --- what is pending ------------------------------------------------------------------------------


def prepare_many(child: Child, path: Path, first: int, count: int) -> None:
    with eoslog.open(path, durability="os") as log:
        producer = log.producer(transactional_id=f"half-{first}", linger_ms=0)
        producer.init_transactions()
        for _ in range(count):
            producer.begin_transaction(mode="staged")
            producer.produce(data.TOPIC, VALUE, partition=0)
            producer.prepare_transaction()


def with_pending(path: Path, count: int) -> Path:
    """A directory with so many pending transactions, prepared by two processes."""
    with eoslog.open(path, durability="os") as log:
        log.create_topic(data.TOPIC)
    running = [start(prepare_many, path, n, (count + n) // 2) for n in range(2)]
    for one in running:
        one.end(timeout=7200).fine()
    return path


@pytest.fixture(scope="module")
def pending() -> Iterator[Path]:
    with data.folder(data.place_of_benchmarks()) as folder:
        yield with_pending(folder / "log", PENDING)


def test_open_with_pending(contest: Contest, place: Path, pending: Path) -> None:
    """Opening, until the number of pending transactions is known."""
    empty = with_pending(place / "empty", 0)

    @contextlib.contextmanager
    def opening(path: Path) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            yield path, stack

    def run(state: Any) -> int:
        path, stack = state
        log = stack.enter_context(eoslog.open(path))
        return int(log._engine.transactions.prepared.index.totals()[0])

    def check(count: int) -> Any:
        def checked(_state: Any, found: int) -> None:
            assert found == count

        return checked

    contest(
        Contender("pending", run, lambda: opening(pending), check(PENDING)),
        Contender("nothing pending", run, lambda: opening(empty), check(0)),
        units=PENDING, unit="pending transactions", rounds=5,
    )  # fmt: skip


def test_memory_of_pending(contest: Contest, place: Path, pending: Path) -> None:
    """In a process that opens the directory, against one with nothing pending."""
    empty = with_pending(place / "empty", 0)

    def measure() -> dict[str, list[float]]:
        grown, count = probe.of("pending", pending)
        assert count == PENDING
        return {"": [(grown - probe.of("pending", empty)[0]) / count]}

    contest.note(measure, unit="bytes")
