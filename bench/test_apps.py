"""Applications: a trivial task, and a table that is restored."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eoslog
from bench import data
from bench.contest import Contender, Contest, scaled

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
