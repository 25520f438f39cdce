"""Two banks: databases with one account each, and a log of the moves."""

from __future__ import annotations

from typing import Any

import eoslog

MONEY = 1000


def connect(dsn: str, **options: Any) -> Any:
    import psycopg

    return psycopg.connect(dsn, **options)


def create(*databases: str) -> None:
    """Create the accounts, and drop what earlier tests have left."""
    for dsn in databases:
        with connect(dsn, autocommit=True) as connection:
            for (gid,) in connection.execute(
                "select gid from pg_prepared_xacts where database = current_database()"
            ).fetchall():
                connection.execute(f"rollback prepared '{gid}'")
            connection.execute("drop table if exists account")
            connection.execute(f"create table account as select {MONEY} as money")


def move(first: Any, second: Any, producer: eoslog.Producer, amount: int) -> None:
    """Move money from the first bank to the second, inside a transaction."""
    first.execute("update account set money = money - %s", (amount,))
    second.execute("update account set money = money + %s", (amount,))
    producer.produce("moves", f"{amount}")


def money(dsn: str) -> int:
    with connect(dsn) as connection:
        return int(connection.execute("select money from account").fetchone()[0])


def hanging(*databases: str) -> list[str]:
    """The names of prepared transactions in the databases."""
    found = []
    for dsn in databases:
        with connect(dsn) as connection:
            rows = connection.execute(
                "select gid from pg_prepared_xacts where database = current_database()"
            )
            found += [gid for (gid,) in rows.fetchall()]
    return found


def visible(path: str) -> list[int]:
    with eoslog.open(path) as log:
        return [int(record.value) for record in log.read("moves")]


def settled(path: str, *databases: str) -> list[int]:
    """The moves, which both banks and the log have; nothing is prepared anywhere."""
    moves = visible(path)
    assert [money(dsn) for dsn in databases] == [MONEY - sum(moves), MONEY + sum(moves)]
    assert hanging(*databases) == []
    with eoslog.open(path) as log:
        assert log.pending() == []
        with eoslog.tpc.Coordinator(log) as coordinator:
            assert coordinator._held() == []
    return sorted(moves)
