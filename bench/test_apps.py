"""Applications: a trivial task, and tables that are restored or opened."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import eoslog
from bench import data
from bench.contest import AbsentError, Contender, Contest, scaled
from bench.peers import quix_streams
from eoslog.app.instance import folder_of
from eoslog.app.tables.owned import OwnedTables
from tests.faults.harness import Child, start

RECORDS = scaled(50_000, 500_000)
KEYS = scaled(100_000, 1_000_000)
IN_A_TRANSACTION = 500
VALUE = json.dumps({"name": "n" * 40, "count": 7}).encode()


@contextlib.contextmanager
def filled(place: Path) -> Iterator[eoslog.Log]:
    """A log with JSON values in its topic, and the topic `out`."""
    with data.fresh_log(place, "os") as log:
        log.create_topic("out")
        with log.producer() as producer:
            producer.produce_many(data.TOPIC, [VALUE] * RECORDS, [b"key"] * RECORDS)
        yield log


def has_all(log: eoslog.Log, _done: Any) -> None:
    records = sum(1 for record in log.read("out") if json.loads(record.value)["count"] == 8)
    assert records == RECORDS, f"{records} records, not {RECORDS}"


def with_app(log: eoslog.Log) -> None:
    app = eoslog.App(log, "bench", max_records=IN_A_TRANSACTION)

    @app.task(data.TOPIC, value="json", to="out")
    def count(record: eoslog.Record, _ctx: eoslog.Context) -> Any:
        value = record.value
        value["count"] += 1
        return value

    app.run(until="caught_up")


def by_hand(log: eoslog.Log) -> None:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    with (
        log.producer(transactional_id="hand") as producer,
        log.consumer(data.TOPIC, group_id="hand", **settings) as consumer,
    ):
        producer.init_transactions()
        done = 0
        while done < RECORDS:
            records = consumer.consume(IN_A_TRANSACTION, 1)
            with producer.transaction() as tx:
                for record in records:
                    value = json.loads(record.value)
                    value["count"] += 1
                    tx.produce("out", json.dumps(value), record.key)
                tx.commit_offsets(consumer)
            done += len(records)


def test_json_in_and_out(contest: Contest, place: Path) -> None:
    around = lambda: filled(place)  # noqa: E731
    contest(
        Contender("application", with_app, around=around, check=has_all),
        Contender("loop by hand", by_hand, around=around, check=has_all),
        units=RECORDS,
    )


WITH_A_BROKER = scaled(20_000, 200_000)


def timed_app(place: Path) -> float:
    """The seconds from the first call of the task to the last one."""
    calls = []
    with data.fresh_log(place, "os") as log:
        log.create_topic("out")
        with log.producer() as producer:
            records = WITH_A_BROKER
            producer.produce_many(data.TOPIC, [VALUE] * records, [b"key"] * records)
        app = eoslog.App(log, "bench", max_records=IN_A_TRANSACTION)

        @app.task(data.TOPIC, value="json", to="out")
        def count(record: eoslog.Record, _ctx: eoslog.Context) -> Any:
            value = record.value
            value["count"] += 1
            calls.append(time.perf_counter())
            return value

        app.run(until="caught_up")
        check_counts([record.value for record in log.read("out")])
    return calls[-1] - calls[0]


def check_counts(values: list[bytes]) -> None:
    assert [json.loads(value)["count"] for value in values] == [8] * WITH_A_BROKER


def test_json_with_a_broker(contest: Contest, place: Path, broker: Callable[[], Any]) -> None:
    """JSON in and out, exactly once on both sides, 500 records per transaction.

    The broker is another process and does not sync. Quix Streams parses JSON in C. The time to
    start, and to join the group, is not counted.
    """
    absent: dict[str, str] = {}

    def measure() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {"application": [], "Quix Streams": []}
        for _ in range(3):
            found["application"].append(timed_app(place) / WITH_A_BROKER)
            try:
                took, values = quix_streams.seconds(
                    broker(), place, VALUE, WITH_A_BROKER, IN_A_TRANSACTION
                )
            except AbsentError as error:
                absent["Quix Streams"] = str(error)
                del found["Quix Streams"]
                break
            check_counts(values)
            found["Quix Streams"].append(took / WITH_A_BROKER)
        return found

    contest.note(measure, unit="records", ours="application", absent=absent)


def test_a_table_is_restored(contest: Contest, place: Path) -> None:
    """The first record of a partition, whose table has many keys."""

    @contextlib.contextmanager
    def around() -> Iterator[eoslog.Log]:
        with data.fresh_log(place, "os") as log:
            log.create_topic("table", config={"cleanup.policy": "compact"})
            with log.producer() as producer:
                keys = [b"key-%d" % number for number in range(KEYS)]
                producer.produce_many("table", [VALUE] * KEYS, keys)
                producer.produce(data.TOPIC, VALUE, b"key")
            yield log

    def run(log: eoslog.Log) -> int:
        app = eoslog.App(log, "bench")
        table = app.table("table")
        sizes = []

        @app.task(data.TOPIC, tables=[table])
        def look(_record: eoslog.Record, _ctx: eoslog.Context) -> None:
            sizes.append(len(table))

        while not app.step():
            pass
        app.stop()
        return sizes[0]

    def check(_log: eoslog.Log, size: int) -> None:
        assert size == KEYS

    contest(Contender("table", run, around=around, check=check), units=KEYS, unit="keys")


STORED = scaled(100_000, 1_000_000)
CHANGES = 20


def with_a_store(path: Path, keys: int) -> Path:
    """A log with a table in an SQLite file, whose owner was killed in a transaction."""
    with eoslog.open(path, durability="os") as log:
        log.create_topic(data.TOPIC)
        log.create_topic("table", config={"cleanup.policy": "compact"})
        with log.producer() as producer:
            names = [b"key-%d" % number for number in range(keys)]
            producer.produce_many("table", [VALUE] * keys, names)
            for _ in range(CHANGES + 2):
                producer.produce(data.TOPIC, VALUE, b"key-0")
    start(change_a_table, path, 0).end().fine()  # fills the file, and checkpoints it
    assert start(change_a_table, path, CHANGES + 1).end().killed
    return path


def change_a_table(_child: Child, path: Path, killed_at: int) -> None:
    """Change a row for each record, in transactions of their own."""
    app = eoslog.App(path, "bench", max_records=1)
    table = app.table("table", store="sqlite")

    @app.task(data.TOPIC, tables=[table])
    def change(record: eoslog.Record, _ctx: eoslog.Context) -> None:
        table[f"key-{record.offset}"] = record.offset
        if killed_at and record.offset == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    while not app.step() or killed_at:
        pass
    app.stop()


def test_a_store_is_opened_after_a_crash(contest: Contest, place: Path) -> None:
    """Open a file until its rows are those of the topic.

    One table has 20 times the rows of the other.
    """

    def contender(name: str, keys: int) -> Contender:
        made = with_a_store(place / name, keys)

        @contextlib.contextmanager
        def around() -> Iterator[Any]:
            with data.folder(place) as path:
                shutil.copytree(made, path / "log")
                with eoslog.open(path / "log") as log:
                    table = eoslog.App(log, "bench").table("table", store="sqlite")
                    log.offsets("table", 0)  # the partition itself is recovered
                    tables = OwnedTables(log, "bench", folder_of(log.path, "bench"), bool)
                    yield tables, table
                    tables.release_all()

        def run(state: Any) -> bool:
            tables, table = state
            return bool(tables.take([table], 0))

        def check(state: Any, done: bool) -> None:
            tables, table = state
            assert done
            with tables.call([table], 0):
                assert len(table) == keys
                assert table[f"key-{CHANGES}"] == CHANGES

        return Contender(name, run, around, check)

    contest(
        contender("20x", STORED), contender("1x", STORED // 20), units=1, unit="tables", rounds=25,
    )  # fmt: skip
