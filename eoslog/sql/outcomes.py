"""Outcome rows: decisions that are part of a commit of the database.

    C  was inserted by the transaction with the rows of the program
    A  a tombstone: no such transaction has committed, and none can commit any more

The primary key of the token makes them exclude each other. A row C is deleted only after the log
has the decision on disk, and has decided a later transaction of the same producer. So the last row
of each producer stays, and shows an audit how new the database is. A tombstone stays, because a
suspended worker may still try to commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from eoslog.errors import ConfigError, DatabaseError
from eoslog.model import Outcome
from eoslog.sql.schema import Tables
from eoslog.sql.session import DatabaseSession

__all__ = [
    "OutcomeRow", "TokenUsedError", "all_outcomes", "committed_rows", "decide", "forget",
    "insert_commit",
]  # fmt: skip

_AT_ONCE = 500  # values in one statement


class OutcomeRow(NamedTuple):
    """The decision of one prepared transaction."""

    token: str
    commit: bool
    at_ms: int
    """When the row was inserted, by the clock of the database."""


class TokenUsedError(DatabaseError):
    """The row C of a token is that of another transaction, so it decides nothing."""


def insert_commit(session: DatabaseSession, tables: Tables, database_id: str, token: str) -> bool:
    """Insert the decision to commit in the open transaction.

    Returns:
        False if there is a tombstone, so the transaction must roll back.

    Raises:
        ConfigError: if the connection is one to another database.
        TokenUsedError: if another transaction has committed with the token.
        DatabaseError: if the table is damaged.
    """
    with tables.reading(session):
        inserted = _insert(session, tables, database_id, token, "C")
        if inserted and session.dialect.name != "sqlite":
            return True
        found = _decision(session, tables, token)  # a damaged key may hide a tombstone
    if found == "C" and not inserted:
        raise TokenUsedError(
            f"{session.database}: it has committed another transaction with token {token}, so the "
            "log is an older copy, and nothing was written; restore a newer one, or produce the "
            f"records of its rows again and delete the row from {tables.outcome}; `eoslog audit "
            "--db` lists all differences"
        )
    if found is not None:
        return found == "C"
    raise ConfigError(
        f"{session.database}: the connection is one to another database than the tables "
        f"{tables.prefix}* of id {database_id}; pass a connection to the same database"
    )


def decide(
    session: DatabaseSession,
    tables: Tables,
    database_id: str,
    token: str,
    committed: Callable[[], bool],
) -> Outcome:
    """Return the decision; if there is none, make it ABORT.

    Args:
        session: a session without a transaction of a program.
        tables: the tables of the database.
        database_id: the id that the tables must have.
        token: the prepared transaction.
        committed: whether the log has decided to commit. Then the row C may be deleted already, and
            no tombstone is inserted. While a transaction has inserted one, the log cannot decide.

    Raises:
        DatabaseUnavailable: if the transaction of the worker has not ended.
        DatabaseError: if the tables have another id, or are damaged.
    """
    session.join()  # a limit of waits may have begun it
    try:
        with tables.reading(session):
            _insert(session, tables, database_id, token, "A")
            found = _decision(session, tables, token)
        if found is None:
            raise DatabaseError(
                f"{session.database}: the tables {tables.prefix}* were replaced while the database "
                f"was in use, expected id {database_id}; create a new Database"
            )
        if found == "A" and committed():
            session.rollback()
            return Outcome.COMMIT
        session.check_mark()
        session.commit(decision=True)
    except BaseException:
        session.rollback()
        raise
    return Outcome.COMMIT if found == "C" else Outcome.ABORT


def _insert(
    session: DatabaseSession, tables: Tables, database_id: str, token: str, decision: str
) -> bool:
    sql = (
        f"INSERT INTO {tables.outcome} (token, decision) SELECT ?, '{decision}' "
        f"WHERE {tables.holds()} ON CONFLICT DO NOTHING"
    )
    return session.execute(sql, (token, database_id)).changed == 1


def _decision(session: DatabaseSession, tables: Tables, token: str) -> str | None:
    found = tables.find(session, tables.outcome, "decision", "token = ?", (token,))
    return None if found is None else _text(found)


def committed_rows(
    session: DatabaseSession, tables: Tables, log_id: str, limit: int
) -> list[OutcomeRow]:
    """Return the rows C of one log, the newest first.

    Args:
        session: a session without a transaction.
        tables: the tables of the database.
        log_id: the cluster id of the log, with which its tokens begin.
        limit: how many rows at most.

    Raises:
        DatabaseError: if the table is damaged.
    """
    try:
        with tables.reading(session):
            return _rows(tables.newest_commits(session, log_id, limit))
    finally:
        session.rollback()


def all_outcomes(session: DatabaseSession, tables: Tables) -> list[OutcomeRow]:
    """Return all rows.

    Raises:
        DatabaseError: if the table is damaged.
    """
    try:
        with tables.reading(session):
            tables.check(session, tables.outcome)
            sql = f"SELECT token, decision, at FROM {tables.outcome}"
            return _rows(session.execute(sql).rows)
    finally:
        session.rollback()


def _rows(rows: Iterable[Sequence[Any]]) -> list[OutcomeRow]:
    return [OutcomeRow(_text(token), _text(word) == "C", _ms(at)) for token, word, at in rows]


def _ms(at: object) -> int:
    """The milliseconds of a timestamp, which SQLite returns as text in UTC."""
    found = at if isinstance(at, datetime) else datetime.fromisoformat(_text(at))
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


def forget(session: DatabaseSession, tables: Tables, tokens: Sequence[str]) -> None:
    """Delete rows C whose decisions the log has on disk."""
    for first in range(0, len(tokens), _AT_ONCE):
        some = tokens[first : first + _AT_ONCE]
        marks = ", ".join("?" * len(some))
        sql = f"DELETE FROM {tables.outcome} WHERE decision = 'C' AND token IN ({marks})"
        session.execute(sql, some)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
