"""`log.sink`: rows and offsets in one database transaction."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import CommitFailed, ConfigError, IllegalState
from eoslog.sql import Database
from tests.paths import ROOT
from tests.sql.databases import KINDS, Place

SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest"}

ENDS = [
    *((kind, action) for kind in KINDS[:5] for action in ("kill", "stop")),
    ("engine", "kill"), ("session", "kill"),
]  # fmt: skip
"""Over SQLAlchemy, the statements are those of the driver."""


@pytest.fixture
def table(place):
    place.run("create table applied (run integer, partition_no integer, place integer)")
    return place


@pytest.fixture
def database(table):
    with Database(table.connect) as database:
        yield database


def apply(batch):
    for record in batch:
        batch.connection.execute(
            f"insert into applied values (0, {record.partition}, {record.offset})"
        )


def drain(log, consumer, database, records=5):
    for batch in log.sink(consumer, database, records=records, timeout=0.2):
        if not batch:
            return
        apply(batch)


def counts(place: Place) -> Counter:
    rows = place.rows("select run, partition_no, place from applied")
    return Counter(rows)


def each_once(runs=(0,)) -> dict:
    return {(run, number % 2, number // 2): 1 for run in runs for number in range(12)}


def test_a_sink_applies_each_record_once_over_restarts(log, table, database):
    for _ in range(3):
        with log.consumer("orders", **SETTINGS) as consumer:
            drain(log, consumer, database)
    assert counts(table) == each_once()


def test_a_break_rolls_back_and_the_next_loop_gets_the_same_records(log, table, database):
    with log.consumer("orders", **SETTINGS) as consumer:
        for batch in log.sink(consumer, database):
            apply(batch)
            break
        assert counts(table) == {}
        drain(log, consumer, database)
    assert counts(table) == each_once()


def test_an_exception_rolls_back_and_the_next_loop_gets_the_same_records(log, table, database):
    with log.consumer("orders", **SETTINGS) as consumer:
        with pytest.raises(ZeroDivisionError):
            for batch in log.sink(consumer, database):
                apply(batch)
                raise ZeroDivisionError
        assert counts(table) == {}
        drain(log, consumer, database)
    assert counts(table) == each_once()


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("place", ["wal", "delete", "postgresql"], indirect=True)
def test_an_end_in_the_loop_does_not_store_the_offsets_alone(log, table, end):
    """A connection that commits automatically would store them without the rows."""

    def connect():
        connection = table.connect()
        if table.postgresql:
            connection.autocommit = True
        else:
            connection.isolation_level = None
        return connection

    with Database(connect) as database, log.consumer("orders", **SETTINGS) as consumer:
        with pytest.raises(IllegalState, match="the program ended the transaction"):
            for batch in log.sink(consumer, database, timeout=0.2):
                batch.connection.execute("insert into applied values (7, 7, 7)")
                batch.connection.execute(end)
        assert place_rows(table, "eoslog_offsets") == 0
        drain(log, consumer, database)
    table.run("delete from applied where run = 7")
    assert counts(table) == each_once()


def place_rows(table, name):
    return table.rows(f"select count(*) from {name}")[0][0]


def test_a_rewind_in_the_loop_rolls_the_batch_back(log, table, database):
    """Its offsets would not be stored, so its rows must not be committed either."""
    with log.consumer("orders", **SETTINGS) as consumer:
        for number, batch in enumerate(log.sink(consumer, database, records=5, timeout=0.2)):
            if not batch:
                break
            apply(batch)
            if number < 2:
                consumer.rewind()
    assert counts(table) == each_once()


def test_a_commit_in_the_loop_makes_a_break_keep_the_batch(log, table, database):
    with log.consumer("orders", **SETTINGS) as consumer:
        for batch in log.sink(consumer, database, records=3):
            apply(batch)
            batch.commit()
            with pytest.raises(IllegalState, match="committed or rolled back"):
                _ = batch.connection
            break
        assert sum(counts(table).values()) == 3
        drain(log, consumer, database)
    assert counts(table) == each_once()


def test_a_commit_by_the_program_raises_an_error(log, table, database):
    with log.consumer("orders", **SETTINGS) as consumer:
        with pytest.raises(IllegalState, match="the program ended the transaction"):
            for batch in log.sink(consumer, database):
                apply(batch)
                batch.connection.commit()
                apply(batch)
        stored = table.rows("select count(*) from eoslog_offsets")
    assert stored == [(0,)]


def test_row_H03_two_consumers_apply_each_record_once(log, table, database):
    settings = {"group_id": "g", "auto_offset_reset": "earliest"}
    with log.consumer(**settings) as old, log.consumer(**settings) as new:
        old.assign(log.partitions_of("orders"))
        new.assign(log.partitions_of("orders"))
        behind = iter(log.sink(old, database, records=4))
        batch = next(behind)  # read, and not applied yet
        drain(log, new, database)
        apply(batch)
        assert not next(behind)  # rolled back, and nothing is left to read
        behind.close()
    assert counts(table) == each_once()


@pytest.mark.parametrize("stored", [0, 1])
def test_row_H03_a_fenced_commit_raises_and_the_loop_continues(log, table, database, stored):
    """The offsets that the commit expects are missing, or those of an earlier batch."""
    with log.consumer(**SETTINGS) as old, log.consumer(**SETTINGS) as new:
        old.assign(log.partitions_of("orders"))
        behind = iter(log.sink(old, database, records=4, timeout=0.2))
        for _ in range(stored):
            apply(next(behind))
        batch = next(behind)
        new.assign(log.partitions_of("orders"))
        drain(log, new, database)
        with pytest.raises(CommitFailed, match="orders-0 has offset 6 in the database, expected"):
            batch.commit()
        assert not next(behind)
        behind.close()
    assert counts(table) == each_once()


def test_a_rebalance_moves_partitions_at_the_stored_offsets(log, table, database):
    with log.consumer("orders", **SETTINGS) as one, log.consumer("orders", **SETTINGS) as two:
        loops = [
            iter(log.sink(consumer, database, records=2, timeout=0.2)) for consumer in (one, two)
        ]
        idle = 0
        while idle < 4:
            for loop in loops:
                batch = next(loop)
                apply(batch)
                batch.commit()  # SQLite has one writer
                idle = 0 if batch else idle + 1
        assert one.assignment() != two.assignment()
        for loop in loops:
            loop.close()
    assert counts(table) == each_once()


def test_a_topic_of_the_same_name_starts_without_the_old_offsets(log, table, database):
    with log.consumer("orders", **SETTINGS) as consumer:
        drain(log, consumer, database)
    log.delete_topic("orders")
    log.create_topic("orders", partitions=2)
    with log.producer() as producer:
        for number in range(4):
            producer.produce("orders", b"", partition=number % 2)
    with log.consumer("orders", **SETTINGS) as consumer:
        drain(log, consumer, database)
    again = Counter({(0, number % 2, number // 2): 1 for number in range(4)})
    assert counts(table) == Counter(each_once()) + again
    assert table.rows("select count(*) from eoslog_offsets") == [(4,)]


def test_offsets_below_the_log_start_follow_the_reset_policy(log, table, database):
    with log.consumer(**SETTINGS) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        for batch in log.sink(consumer, database, records=2):
            apply(batch)
            batch.commit()
            break
    log.delete_records({TopicPartition("orders", 0): 4})
    with log.consumer(group_id="g", auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        with pytest.raises(eoslog.errors.OffsetOutOfRange):
            drain(log, consumer, database)
    with log.consumer(**SETTINGS) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        drain(log, consumer, database)
    assert sorted(counts(table)) == [(0, 0, 0), (0, 0, 1), (0, 0, 4), (0, 0, 5)]


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_row_15_H03_a_log_older_than_the_database_applies_nothing_again(
    log, table, database, tmp_path, reset
):
    with log.consumer("orders", **SETTINGS) as consumer:
        log.backup(tmp_path / "older")
        with log.producer() as producer:
            producer.produce("orders", b"0:0:9", partition=0)
        drain(log, consumer, database)
    applied = counts(table)
    with eoslog.open(tmp_path / "older") as older:
        with older.consumer("orders", group_id="g", auto_offset_reset=reset) as consumer:
            with pytest.raises(
                eoslog.errors.OffsetOutOfRange, match="the log is an older copy than"
            ):
                drain(older, consumer, database)
    assert counts(table) == applied


def test_a_sink_of_a_read_only_log_applies_each_record_once(log, table, database):
    with eoslog.open(log.path, read_only=True) as reader:
        with reader.consumer(**SETTINGS) as consumer:
            consumer.assign(reader.partitions_of("orders"))
            drain(reader, consumer, database)
    assert counts(table) == each_once()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("place", "action"), ENDS, indirect=["place"])
def test_a_sink_ended_at_every_statement_applies_each_record_once(log, table, action):
    log.create_topic("few", partitions=2)
    with log.producer() as producer:
        for number in range(4):
            producer.produce("few", b"", partition=number % 2)
    Database(table.connect).create()
    log.close()
    done = subprocess.run(
        [sys.executable, "-m", "tests.sql.processes.sink", log.path, json.dumps(table), action],
        capture_output=True, text=True, check=False, timeout=500, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = int(done.stdout)
    assert runs > 15  # a run per statement
    records = [(number % 2, number // 2) for number in range(4)]
    assert counts(table) == {(run, *place): 1 for run in range(1, runs + 1) for place in records}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"records": 0}, "records: expected 1 or more, got 0"),
        ({"timeout": -1}, "timeout: expected a timeout in seconds"),
    ],
)
def test_a_sink_refuses_wrong_arguments(log, tmp_path, arguments, message):
    database = Database(tmp_path / "base.sqlite")
    with log.consumer(**SETTINGS) as consumer, pytest.raises(ConfigError, match=message):
        log.sink(consumer, database, **arguments)


def test_a_sink_rejects_other_objects_than_consumer_and_database(log, tmp_path):
    database = Database(tmp_path / "base.sqlite")
    with log.consumer(**SETTINGS) as consumer, pytest.raises(ConfigError, match="Database, got"):
        log.sink(consumer, tmp_path)
    with pytest.raises(ConfigError, match="expected a Consumer, got"):
        log.sink(database, database)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "there is no group.id"),
        ({"group_id": "g", "enable_auto_commit": True}, "enable.auto.commit=True"),
        ({"group_id": "g", "processing_guarantee": "at_most_once"}, "at_most_once"),
        ({"group_id": "g", "isolation_level": "read_uncommitted"}, "isolation.level=read_comm"),
    ],
)
def test_a_sink_refuses_a_consumer_that_commits_in_another_way(log, tmp_path, settings, message):
    database = Database(tmp_path / "base.sqlite")
    with log.consumer(**settings) as consumer, pytest.raises(ConfigError, match=message):
        log.sink(consumer, database)


def test_a_sink_refuses_a_consumer_of_another_database(log, tmp_path):
    one, two = Database(tmp_path / "one.sqlite"), Database(tmp_path / "two.sqlite")
    with log.consumer(offset_store=one, **SETTINGS) as consumer:
        log.sink(consumer, one)
        with pytest.raises(ConfigError, match="the consumer has another offset store"):
            log.sink(consumer, two)
