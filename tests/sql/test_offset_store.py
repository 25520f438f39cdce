"""A database as the offset store of a consumer."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from eoslog import TopicPartition
from eoslog.errors import (
    CommitFailed,
    ConfigError,
    DatabaseUnavailable,
    IllegalState,
)
from eoslog.sql import Database
from tests.faults.harness import stop
from tests.paths import ROOT

SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest"}
T0 = TopicPartition("orders", 0)
T1 = TopicPartition("orders", 1)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "base.sqlite")


def test_row_H03_exactly_once_accepts_a_database_as_the_offset_store(place, log):
    with Database(place.connect) as database:
        for guarantee in ("exact_once", "exactly_once", "exactly_once_v2"):
            with log.consumer(
                "orders", processing_guarantee=guarantee, offset_store=database, **SETTINGS
            ) as consumer:
                assert len(consumer.consume(12)) == 12
                with pytest.raises(IllegalState, match="stored in the database"):
                    consumer.commit()


def test_row_H03_exactly_once_needs_a_producer_or_a_database(log):
    with pytest.raises(ConfigError, match="or Consumer\\(config, offset_store=database\\)"):
        log.consumer("orders", processing_guarantee="exactly_once", **SETTINGS)


def test_a_consumer_starts_at_the_offsets_that_were_stored(place, log):
    with Database(place.connect) as database:
        with log.consumer("orders", offset_store=database, **SETTINGS) as consumer:
            assert len(consumer.consume(4)) == 4
            connection = place.connect()
            database.store_offsets(connection, consumer)
            connection.commit()
            connection.close()
            assert consumer.committed([T0, T1]) == [T0, T1]
            where = consumer.positions()
            assert {tp: consumer.committed(tp) for tp in where} == where
        with log.consumer("orders", offset_store=database, **SETTINGS) as consumer:
            assert len(consumer.consume(12)) == 8


def test_offsets_that_were_rolled_back_need_a_rewind(place, log):
    with Database(place.connect) as database:
        with log.consumer("orders", offset_store=database, **SETTINGS) as consumer:
            consumer.consume(4)
            connection = place.connect()
            database.store_offsets(connection, consumer)
            connection.rollback()
            consumer.consume(4)
            with pytest.raises(CommitFailed, match="without consumer.rewind"):
                database.store_offsets(connection, consumer)
            connection.rollback()
            consumer.rewind()
            assert len(consumer.consume(20)) == 12
            database.store_offsets(connection, consumer)
            connection.commit()
            connection.close()
            assert database.committed_offsets("g", {T0: log.topic_id("orders")}) == {T0: 6}


@pytest.mark.parametrize("given", [False, True])
def test_offsets_are_stored_in_the_transaction_of_a_block(place, log, given):
    with (
        Database(place.connect) as database,
        log.producer(transactional_id="t") as producer,
        log.consumer("orders", offset_store=database, **SETTINGS) as consumer,
        closing(place.connect()) as connection,
    ):
        database.create()
        with log.atomic(producer, database, connection if given else None) as tx:
            assert len(consumer.consume(12)) == 12
            database.store_offsets(tx.connection, consumer)
            tx.produce("orders", "12", partition=0)
        at = {T0: log.topic_id("orders"), T1: log.topic_id("orders")}
        assert database.committed_offsets("g", at) == {T0: 6, T1: 6}
        assert [record.value for record in consumer.consume(1)] == [b"12"]


def test_a_log_transaction_rejects_a_consumer_of_a_database(place, log):
    log.create_topic("out")
    with Database(place.connect) as database:
        with (
            log.consumer("orders", offset_store=database, **SETTINGS) as consumer,
            log.producer(transactional_id="t") as producer,
        ):
            producer.init_transactions()
            consumer.consume(4)
            with pytest.raises(ConfigError, match="stored in a database"):
                with producer.transaction() as tx:
                    tx.commit_offsets(consumer)


def test_offsets_of_an_automatic_commit_are_refused(base, log):
    with Database(base) as database:
        with log.consumer("orders", offset_store=database, **SETTINGS) as consumer:
            consumer.consume(4)
            connection = sqlite3.connect(base, isolation_level=None)
            with pytest.raises(ConfigError, match="the connection commits automatically"):
                database.store_offsets(connection, consumer)
            connection.close()


def test_offsets_of_a_consumer_without_the_database_are_refused(base, log):
    with Database(base) as database, log.consumer("orders", **SETTINGS) as consumer:
        connection = sqlite3.connect(base)
        with pytest.raises(ConfigError, match="the consumer has another offset store"):
            database.store_offsets(connection, consumer)
        connection.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_id": None}, "there is no group.id"),
        ({"enable_auto_commit": True}, "enable.auto.commit=True"),
        ({"offset_store": 7}, "expected an eoslog.sql.Database, got 7"),
    ],
)
def test_a_consumer_refuses_an_offset_store_that_does_not_fit(base, log, settings, message):
    given = {**SETTINGS, "offset_store": Database(base), **settings}
    with pytest.raises(ConfigError, match=message):
        log.consumer("orders", **given)


def test_a_database_that_is_down_at_an_assignment_is_asked_again(base, log):
    down = threading.Event()
    down.set()

    def connect():
        if down.is_set():
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = 14
            raise error
        return sqlite3.connect(base)

    with Database(connect) as database:
        with log.consumer("orders", offset_store=database, **SETTINGS) as consumer:
            with pytest.raises(DatabaseUnavailable):
                consumer.consume(1)
            down.clear()
            assert len(consumer.consume(12)) == 12


@pytest.mark.process
def test_a_zombie_of_a_real_group_is_fenced_by_the_offsets(place, log, tmp_path):
    place.run("create table applied (run integer, partition_no integer, place integer)")
    Database(place.connect).create()
    program = ROOT / "tests/sql/processes/zombie.py"
    zombie = subprocess.Popen(
        [sys.executable, "-m", "tests.sql.processes.zombie", log.path, json.dumps(place)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert program.exists()
    try:
        assert zombie.stdout.readline() == "read\n"
        stop(zombie.pid)
        with log.consumer("orders", session_timeout_ms=3000, **SETTINGS) as consumer:
            done = 0
            with Database(place.connect) as database:
                for batch in log.sink(consumer, database, timeout=0.2):
                    for record in batch:
                        batch.connection.execute(
                            f"insert into applied values (0, {record.partition}, {record.offset})"
                        )
                    done += len(batch)
                    if not batch and done:
                        break
            zombie.send_signal(signal.SIGCONT)
            zombie.communicate("go\n", timeout=60)
        assert zombie.returncode == 0
        rows = place.rows("select partition_no, place from applied")
        assert sorted(rows) == [(number // 6, number % 6) for number in range(12)]
    finally:
        zombie.kill()
        zombie.wait()
