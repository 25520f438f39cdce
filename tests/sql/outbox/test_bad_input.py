"""Rows that cannot become records, and tables that do not fit."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.errors import (
    ConfigError,
    DatabaseError,
    InvalidTopic,
    OutboxRowRejected,
    RecordTooLarge,
    SerializationError,
    UnknownTopicOrPartition,
)
from eoslog.sql import Database, OutboxRelay
from tests.sql.databases import LOCK_TIMEOUT, Place

ROWS: list[tuple[str, type[BaseException]]] = [
    ("topic, value) values ('unknown', 'x'", UnknownTopicOrPartition),
    ("topic, value) values ('__positions', 'x'", InvalidTopic),
    ("topic, value, partition) values ('out', 'x', 7", UnknownTopicOrPartition),
    ("topic, value) values ('out', 'BIG'", RecordTooLarge),
    ("topic, value, headers) values ('out', 'x', '[1]'", SerializationError),
    ("topic, value, headers) values ('out', 'x', '{\"a\": 1}'", SerializationError),
    ("topic, value) values ('compacted', 'x'", eoslog.errors.InvalidRecord),
]


def insert(place: Any, *tails: str) -> None:
    place.run(*(f"insert into outbox ({tail.replace('BIG', 'x' * 2_000_000)})" for tail in tails))


GOOD = ["topic, value) values ('out', '1'", "topic, value) values ('out', '2'"]


def values(log: eoslog.Log) -> list[str]:
    return [record.value.decode() for record in log.read("out")]


@pytest.fixture
def topics(log: eoslog.Log) -> eoslog.Log:
    log.create_topic("compacted", config={"cleanup.policy": "compact"})
    return log


@pytest.mark.parametrize(("row", "cause"), ROWS)
def test_a_rejected_row_stops_the_relay_and_stays(place, topics, relay, row, cause):
    insert(place, GOOD[0], row, GOOD[1])
    with pytest.raises(OutboxRowRejected, match="table outbox, row 2: ") as caught:
        relay.run("caught_up")
    assert caught.value.row_id == 2
    assert isinstance(caught.value.__cause__, cause)
    assert pickle.loads(pickle.dumps(caught.value)).row_id == 2
    assert values(topics) == ["1"]
    assert place.rows("select id from outbox order by id") == [(2,), (3,)]
    place.run("delete from outbox where id = 2")
    assert relay.run("caught_up") == 1
    assert values(topics) == ["1", "2"]


@pytest.mark.parametrize(("row", "cause"), ROWS)
def test_a_rejected_row_is_set_aside_and_the_others_are_published(
    place, topics, database, row, cause
):
    with OutboxRelay(database, topics, name="shop", on_error="set_aside") as relay:
        relay.create()
        insert(place, GOOD[0], row, GOOD[1])
        assert relay.run("caught_up") == 2
        assert relay.status()[:2] == (0, 1)
    assert values(topics) == ["1", "2"]
    [(number, error)] = place.rows("select id, set_aside_error from outbox_set_aside")
    assert number == 2
    assert error.startswith("table outbox, row 2: ")


def test_a_row_without_an_id_always_stops_the_relay(place, log, database):
    place.run("create table loose (id integer, topic text, value text)")
    place.run("insert into loose values (null, 'out', 'x')")
    with OutboxRelay(
        database, log, name="loose", table="loose", on_error="set_aside"
    ) as relay, pytest.raises(OutboxRowRejected, match="row None: the id is NULL"):  # fmt: skip
        relay.step()


@pytest.mark.parametrize("records", [1, 2])
def test_two_rows_of_one_id_always_stop_the_relay(place, log, database, records):
    place.run("create table loose (id integer, topic text, value text)")
    place.run("insert into loose values (1, 'out', 'x'), (1, 'out', 'y')")
    with OutboxRelay(database, log, name="loose", table="loose", records=records) as relay:
        with pytest.raises(OutboxRowRejected, match="row 1: two rows have this id"):
            relay.step()
    assert values(log) == []
    assert place.rows("select count(*) from loose") == [(2,)]


EQUAL_IDS = {"wal": "nocase", "postgresql": "caseless"}
"""Collations by which "a" and "A" are equal."""


@pytest.mark.parametrize("on_error", ["stop", "set_aside"])
def test_a_row_whose_id_the_database_considers_equal_is_not_deleted(place, log, database, on_error):
    if place.kind == "postgresql":
        place.run(
            "create collation caseless "
            "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    kind = f"text collate {EQUAL_IDS[place.kind]}"
    place.run(f"create table loose (id {kind}, topic text, value text)")
    place.run("insert into loose values ('a', 'out', 'x'), ('A', 'out', 'y')")
    options = {"name": "loose", "table": "loose", "on_error": on_error, "records": 1}
    with OutboxRelay(database, log, **options) as relay:
        with pytest.raises(OutboxRowRejected, match="considers its id equal to that of another"):
            relay.step()
    assert values(log) == []
    assert place.rows("select count(*) from loose") == [(2,)]


def test_a_row_that_gets_a_used_id_at_any_statement_is_not_lost(log, server):
    place = Place("postgresql", server.schema(LOCK_TIMEOUT))
    for number in itertools.count(1):
        place.run("drop table if exists loose")
        place.run("create table loose (id integer, topic text, value text)")
        place.run(f"insert into loose values (1, 'out', 'first {number}')")
        acted: list[int] = []

        def act(number: int = number, acted: list[int] = acted) -> None:
            acted.append(number)
            place.run(f"insert into loose values (1, 'out', 'second {number}')")

        with (
            Database(place.at_statement(number, act)) as database,
            OutboxRelay(database, log, name="loose", table="loose") as relay,
            contextlib.suppress(ConfigError, OutboxRowRejected),
        ):
            relay.step()
        if not acted:
            break
        kept = {*values(log), *(value for (value,) in place.rows("select value from loose"))}
        assert {f"first {number}", f"second {number}"} <= kept, f"at statement {number}"
    assert number > 5


UNREADABLE = {
    "wal": ("text", "cast(x'ff' as text)", "'1'", "'2'"),
    "postgresql": ("timestamptz", "'infinity'", "null", "null"),
}
"""Type, a value that the driver cannot read, and two other values."""


@pytest.mark.parametrize("records", [1, 100])
def test_a_row_that_the_driver_cannot_read_is_rejected(place, log, database, records):
    kind, bad, *good = UNREADABLE[place.kind]
    place.run(f"create table odd (id integer primary key, topic text, value {kind})")
    for number, value in enumerate((good[0], bad, good[1]), 1):
        place.run(f"insert into odd values ({number}, 'out', {value})")
    options = {"name": "odd", "table": "odd", "records": records}
    with OutboxRelay(database, log, **options) as relay:
        with pytest.raises(OutboxRowRejected, match="row 2: the driver cannot read the row"):
            relay.run("caught_up")
        relay.create()
    with OutboxRelay(database, log, on_error="set_aside", **options) as relay:
        assert relay.run("caught_up") == 1
        assert relay.status()[:2] == (0, 1)
    assert len(list(log.read("out"))) == 2


@pytest.mark.parametrize("headers", [r'{"a": "\ud800"}', r'{"\ud800": "x"}'])
def test_headers_that_no_record_can_have_are_rejected(place, log, database, headers):
    """Half of a surrogate pair; a column of the type `jsonb` does not take it."""
    place.run(
        "create table odd (id integer primary key, topic text, value text, headers text)",
        f"insert into odd values (1, 'out', 'x', '{headers}')",
    )
    with OutboxRelay(database, log, name="odd", table="odd") as relay:
        with pytest.raises(OutboxRowRejected, match="row 1: headers: .* not valid UTF-8"):
            relay.run("caught_up")


KEEPING = {
    "wal": [
        "create trigger keep before delete on outbox begin select raise(ignore); end",
        "create trigger keep before delete on outbox begin select raise(abort, 'no'); end",
    ],
    "postgresql": [
        "create rule keep as on delete to outbox do instead nothing",
        "create table other (id bigint references outbox); insert into other values (1)",
    ],
}
"""What keeps a row in the table: silently, and with an error."""


@pytest.mark.parametrize("number", [0, 1], ids=["silently", "by an error"])
def test_a_row_that_the_database_keeps_is_not_published(place, log, relay, number):
    """Otherwise it would be published again and again."""
    insert(place, GOOD[0])
    place.run(KEEPING[place.kind][number])
    with pytest.raises(ConfigError, match="does not let the relay delete rows, the first .* id 1"):
        relay.run("caught_up")
    assert values(log) == []
    assert log.pending() == []


def test_a_column_that_takes_no_mark_is_refused(place, log, database):
    kinds = {"wal": "text check (done is null)", "postgresql": "integer"}
    place.run(
        f"create table mine (id integer primary key, topic text, value text, done {kinds[place.kind]})",
        "insert into mine (id, topic) values (1, 'out')",
    )
    columns = {"published": "done"}
    with OutboxRelay(database, log, name="mine", table="mine", columns=columns) as relay:
        with pytest.raises(ConfigError, match="does not let the relay mark rows"):
            relay.run("caught_up")
    assert values(log) == []


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("text not null", "is NOT NULL"),
        ("text default 'no'", "has the default 'no'"),
        ("boolean default false", "has the default false"),
    ],
)
def test_a_mark_that_new_rows_have_already_is_refused(place, log, database, kind, why):
    """Otherwise the relay would publish nothing, without an error."""
    place.run(f"create table mine (id integer primary key, topic text, value text, done {kind})")
    columns = {"published": "done"}
    with OutboxRelay(database, log, name="mine", table="mine", columns=columns) as relay:
        with pytest.raises(ConfigError, match=f"the column 'done' {why}"):
            relay.step()


def test_a_mark_with_the_default_null_and_a_generated_value_are_accepted(place, log, database):
    place.run(
        "create table mine (id integer primary key, topic text, raw text, done text default null, "
        "value text generated always as (raw || '!') stored)",
        "insert into mine (id, topic, raw) values (1, 'out', 'x')",
    )
    columns = {"published": "done"}
    with OutboxRelay(database, log, name="mine", table="mine", columns=columns) as relay:
        assert relay.run("caught_up") == 1
    assert values(log) == ["x!"]


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("kind", "left"), [("double precision", 1), ("numeric", 0)])
def test_a_row_with_a_nan_is_rejected_or_published_once(place, log, database, kind, left):
    """NaN differs from itself. SQLite stores NULL in its place."""
    place.run(f"create table numbers (id integer primary key, topic text, value {kind})")
    place.run("insert into numbers values (1, 'out', 'NaN')")
    with OutboxRelay(
        database, log, name="numbers", table="numbers", on_error="set_aside"
    ) as relay:  # fmt: skip
        relay.create()
        assert relay.run("caught_up") == 1 - left
        assert relay.status()[:2] == (0, left)
    assert values(log) == ["NaN"] * (1 - left)


def test_an_id_that_is_used_again_is_a_new_row(place, log, relay):
    for value in ("a", "b"):
        place.run(f"insert into outbox (id, topic, value) values (1, 'out', '{value}')")
        assert relay.run("caught_up") == 1
    assert values(log) == ["a", "b"]


def test_row_N19_a_row_updated_while_it_is_published_is_published_once(
    place, log, database, relay, monkeypatch
):
    """The update commits after the row was read; the record has the new content."""
    insert(place, GOOD[0])
    read = relay._table.read
    updates = iter(["update outbox set value = 'new'"])

    def read_then_update(session: Any, limit: int) -> Any:
        rows = read(session, limit)
        for update in updates:
            place.run(update)
        return rows

    monkeypatch.setattr(relay._table, "read", read_then_update)
    assert relay.run("caught_up") == 1
    assert values(log) == ["new"]


ALTERED = [
    ("alter table plain add column headers text", '[["trace", "7"]]'),
    ("alter table plain drop column key", None),
]


@pytest.mark.parametrize("when", ["before a read", "after a read"])
@pytest.mark.parametrize(("statement", "headers"), ALTERED)
def test_row_N19_a_running_relay_uses_the_columns_of_an_altered_table(
    place, log, database, monkeypatch, statement, headers, when
):
    place.run("create table plain (id integer primary key, topic text, value text, key text)")
    with OutboxRelay(database, log, name="plain", table="plain") as relay:
        assert relay.run("caught_up") == 0
        names, values_of = ("headers", f"'{headers}'") if headers else ("value", "'new'")
        changes = [
            statement,
            f"insert into plain (id, topic, {names}) values (2, 'out', {values_of})",
        ]
        place.run("insert into plain (id, topic, value, key) values (1, 'out', 'a', 'k')")

        def alter() -> None:
            place.run(*changes)
            changes.clear()

        def first(call: Any) -> Any:
            def altering(*arguments: Any) -> Any:
                if changes:
                    alter()
                return call(*arguments)

            return altering

        if when == "before a read":
            alter()
        else:
            monkeypatch.setattr(relay, "_publish", first(relay._publish))
        assert relay.run("caught_up") == 2
    found = list(log.read("out"))
    assert [record.value for record in found] == [b"a", None if headers else b"new"]
    assert [dict(record.headers) for record in found] == [{}, {"trace": b"7"} if headers else {}]


def test_times_in_the_table_do_not_change_the_order(place, log, database):
    """The clock of the database jumps back."""
    place.run("create table timed (id integer primary key, topic text, value text, made text)")
    place.run(
        "insert into timed values (1, 'out', '1', '2030-01-01')",
        "insert into timed values (2, 'out', '2', '1999-01-01')",
    )
    with OutboxRelay(database, log, name="timed", table="timed") as relay:
        assert relay.run("caught_up") == 2
    assert values(log) == ["1", "2"]


@pytest.mark.parametrize("place", ["wal"], indirect=True)
@pytest.mark.parametrize("by_path", [True, False])
def test_the_rows_of_a_restored_copy_are_published(place, log, tmp_path, by_path):
    """The connections of the relay have the removed file open."""
    base, copy = Path(place.where), tmp_path / "copy.sqlite"
    with Database(base if by_path else place.connect) as database:
        with OutboxRelay(database, log, name="shop") as relay:
            relay.create()
            insert(place, GOOD[0])
            with contextlib.closing(place.connect()) as one, sqlite3.connect(copy) as two:
                one.backup(two)
            two.close()
            assert relay.run("caught_up") == 1
            for suffix in ("", "-wal", "-shm"):
                Path(f"{base}{suffix}").unlink(missing_ok=True)
            for call in (relay.step, relay.status, relay.step):
                with pytest.raises(
                    (ConfigError, DatabaseError), match="does not exist|was removed"
                ):
                    call()
            assert not base.exists()
            copy.rename(base)
            insert(place, GOOD[1])
            assert relay.run("caught_up") == 2
    assert values(log) == ["1", "1", "2"]


def test_a_table_that_does_not_exist_is_refused(log, database):
    with OutboxRelay(database, log, name="shop") as relay:
        with pytest.raises(ConfigError, match="table outbox: the table does not exist"):
            relay.step()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "there is no column 'topic' for the topic; it has id, value"),
        ({"topic": "value", "key": "who"}, "there is no column 'who' for the key"),
        ({"topic": "value", "published": "id"}, "the column 'id' has another meaning, too"),
    ],
)
def test_a_table_without_the_columns_is_refused(place, log, database, columns, message):
    place.run("create table part (id integer primary key, value text)")
    with OutboxRelay(database, log, name="part", table="part", columns=columns) as relay:
        with pytest.raises(ConfigError, match=message):
            relay.step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name: expected a text of 1 to 200 bytes"),
        ({"name": 7}, "name: expected a text"),
        ({"table": "a b"}, "table: expected TABLE or SCHEMA.TABLE, got 'a b'"),
        ({"table": 'x"; drop'}, "table: expected TABLE"),
        ({"columns": 7}, "columns: expected a mapping or None, got 7"),
        ({"columns": {"body": "x"}}, "columns: expected the keys id, topic"),
        ({"columns": {"id": None}}, "columns: id: an outbox needs this column"),
        ({"columns": {"key": "a%s"}}, "columns: key: expected the name of a column"),
        ({"on_error": "skip"}, 'on_error: expected "stop" or "set_aside"'),
        ({"records": 0}, "records: expected 1 or more, got 0"),
        ({"config": {"transactional.id": "x"}}, "config: transactional.id: the relay sets it"),
    ],
)
def test_wrong_arguments_are_refused(log, tmp_path, arguments, message):
    database = Database(tmp_path / "other.sqlite")
    with pytest.raises(ConfigError, match=message):
        OutboxRelay(database, log, **{"name": "shop", **arguments})


def test_other_objects_than_database_and_log_are_refused(log, tmp_path):
    with pytest.raises(ConfigError, match="database: expected an eoslog.sql.Database"):
        OutboxRelay(log, log, name="shop")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="log: expected a Log"):
        OutboxRelay(Database(tmp_path / "other.sqlite"), 7, name="shop")


@pytest.mark.parametrize("change", ["delete from outbox", "update outbox set topic = 'out'"])
def test_a_row_that_changes_while_it_is_set_aside_is_read_again(place, topics, database, change):
    """The flush rejects it, so another transaction sets it aside."""
    with OutboxRelay(database, topics, name="shop", on_error="set_aside") as relay:
        relay.create()
        insert(place, ROWS[-1][0])
        read, changes = relay._table.read, [change]

        def changed_after(session, limit):
            found = read(session, limit)
            if changes:
                place.run(changes.pop())
            return found

        relay._table.read = changed_after
        assert relay.run("caught_up") == (0 if "delete" in change else 1)
        assert relay.status()[:2] == (0, 0)
    assert values(topics) == ([] if "delete" in change else ["x"])
