"""PostgreSQL, through psycopg 3.

`synchronous_commit=off` is set to `on` for each transaction. A setting with SET LOCAL is the mark
of the transaction, because COMMIT and ROLLBACK end it.

Source: https://www.postgresql.org/docs/current/runtime-config-wal.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eoslog._util.extras import to_install
from eoslog.errors import (
    ConfigError,
    DatabaseError,
    DatabaseUnavailable,
    EoslogError,
    IllegalState,
)
from eoslog.sql.dialect import DriverConnections, StatementResult

__all__ = ["PostgreSQL", "require_psycopg"]

_MARK = """
SELECT set_config('eoslog.transaction', ?, true),
  set_config('synchronous_commit',
    CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
    ELSE current_setting('synchronous_commit') END, true)
"""
_MARKED = """
SELECT current_setting('eoslog.transaction', true), current_setting('synchronous_commit')
"""
_DENIED = ("25006", "42501")
"""read_only_sql_transaction and insufficient_privilege."""
_WAITED = ("55P03", "57014")
"""lock_not_available and query_canceled."""
_FAILED = "25P02"
"""in_failed_sql_transaction: a program caught the error of a statement and went on."""


def require_psycopg() -> Any:
    """Import psycopg.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise ConfigError(
            f"PostgreSQL needs psycopg ({error}); {to_install('postgres', 'psycopg[binary]')}"
        ) from None
    return psycopg


class PostgreSQL(DriverConnections):
    """PostgreSQL 12 or newer."""

    name = "postgresql"
    timestamp = "TIMESTAMPTZ"

    def check(self, connection: Any) -> None:
        """See `Dialect.check`."""
        if connection.closed:
            raise ConfigError(
                "connect: the connection is closed; return a new open connection at each call"
            )
        sql = "SELECT current_setting('fsync'), pg_is_in_recovery()"
        began = not self.in_transaction(connection)
        [(fsync, standby)] = self.execute(connection, sql, ()).rows
        if began:
            self.rollback(connection)
        if fsync == "off":
            raise ConfigError(
                "fsync=off: commits of this PostgreSQL server are not durable; set fsync=on"
            )
        if standby:
            raise DatabaseError(
                "connect: the PostgreSQL server is a standby, which is read-only; connect to the "
                "primary server"
            )

    def check_can_end(self, connection: Any) -> None:
        """See `Dialect.check_can_end`; psycopg has no public attribute that tells."""
        if getattr(connection, "_num_transactions", 0):
            raise ConfigError(
                "connection: it is inside `with connection.transaction()`, which alone can commit; "
                "pass a connection outside of that block"
            )
        if getattr(connection, "_tpc", None) is not None:
            raise ConfigError(
                "connection: it is in a two-phase transaction of tpc_begin(), which alone can "
                "commit; pass a connection without one"
            )

    def execute(self, connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
        """See `Dialect.execute`."""
        psycopg = require_psycopg()
        with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(sql.replace("?", "%s"), values or None)
            if connection.info.pipeline_status != psycopg.pq.PipelineStatus.OFF:
                with connection.pipeline() as pipeline:  # the one of the program
                    pipeline.sync()
            rows = cursor.fetchall() if cursor.description else []
            return StatementResult(rows, cursor.rowcount)

    def in_transaction(self, connection: Any) -> bool:
        """See `Dialect.in_transaction`."""
        return bool(connection.info.transaction_status != 0)  # 0: idle

    def is_open(self, connection: Any) -> bool:
        """See `Dialect.is_open`; a lost connection raises at its next statement."""
        if connection.closed and not getattr(connection, "broken", True):
            raise IllegalState(
                "the program closed the connection of the transaction, for example by `with "
                "connection:`, which commits its rows alone; leave the end of the transaction, and "
                "the connection, to eoslog"
            )
        return self.in_transaction(connection)

    def begin(self, connection: Any, mark: str) -> None:
        """See `Dialect.begin`."""
        if connection.autocommit:
            self.execute(connection, "BEGIN", ())
        self.join(connection, mark)

    def join(self, connection: Any, mark: str) -> None:
        """See `Dialect.join`."""
        self.execute(connection, _MARK, (mark,))

    def marked(self, connection: Any, mark: str) -> bool:
        """See `Dialect.marked`."""
        if not self.is_open(connection):
            return False
        [(found, synchronous)] = self.execute(connection, _MARKED, ()).rows
        if found == mark and synchronous == "off":
            raise ConfigError(
                "synchronous_commit=off: a statement set it inside the transaction, so the commit "
                "would not be durable; remove the statement"
            )
        return bool(found == mark)

    def commit(self, connection: Any) -> None:
        """See `Dialect.commit`."""
        connection.commit()

    def rollback(self, connection: Any) -> None:
        """See `Dialect.rollback`."""
        connection.rollback()

    def limit_waits(self, connection: Any, seconds: float) -> None:
        """See `Dialect.limit_waits`."""
        limit = f"{max(1, int(seconds * 1000))}"
        sql = "SELECT set_config('lock_timeout', ?, true), set_config('statement_timeout', ?, true)"
        if connection.autocommit:  # the limits are those of a transaction
            self.execute(connection, "BEGIN", ())
        self.execute(connection, sql, (limit, limit))

    def lock_schema(self, connection: Any, prefix: str) -> None:
        """See `Dialect.lock_schema`."""
        sql = "SELECT pg_advisory_xact_lock(hashtext(?))"
        self.execute(connection, sql, (f"eoslog schema {prefix}",))

    def usable(self, connection: Any) -> bool:
        """See `Dialect.usable`."""
        return not connection.closed and not self.in_transaction(connection)

    def error(self, error: BaseException, database: str) -> EoslogError | None:
        """See `Dialect.error`."""
        psycopg = require_psycopg()
        if not isinstance(error, psycopg.Error):
            return None
        text = str(error).strip().replace("\n", " ")
        if (known := self.known(error.sqlstate, text, database)) is not None:
            return known
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return DatabaseUnavailable(
                f"{database}: PostgreSQL is down, too slow, or ended the transaction ({text}); "
                "call again"
            )
        return None

    def known(self, state: str | None, text: str, database: str) -> EoslogError | None:
        """The error for an SQLSTATE; None if the state alone does not decide."""
        if state in _DENIED:
            return DatabaseError(
                f"{database}: PostgreSQL does not allow the change ({text}); connect to a primary "
                "server as a user that can write"
            )
        if state == _FAILED:
            return IllegalState(
                f"{database}: an earlier statement of the transaction failed ({text}); let its "
                "error end the loop body, or use a savepoint"
            )
        return None

    def undecodable(self, error: BaseException) -> bool:
        """See `Dialect.undecodable`: a date beyond the year 9999, for example."""
        return isinstance(error, UnicodeDecodeError) or (
            isinstance(error, require_psycopg().DataError) and error.sqlstate is None
        )

    def locked(self, error: BaseException) -> bool:
        """See `Dialect.locked`."""
        return getattr(error, "sqlstate", None) in _WAITED

    def missing_table(self, error: BaseException) -> bool:
        """See `Dialect.missing_table`."""
        return getattr(error, "sqlstate", None) == "42P01"
