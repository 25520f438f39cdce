"""The order of rows, as transactions of several connections insert them."""

from __future__ import annotations

import random
from typing import Any

import pytest

import eoslog
from eoslog.sql import Database, OutboxRelay
from tests.sql.databases import LOCK_TIMEOUT, Place


def values(log: eoslog.Log) -> list[str]:
    return [record.value.decode() for record in log.read("out")]


@pytest.fixture
def postgresql(server: Any) -> Place:
    return Place("postgresql", server.schema(LOCK_TIMEOUT))


@pytest.fixture
def pg_relay(postgresql: Place, log: eoslog.Log) -> Any:
    with Database(postgresql.connect) as database:
        with OutboxRelay(database, log, name="shop", records=3) as relay:
            relay.create()
            yield relay


def add(connection: Any, value: str, number: int | None = None) -> None:
    names, marks = ("topic, value", "'out', %s") if number is None else (
        "topic, value, id", "'out', %s, %s"
    )  # fmt: skip
    given = (value,) if number is None else (value, number)
    connection.execute(f"insert into outbox ({names}) values ({marks})", given)


def test_a_lower_id_that_is_committed_later_is_published(postgresql, log, pg_relay):
    late, early = postgresql.connect(), postgresql.connect()
    add(late, "late")
    add(early, "early")
    early.commit()
    assert pg_relay.step() == 1
    late.commit()
    assert pg_relay.step() == 1
    assert values(log) == ["early", "late"]
    late.close()
    early.close()


def test_rows_come_by_transactions_although_ids_do_not(postgresql, log, pg_relay):
    """A sequence with a cache gives the later transaction the lower ids."""
    with postgresql.connect() as first:
        add(first, "first, 1", 900)
        add(first, "first, 2", 901)
    with postgresql.connect() as second:
        add(second, "second", 5)
    assert pg_relay.run("caught_up") == 3
    assert values(log) == ["first, 1", "first, 2", "second"]


def test_rows_of_a_savepoint_come_by_id_within_their_transaction(postgresql, log, pg_relay):
    with postgresql.connect() as connection:
        add(connection, "1")
        with connection.transaction():
            add(connection, "2")
        add(connection, "3")
    assert pg_relay.run("caught_up") == 3
    assert values(log) == ["1", "2", "3"]


def test_concurrent_commits_keep_the_order_of_transactions(postgresql, log, pg_relay):
    """Random transactions over four connections, while the relay works."""
    chance = random.Random(7)
    connections = [postgresql.connect() for _ in range(4)]
    open_at: dict[int, int] = {}  # connection -> the transaction
    begun: dict[int, int] = {}  # transaction -> the number of commits before it
    committed: dict[int, int] = {}  # transaction -> its place among the commits
    rows: dict[int, int] = {}
    for step in range(400):
        at = chance.randrange(4)
        connection = connections[at]
        if at not in open_at:
            open_at[at] = step
            begun[step] = len(committed)
            rows[step] = 0
        transaction = open_at[at]
        if rows[transaction] and chance.random() < 0.4:
            connection.commit()
            committed[transaction] = len(committed)
            del open_at[at]
        else:
            add(connection, f"{transaction}:{rows[transaction]}", chance.randrange(1 << 40))
            rows[transaction] += 1
        if chance.random() < 0.1:
            pg_relay.step()
    for at, connection in enumerate(connections):
        if at in open_at:
            connection.commit()
            committed[open_at[at]] = len(committed)
        connection.close()
    pg_relay.run("caught_up")
    found = values(log)
    assert len(found) == len(set(found)) == sum(rows.values())
    last: dict[int, int] = {}  # transaction -> the place of its last row
    first: dict[int, int] = {}
    for place, value in enumerate(found):
        transaction = int(value.partition(":")[0])
        first.setdefault(transaction, place)
        last[transaction] = place
    assert len(committed) > 50
    for one in committed:
        for other in committed:
            if committed[one] < begun[other]:  # one had committed before the other began
                assert last[one] < first[other]


def test_a_table_without_transactions_is_published_by_id(place, log):
    place.run("create table plain (id integer primary key, topic text, value text)")
    for number in (3, 1, 2):
        place.run(f"insert into plain values ({number}, 'out', '{number}')")
    with Database(place.connect) as database:
        with OutboxRelay(database, log, name="plain", table="plain") as relay:
            assert relay.run("caught_up") == 3
    assert values(log) == ["1", "2", "3"]
