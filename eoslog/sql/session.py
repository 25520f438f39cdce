"""One connection of a `Database`, and the transaction in it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from eoslog.errors import DatabaseError, EoslogError, IllegalState
from eoslog.sql.dialect import Dialect, StatementResult
from eoslog.storage.fs.files import fsync_dir

__all__ = ["DatabaseSession"]

_marks = itertools.count(1)


class DatabaseSession:
    """A connection with its dialect; used by one thread at a time.

    Errors of the driver that a program cannot cause are raised as errors of eoslog.
    """

    def __init__(
        self, connection: Any, dialect: Dialect, database: str, *, given: bool = False
    ) -> None:
        """Use a connection that `Dialect.check` has accepted.

        Args:
            connection: the connection.
            dialect: its dialect.
            database: the database in messages.
            given: whether the program has passed the connection, which may be one to another
                database.
        """
        self.given = given
        self.connection = connection
        self.dialect = dialect
        self.database = database
        self.pid = os.getpid()
        self._mark: str | None = None
        self._file: tuple[str, int, int] | None = None

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Translate errors of the driver."""
        try:
            yield
        except EoslogError:
            raise
        except Exception as error:
            known = self.dialect.error(error, self.database)
            if known is None:
                raise
            raise known from error

    @property
    def begun(self) -> bool:
        """Whether a transaction was begun or joined, and not ended since."""
        return self._mark is not None

    def note_file(self) -> None:
        """Remember which file the connection has open, if it is one of SQLite."""
        if self.dialect.name != "sqlite" or self.dialect.pooled:
            return
        path = self.execute("PRAGMA database_list").rows[0][2]
        path = path.decode() if isinstance(path, bytes) else path
        status = os.stat(path)
        self._file = path, status.st_dev, status.st_ino

    def replaced(self) -> bool:
        """Whether another file has the name of the file that the connection has open.

        Raises:
            DatabaseError: if no file has it; SQLite would create an empty one.
        """
        if self._file is None:
            return False
        path, *numbers = self._file
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise DatabaseError(
                f"{self.database}: the file was removed while it was in use; put it back"
            ) from None
        return [status.st_dev, status.st_ino] != numbers

    def execute(self, sql: str, values: Sequence[Any] = ()) -> StatementResult:
        """Run one statement; `?` marks a value."""
        with self.errors():
            return self.dialect.execute(self.connection, sql, values)

    def check_unused(self) -> None:
        """Check that no transaction of a program is open.

        Raises:
            IllegalState: if there is one, which eoslog must not end.
        """
        with self.errors():
            if not self.dialect.usable(self.connection):
                raise IllegalState(
                    f"{self.database}: the connection has an open transaction; use it only in its "
                    "block, and the factory must return a new connection at each call"
                )

    def begin(self) -> None:
        """Begin a transaction."""
        self.check_unused()
        with self.errors():
            mark = f"eoslog_{os.getpid()}_{next(_marks)}"
            self.dialect.begin(self.connection, mark)
            self._mark = mark

    def join(self) -> None:
        """Use a transaction that a program may have begun; begin one otherwise."""
        if not self.dialect.in_transaction(self.connection):
            self.begin()
            return
        with self.errors():
            mark = f"eoslog_{os.getpid()}_{next(_marks)}"
            self.dialect.join(self.connection, mark)
            self._mark = mark

    def lock_schema(self, prefix: str) -> None:
        """Exclude other processes that create tables, until the transaction ends."""
        with self.errors():
            self.dialect.lock_schema(self.connection, prefix)

    def check_process(self) -> None:
        """Check that this process has opened the connection.

        Raises:
            IllegalState: in a forked child, whose statements would be part of the transaction of
                its parent.
        """
        if self.pid != os.getpid():
            raise IllegalState(
                f"{self.database}: the connection was inherited through fork; begin a transaction "
                "in this process"
            )

    def check_open(self) -> None:
        """Check, without a statement, that a transaction is open.

        On a connection that commits automatically, the next statement would be committed alone.

        Raises:
            IllegalState: if the program has ended the transaction.
        """
        self.check_process()
        with self.errors():
            if self.dialect.is_open(self.connection):
                return
        self.execute("SELECT 1")  # raises if the connection is lost
        raise self._ended()

    def _ended(self) -> IllegalState:
        return IllegalState(
            f"{self.database}: the program ended the transaction with commit(), rollback() or "
            "`with connection:`, so its rows and the offsets are not one transaction; leave the "
            "end of the transaction to eoslog"
        )

    def check_mark(self) -> None:
        """Check that the transaction of `begin` is still open.

        Raises:
            IllegalState: if the program has ended it.
        """
        mark, self._mark = self._mark, None
        assert mark is not None
        with self.errors():
            if not self.dialect.marked(self.connection, mark):
                raise self._ended()

    def flush(self) -> None:
        """Send the changes that the program has made and that were not sent."""
        self.check_process()
        with self.errors():
            self.dialect.flush(self.connection)

    def commit(self, *, decision: bool = False) -> None:
        """Commit the transaction.

        Args:
            decision: whether the log follows the commit, so that no power loss may undo it.
        """
        folder = self._folder_to_sync() if decision else None
        with self.errors():
            self.dialect.commit(self.connection)
        if folder is not None:
            fsync_dir(folder)

    def _folder_to_sync(self) -> str | None:
        """The directory to sync after a commit; None if the database does it.

        `synchronous=EXTRA` cannot be set inside an open transaction of the program, nor on a
        connection of Python 3.12 with `autocommit=False`, which always has one.
        """
        if self.dialect.name != "sqlite":
            return None
        [(mode,)] = self.execute("PRAGMA journal_mode").rows
        [(level,)] = self.execute("PRAGMA synchronous").rows
        if mode not in ("delete", b"delete") or int(level) >= 3:
            return None
        path = self.execute("PRAGMA database_list").rows[0][2]
        return os.path.dirname(os.path.realpath(os.fsdecode(path)))

    def rollback(self) -> bool:
        """Roll back, and return whether to keep the connection for the next transaction.

        A forked child does nothing, because the transaction is that of its parent.
        """
        self._mark = None
        if self.pid != os.getpid():
            return False
        try:
            self.dialect.rollback(self.connection)
        except Exception:  # the connection is lost, so the database rolls back
            return False
        return not self.dialect.pooled and self.dialect.usable(self.connection)

    def close(self) -> None:
        """Close the connection, which rolls back; a forked child leaves it to its parent."""
        if self.pid != os.getpid():
            return
        with contextlib.suppress(Exception):
            self.dialect.close(self.connection)
