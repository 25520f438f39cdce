"""What eoslog needs of a database driver.

A dialect knows the SQL, the errors and the durability settings of one database. It has no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from eoslog.errors import EoslogError

__all__ = ["Dialect", "DriverConnections", "StatementResult"]


class StatementResult(NamedTuple):
    """The rows of a query, or the number of rows that a statement changed."""

    rows: list[tuple[Any, ...]]
    changed: int


class Dialect(Protocol):
    """The differences between databases."""

    name: str
    timestamp: str
    """The column type of a time."""
    pooled: bool
    """Whether closed connections go to a pool of their source, which opens them again."""

    def raw(self, connection: Any) -> Any:
        """The driver's connection."""

    def own(self, connection: Any) -> Any:
        """A connection for eoslog alone, in place of one of a factory."""

    def close(self, connection: Any) -> None:
        """Close the connection, which rolls back."""

    def flush(self, connection: Any) -> None:
        """Send the changes that a program has made and that were not sent."""

    def check(self, connection: Any) -> None:
        """Check a connection, and set what makes its commits durable.

        Raises:
            ConfigError: if its commits are not durable, or the connection is closed.
        """

    def execute(self, connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
        """Run one statement; `?` marks a value."""

    def check_can_end(self, connection: Any) -> None:
        """Check that the driver lets eoslog end the transaction of the connection.

        Raises:
            ConfigError: if a block of the program alone can end it.
        """

    def in_transaction(self, connection: Any) -> bool:
        """Whether a transaction is open."""

    def is_open(self, connection: Any) -> bool:
        """Whether the transaction of the driver is open, if `begin` or `join` was called."""

    def begin(self, connection: Any, mark: str) -> None:
        """Begin a transaction with a mark that ends with it."""

    def join(self, connection: Any, mark: str) -> None:
        """Set the mark in a transaction that is open."""

    def marked(self, connection: Any, mark: str) -> bool:
        """Whether the transaction with this mark is still open; removes the mark."""

    def commit(self, connection: Any) -> None:
        """Commit."""

    def rollback(self, connection: Any) -> None:
        """Roll back; do nothing without an open transaction."""

    def limit_waits(self, connection: Any, seconds: float) -> None:
        """Limit waits for locks in the next transaction, which this call may begin."""

    def lock_schema(self, connection: Any, prefix: str) -> None:
        """Exclude other processes that create tables, until the transaction ends."""

    def usable(self, connection: Any) -> bool:
        """Whether the connection is open and without a transaction."""

    def error(self, error: BaseException, database: str) -> EoslogError | None:
        """The error of eoslog for an error of the driver; None for errors of a program."""

    def undecodable(self, error: BaseException) -> bool:
        """Whether an error means that a table has a value that eoslog did not write."""

    def locked(self, error: BaseException) -> bool:
        """Whether a statement waited too long for a lock."""

    def missing_table(self, error: BaseException) -> bool:
        """Whether a statement failed because a table does not exist."""


class DriverConnections:
    """The part of a dialect whose connections are those of the driver."""

    pooled = False

    def raw(self, connection: Any) -> Any:
        """See `Dialect.raw`."""
        return connection

    def own(self, connection: Any) -> Any:
        """See `Dialect.own`."""
        return connection

    def close(self, connection: Any) -> None:
        """See `Dialect.close`."""
        connection.close()

    def in_transaction(self, connection: Any) -> bool:
        """See `Dialect.in_transaction`."""
        raise NotImplementedError

    def is_open(self, connection: Any) -> bool:
        """See `Dialect.is_open`."""
        return self.in_transaction(connection)

    def check_can_end(self, connection: Any) -> None:
        """See `Dialect.check_can_end`."""

    def flush(self, connection: Any) -> None:
        """See `Dialect.flush`; every statement is sent immediately."""
