"""`Database.resolve`: decisions of prepared transactions."""

from __future__ import annotations

import itertools
import sqlite3

import pytest

from eoslog import Outcome
from eoslog.descriptions import PreparedTransaction
from eoslog.errors import ConfigError, DatabaseError, DatabaseUnavailable
from eoslog.sql import Database

TOKEN = "log:7:0:3"
COMMIT = f"insert into eoslog_outcome (token, decision) values ('{TOKEN}', 'C')"


def prepared(meta=None) -> PreparedTransaction:
    return PreparedTransaction(TOKEN, "PREPARED", "inline", age=0.0, meta=meta)


@pytest.fixture
def database(place):
    with Database(place.connect) as database:
        database.create()
        yield database


def test_a_row_of_the_worker_is_a_commit(place, database):
    place.run(COMMIT)
    assert database.resolve(prepared()) is Outcome.COMMIT
    assert database(prepared()) is Outcome.COMMIT


def test_no_row_is_an_abort_that_a_later_commit_cannot_undo(place, database):
    assert database.resolve(prepared()) is Outcome.ABORT
    assert place.rows("select token, decision from eoslog_outcome") == [(TOKEN, "A")]
    with pytest.raises(Exception, match="(?i)unique"):
        place.run("create table business (x integer)", "insert into business values (1)", COMMIT)
    assert database.resolve(prepared()) is Outcome.ABORT


def test_a_database_that_was_never_reached_raises_a_retriable_error(tmp_path):
    folder = tmp_path / "absent"
    with Database(lambda: sqlite3.connect(folder / "base")) as database:
        with pytest.raises(DatabaseUnavailable) as raised:
            database.resolve(prepared())
    assert raised.value.retriable


def test_row_N19_a_worker_that_has_not_ended_gives_no_answer(place, database):
    worker = place.connect()
    worker.execute(COMMIT)
    assert database.resolve(prepared()) is Outcome.UNKNOWN
    worker.commit()
    worker.close()
    assert database.resolve(prepared()) is Outcome.COMMIT


def test_a_worker_that_rolls_back_later_is_an_abort(place, database):
    worker = place.connect()
    worker.execute(COMMIT)
    assert database.resolve(prepared()) is Outcome.UNKNOWN
    worker.rollback()
    worker.close()
    assert database.resolve(prepared()) is Outcome.ABORT


def test_row_5_N19_a_commit_at_any_statement_of_a_resolver_counts(place, database):
    assert database.id
    for number in itertools.count(1):
        token = f"log:7:{number}:3"
        worker, came = place.connect(), []
        worker.execute(COMMIT.replace(TOKEN, token))
        connect = place.at_statement(number, lambda: came.append(worker.commit()))  # noqa: B023
        with Database(connect) as resolver:
            outcome = resolver.resolve(PreparedTransaction(token, "PREPARED", "inline", age=0.0))
        worker.close()
        assert outcome is not Outcome.ABORT
        if not came:
            break
    assert (outcome, number > 5) == (Outcome.UNKNOWN, True)


def test_the_id_of_another_database_gives_no_answer_and_no_tombstone(place, database):
    other = prepared({"eoslog.database": "0" * 32})
    assert database.resolve(other) is Outcome.UNKNOWN
    assert place.rows("select * from eoslog_outcome") == []
    assert database.resolve(prepared({"eoslog.database": database.id})) is Outcome.ABORT


def test_tables_that_were_replaced_give_no_answer_and_no_tombstone(place, database):
    assert database.id
    place.run("update eoslog_meta set value = 'another' where key = 'database_id'")
    with pytest.raises(DatabaseError, match="were replaced while the database was in use"):
        database.resolve(prepared())
    assert place.rows("select * from eoslog_outcome") == []


def test_a_database_that_is_down_raises_a_retriable_error(server, tmp_path):
    import psycopg

    dsn = server.schema()
    down = []
    database = Database(lambda: psycopg.connect(down[0] if down else dsn))
    database.create()
    down.append(f"host={tmp_path}")
    with pytest.raises(DatabaseUnavailable, match="PostgreSQL is down"):
        database.resolve(prepared())


@pytest.mark.parametrize("autocommit", [False, True])
def test_limits_of_an_answer_end_with_its_transaction(server, autocommit):
    """A pooler lends the session of the server to other programs then."""
    import psycopg

    class Pooled(psycopg.Connection):
        def close(self):
            kept.append(self)

    kept: list[Pooled] = []
    dsn = server.schema()
    database = Database(lambda: Pooled.connect(dsn, autocommit=autocommit))
    assert database.resolve(prepared()) is Outcome.ABORT
    database.close()
    limits = "select current_setting('lock_timeout'), current_setting('statement_timeout')"
    assert {connection.execute(limits).fetchone() for connection in kept} == {("0", "0")}
    for connection in kept:
        super(Pooled, connection).close()


def test_resolve_rejects_a_token_in_place_of_a_prepared_transaction(database):
    with pytest.raises(ConfigError, match="expected a PreparedTransaction, got"):
        database.resolve(TOKEN)


def test_the_name_is_the_given_one_or_made_of_the_id(place, database):
    assert database.name == f"database-{database.id}"
    assert Database(place.connect, name="shop").name == "shop"
