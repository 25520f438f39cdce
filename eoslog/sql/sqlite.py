"""SQLite, through the standard library's `sqlite3`.

A transaction begins with BEGIN IMMEDIATE, so a statement in it never fails because another process
writes. A savepoint is the mark of the transaction: a COMMIT or ROLLBACK in between removes it.

Durability needs `synchronous=FULL`. In the journal mode `delete`, a commit is durable only if the
directory is synced after the journal is unlinked, which `synchronous=EXTRA` does.

Source: https://www.sqlite.org/pragma.html#pragma_synchronous.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from typing import Any

from eoslog.errors import (
    ConfigError,
    DatabaseError,
    DatabaseUnavailable,
    EoslogError,
    IllegalState,
)
from eoslog.sql.dialect import DriverConnections, StatementResult

__all__ = ["SQLite"]

_FULL, _EXTRA = 2, 3
_TOGETHER = ("delete", "truncate", "persist")
"""Journal modes in which SQLite commits several files together."""
_LEVELS = ("OFF", "NORMAL", "FULL", "EXTRA")
_BUSY, _LOCKED, _READONLY, _CORRUPT, _NOTADB = 5, 6, 8, 11, 26
_OF_DAMAGE = ("no such column", "no such index", "unknown function", "unsupported file format")
"""Messages about a damaged schema; the columns of a table are checked before."""
_RETRIABLE = {_BUSY, _LOCKED, 10, 13, 14}
"""Also IOERR, FULL and CANTOPEN: a full disk, a file system that is not mounted."""


class SQLite(DriverConnections):
    """SQLite 3.24 or newer (ON CONFLICT)."""

    name = "sqlite"
    timestamp = "TEXT"

    def check(self, connection: Any) -> None:
        """See `Dialect.check`."""
        try:
            [(mode,)] = self.execute(connection, "PRAGMA journal_mode", ()).rows
            files = self.execute(connection, "PRAGMA database_list", ()).rows
        except sqlite3.ProgrammingError as error:
            raise ConfigError(
                f"connect: the connection cannot be used ({error}); return a new open connection "
                "at each call"
            ) from error
        mode = _text(mode).lower()
        if not _text(files[0][2]):
            raise ConfigError(
                "connect: the SQLite database is in memory, so its commits are not durable; use "
                "a file"
            )
        if mode in ("off", "memory"):
            raise ConfigError(
                f"journal_mode={mode}: a crash can damage the SQLite database; set journal_mode "
                "to wal, delete, truncate or persist"
            )
        self._set_synchronous(connection, _EXTRA if mode == "delete" else _FULL)
        self._check_attached(connection)

    def _check_attached(self, connection: Any) -> None:
        """Refuse several files that SQLite does not commit together.

        Files in WAL mode commit one after the other, so a crash leaves some without the commit.
        """
        listed = self.execute(connection, "PRAGMA database_list", ()).rows
        names = [_text(name) for _, name, file in listed if file and _text(name) != "temp"]
        if len(names) < 2:
            return
        for name in names:
            quoted = name.replace('"', '""')
            [(mode,)] = self.execute(connection, f'PRAGMA "{quoted}".journal_mode', ()).rows
            if _text(mode).lower() not in _TOGETHER:
                raise ConfigError(
                    f"the connection has attached the databases {', '.join(names[1:])}, and "
                    f"{name} has journal_mode={_text(mode)}, so a crash can commit only some of "
                    "the files; attach none, or set journal_mode to delete, truncate or persist "
                    "in all files"
                )

    def _set_synchronous(self, connection: Any, wanted: int) -> None:
        level = self._synchronous(connection)
        if level < wanted and not connection.in_transaction:
            self.execute(connection, f"PRAGMA synchronous={_LEVELS[wanted]}", ())
            level = self._synchronous(connection)
        if level < _FULL:
            raise ConfigError(
                f"synchronous={_LEVELS[level]}: commits of SQLite are not durable, and the level "
                "cannot change inside a transaction; set synchronous=FULL before it begins"
            )

    def _synchronous(self, connection: Any) -> int:
        return int(self.execute(connection, "PRAGMA synchronous", ()).rows[0][0])

    def execute(self, connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
        """See `Dialect.execute`."""
        cursor = connection.cursor()
        cursor.row_factory = None
        try:
            cursor.execute(sql, values)
            return StatementResult(cursor.fetchall(), cursor.rowcount)
        finally:
            cursor.close()

    def flush(self, connection: Any) -> None:
        """See `Dialect.flush`; a connection of another thread raises here."""
        connection.cursor().close()

    def in_transaction(self, connection: Any) -> bool:
        """See `Dialect.in_transaction`."""
        return bool(connection.in_transaction)

    def begin(self, connection: Any, mark: str) -> None:
        """See `Dialect.begin`."""
        if getattr(connection, "autocommit", None) is False:
            # Python 3.12: a transaction is always open. It has no locks before its first statement.
            connection.rollback()
        else:
            self.execute(connection, "BEGIN IMMEDIATE", ())
        self.join(connection, mark)

    def join(self, connection: Any, mark: str) -> None:
        """See `Dialect.join`."""
        self.execute(connection, f"SAVEPOINT {mark}", ())

    def marked(self, connection: Any, mark: str) -> bool:
        """See `Dialect.marked`."""
        try:
            self.execute(connection, f"RELEASE {mark}", ())
        except sqlite3.OperationalError as error:
            if _primary(error) in _RETRIABLE:
                raise
            return False
        self._check_attached(connection)  # a program can attach in its transaction, too
        return bool(connection.in_transaction)

    def commit(self, connection: Any) -> None:
        """See `Dialect.commit`."""
        if getattr(connection, "autocommit", None) is True:
            self.execute(connection, "COMMIT", ())  # `commit` does nothing then
        else:
            connection.commit()

    def rollback(self, connection: Any) -> None:
        """See `Dialect.rollback`."""
        if connection.in_transaction:
            if getattr(connection, "autocommit", None) is True:
                self.execute(connection, "ROLLBACK", ())
            else:
                connection.rollback()

    def limit_waits(self, connection: Any, seconds: float) -> None:
        """See `Dialect.limit_waits`."""
        self.execute(connection, f"PRAGMA busy_timeout={int(seconds * 1000)}", ())

    def lock_schema(self, connection: Any, prefix: str) -> None:
        """See `Dialect.lock_schema`; BEGIN IMMEDIATE has done it."""

    def usable(self, connection: Any) -> bool:
        """See `Dialect.usable`."""
        with contextlib.suppress(sqlite3.Error):
            return getattr(connection, "autocommit", None) is False or not connection.in_transaction
        return False

    def error(self, error: BaseException, database: str) -> EoslogError | None:
        """See `Dialect.error`."""
        if isinstance(error, UnicodeDecodeError):  # of a name in the schema, in SQLite's message
            return _damaged(database, error)
        if not isinstance(error, sqlite3.Error):
            return None
        code = _primary(error)
        if code in (_BUSY, _LOCKED):
            return DatabaseUnavailable(
                f"{database}: another connection holds the lock of the SQLite database ({error}); "
                "call again, or raise the connection's timeout"
            )
        if code in _RETRIABLE:
            return DatabaseUnavailable(
                f"{database}: SQLite cannot read or write the file ({error}); call again when the "
                "cause is repaired"
            )
        if code == _READONLY:
            return DatabaseError(
                f"{database}: the SQLite database is read-only ({error}); open it for writing"
            )
        if "no such index" in str(error):
            return DatabaseError(
                f"{database}: a copy of eoslog's tables was removed ({error}); create a new "
                "Database, which adds it"
            )
        if code in (_CORRUPT, _NOTADB) or any(text in str(error) for text in _OF_DAMAGE):
            return _damaged(database, error)
        if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
            return IllegalState(
                f"{database}: the connection is closed; eoslog closes its connections itself"
            )
        if isinstance(error, sqlite3.ProgrammingError) and "same thread" in str(error):
            return IllegalState(
                f"{database}: the connection belongs to another thread ({error}); end the block or "
                "batch in the thread that began it, or connect with check_same_thread=False"
            )
        return None

    def undecodable(self, error: BaseException) -> bool:
        """See `Dialect.undecodable`: a text that is not UTF-8, a rejected value."""
        if isinstance(error, sqlite3.OperationalError):
            return "decode" in str(error)
        return isinstance(error, sqlite3.IntegrityError)

    def locked(self, error: BaseException) -> bool:
        """See `Dialect.locked`."""
        return _primary(error) in (_BUSY, _LOCKED)

    def missing_table(self, error: BaseException) -> bool:
        """See `Dialect.missing_table`."""
        return isinstance(error, sqlite3.OperationalError) and "no such table" in str(error)


def _damaged(database: str, error: BaseException) -> DatabaseError:
    return DatabaseError(
        f"{database}: the file is damaged or is not an SQLite database ({error}); restore it from "
        "a backup"
    )


def _primary(error: BaseException) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
