"""`eoslog outbox` publishes rows of a table, and shows what waits."""

from __future__ import annotations

import sqlite3

import eoslog


def test_rows_are_published_and_those_that_wait_are_counted(shop, place, tmp_path):
    base = str(tmp_path / "base.sqlite")
    with eoslog.open(place) as log:
        log.create_topic("sold")
    made = shop("outbox", "run", base, "--name", "shop", "--create", "--caught-up")
    assert made.code == 0 and "published 0 rows" in made.err
    with sqlite3.connect(base) as connection:
        for topic in ("sold", "unknown", "sold"):
            connection.execute("insert into outbox (topic, value) values (?, 'x')", (topic,))
    connection.close()
    status = shop("outbox", "status", base, "--name", "shop")
    assert status.rows == [{"name": "shop", "waiting": 3, "set_aside": 0, "leader": None}]
    stopped = shop("outbox", "run", base, "--name", "shop", "--caught-up")
    assert (
        stopped.code == 1 and "table outbox, row 2: topic 'unknown' does not exist" in stopped.err
    )
    words = ("--name", "shop", "--caught-up", "--on-error", "set_aside")
    assert shop("outbox", "run", base, *words).code == 0
    status = shop("outbox", "status", base, "--name", "shop")
    assert status.rows == [{"name": "shop", "waiting": 0, "set_aside": 1, "leader": None}]
    with eoslog.open(place) as log:
        assert len(list(log.read("sold"))) == 2


def test_a_missing_database_is_named_and_not_created(shop, tmp_path):
    base = tmp_path / "none.sqlite"
    for words in (("status",), ("run", "--caught-up"), ("run",)):
        found = shop("outbox", *words, str(base), "--name", "shop")
        assert found.code == 2 and "none.sqlite does not exist" in found.err
        assert not base.exists()


def test_the_error_of_a_missing_table_names_the_option_that_creates_it(shop, tmp_path):
    base = tmp_path / "base.sqlite"
    base.touch()
    for words in (("status",), ("run", "--caught-up")):
        found = shop("outbox", *words, str(base), "--name", "shop")
        assert found.code == 2 and "create it with --create of `outbox run`" in found.err


def test_columns_are_given_by_field_and_name(shop, place, tmp_path):
    base = str(tmp_path / "base.sqlite")
    with eoslog.open(place) as log:
        log.create_topic("sold")
    with sqlite3.connect(base) as connection:
        connection.execute("create table event (id integer primary key, topic text, body text)")
        connection.execute("insert into event values (1, 'sold', 'x')")
    connection.close()
    words = ("outbox", "run", base, "--name", "e", "--table", "event", "--caught-up")
    missing = shop(*words)
    assert missing.code == 2 and missing.err.endswith("; pass --column value=NAME\n")
    assert shop(*words, "--column", "value").code == 2
    done = shop(*words, "--column", "value=body")
    assert done.code == 0 and "published 1 rows" in done.err
