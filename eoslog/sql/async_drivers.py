"""The drivers of SQLAlchemy's async engines, as the dialects of eoslog use them.

SQLAlchemy wraps such a driver in blocking calls, which return when the coroutine of the driver has
ended. They work only inside of `run_sync`.

Source: https://docs.sqlalchemy.org/en/20/orm/extensions/asyncio.html.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from eoslog.errors import ConfigError, DatabaseUnavailable, EoslogError
from eoslog.sql.dialect import Dialect, StatementResult
from eoslog.sql.postgresql import PostgreSQL
from eoslog.sql.sqlite import SQLite

__all__ = ["ASYNC_DRIVERS", "AiosqliteConnection", "Asyncpg", "AsyncpgConnection"]

_OPERATIONAL = ("08", "40", "53", "54", "55", "57", "58")
"""Classes of SQLSTATE that psycopg raises as OperationalError."""


def _run(connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
    cursor = connection.cursor()
    try:
        cursor.execute(sql, tuple(values) or None)
        rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
        return StatementResult(rows, cursor.rowcount)
    finally:
        cursor.close()


class AiosqliteConnection:
    """A connection of aiosqlite, with the attributes of one of `sqlite3`."""

    def __init__(self, adapted: Any) -> None:
        """Use a connection of SQLAlchemy's dialect."""
        self.cursor = adapted.cursor
        self.commit = adapted.commit
        self.rollback = adapted.rollback
        self._driver = adapted.driver_connection

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        try:
            return bool(self._driver.in_transaction)
        except ValueError as error:  # aiosqlite's, of a closed connection
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.") from error


class Aiosqlite(SQLite):
    """SQLite through aiosqlite."""

    def execute(self, connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
        """See `Dialect.execute`."""
        return _run(connection, sql, values)


class AsyncPsycopg(PostgreSQL):
    """PostgreSQL through the async connections of psycopg 3."""

    def execute(self, connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
        """See `Dialect.execute`."""
        return _run(connection, sql.replace("?", "%s"), values)


class AsyncpgConnection:
    """A connection of asyncpg, with the attributes that `PostgreSQL` uses."""

    def __init__(self, adapted: Any) -> None:
        """Use a connection of SQLAlchemy's dialect."""
        self.cursor = adapted.cursor
        self.commit = adapted.commit
        self.rollback = adapted.rollback
        self.autocommit = adapted.autocommit
        self._driver = adapted.driver_connection

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return bool(self._driver.is_closed())

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return not self.closed and bool(self._driver.is_in_transaction())


class Asyncpg(PostgreSQL):
    """PostgreSQL through asyncpg."""

    def check(self, connection: Any) -> None:
        """See `Dialect.check`."""
        if connection.autocommit:
            raise ConfigError(
                "connect: the asyncpg engine has isolation_level AUTOCOMMIT, so its commits do "
                "nothing; use an engine without it"
            )
        super().check(connection)

    def execute(self, connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
        """See `Dialect.execute`."""
        numbers = itertools.count(1)
        return _run(connection, re.sub(r"\?", lambda _: f"${next(numbers)}", sql), values)

    def in_transaction(self, connection: Any) -> bool:
        """See `Dialect.in_transaction`."""
        return bool(connection.in_transaction)

    def error(self, error: BaseException, database: str) -> EoslogError | None:
        """See `Dialect.error`."""
        state = getattr(error, "sqlstate", None)
        text = str(error).strip().replace("\n", " ")
        if (known := self.known(state, text, database)) is not None:
            return known
        lost = isinstance(error, OSError) or (
            state.startswith(_OPERATIONAL) if state else type(error).__name__ == "InterfaceError"
        )
        if lost:  # also a TimeoutError of asyncpg, which is an OSError
            return DatabaseUnavailable(
                f"{database}: PostgreSQL is down, too slow, or ended the transaction ({text}); "
                "call again"
            )
        return None


ASYNC_DRIVERS: dict[tuple[str, str], tuple[Callable[[], Dialect], Callable[[Any], Any]]] = {
    ("sqlite", "aiosqlite"): (Aiosqlite, AiosqliteConnection),
    ("postgresql", "psycopg"): (AsyncPsycopg, lambda adapted: adapted),
    ("postgresql", "asyncpg"): (Asyncpg, AsyncpgConnection),
}
"""The dialect of a driver, and the connection that it uses."""
