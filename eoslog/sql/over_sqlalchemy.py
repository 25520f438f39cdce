"""SQLAlchemy 2: connections and sessions over the drivers that eoslog knows.

A program's statements go through SQLAlchemy. eoslog's statements go to the driver's connection of
the same transaction, so they are those of SQLite and PostgreSQL. Transactions begin and end through
SQLAlchemy, because a commit of the driver alone would not flush a session.

A connection goes back to SQLAlchemy's pool after each transaction. So settings that make its
commits durable are checked once for each connection of the driver.

Source: https://docs.sqlalchemy.org/en/20/core/connections.html.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError, DatabaseUnavailable, EoslogError, IllegalState
from eoslog.sql.dialect import Dialect, StatementResult

__all__ = ["OverSQLAlchemy", "driver_error", "factory_of", "is_sqlalchemy", "supported_dialect"]

_DRIVERS = {("sqlite", "pysqlite"): "sqlite", ("postgresql", "psycopg"): "postgresql"}
_CHECKED = "eoslog_checked"
_INVALIDATED = "8s2b"
"""The code of SQLAlchemy's error for a connection that was lost in its transaction."""


def is_sqlalchemy(thing: Any) -> bool:
    """Whether an object, or a class that it extends, is one of SQLAlchemy."""
    return any(cls.__module__.partition(".")[0] == "sqlalchemy" for cls in type(thing).__mro__)


def factory_of(source: Any) -> tuple[Callable[[], Any], str, str]:
    """Return the connection factory, dialect and URL of an engine or sessionmaker.

    Raises:
        ConfigError: if it is another object of SQLAlchemy, or its driver is not known.
    """
    from sqlalchemy.engine import Engine
    from sqlalchemy.orm import sessionmaker

    engine, connect = source, getattr(source, "connect", None)
    if isinstance(source, sessionmaker):
        engine, connect = source.kw.get("bind"), source
    if not isinstance(engine, Engine) or connect is None:
        raise ConfigError(
            f"connect: expected a SQLAlchemy Engine, or a sessionmaker with one as `bind`, got "
            f"{shown(source)}; scoped sessions are not supported"
        )
    owner = os.getpid()

    def made() -> Any:
        nonlocal owner
        if owner != os.getpid():  # connections of the pool are those of the parent
            owner = os.getpid()
            engine.dispose(close=False)
        return connect()

    text = engine.url.render_as_string(hide_password=True)
    return made, supported_dialect(engine.dialect), text


def supported_dialect(dialect: Any) -> str:
    """Return eoslog's name for a dialect of SQLAlchemy.

    Raises:
        ConfigError: if its driver is not `pysqlite` or `psycopg`.
    """
    name = _DRIVERS.get((dialect.name, dialect.driver))
    if name is None:
        raise ConfigError(
            f"connect: the driver {dialect.name}+{dialect.driver} of the SQLAlchemy engine is not "
            "supported; use sqlite:/// (pysqlite) or postgresql+psycopg://"
        )
    return name


def driver_error(error: BaseException | None) -> BaseException | None:
    """Return the driver's error in an error of SQLAlchemy; other errors as they are."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, BaseException) else error


class OverSQLAlchemy:
    """A dialect whose connections are SQLAlchemy's connections or sessions."""

    pooled = True

    def __init__(self, inner: Dialect, adapt: Callable[[Any], Any] = lambda raw: raw) -> None:
        """Use the dialect of the driver.

        Args:
            inner: the dialect.
            adapt: returns the connection that the dialect uses for one of the driver.
        """
        self._inner = inner
        self._adapt = adapt
        self.name = inner.name
        self.timestamp = inner.timestamp

    def raw(self, connection: Any) -> Any:
        """See `Dialect.raw`; a session begins its transaction."""
        return self._adapt(self._connection(connection).connection.dbapi_connection)

    @staticmethod
    def _connection(connection: Any) -> Any:
        """The connection of a session; a connection as it is."""
        from sqlalchemy.orm import Session

        return connection.connection() if isinstance(connection, Session) else connection

    def check(self, connection: Any) -> None:
        """See `Dialect.check`."""
        if getattr(connection, "closed", False):
            raise ConfigError(
                "connect: the SQLAlchemy connection is closed; return a new open connection at "
                "each call"
            )
        began = not connection.in_transaction()
        pooled = self._connection(connection).connection
        if began and getattr(self._adapt(pooled.dbapi_connection), "closed", False):
            # The server has ended it in the pool: asyncpg knows before the first statement.
            connection.invalidate()
            connection.rollback()
            pooled = self._connection(connection).connection
        self._inner.check(self._adapt(pooled.dbapi_connection))
        pooled.info[_CHECKED] = True
        if began:
            connection.rollback()

    def check_can_end(self, connection: Any) -> None:
        """See `Dialect.check_can_end`; SQLAlchemy lets blocks be ended early."""

    def execute(self, connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
        """See `Dialect.execute`."""
        return self._inner.execute(self.raw(connection), sql, values)

    def in_transaction(self, connection: Any) -> bool:
        """See `Dialect.in_transaction`."""
        return bool(connection.in_transaction())

    def is_open(self, connection: Any) -> bool:
        """See `Dialect.is_open`."""
        return self.in_transaction(connection) and self._inner.is_open(self.raw(connection))

    def begin(self, connection: Any, mark: str) -> None:
        """See `Dialect.begin`."""
        connection.begin()
        pooled = self._connection(connection).connection
        if _CHECKED not in pooled.info:  # another one of the pool than `check` saw
            self._inner.check(self._adapt(pooled.dbapi_connection))
            pooled.info[_CHECKED] = True
        self.join(connection, mark)

    def join(self, connection: Any, mark: str) -> None:
        """See `Dialect.join`."""
        raw = self.raw(connection)
        # SQLAlchemy's transaction may have sent nothing: then the driver has not begun.
        if self._inner.in_transaction(raw):
            self._inner.join(raw, mark)
        else:
            self._inner.begin(raw, mark)

    def marked(self, connection: Any, mark: str) -> bool:
        """See `Dialect.marked`."""
        return connection.in_transaction() and self._inner.marked(self.raw(connection), mark)

    def flush(self, connection: Any) -> None:
        """See `Dialect.flush`."""
        from sqlalchemy.orm import Session

        if isinstance(connection, Session):
            connection.flush()

    def commit(self, connection: Any) -> None:
        """See `Dialect.commit`."""
        connection.commit()

    def rollback(self, connection: Any) -> None:
        """See `Dialect.rollback`."""
        from sqlalchemy.orm import Session

        connection.rollback()
        if not isinstance(connection, Session) and not connection.closed:
            self._inner.rollback(self.raw(connection))

    def limit_waits(self, connection: Any, seconds: float) -> None:
        """See `Dialect.limit_waits`; the connection leaves the pool with the limit."""
        connection.detach()
        self._inner.limit_waits(self.raw(connection), seconds)

    def lock_schema(self, connection: Any, prefix: str) -> None:
        """See `Dialect.lock_schema`."""
        self._inner.lock_schema(self.raw(connection), prefix)

    def usable(self, connection: Any) -> bool:
        """See `Dialect.usable`."""
        return not getattr(connection, "closed", False) and not connection.in_transaction()

    def own(self, connection: Any) -> Any:
        """See `Dialect.own`; a session is replaced by a connection of its engine."""
        from sqlalchemy.orm import Session

        if not isinstance(connection, Session):
            return connection
        engine = connection.get_bind().engine
        connection.close()
        return engine.connect()

    def close(self, connection: Any) -> None:
        """See `Dialect.close`."""
        connection.close()

    def error(self, error: BaseException, database: str) -> EoslogError | None:
        """See `Dialect.error`."""
        from sqlalchemy.exc import PendingRollbackError, ResourceClosedError
        from sqlalchemy.exc import TimeoutError as PoolTimeout

        if isinstance(error, PoolTimeout):
            return DatabaseUnavailable(
                f"{database}: all connections of the engine's pool are in use ({error}); call "
                "again, or raise pool_size"
            )
        if isinstance(error, ResourceClosedError):
            return IllegalState(
                f"{database}: the program closed the connection of the transaction ({error}); "
                "leave the end of the transaction, and the connection, to eoslog"
            )
        if isinstance(error, PendingRollbackError):
            if error.code == _INVALIDATED:
                return DatabaseUnavailable(
                    f"{database}: the connection was lost in the transaction ({error}); call again"
                )
            return IllegalState(
                f"{database}: an earlier statement of the transaction failed ({error}); let its "
                "error end the block or loop body, or use a savepoint"
            )
        found = driver_error(error)
        return None if found is None else self._inner.error(found, database)

    def undecodable(self, error: BaseException) -> bool:
        """See `Dialect.undecodable`."""
        found = driver_error(error)
        return found is not None and self._inner.undecodable(found)

    def locked(self, error: BaseException) -> bool:
        """See `Dialect.locked`."""
        found = driver_error(error)
        return found is not None and self._inner.locked(found)

    def missing_table(self, error: BaseException) -> bool:
        """See `Dialect.missing_table`."""
        found = driver_error(error)
        return found is not None and self._inner.missing_table(found)
