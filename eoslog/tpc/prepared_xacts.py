"""Prepared transactions of PostgreSQL, through psycopg 3.

PostgreSQL writes PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED to disk before it
answers, whatever `synchronous_commit` says.

Source: https://www.postgresql.org/docs/current/sql-prepare-transaction.html.
"""

from __future__ import annotations

import time
from typing import Any

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError, DatabaseError, IllegalState, TransactionAborted
from eoslog.sql.drivers import dialect_of
from eoslog.sql.over_sqlalchemy import is_sqlalchemy
from eoslog.sql.session import DatabaseSession

__all__ = ["PreparedXacts"]

_MISSING, _BUSY, _ELSEWHERE = "42704", "55000", "42501"
"""undefined_object, object_not_in_prerequisite_state and insufficient_privilege."""
_BUSY_S = 10.0
_PAUSE_S = 0.02
_STATE = """
SELECT current_setting('max_prepared_transactions')::int, current_database(),
  (SELECT system_identifier::text FROM pg_control_system()),
  ARRAY(SELECT gid::text FROM pg_prepared_xacts
    WHERE database = current_database() AND starts_with(gid, ?) ORDER BY prepared)
"""


class PreparedXacts:
    """One connection of a program, and the prepared transactions of its database."""

    def __init__(self, connection: Any) -> None:
        """Check the type of the connection.

        Raises:
            ConfigError: if it is not a connection of psycopg 3.
        """
        try:
            dialect = None if is_sqlalchemy(connection) else dialect_of(connection)
        except ConfigError:
            dialect = None
        if dialect is None:
            raise ConfigError(
                "resources: expected a connection of psycopg 3 or a producer, got "
                f"{shown(connection)}; connect with psycopg.connect(...)"
            )
        if dialect.name != "postgresql":
            raise ConfigError(
                f"resources: {shown(connection)} is a connection to SQLite, which cannot prepare "
                "transactions; use log.atomic for one SQLite database"
            )
        self.connection = connection
        self.text = "postgresql"
        if not connection.closed:
            self.text = f"postgresql://{connection.info.host}/{connection.info.dbname}"
        self._session = DatabaseSession(connection, dialect, self.text)
        self.place = ""
        """The database, by the id of its server and its name."""

    def look(self, prefix: str) -> list[str]:
        """Check the server, and return the names of prepared transactions with a prefix.

        Raises:
            ConfigError: if the server does not allow prepared transactions, or its commits are
                not durable.
            IllegalState: if the connection has an open transaction.
            DatabaseUnavailable: if the database is down.
            DatabaseError: if the server is read-only.
        """
        session = self._session
        with session.errors():
            if not self.connection.closed and session.dialect.in_transaction(self.connection):
                raise IllegalState(
                    f"{self.text}: the connection has an open transaction; commit it or roll it "
                    "back first"
                )
            session.dialect.check(self.connection)
        rows = session.execute(_STATE, (prefix,)).rows
        session.rollback()
        [(allowed, database, server, names)] = rows
        if not allowed:
            raise ConfigError(
                f"{self.text}: max_prepared_transactions=0: the server does not allow PREPARE "
                "TRANSACTION; set it to max_connections in postgresql.conf, and restart the server"
            )
        self.place = f"postgresql {server}/{database}"
        return list(names)

    def begin(self) -> None:
        """Begin a transaction, which a program must not end."""
        self._session.begin()

    def check(self) -> None:
        """Check that the transaction is still open.

        Raises:
            IllegalState: if the program has ended it, or a statement failed.
        """
        self._session.check_mark()

    def prepare(self, gid: str) -> None:
        """Prepare the open transaction.

        Raises:
            TransactionAborted: if the database rolled it back instead.
            EoslogError: if the database is down.
            Exception: an error of the driver, for example of a deferred constraint.
        """
        with self._session.errors():
            done = self.connection.execute(f"PREPARE TRANSACTION '{gid}'").statusmessage
        if done != "PREPARE TRANSACTION":  # in a failed transaction it means ROLLBACK
            raise TransactionAborted(
                f"{self.text}: the database answered PREPARE TRANSACTION with {done}, so the "
                "transaction was rolled back; repeat the work"
            )

    def rollback(self) -> None:
        """Roll back the open transaction; a lost connection has done so."""
        self._session.rollback()

    def finish(self, gid: str, commit: bool) -> None:
        """Commit or roll back a prepared transaction.

        It does nothing if another session has done so.

        Raises:
            DatabaseUnavailable: if the database is down.
            DatabaseError: if another user has prepared it.
        """
        call = self.connection.tpc_commit if commit else self.connection.tpc_rollback
        deadline = time.monotonic() + _BUSY_S
        while True:
            with self._session.errors():
                try:
                    call(gid)
                    return
                except Exception as error:
                    state = getattr(error, "sqlstate", None)
                    if state == _MISSING:
                        return
                    if state == _ELSEWHERE:
                        raise DatabaseError(
                            f"{self.text}: {gid} was prepared by another user ({error}); connect "
                            "as that user or as a superuser"
                        ) from error
                    if state != _BUSY or time.monotonic() > deadline:
                        raise
            time.sleep(_PAUSE_S)  # another session ends it now
