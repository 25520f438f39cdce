"""The database of a test, and connections that act before a statement."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

SQLITE = ["delete", "truncate", "persist", "wal"]
"""SQLite by its journal mode."""
KINDS = [*SQLITE, "postgresql", "engine", "session", "engine-postgresql"]
"""SQLite, PostgreSQL, and both over SQLAlchemy."""
DISTINCT = [kind for kind in KINDS if kind not in ("truncate", "persist")]
"""Without the journal modes that differ from `delete` only after a kill or a power loss."""

LOCK_S = 1.0
"""How long a database of the tests waits for a lock, in seconds.

Some tests wait for the error.
"""
LOCK_TIMEOUT = f"lock_timeout={LOCK_S:g}s"
"""The same as a setting of PostgreSQL."""

ASYNC_KINDS = ["aiosqlite", "psycopg-postgresql", "asyncpg-postgresql"]
"""SQLite and PostgreSQL over async engines of SQLAlchemy."""


class Place(NamedTuple):
    """A database, as a test and its child processes name it."""

    kind: str
    where: str
    timeout: float = 5.0
    """How long SQLite waits for a lock, in seconds."""

    def patient(self) -> Place:
        """The same, for a test in which no wait for a lock may fail."""
        where = self.where.replace(LOCK_TIMEOUT, "lock_timeout=60s")
        return self._replace(where=where, timeout=60.0)

    def connect(self) -> Any:
        if self.over_sqlalchemy:
            return self._over(self._driver_connection)()
        return self._driver_connection()

    @property
    def over_sqlalchemy(self) -> bool:
        return self.kind.startswith(("engine", "session"))

    @property
    def is_async(self) -> bool:
        return self.kind.startswith(("aiosqlite", "psycopg", "asyncpg"))

    @property
    def postgresql(self) -> bool:
        return self.kind.endswith("postgresql")

    @property
    def journal_mode(self) -> str:
        return "wal" if self.over_sqlalchemy or self.is_async else self.kind

    def _driver_connection(self) -> Any:
        if self.postgresql:
            import psycopg

            return psycopg.connect(self.where)
        connection = sqlite3.connect(self.where, timeout=self.timeout)
        connection.execute(f"pragma journal_mode={self.journal_mode}")
        return connection

    def _over(self, creator: Callable[[], Any]) -> Callable[[], Any]:
        """A factory of SQLAlchemy's connections or sessions."""
        from tests.sql.over_sqlalchemy import engine_of, sessions_of

        engine = engine_of(self.kind, self.where, creator)
        return sessions_of(engine) if self.kind == "session" else engine.connect

    def at_statement(
        self, number: int, act: Callable[[], None], begun: Callable[[], bool] = lambda: True
    ) -> Callable[[], Any]:
        """A factory whose connections call `act` before their statement of this number.

        Args:
            number: the number of the statement; 1 is the first.
            act: the action.
            begun: whether statements count now.
        """
        steps = iter(range(1, number + 1))

        def step() -> None:
            if begun() and next(steps, None) == number:
                act()

        connect = self._postgresql(step) if self.postgresql else lambda: self._sqlite(step)
        return self._over(connect) if self.over_sqlalchemy else connect

    def _postgresql(self, step: Callable[[], None]) -> Callable[[], Any]:
        import psycopg

        class Stepping(psycopg.Connection[Any]):
            def wait(self, *args: Any, **kwargs: Any) -> Any:
                step()
                found = super().wait(*args, **kwargs)
                step()
                return found

        return lambda: Stepping.connect(self.where)

    def _sqlite(self, step: Callable[[], None]) -> Any:
        class Cursor(sqlite3.Cursor):
            def execute(self, *args: Any) -> Any:
                step()
                return super().execute(*args)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

            def commit(self) -> None:
                step()
                super().commit()
                step()

        connection = sqlite3.connect(self.where, timeout=self.timeout, factory=Connection)
        sqlite3.Connection.execute(connection, f"pragma journal_mode={self.journal_mode}")
        return connection

    def at_commit(self, act: Callable[[Callable[[], None]], None]) -> Callable[[], Any]:
        """A factory whose connections call `act` with their commit in place of it."""
        if self.postgresql:
            import psycopg

            class Session(psycopg.Connection[Any]):
                def commit(self) -> None:
                    act(super().commit)

            return lambda: Session.connect(self.where)

        class Connection(sqlite3.Connection):
            def commit(self) -> None:
                act(super().commit)

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(self.where, timeout=self.timeout, factory=Connection)
            connection.execute(f"pragma journal_mode={self.journal_mode}")
            return connection

        return connect

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        connection = self._driver_connection()
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def run(self, *statements: str) -> None:
        connection = self._driver_connection()
        try:
            for statement in statements:
                connection.execute(statement)
            connection.commit()
        finally:
            connection.close()


def end_here(number: int) -> Callable[[], None]:
    """Send a signal to this process."""
    return lambda: os.kill(os.getpid(), number)
