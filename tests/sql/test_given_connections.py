"""Connections of the program: to which database, in which block, in which thread."""

from __future__ import annotations

import gc
import os
import sqlite3
import sys
import threading
from contextlib import closing, nullcontext

import pytest

from eoslog.errors import ConfigError, IllegalState
from eoslog.sql import Database, session

SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest"}


@pytest.fixture
def base(tmp_path):
    """A file of SQLite with a table."""
    path = str(tmp_path / "base.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table placed (number integer)")
    return path


def visible(log):
    return [record.value for record in log.read("out")]


@pytest.mark.parametrize("place", ["delete", "wal"], indirect=True)
@pytest.mark.parametrize("options", [{}, {"autocommit": False}])
def test_a_commit_with_a_deleted_journal_is_durable_in_an_open_transaction(
    out, table, producer, options, monkeypatch
):
    """SQLite cannot raise `synchronous` there, so power loss could undo the commit."""
    if options and sys.version_info < (3, 12):
        pytest.skip("the argument is of Python 3.12")
    synced = []
    monkeypatch.setattr(session, "fsync_dir", synced.append, raising=False)
    with (
        Database(table.connect) as database,
        closing(sqlite3.connect(table.where, **options)) as connection,
    ):
        place_order(out, producer, database, None)
        assert synced == []  # SQLite does it on connections of the database
        connection.execute("insert into placed values (0)")
        place_order(out, producer, database, connection)
    assert synced == ([os.path.dirname(table.where)] if table.kind == "delete" else [])
    assert sorted(table.rows("select number from placed")) == [(0,), (1,), (1,)]


@pytest.mark.parametrize("created", [False, True])
def test_offsets_are_not_stored_in_another_database(log, table, tmp_path, created):
    other = sqlite3.connect(tmp_path / "other.sqlite")
    if created:
        with Database(tmp_path / "other.sqlite") as database:
            database.create()
    with Database(table.connect) as database:
        with log.consumer("orders", offset_store=database, **SETTINGS) as consumer:
            first = consumer.consume(12, timeout=5)
            with pytest.raises(ConfigError, match="same|dialect"):
                database.store_offsets(other, consumer)
            other.rollback()
            consumer.rewind()
            again = consumer.consume(12, timeout=5)
            connection = table.connect()
            database.store_offsets(connection, consumer)
            connection.commit()
            connection.close()
        assert len(first) == len(again) == 12
    other.close()


def test_a_connection_to_a_database_without_tables_is_refused(out, table, producer, tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("create table placed (number integer)")
        with Database(table.connect) as database:
            with pytest.raises(ConfigError, match="pass a connection to the same"):
                with out.atomic(producer, database, other) as tx:
                    tx.connection.execute("insert into placed values (1)")
                    tx.produce("out", "1")
        assert other.execute("select * from placed").fetchall() == []
    assert (visible(out), out.pending()) == ([], [])


@pytest.mark.parametrize("block", ["transaction", "tpc"])
def test_a_block_of_psycopg_that_alone_can_commit_is_refused(server, out, producer, block):
    """The log's part must not be prepared before a commit that psycopg forbids."""
    import psycopg

    dsn = server.schema()
    with Database(dsn) as database, psycopg.connect(dsn) as connection:
        connection.execute("create table placed (number integer)")
        connection.commit()
        database.create()
        with pytest.raises(ConfigError, match="alone can commit"):
            if block == "tpc":
                connection.tpc_begin(connection.xid(1, "a", "b"))
                place_order(out, producer, database, connection)
            else:
                with connection.transaction():
                    place_order(out, producer, database, connection)
        assert (visible(out), out.pending()) == ([], [])
        if block == "tpc":
            connection.tpc_rollback()
        place_order(out, producer, database, connection)
        assert visible(out) == [b"1"]


def test_the_connection_of_a_batch_is_refused_in_a_block(log, out, table, producer):
    """The block would commit rows and records, and the batch would come again."""
    settings = {**SETTINGS, "enable_auto_commit": False}
    with Database(table.connect) as database, log.consumer("orders", **settings) as consumer:
        with pytest.raises(ConfigError, match="this Database uses it already"):
            for batch in log.sink(consumer, database):
                batch.connection.execute("insert into placed values (1)")
                place_order(out, producer, database, batch.connection)
        assert (table.rows("select * from placed"), visible(out)) == ([], [])


@pytest.mark.parametrize("given", [False, True])
def test_the_connection_of_a_block_is_refused_in_another(out, table, producer, given):
    """The inner block would commit the rows of the outer one, and not its records."""
    with (
        closing(table.connect()) as connection,
        Database(table.connect) as database,
        out.producer(transactional_id="inner") as inner,
    ):
        database.create()
        with out.atomic(producer, database, connection if given else None) as tx:
            tx.connection.execute("insert into placed values (2)")
            tx.produce("out", "2")
            with pytest.raises(ConfigError, match="this Database uses it already"):
                place_order(out, inner, database, tx.connection)
        place_order(out, inner, database, connection)
    assert sorted(table.rows("select number from placed")) == [(1,), (2,)]
    assert visible(out) == [b"2", b"1"]


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_connection_in_pipeline_mode_takes_part(server, out, producer, autocommit):
    import psycopg

    dsn = server.schema()
    with Database(dsn) as database, psycopg.connect(dsn, autocommit=autocommit) as connection:
        connection.execute("create table placed (number integer)")
        connection.commit()
        database.create()
        with connection.pipeline():
            place_order(out, producer, database, connection)
        found = connection.execute("select number from placed").fetchall()
    assert (found, visible(out)) == ([(1,)], [b"1"])


def place_order(log, producer, database, connection):
    with log.atomic(producer, database, connection) as tx:
        tx.connection.execute("insert into placed values (1)")
        tx.produce("out", "1")


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, None])
def test_a_block_that_fails_rolls_back_the_given_connection(out, table, producer, end):
    """The next block must not commit the rows."""
    connection = table.connect()
    with Database(table.connect) as database, closing(connection):
        database.create()
        connection.execute("insert into placed values (1)")  # the block ends this transaction too
        with pytest.raises(end) if end else nullcontext():
            with out.atomic(producer, database, connection) as tx:
                connection.execute("insert into placed values (2)")
                tx.produce("out", "2")
                if end:
                    raise end
                tx.abort()
        table.run("insert into placed values (3)")  # no lock is left
        place_order(out, producer, database, connection)
    assert sorted(table.rows("select number from placed")) == [(1,), (3,)]
    assert visible(out) == [b"1"]


def test_a_block_that_cannot_begin_rolls_back_the_given_connection(out, table, producer):
    connection = table.connect()
    with Database(table.connect) as database, closing(connection):
        database.create()
        connection.execute("insert into placed values (2)")
        with out.atomic(producer, database) as open_block:
            with pytest.raises(IllegalState):
                with out.atomic(producer, database, connection):
                    pytest.fail("the producer is in a transaction")
            open_block.abort()
        place_order(out, producer, database, connection)
    assert table.rows("select number from placed") == [(1,)]
    assert visible(out) == [b"1"]


@pytest.mark.parametrize("place", ["wal", "postgresql"], indirect=True)
def test_a_connection_that_commits_each_statement_is_in_the_block(out, table, producer):
    connection = table.connect()
    if table.postgresql:
        connection.autocommit = True
    else:
        connection.isolation_level = None
    with Database(table.connect) as database, closing(connection):
        database.create()
        with pytest.raises(ZeroDivisionError):
            with out.atomic(producer, database, connection) as tx:
                connection.execute("insert into placed values (2)")
                tx.produce("out", "2")
                raise ZeroDivisionError
        place_order(out, producer, database, connection)
    assert table.rows("select number from placed") == [(1,)]
    assert visible(out) == [b"1"]


def test_a_block_that_ends_in_another_thread_is_refused_before_the_prepare(out, producer, base):
    def order():
        with out.atomic(producer, database) as tx:
            tx.connection.execute("insert into placed values (1)")
            tx.produce("out", "1")
            yield

    with Database(base) as database:
        block, errors = order(), []
        next(block)
        end = threading.Thread(target=lambda: errors.append(error_of(lambda: next(block))))
        end.start()
        end.join()
        assert errors[0][0] is IllegalState
        assert "the connection belongs to another thread" in errors[0][1]
        assert (visible(out), out.pending()) == ([], [])
        gc.collect()  # only its own thread can close the connection
        with out.atomic(producer, database) as tx:
            tx.connection.execute("insert into placed values (2)")
            tx.produce("out", "2")
    assert visible(out) == [b"2"]


def test_a_batch_that_ends_in_another_thread_is_refused(log, base):
    with Database(base) as database, log.consumer("orders", **SETTINGS) as consumer:
        batches, errors = iter(log.sink(consumer, database, timeout=0.2)), []
        next(batches).connection.execute("insert into placed values (1)")
        end = threading.Thread(target=lambda: errors.append(error_of(lambda: next(batches))))
        end.start()
        end.join()
        assert errors[0][0] is IllegalState
        assert "the connection belongs to another thread" in errors[0][1]


def error_of(call):
    """The kind and the message; a kept error would keep the connection open."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None
