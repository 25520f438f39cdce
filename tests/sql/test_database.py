"""`Database`: how it connects, and its tables."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    ConfigError,
    DatabaseError,
    IllegalState,
)
from eoslog.sql import Database
from eoslog.sql.outcomes import all_outcomes
from tests.paths import ROOT

SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest"}
T0 = TopicPartition("orders", 0)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "base.sqlite")


# Connections.


@pytest.mark.parametrize(
    "write", [str, lambda path: path, "sqlite:////{}".format, "file:{}".format]
)
def test_a_database_of_sqlite_is_named_by_path_or_url(tmp_path, write):
    path = tmp_path / "base.sqlite"
    with Database(write(path)) as database:
        assert len(database.id) == 32
    assert path.exists()


def test_a_relative_path_stays_where_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = Database("base.sqlite")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    database.create()
    database.close()
    assert (tmp_path / "base.sqlite").exists()


def test_a_relative_uri_stays_where_it_was_given(tmp_path, monkeypatch):
    (tmp_path / "ä b?").mkdir()
    monkeypatch.chdir(tmp_path / "ä b?")
    with Database("file:shop%20%231.sqlite?mode=rwc") as database:
        monkeypatch.chdir(tmp_path)
        database.create()
    assert (tmp_path / "ä b?" / "shop #1.sqlite").exists()


@pytest.mark.parametrize(
    "connect", ["file:{}?vfs=none", "file:{}?mode=none", "file://host{}", "{}\0", "{}\ud800"]
)
def test_a_path_that_sqlite_does_not_understand_is_refused(tmp_path, connect):
    with Database(connect.format(tmp_path / "base.sqlite")) as database:
        with pytest.raises(ConfigError, match="SQLite does not understand"):
            database.create()


def test_a_database_of_postgresql_is_named_by_a_connection_string(server):
    with Database(server.schema()) as database:
        assert len(database.id) == 32
    with Database(f"postgresql:///postgres?host={server.directory}&user=eoslog") as database:
        assert len(database.id) == 32


@pytest.mark.parametrize(
    ("connect", "message"),
    [
        ("mysql://localhost/shop", "the scheme mysql:// is not supported"),
        ("sqlite:shop", "expected sqlite:///PATH"),
        ("sqlite://host/shop", "expected sqlite:///PATH"),
        ("", "expected a function that returns"),
        (7, "expected a function that returns"),
        (None, "expected a function that returns"),
        ("postgresql://[", "libpq does not understand"),
        ("host=a nonsense=b", "libpq does not understand"),
    ],
)
def test_a_database_refuses_a_connection_string_that_is_not_known(connect, message):
    if "libpq" in message:
        pytest.importorskip("psycopg")
    with pytest.raises(ConfigError, match=message):
        Database(connect)


def test_a_database_refuses_a_connection_in_place_of_a_function(base):
    connection = sqlite3.connect(base)
    with pytest.raises(ConfigError, match="pass a function that returns a new connection"):
        Database(connection)
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dialect": "oracle"}, 'expected "sqlite" or "postgresql", got'),
        ({"dialect": "postgresql"}, "the connection string is one of sqlite"),
        ({"prefix": "a b"}, "prefix: expected at most 40 letters"),
        ({"prefix": ""}, "prefix: expected at most 40 letters"),
        ({"prefix": "x; drop table y"}, "prefix: expected at most 40 letters"),
        ({"prefix": "SQLite_x"}, "prefix: SQLite reserves names"),
        ({"name": ""}, "name: expected a text or None"),
        ({"name": 3}, "name: expected a text or None"),
    ],
)
def test_a_database_refuses_wrong_arguments(base, arguments, message):
    with pytest.raises(ConfigError, match=message):
        Database(base, **arguments)


@pytest.mark.parametrize(
    ("connect", "message"),
    [
        (lambda: None, "expected the factory to return a connection"),
        (lambda: object(), "expected the factory to return a connection"),
    ],
)
def test_a_database_rejects_other_results_of_the_factory(connect, message):
    with pytest.raises(ConfigError, match=message):
        Database(connect).create()


def test_a_database_refuses_a_dialect_that_the_connection_has_not(base):
    with pytest.raises(ConfigError, match="the factory returned a connection of sqlite"):
        Database(lambda: sqlite3.connect(base), dialect="postgresql").create()


def test_an_error_of_the_factory_is_raised_as_it_is():
    def connect():
        raise LookupError("no secret")

    with pytest.raises(LookupError, match="no secret"):
        Database(connect).create()


def test_a_closed_connection_is_refused(place):
    def connect():
        connection = place.connect()
        connection.close()
        return connection

    if place.kind == "session":  # a closed session begins again
        Database(connect).create()
        return
    with pytest.raises(ConfigError, match="new open connection at each call"):
        Database(connect).create()


def test_a_factory_must_not_return_the_same_connection_twice(place, log):
    same = place.connect()
    database = Database(lambda: same)
    with log.consumer("orders", **SETTINGS) as consumer:
        # A connection of SQLAlchemy is closed after its first use.
        message = "the factory returned a connection that is in use|new open connection at each"
        with pytest.raises((IllegalState, ConfigError), match=message):
            for batch in log.sink(consumer, database):
                _ = batch.connection
                database.committed_offsets("g", {T0: log.topic_id("orders")})
    same.close()


@pytest.mark.parametrize("place", ["wal", "postgresql"], indirect=True)
def test_a_resolver_leaves_the_transaction_of_a_program_alone(table, producer):
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("out", "1")
    prepared = producer.prepare_transaction()
    used = table.connect()
    database = Database(lambda: used)
    database.create()
    used.execute("insert into placed values (1)")
    with pytest.raises(IllegalState, match="the factory must return a new connection"):
        database.resolve(prepared)
    assert table.rows("select * from placed") == []


def test_a_closed_database_is_refused(base):
    database = Database(base)
    database.create()
    database.close()
    database.close()
    with pytest.raises(IllegalState, match="the database is closed"):
        database.create()


def test_a_directory_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="is a directory; name a file in it"):
        Database(tmp_path).create()
    with pytest.raises(ConfigError, match="does not exist; create it"):
        Database(tmp_path / "no" / "base.sqlite").create()


# Tables.


COPIES = "select name from sqlite_master where name like '%_copy' order by name"


def earlier(base, *statements):
    """Make the tables those of an earlier version, which had no copies."""
    with Database(base) as database:
        database.create()
    connection = sqlite3.connect(base)
    for name in ("outcome", "offsets"):
        connection.execute(f"drop index eoslog_{name}_copy")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def copies(base):
    connection = sqlite3.connect(base)
    found = [name for (name,) in connection.execute(COPIES)]
    connection.close()
    return found


def test_the_first_use_adds_the_copies_to_tables_of_an_earlier_version(base):
    earlier(base, "insert into eoslog_outcome (token, decision) values ('log:7:0:3', 'C')")
    assert copies(base) == []
    with Database(base) as database:
        assert len(database.id) == 32
        assert [row.token for row in _outcomes(database)] == ["log:7:0:3"]
    assert copies(base) == ["eoslog_offsets_copy", "eoslog_outcome_copy"]


def _outcomes(database):
    with database._session() as session:
        return all_outcomes(session, database._tables)


def test_no_copy_of_a_damaged_table_is_made(base):
    earlier(base, *(f"insert into eoslog_outcome (token, decision) values ('log:{n}:0:3', 'C')"
                    for n in range(3)))  # fmt: skip
    data = Path(base).read_bytes()
    at = data.index(b"log:1:0:3")
    Path(base).write_bytes(data[:at] + b"x" + data[at + 1 :])
    with pytest.raises(DatabaseError, match="eoslog_outcome is damaged .* restore the database"):
        Database(base).create()
    assert copies(base) == []


def test_tables_without_copies_are_refused_if_none_can_be_added(base):
    earlier(base)
    with pytest.raises(DatabaseError, match="is read-only .*; open it for writing"):
        Database(lambda: sqlite3.connect(f"file:{base}?mode=ro", uri=True)).create()
    Database(base).create()
    with Database(lambda: sqlite3.connect(f"file:{base}?mode=ro", uri=True)) as database:
        assert len(database.id) == 32


def test_a_copy_that_is_removed_during_use_stops_the_next_commit(base, path):
    with eoslog.open(path) as log, Database(base) as database:
        log.create_topic("orders")
        producer = log.producer(transactional_id="shop")
        with log.atomic(producer, database) as tx:
            tx.produce("orders", b"1")
        connection = sqlite3.connect(base)
        connection.execute("drop index eoslog_outcome_copy")
        connection.commit()
        connection.close()
        with pytest.raises(DatabaseError, match="a copy of eoslog's tables was removed"):
            with log.atomic(producer, database) as tx:
                tx.produce("orders", b"2")
        with Database(base) as new, log.atomic(producer, new) as tx:
            tx.produce("orders", b"3")
        assert [record.value for record in log.read("orders")] == [b"1", b"3"]


def test_racing_processes_create_the_tables_once(place, tmp_path):
    program = (
        "import sys, json; from eoslog.sql import Database\n"
        "from tests.sql.databases import Place\n"
        "place = Place(*json.loads(sys.argv[1])); sys.stdin.read()\n"
        "print(Database(place.patient().connect).id)"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(place)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for _ in range(4)
    ]  # fmt: skip
    for racer in racers:
        racer.stdin.close()
    ids = {racer.stdout.read() for racer in racers}
    assert [racer.wait() for racer in racers] == [0, 0, 0, 0]
    assert len(ids) == 1
    assert len(ids.pop().strip()) == 32


def test_racing_threads_create_the_tables_once(place):
    database = Database(place.patient().connect)
    with ThreadPoolExecutor(8) as threads:
        ids = set(threads.map(lambda _: database.id, range(8)))
    assert len(ids) == 1
    assert {Database(place.connect).id} == ids


def test_the_id_is_the_same_after_a_restart_and_differs_by_prefix(place):
    first = Database(place.connect).id
    assert Database(place.connect).id == first
    assert Database(place.connect, prefix="other_").id != first


def test_tables_of_another_version_are_refused(place):
    Database(place.connect).create()
    place.run("update eoslog_meta set value = '9' where key = 'schema_version'")
    with pytest.raises(DatabaseError, match="have schema version 9, expected 1") as raised:
        Database(place.connect).create()
    assert not raised.value.retriable


def test_an_outcome_is_a_commit_or_an_abort(place):
    Database(place.connect).create()
    place.run("insert into eoslog_outcome (token, decision) values ('a', 'C'), ('b', 'A')")
    errors = eoslog_errors_of(place)
    with pytest.raises(errors):
        place.run("insert into eoslog_outcome (token, decision) values ('c', 'X')")


def eoslog_errors_of(place):
    if not place.postgresql:
        return sqlite3.IntegrityError
    import psycopg

    return psycopg.errors.CheckViolation
