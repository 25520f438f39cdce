"""Databases that lose commits, are down, slow or read-only."""

from __future__ import annotations

import os
import sqlite3
from contextlib import nullcontext

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    ConfigError,
    DatabaseError,
    DatabaseUnavailable,
    IllegalState,
)
from eoslog.sql import Database

SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest"}
T0 = TopicPartition("orders", 0)
T1 = TopicPartition("orders", 1)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "base.sqlite")


# Settings that lose commits.


@pytest.mark.parametrize("mode", ["off", "memory"])
def test_sqlite_without_a_journal_is_refused(base, mode):
    def connect():
        connection = sqlite3.connect(base)
        connection.execute(f"pragma journal_mode={mode}")
        return connection

    with pytest.raises(ConfigError, match=f"journal_mode={mode}: a crash can damage"):
        Database(connect).create()


@pytest.mark.parametrize("where", [":memory:", ""])
def test_sqlite_in_memory_is_refused(where):
    with pytest.raises(ConfigError, match="is in memory, so its commits are not durable"):
        Database(lambda: sqlite3.connect(where)).create()


@pytest.mark.parametrize(("mode", "level"), [("wal", 2), ("delete", 3), ("persist", 2)])
def test_synchronous_of_sqlite_is_raised_until_commits_are_durable(base, log, mode, level):
    def connect():
        connection = sqlite3.connect(base)
        connection.execute(f"pragma journal_mode={mode}")
        connection.execute("pragma synchronous=off")
        return connection

    with log.consumer("orders", **SETTINGS) as consumer, Database(connect) as database:
        for batch in log.sink(consumer, database):
            assert batch.connection.execute("pragma synchronous").fetchone() == (level,)
            break


@pytest.mark.parametrize("where", ["factory", "block"])
@pytest.mark.parametrize(
    ("first", "attached"), [("wal", "wal"), ("delete", "wal"), ("wal", "delete"), ("delete",) * 2]
)
def test_attached_files_of_sqlite_are_refused_in_wal_mode(
    base, out, producer, tmp_path, first, attached, where
):
    """A kill between the commits of two such files leaves one without the commit."""
    other = str(tmp_path / "other.sqlite")
    for path, mode in ((base, first), (other, attached)):
        connection = sqlite3.connect(path)
        connection.execute(f"pragma journal_mode={mode}")
        connection.execute("create table placed (number integer)")
        connection.close()

    def connect():
        connection = sqlite3.connect(base)
        if where == "factory":
            connection.execute("attach ? as other", (other,))
        return connection

    refused = "wal" in (first, attached)
    message = "attached the databases other, and .* has journal_mode=wal"
    with Database(connect) as database:
        with pytest.raises(ConfigError, match=message) if refused else nullcontext():
            with out.atomic(producer, database) as tx:
                if where == "block":
                    tx.connection.execute("attach ? as other", (other,))
                tx.connection.execute("insert into other.placed values (1)")
                tx.produce("out", "1")
    connection = sqlite3.connect(other)
    rows = connection.execute("select * from placed").fetchall()
    connection.close()
    assert len(rows) == len(list(out.read("out"))) == (not refused)
    assert out.pending() == []


def test_synchronous_of_an_open_transaction_of_sqlite_is_refused(base, log):
    with Database(base) as database:
        with log.consumer("orders", offset_store=database, **SETTINGS) as consumer:
            consumer.consume(3)
            connection = sqlite3.connect(base)
            connection.execute("pragma synchronous=normal")
            connection.execute("begin")
            with pytest.raises(ConfigError, match="synchronous=NORMAL: commits of SQLite are not"):
                database.store_offsets(connection, consumer)
            connection.close()


def test_synchronous_commit_of_postgresql_is_on_in_the_transaction_alone(server, log):
    dsn = server.schema("synchronous_commit=off")
    with log.consumer("orders", **SETTINGS) as consumer, Database(dsn) as database:
        for batch in log.sink(consumer, database):
            shown = "select current_setting('synchronous_commit')"
            connection = batch.connection
            assert connection.execute(shown).fetchone() == ("on",)
            batch.commit()
            assert connection.execute(shown).fetchone() == ("off",)
            connection.rollback()
            break


def test_synchronous_commit_set_inside_the_transaction_is_refused(server, log):
    with log.consumer("orders", **SETTINGS) as consumer, Database(server.schema()) as database:
        with pytest.raises(ConfigError, match="synchronous_commit=off: a statement set it"):
            for batch in log.sink(consumer, database):
                batch.connection.execute("set local synchronous_commit = off")
        assert database.committed_offsets("g", {T0: log.topic_id("orders")}) == {}


@pytest.mark.parametrize("autocommit", [False, True])
def test_autocommit_of_postgresql_does_not_split_a_batch(server, log, autocommit):
    import psycopg

    dsn = server.schema()
    database = Database(lambda: psycopg.connect(dsn, autocommit=autocommit))
    with log.consumer("orders", **SETTINGS) as consumer, database:
        database.create()
        with psycopg.connect(dsn) as connection:
            connection.execute("create table applied (value text)")
        for batch in log.sink(consumer, database):
            batch.connection.execute("insert into applied values ('x')")
            break
        for batch in log.sink(consumer, database, timeout=0.1):
            if not batch:
                break
            batch.connection.execute("insert into applied values ('y')")
        with psycopg.connect(dsn) as connection:
            assert connection.execute("select value from applied").fetchall() == [("y",)]


def test_autocommit_of_sqlite_does_not_split_a_batch(base, log):
    database = Database(lambda: sqlite3.connect(base, isolation_level=None))
    with log.consumer("orders", **SETTINGS) as consumer, database:
        for batch in log.sink(consumer, database):
            batch.connection.execute("create table applied (value text)")
            break
    connection = sqlite3.connect(base)
    assert connection.execute("select * from sqlite_master where name='applied'").fetchall() == []
    connection.close()


# A database that cannot be used, or not now.


def test_a_read_only_sqlite_is_refused(base):
    sqlite3.connect(base).execute("create table x (y)").connection.close()
    with pytest.raises(DatabaseError, match="is read-only") as raised:
        Database(f"file:{base}?mode=ro").create()
    assert not isinstance(raised.value, DatabaseUnavailable)


def test_a_read_only_postgresql_is_refused(server):
    with pytest.raises(DatabaseError, match="does not allow the change") as raised:
        Database(server.schema("default_transaction_read_only=on")).create()
    assert not isinstance(raised.value, DatabaseUnavailable)


def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    path = tmp_path / "base.sqlite"
    path.write_bytes(b"no database, but long enough for a header" * 100)
    with pytest.raises(DatabaseError, match="damaged or is not an SQLite database"):
        Database(path).create()


def test_a_server_that_is_down_raises_a_retriable_error(tmp_path):
    pytest.importorskip("psycopg")
    with pytest.raises(DatabaseUnavailable, match="PostgreSQL is down") as raised:
        Database(f"host={tmp_path} dbname=x").create()
    assert raised.value.retriable


def test_a_sink_over_a_lost_connection_continues_without_loss(server, log):
    import psycopg

    dsn = server.schema()
    with psycopg.connect(dsn) as connection:
        connection.execute("create table applied (value text)")
    with log.consumer("orders", **SETTINGS) as consumer, Database(dsn) as database:
        with pytest.raises(DatabaseUnavailable):
            for batch in log.sink(consumer, database, records=5):
                backend = batch.connection.info.backend_pid
                for record in batch:
                    batch.connection.execute("insert into applied values (%s)", (record.value,))
                with psycopg.connect(dsn, autocommit=True) as other:
                    other.execute("select pg_terminate_backend(%s, 5000)", (backend,))
        for batch in log.sink(consumer, database, records=5, timeout=0.1):
            if not batch:
                break
            for record in batch:
                batch.connection.execute("insert into applied values (%s)", (record.value,))
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select value from applied").fetchall()
    assert sorted(int(value[2:], 16) if value[:1] == "\\" else int(value) for (value,) in rows)
    assert len(rows) == 12


def test_a_locked_sqlite_raises_a_retriable_error_and_loses_nothing(base, log):
    database = Database(lambda: sqlite3.connect(base, timeout=0.05))
    database.create()
    with log.consumer("orders", **SETTINGS) as consumer, database:
        other = sqlite3.connect(base, isolation_level=None)
        other.execute("begin immediate")
        with pytest.raises(DatabaseUnavailable, match="holds the lock") as raised:
            for batch in log.sink(consumer, database):
                pass
        assert raised.value.retriable
        other.execute("rollback")
        other.close()
        for batch in log.sink(consumer, database):
            assert [record.offset for record in batch] == [*range(6), *range(6)]
            break


def test_an_error_of_the_program_is_raised_as_it_is(place, log):
    with log.consumer("orders", **SETTINGS) as consumer, Database(place.connect) as database:
        with pytest.raises(Exception, match="nonsense") as raised:
            for batch in log.sink(consumer, database):
                batch.connection.execute("insert into nonsense values (1)")
        assert not isinstance(raised.value, eoslog.EoslogError)


def test_an_error_that_the_program_swallowed_does_not_commit_on_postgresql(server, log):
    import psycopg

    with log.consumer("orders", **SETTINGS) as consumer, Database(server.schema()) as database:
        with pytest.raises(IllegalState, match="an earlier statement of the transaction failed"):
            for batch in log.sink(consumer, database):
                try:
                    batch.connection.execute("insert into nonsense values (1)")
                except psycopg.Error:
                    pass
        assert database.committed_offsets("g", {T0: log.topic_id("orders")}) == {}


def test_a_forked_child_opens_its_own_connections(place, log):
    database = Database(place.patient().connect)
    first = database.id
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if Database(place.connect).id == first and database.id == first else 2
            with database._session() as session:
                code = code or (0 if session.pid == os.getpid() else 3)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with database._session() as session:
        assert session.execute("SELECT count(*) FROM eoslog_meta").rows == [(2,)]
    database.close()
