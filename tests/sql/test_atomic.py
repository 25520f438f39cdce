"""`log.atomic`: rows, records and offsets, all or nothing."""

from __future__ import annotations

import itertools
import os
import sqlite3
import sys
from contextlib import closing, contextmanager, nullcontext, suppress

import pytest

import eoslog
from eoslog import Outcome
from eoslog.errors import (
    ConfigError,
    DatabaseError,
    DatabaseUnavailable,
    IllegalState,
    OutcomeConflict,
    PreparedTransactionPending,
    StorageError,
    TransactionAborted,
)
from eoslog.sql import Database, audit, outcome_book
from eoslog.sql.older_logs import refuse_older_log
from eoslog.sql.outcomes import OutcomeRow
from eoslog.storage.fs import files

SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
READING = {"group_id": "r", "auto_offset_reset": "earliest"}


@pytest.fixture
def database(table):
    with Database(table.connect) as database:
        yield database


def placed(table):
    return sorted(number for (number,) in table.rows("select number from placed"))


def visible(log):
    return sorted(int(record.value) for record in log.read("out"))


def place_order(tx, number):
    tx.connection.execute(f"insert into placed values ({number})")
    tx.produce("out", f"{number}")


def test_row_N19_rows_and_records_commit_together(out, table, database, producer):
    for number in range(3):
        with out.atomic(producer, database) as tx:
            place_order(tx, number)
            assert visible(out) == list(range(number))
    assert placed(table) == visible(out) == [0, 1, 2]


def test_row_N19_an_exception_leaves_neither(out, table, database, producer):
    with pytest.raises(ZeroDivisionError):
        with out.atomic(producer, database) as tx:
            place_order(tx, 1)
            raise ZeroDivisionError
    assert placed(table) == visible(out) == []
    with out.atomic(producer, database) as tx:
        place_order(tx, 2)
    assert placed(table) == visible(out) == [2]


def test_an_abort_in_the_block_leaves_neither(out, table, database, producer):
    with out.atomic(producer, database) as tx:
        place_order(tx, 1)
        tx.abort()
    assert placed(table) == visible(out) == []


def test_a_refused_database_commit_leaves_neither(out, table, database, producer):
    if table.postgresql:
        table.run("create table parent (id integer primary key)")
        table.run(
            "create table deferred (id integer references parent deferrable initially deferred)"
        )
        with pytest.raises(Exception, match="foreign key") as raised:
            with out.atomic(producer, database) as tx:
                place_order(tx, 1)
                tx.connection.execute("insert into deferred values (9)")
        assert not isinstance(raised.value, eoslog.EoslogError)
    else:
        with pytest.raises(IllegalState, match="the program ended the transaction"):
            with out.atomic(producer, database) as tx:
                place_order(tx, 1)
                tx.connection.rollback()
    assert placed(table) == visible(out) == []
    with out.atomic(producer, database) as tx:
        place_order(tx, 2)
    assert placed(table) == visible(out) == [2]


def test_row_2_N19_a_prepare_that_fails_undoes_rows_records_and_positions(
    out, table, database, producer, disarmed
):
    with out.consumer("orders", **SETTINGS) as consumer:
        for fails in (True, False):
            if fails:
                files._armed["prepare.flushed"] = ["EIO"]
            with pytest.raises(StorageError) if fails else nullcontext():
                with out.atomic(producer, database) as tx:
                    for record in consumer.consume(12):
                        place_order(tx, int(record.value))
                    tx.commit_offsets(consumer)
            assert placed(table) == visible(out) == [*range(0 if fails else 12)]


@pytest.mark.parametrize("place", ["wal", "postgresql"], indirect=True)
def test_row_N19_an_abort_by_hand_after_the_database_commit_is_reported(out, table, producer):
    def commit_and_abort(commit):
        commit()
        for prepared in out.pending():
            out.resolve(prepared.token, Outcome.ABORT)

    with Database(table.at_commit(commit_and_abort)) as database:
        with pytest.raises(OutcomeConflict):
            with out.atomic(producer, database) as tx:
                place_order(tx, 1)
    assert (placed(table), visible(out)) == ([1], [])


@pytest.mark.parametrize("down", [0, 2])
def test_row_6_N19_a_lost_answer_to_commit_is_asked_for(out, table, producer, down):
    """Also if the database cannot be reached for a moment."""
    lost, refused = [], []

    def connect():
        if refused and not lost:
            refused.pop()
            raise DatabaseUnavailable("the database is down")
        connection = table.connect()
        return lose_answers(connection, lost) if lost else connection

    with Database(connect) as database:
        database.create()
        database._mine.idle.clear()
        lost.append(True)
        refused += [True] * down
        with out.atomic(producer, database) as tx:
            place_order(tx, 1)
        assert refused == []
        assert placed(table) == visible(out) == [1]


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("atomic.prepared", []),
        ("atomic.outcome", []),
        ("atomic.db_commit", [1]),
        ("atomic.decided", [1]),
    ],
)
def test_row_N19_ctrl_c_during_the_commit_leaves_both_or_neither(
    out, table, database, producer, disarmed, point, left
):
    producer.init_transactions()
    files.arm_failpoint(point, "interrupt")
    with pytest.raises(KeyboardInterrupt):
        with out.atomic(producer, database) as tx:
            place_order(tx, 1)
    assert placed(table) == visible(out) == left
    assert out.pending() == []
    with out.atomic(producer, database) as tx:
        place_order(tx, 2)
    assert placed(table) == visible(out) == [*left, 2]


def lose_answers(connection, lost):
    """A connection whose next commit succeeds and then raises an error."""
    kind = type(connection)
    real = kind.commit

    class Lossy(kind):
        def commit(self):
            real(self)
            if lost:
                lost.clear()
                self.close()
                raise eoslog.errors.DatabaseUnavailable("the connection was lost")

    if kind is sqlite3.Connection:
        where = connection.execute("pragma database_list").fetchone()[2]
        connection.close()
        return sqlite3.connect(where, factory=Lossy)
    connection.__class__ = Lossy
    return connection


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_database_that_gives_no_answer_rewinds_the_consumer(out, table):
    import psycopg

    fails = [True]

    def replace_tables(commit):
        if not fails:
            commit()
            return
        fails.clear()
        table.run("update eoslog_meta set value = value || 'x' where key = 'database_id'")
        raise psycopg.OperationalError("the connection was lost")

    with (
        Database(table.connect) as ready,
        Database(table.at_commit(replace_tables)) as database,
        out.producer(transactional_id="t") as producer,
        out.consumer("orders", **SETTINGS) as consumer,
    ):
        ready.create()
        for expected in (
            pytest.raises(DatabaseError, match="keeps the transaction"),
            nullcontext(),
        ):
            with expected:
                with out.atomic(producer, database) as tx:
                    for record in consumer.consume(12):
                        place_order(tx, int(record.value))
                    tx.commit_offsets(consumer)
            table.run("update eoslog_meta set value = replace(value, 'x', '')")
        assert placed(table) == visible(out) == [*range(12)]


def test_offsets_of_the_group_commit_with_rows_and_records(out, table, database, producer):
    with out.consumer("orders", **SETTINGS) as consumer:
        for fails in (True, False):
            try:
                with out.atomic(producer, database) as tx:
                    for record in consumer.consume(12):
                        place_order(tx, int(record.value))
                    tx.commit_offsets(consumer)
                    if fails:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                assert placed(table) == visible(out) == []
        assert consumer.consume(1, 0) == []
    assert placed(table) == visible(out) == list(range(12))
    assert {at.offset for at in out.committed("g").values()} == {6}


def test_offsets_in_the_database_commit_with_rows_and_records(out, table, database, producer):
    with out.consumer("orders", offset_store=database, **SETTINGS) as consumer:
        for fails in (True, False):
            try:
                with out.atomic(producer, database) as tx:
                    for record in consumer.consume(12):
                        place_order(tx, int(record.value))
                    tx.commit_offsets(consumer)
                    if fails:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                assert placed(table) == visible(out) == []
    assert placed(table) == visible(out) == list(range(12))
    assert table.rows("select sum(next_offset) from eoslog_offsets") == [(12,)]


@pytest.mark.parametrize("begun", [False, True])
def test_a_connection_of_the_program_takes_part(out, table, database, producer, begun):
    database.create()
    connection = table.connect()
    if begun:
        connection.execute("insert into placed values (0)")
    with out.atomic(producer, database, connection) as tx:
        assert tx.connection is connection
        place_order(tx, 1)
    connection.close()
    assert placed(table) == ([0, 1] if begun else [1])
    assert visible(out) == [1]


@pytest.mark.parametrize("place", ["delete", "wal", "postgresql"], indirect=True)
def test_row_4_N19_a_resolver_at_any_statement_leaves_both_or_neither(
    out, table, database, producer
):
    """The worker's transaction has no lock of SQLite before its outcome row."""
    committed, aborted = [], []
    for number in itertools.count(1):
        came = []

        def ask(came=came):
            came.append(True)
            for prepared in out.pending():
                if (outcome := database.resolve(prepared)) is not Outcome.UNKNOWN:
                    out.resolve(prepared.token, outcome)

        with closing(table.at_statement(number, ask)()) as connection:
            connection.execute("begin")
            try:
                with out.atomic(producer, database, connection) as tx:
                    tx.produce("out", f"{number}")
                committed.append(number)
            except TransactionAborted:
                aborted.append(number)
        assert visible(out) == committed
        for token, decision in table.rows("select token, decision from eoslog_outcome"):
            assert out.outcome(token) is (Outcome.COMMIT if decision == "C" else Outcome.ABORT)
        if not came:
            break
    assert aborted
    assert committed[-1] == number


@pytest.mark.parametrize("place", ["wal", "postgresql"], indirect=True)
def test_row_N19_connections_that_commit_automatically_take_part(out, table, producer):
    def connect():
        connection = table.connect()
        if table.postgresql or sys.version_info >= (3, 12):
            connection.autocommit = True
        else:
            connection.isolation_level = None
        return connection

    with Database(connect) as database:
        for number, fails in enumerate((True, False, False)):
            with pytest.raises(ZeroDivisionError) if fails else nullcontext():
                with out.atomic(producer, database) as tx:
                    place_order(tx, number)
                    assert placed(table) == [*range(1, number)]
                    if fails:
                        raise ZeroDivisionError
    assert placed(table) == visible(out) == [1, 2]


def test_row_N19_a_commit_in_the_block_is_reported(out, table, database, producer):
    with pytest.raises(IllegalState, match="the program ended the transaction"):
        with out.atomic(producer, database) as tx:
            place_order(tx, 1)
            tx.connection.commit()
            tx.connection.execute("insert into placed values (2)")
            tx.produce("out", "2")
    assert (placed(table), visible(out), out.pending()) == ([1], [], [])
    with out.atomic(producer, database) as tx:
        place_order(tx, 3)
    assert (placed(table), visible(out)) == ([1, 3], [3])


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_change_of_the_schema_in_the_block_is_reported(out, table, database, producer):
    with pytest.raises(DatabaseError, match="a statement of the program changed the schema"):
        with out.atomic(producer, database) as tx:
            place_order(tx, 1)
            tx.connection.execute("set search_path = pg_catalog")
    assert placed(table) == visible(out) == out.pending() == []


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_close_in_the_block_is_reported(out, table, database, producer):
    """Psycopg's `with connection:` commits, so the rows must not come again."""
    with pytest.raises(IllegalState, match="the program closed the connection"):
        with out.atomic(producer, database) as tx:
            with tx.connection:
                place_order(tx, 1)
    assert (placed(table), visible(out), out.pending()) == ([1], [], [])
    with out.atomic(producer, database) as tx:
        place_order(tx, 2)
    assert (placed(table), visible(out)) == ([1, 2], [2])


def autocommitting(place):
    """A factory of connections that commit automatically."""

    def connect():
        connection = place.connect()
        if place.postgresql:
            connection.autocommit = True
        else:
            connection.isolation_level = None
        return connection

    return connect


@pytest.mark.parametrize("place", ["wal", "delete", "postgresql"], indirect=True)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_row_N19_an_end_in_the_block_does_not_commit_the_outcome_alone(out, table, producer, end):
    """With automatic commits, the outcome row would be committed without the rows."""
    with Database(autocommitting(table)) as database:
        with pytest.raises(IllegalState, match="the program ended the transaction"):
            with out.atomic(producer, database) as tx:
                place_order(tx, 1)
                tx.connection.execute(end)
        kept = [1] if end == "commit" else []
        assert (placed(table), visible(out), out.pending()) == (kept, [], [])
        with out.atomic(producer, database) as tx:
            place_order(tx, 2)
        assert (placed(table), visible(out)) == ([*kept, 2], [2])


@pytest.mark.parametrize("place", ["wal", "delete", "postgresql", "session"], indirect=True)
@pytest.mark.parametrize("fails", [False, True])
def test_row_N19_a_forked_child_leaves_the_transaction_to_its_parent(
    out, table, database, producer, fails
):
    """Its rollback would be one of the parent's connection."""
    with out.atomic(producer, database) as tx:
        place_order(tx, 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                error = ZeroDivisionError() if fails else None
                with suppress(IllegalState):
                    assert tx.connection is None
                tx.__exit__(type(error), error, None)
                code = 0 if fails else 2
            except IllegalState:
                code = 0 if not fails else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert placed(table) == visible(out) == [1]


def test_a_connection_to_another_database_is_refused(out, table, producer, tmp_path):
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("create table placed (number integer)")
    Database(tmp_path / "other.sqlite").create()
    with Database(table.connect) as database:
        with pytest.raises(ConfigError, match="the same database"):
            with out.atomic(producer, database, other) as tx:
                place_order(tx, 1)
        assert visible(out) == []
    other.close()


@pytest.mark.parametrize("place", ["wal", "postgresql", "session"], indirect=True)
def test_a_connection_outside_of_the_block_is_refused(out, table, database, producer):
    """It would begin a transaction that nothing ends, with the write lock of SQLite."""
    block = out.atomic(producer, database)
    with pytest.raises(IllegalState, match="the transaction is not begun"):
        assert block.connection
    with out.atomic(producer, database) as tx:
        place_order(tx, 1)
    with pytest.raises(IllegalState, match="the transaction is committed"):
        assert tx.connection
    with pytest.raises(ZeroDivisionError):
        with out.atomic(producer, database) as tx:
            place_order(tx, 2)
            raise ZeroDivisionError
    with out.atomic(producer, database) as aborted:
        aborted.abort()
        with pytest.raises(IllegalState, match="the transaction is aborted"):
            assert aborted.connection
    with out.consumer("orders", offset_store=database, **READING) as consumer:
        consumer.consume(12)
        for ended in (tx, aborted):
            with pytest.raises(IllegalState, match="the transaction is aborted"):
                assert ended.connection
            with pytest.raises(IllegalState, match="the transaction is aborted"):
                ended.commit_offsets(consumer)
    with block:
        place_order(block, 3)
    assert placed(table) == visible(out) == [1, 3]


@pytest.mark.parametrize("place", ["wal"], indirect=True)
def test_records_of_a_producer_with_a_name_have_publishing_ids(out, table, database):
    def place(number):
        with out.atomic(named, database) as tx:
            tx.connection.execute(f"insert into placed values ({number})")
            tx.produce("out", number, partition=0, publishing_id=number)
            if number == 5:
                raise ZeroDivisionError

    with out.producer(name="shop", value="json") as named:
        place(3)
        with pytest.raises(ZeroDivisionError):
            place(5)
        place(4)
        place(4)
    assert (placed(table), visible(out)) == ([3, 4, 4], [3, 4])
    assert out.last_publishing_id("shop", "out", 0) == 4


def test_two_databases_of_one_name_do_not_answer_for_each_other(out, table, producer, tmp_path):
    with Database(table.connect, name="shop") as database:
        producer.init_transactions()
        with producer.transaction() as tx:
            tx.produce("out", "1")
            producer.prepare_transaction(meta={"eoslog.database": database.id}, resolver="shop")
        with Database(tmp_path / "other.sqlite", name="shop") as other:
            with pytest.raises(PreparedTransactionPending, match="prepared with another database"):
                with out.atomic(producer, other):
                    raise AssertionError
        with out.atomic(producer, database) as tx:
            place_order(tx, 2)
    assert placed(table) == visible(out) == [2]


def test_row_N19_two_logs_that_share_a_database_begin_again(out, table, tmp_path):
    """Neither log knows the commits of the other one, and neither is an older copy."""
    with eoslog.open(tmp_path / "second") as second:
        second.create_topic("out")
        for number in range(3):
            for log, order in ((out, number), (second, 10 + number)):
                with (
                    Database(table.connect) as database,
                    log.producer(transactional_id="t") as producer,
                    log.atomic(producer, database) as tx,
                ):
                    place_order(tx, order)
        assert (visible(out), visible(second)) == ([0, 1, 2], [10, 11, 12])
    assert placed(table) == [0, 1, 2, 10, 11, 12]


def test_row_N19_a_database_of_the_same_name_does_not_answer_for_a_commit(
    out, table, producer, tmp_path, disarmed
):
    with (
        Database(table.connect, name="shop") as database,
        Database(tmp_path / "other.sqlite", name="shop") as other,
        out.producer(transactional_id="t") as second,
    ):
        # At the commit of the producer, and at the decision by the token.
        files._armed["txn.flushed"] = ["EIO", "EIO"]
        with out.atomic(producer, database) as tx:
            place_order(tx, 1)
        with pytest.raises(PreparedTransactionPending, match="prepared with another database"):
            with out.atomic(second, other):
                raise AssertionError
        with out.atomic(second, database) as tx:
            place_order(tx, 2)
    assert placed(table) == visible(out) == [1, 2]


def test_row_N19_a_transaction_of_another_resolver_stays_prepared(out, table, database, producer):
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("out", "1")
    token = producer.prepare_transaction(resolver="bank").token
    with out.producer(transactional_id="t") as second:
        with pytest.raises(PreparedTransactionPending):
            with out.atomic(second, database):
                raise AssertionError
        assert [prepared.token for prepared in out.pending()] == [token]
        assert table.rows("select * from eoslog_outcome") == []
        out.resolve(token, Outcome.COMMIT)
        with out.atomic(second, database) as tx:
            place_order(tx, 2)
    assert (placed(table), visible(out)) == ([2], [1, 2])


def test_row_15_N19_a_log_older_than_the_database_begins_nothing(out, table, tmp_path):
    """Its next transactions would have the tokens of those that it has lost."""
    for copy, count in (("older", 3), ("", 2)):
        with (
            Database(table.connect) as database,
            out.producer(transactional_id="t") as producer,
        ):
            for number in range(count):
                with out.atomic(producer, database) as tx:
                    place_order(tx, number)
        if copy:
            out.backup(tmp_path / copy)
    before = placed(table)
    with eoslog.open(tmp_path / "older") as older, older.producer(transactional_id="t") as producer:
        for _ in range(2):
            with Database(table.connect) as database:
                with pytest.raises(DatabaseError, match="so the log is an older copy"):
                    with older.atomic(producer, database):
                        raise AssertionError
        assert (visible(older), older.pending()) == ([0, 1, 2], [])
        lost = f"{older.cluster_id}:{owner(out)}:"
        table.run(f"delete from eoslog_outcome where token like '{lost}%'")
        with Database(table.connect) as database, older.atomic(producer, database) as tx:
            place_order(tx, 9)
        assert (placed(table), visible(older)) == ([*before, 9], [0, 1, 2, 9])


@contextmanager
def refusing(path, table):
    """Open an older log and its database, which begin no transaction."""
    with (
        eoslog.open(path) as older,
        older.producer(transactional_id="t") as producer,
        Database(table.connect) as database,
    ):
        with pytest.raises(DatabaseError, match="so the log is an older copy"):
            with older.atomic(producer, database):
                raise AssertionError
        yield older, database


def test_row_15_N19_an_older_log_is_refused_under_many_rows_of_other_logs(out, table, tmp_path):
    """The newest rows of the database are not those of the log."""
    out.backup(tmp_path / "older")
    with Database(table.connect) as database, out.producer(transactional_id="t") as producer:
        with out.atomic(producer, database) as tx:
            place_order(tx, 0)
    rows = ", ".join(
        f"('other:1:0:{number}', 'C', '2100-01-01 00:00:00')" for number in range(1500)
    )
    table.run(f"insert into eoslog_outcome (token, decision, at) values {rows}")
    with refusing(tmp_path / "older", table):
        pass


def test_row_15_N19_an_older_log_is_refused_under_many_older_rows(out, table, tmp_path):
    """They are those of producers that the log has forgotten."""
    out.backup(tmp_path / "older")
    with Database(table.connect) as database, out.producer(transactional_id="t") as producer:
        with out.atomic(producer, database) as tx:
            place_order(tx, 0)
    rows = ", ".join(
        f"('{out.cluster_id}:0:0:{number}', 'C', '2020-01-01 00:00:00')" for number in range(1500)
    )
    table.run(f"insert into eoslog_outcome (token, decision, at) values {rows}")
    with refusing(tmp_path / "older", table):
        pass


def test_row_15_N19_an_older_log_is_refused_after_the_outcome_retention(table, tmp_path):
    """It assigns the producer ids of lost transactional ids again."""
    path = tmp_path / "shop"
    with eoslog.open(path) as log:
        log.create_topic("out")
        log.backup(tmp_path / "older")
    with (
        eoslog.open(path) as log,
        Database(table.connect) as database,
        log.producer(transactional_id="t") as producer,
    ):
        for number in range(2):
            with log.atomic(producer, database) as tx:
                place_order(tx, number)
        table.run("update eoslog_outcome set at = '2020-01-01 00:00:00'")
        assert audit(log, database).ok
    with refusing(tmp_path / "older", table) as (older, database):
        assert {found.kind for found in audit(older, database).findings} == {"log-older"}
        assert visible(older) == []


def test_row_15_N19_a_token_that_was_used_before_commits_nothing(out, table, database, producer):
    with out.atomic(producer, database) as tx:
        place_order(tx, 1)
    [(token,)] = table.rows("select token from eoslog_outcome")
    owner, epoch, number = token.rsplit(":", 2)
    used = f"{owner}:{int(epoch) + 1}:{number}"
    table.run(f"insert into eoslog_outcome (token, decision) values ('{used}', 'C')")
    with pytest.raises(DatabaseError, match=f"committed another transaction with token {used}"):
        with out.atomic(producer, database) as tx:
            place_order(tx, 2)
    assert (placed(table), visible(out), out.pending()) == ([1], [1], [])
    with out.atomic(producer, database) as tx:
        place_order(tx, 3)
    assert placed(table) == visible(out) == [1, 3]


def test_row_4_N19_a_tombstone_undoes_rows_records_and_positions(out, table, database, producer):
    with out.consumer("orders", **SETTINGS) as consumer:
        with out.atomic(producer, database) as tx:
            place_order(tx, 100)
        [(token,)] = table.rows("select token from eoslog_outcome")
        owner, epoch, number = token.rsplit(":", 2)
        table.run(
            "insert into eoslog_outcome (token, decision) "
            f"values ('{owner}:{int(epoch) + 1}:{number}', 'A')"
        )
        for aborts in (True, False):
            with pytest.raises(TransactionAborted) if aborts else nullcontext():
                with out.atomic(producer, database) as tx:
                    for record in consumer.consume(12):
                        place_order(tx, int(record.value))
                    tx.commit_offsets(consumer)
            assert out.pending() == []
            assert placed(table) == visible(out) == [*range(0 if aborts else 12), 100]
            assert bool(out.committed("g")) is not aborts


def owner(log):
    (about,) = log.transactions(open_only=False)
    return about.producer_id


@pytest.mark.parametrize(
    ("days", "epochs_later", "lost"), [(0, -1, True), (30, -1, False), (30, 0, True), (30, 5, True)]
)
def test_an_unknown_commit_is_lost_if_it_is_recent_or_of_a_later_epoch(
    out, table, database, producer, days, epochs_later, lost
):
    with out.atomic(producer, database) as tx:
        place_order(tx, 1)
    epoch = producer.producer_epoch + epochs_later
    token = f"{out.cluster_id}:{producer.producer_id}:{epoch}:49"
    row = OutcomeRow(token, True, out._engine.clock_ms() - days * 24 * 3600 * 1000)
    with pytest.raises(DatabaseError) if lost else nullcontext():
        refuse_older_log(out, [row], "base", "eoslog_outcome")


def test_an_unknown_old_commit_is_lost_if_outcomes_are_kept_forever(tmp_path):
    with eoslog.open(tmp_path / "shop", outcome_retention_ms=-1) as log:
        with log.producer(transactional_id="t") as producer:
            producer.init_transactions()
            token = f"{log.cluster_id}:{producer.producer_id}:{producer.producer_epoch - 1}:49"
        with pytest.raises(DatabaseError, match="so the log is an older copy"):
            refuse_older_log(log, [OutcomeRow(token, True, 0)], "base", "eoslog_outcome")


def test_row_N19_an_outcome_row_stays_until_the_log_has_decided(
    out, table, database, producer, disarmed
):
    # At the commit of the producer, and at the decision by the token.
    files._armed["txn.flushed"] = ["EIO", "EIO"]
    with out.atomic(producer, database) as tx:
        place_order(tx, 1)
    assert (placed(table), visible(out)) == ([1], [])
    database.close()  # deletes the rows that are not needed
    with Database(table.connect) as database, out.producer(transactional_id="t") as producer:
        with out.atomic(producer, database) as tx:
            place_order(tx, 2)
    assert placed(table) == visible(out) == [1, 2]


def test_outcome_rows_but_the_last_are_deleted_after_their_decisions(
    out, table, database, producer
):
    for number in range(5):
        with out.atomic(producer, database) as tx:
            place_order(tx, number)
    count = "select count(*) from eoslog_outcome"
    assert table.rows(count) == [(5,)]
    database.close()
    assert table.rows(count) == [(1,)]


def test_outcome_rows_are_deleted_after_a_failure_of_their_deletion(
    out, table, database, producer, disarmed, monkeypatch
):
    monkeypatch.setattr(outcome_book, "_BATCH", 3)
    for number in range(4):
        with out.atomic(producer, database) as tx:
            place_order(tx, number)
    files._armed["atomic.outcome"] = ["EIO"]  # after the deletion of three rows
    with pytest.raises(StorageError):
        with out.atomic(producer, database) as tx:
            place_order(tx, 4)
    count = "select count(*) from eoslog_outcome where decision = 'C'"
    assert table.rows(count) == [(4,)]
    database.close()
    assert table.rows(count) == [(1,)]
    assert placed(table) == visible(out) == [0, 1, 2, 3]


def test_row_N19_the_last_outcome_row_stays_after_an_abort(out, table, database, producer):
    with out.atomic(producer, database) as tx:
        place_order(tx, 1)
    producer.begin_transaction()
    producer.produce("out", "2")
    producer.prepare_transaction(meta={"eoslog.database": database.id}, resolver=database.name)
    with out.producer(transactional_id="t") as second:
        with pytest.raises(ZeroDivisionError):
            with out.atomic(second, database):
                raise ZeroDivisionError
    database.close()  # deletes the rows that are not needed
    decisions = table.rows("select decision from eoslog_outcome order by decision")
    assert decisions == [("A",), ("C",)]
    assert placed(table) == visible(out) == [1]


def test_outcome_rows_of_a_dead_process_are_deleted(out, table, producer):
    database = Database(table.connect)
    with out.atomic(producer, database) as tx:
        place_order(tx, 1)
    [(first,)] = table.rows("select token from eoslog_outcome")
    del database  # as if the process had died: nothing was closed
    with Database(table.connect) as database:
        with out.atomic(producer, database) as tx:
            place_order(tx, 2)
    [(last,)] = table.rows("select token from eoslog_outcome")
    assert last != first


def test_a_database_that_is_down_begins_nothing(out, producer, tmp_path):
    pytest.importorskip("psycopg")
    database = Database(f"host={tmp_path}")
    with pytest.raises(DatabaseUnavailable), out.atomic(producer, database):
        raise AssertionError
    assert producer.transaction_state == "UNINITIALIZED"


def test_wrong_arguments_are_refused(out, database, producer, tmp_path):
    with out.producer() as plain:
        with pytest.raises(ConfigError, match="the producer has no transactional.id"):
            out.atomic(plain, database)
    with pytest.raises(ConfigError, match="expected an eoslog.sql.Database, got"):
        out.atomic(producer, tmp_path)
    with pytest.raises(ConfigError, match="producer: expected a Producer"):
        out.atomic(database, database)
    with eoslog.open(tmp_path / "other") as other:
        with pytest.raises(ConfigError, match="the producer writes to"):
            other.atomic(producer, database)
