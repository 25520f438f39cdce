"""A database that takes part in exactly-once processing."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import shown
from eoslog._util.closing import Closing
from eoslog.client.consumer.consumer import Consumer
from eoslog.descriptions import PreparedTransaction
from eoslog.errors import ConfigError, DatabaseUnavailable, IllegalState
from eoslog.model import Outcome, TopicPartition
from eoslog.shown_paths import get_logger
from eoslog.sql.async_engine import is_async
from eoslog.sql.connecting import source_of
from eoslog.sql.dialect import Dialect
from eoslog.sql.drivers import dialect_named, dialect_of, error_of_driver
from eoslog.sql.offsets import read_offsets, store_offsets
from eoslog.sql.older_logs import refuse_older_log
from eoslog.sql.outcome_book import OutcomeBook
from eoslog.sql.outcomes import committed_rows, decide
from eoslog.sql.schema import Tables
from eoslog.sql.session import DatabaseSession

__all__ = ["META_KEY", "Database"]

META_KEY = "eoslog.database"
"""The key of the database's id in the `meta` of a prepared transaction."""
_LOCK_WAIT_S = 1.0
_ROWS_AT_JOIN = 1000

logger = get_logger("eoslog.sql")


@explained_calls()
class Database(Closing):
    """A database whose transactions include offsets or outcomes of a log.

    Pass it to `Log.sink`, or to a consumer as its offset store::

        database = eoslog.sql.Database("shop.sqlite")
        reading = {"group_id": "billing", "auto_offset_reset": "earliest"}
        with log.consumer("orders", **reading) as consumer:
            for batch in log.sink(consumer, database):
                for record in batch:
                    batch.connection.execute("insert into bill values (?)", (record.value,))

    eoslog adds three tables to the database. They are created at the first use, even if several
    processes use the database for the first time at the same time. The first use also adds what
    the tables of an earlier version lack.

    Connections are opened when they are needed, and closed by `close`. A program must not end the
    transactions of a connection that it gets from eoslog.

    Settings that make commits durable are set where possible: `synchronous` of SQLite for each
    connection, `synchronous_commit` of PostgreSQL for each transaction. SQLite with `journal_mode`
    off or memory, and PostgreSQL with `fsync=off`, raise ConfigError at the first use.

    Thread-safe. A forked child opens its own connections. Over an async engine, the methods block
    until the event loop has made their calls. So a coroutine calls them with `asyncio.to_thread`,
    and uses `async with` for the database.

    Args:
        connect: a function that returns a new connection of `sqlite3` or psycopg 3 at each call;
            the path of an SQLite file; a connection string, such as
            "postgresql://localhost/shop"; or a SQLAlchemy 2 engine or sessionmaker. PostgreSQL
            needs the extra `[postgres]`, SQLAlchemy the extra `[sqlalchemy]`. An AsyncEngine or
            async_sessionmaker is for async producers and consumers; its driver is aiosqlite,
            asyncpg or psycopg.
        dialect: "sqlite" or "postgresql"; None detects it from the connection.
        name: the name of the database as a resolver of prepared transactions; None means a name
            made of the database's id.
        prefix: the prefix of the names of eoslog's tables.

    Raises:
        ConfigError: if `connect` is not understood, psycopg is missing, or another argument is
            invalid. From any method that connects: if the settings of the database do not allow
            durable commits.
        DatabaseUnavailable: from any method that connects, if the database is down or too slow.
            Nothing was changed. Call again.
        DatabaseError: from any method that connects, if the database is read-only or damaged, or
            if its tables have another version.
    """

    def __init__(
        self,
        connect: Callable[[], Any] | str | os.PathLike[str],
        dialect: str | None = None,
        name: str | None = None,
        prefix: str = "eoslog_",
    ) -> None:
        """Check the arguments; the first use connects."""
        self._source = source_of(connect)
        named = dialect or self._source.dialect
        if dialect is not None and self._source.dialect not in (None, dialect_named(dialect).name):
            raise ConfigError(
                f"dialect={dialect}: the connection string is one of {self._source.dialect}; "
                "remove the argument"
            )
        self._dialect: Dialect | None = None if named is None else dialect_named(named)
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigError(f"name: expected a text or None, got {shown(name)}")
        self._name = name
        self._tables = Tables(prefix)
        self._id: str | None = None
        self._book = OutcomeBook(self._tables)
        self._logs: weakref.WeakSet[Any] = weakref.WeakSet()  # this is a resolver of these
        self._closed = False
        if self._source.engine is not None:
            with contextlib.suppress(ConfigError):  # no loop runs: the first use binds one
                self._source.engine.loop.bind()
        self._lock = threading.Lock()
        self._mine = threading.local()
        # All that are open, to close those that are eoslog's. Those of a thread that has ended
        # are closed with it.
        self._sessions: weakref.WeakSet[DatabaseSession] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"Database({self._source.text!r})"

    @property
    def id(self) -> str:
        """The random id of the database, which its tables have."""
        if self._id is None:
            with self._session():
                pass
        assert self._id is not None
        return self._id

    @property
    def name(self) -> str:
        """The name of the database as a resolver of prepared transactions."""
        return self._name if self._name is not None else f"database-{self.id}"

    @property
    def is_async(self) -> bool:
        """Whether the connections are those of an async engine of SQLAlchemy."""
        return self._source.engine is not None

    def _bind(self, what: str) -> None:
        """Use the running event loop for the calls of this database.

        Raises:
            ConfigError: if the database is not over an async engine, or the loop is not asyncio's.
        """
        if self._source.engine is None:
            raise ConfigError(
                f"{what}: {self!r} has blocking connections; create the Database over an "
                "AsyncEngine of SQLAlchemy, or use a producer and a consumer of threads"
            )
        self._source.engine.loop.bind()

    def _refuse_async(self, what: str) -> None:
        """Refuse to be used by threads.

        Raises:
            ConfigError: if the database is over an async engine.
        """
        if self.is_async:
            raise ConfigError(
                f"{what}: {self!r} is over an async engine; use an AsyncProducer or AsyncConsumer, "
                "or a Database over an Engine"
            )

    def create(self) -> None:
        """Create the tables that do not exist.

        The first use of the database calls it too. Call it as a user that may create tables if
        other users of the program may not.

        Raises:
            DatabaseUnavailable: if the database is down or too slow; call again.
            DatabaseError: if the database is read-only, or its tables have another version.
            ConfigError: if the settings of the database do not allow durable commits.
        """
        with self._session():
            pass

    def store_offsets(self, connection: Any, consumer: Consumer) -> None:
        """Store a consumer's positions in the open transaction of a connection.

        The consumer must have this database as its offset store. The offsets are committed with
        the transaction. If the transaction is rolled back, call `consumer.rewind()`.

        `Log.sink` does all of it; use this method for a loop of your own::

            consumer = log.consumer("orders", group_id="billing", offset_store=database)
            for record in consumer.consume(500, timeout=1.0):
                connection.execute("insert into bill values (?)", (record.value,))
            database.store_offsets(connection, consumer)
            connection.commit()

        Args:
            connection: a connection to this database, with or without an open transaction.
            consumer: a consumer with this database as its offset store.

        Raises:
            CommitFailed: if another consumer has stored offsets since this one read its own. Roll
                back, call `consumer.rewind()`, then poll again.
            ConfigError: if the consumer has another offset store, or the connection is one to
                another database, commits automatically, or is not durable.
            DatabaseUnavailable: if the database is down or too slow. Roll back, call
                `consumer.rewind()`, then poll again.
        """
        if not isinstance(consumer, Consumer) or consumer._offset_store is not self:
            raise ConfigError(
                "store_offsets: the consumer has another offset store; create it with "
                "Consumer(config, offset_store=database)"
            )
        dialect = self._dialect_of(connection)
        if _autocommits(dialect.raw(connection)) and not dialect.in_transaction(connection):
            raise ConfigError(
                "store_offsets: the connection commits automatically, and no transaction is "
                "open; begin one first"
            )
        session = self._session_of(connection)
        with self._lock:
            block = self._with_connection(connection)
        if block is None or not block.begun:  # a second mark would replace that of the block
            self._join(session)
        self._store(session, consumer)

    def _session_of(self, connection: Any) -> DatabaseSession:
        """A session of a program's connection; runs no statement."""
        dialect = self._dialect_of(connection)
        if self._dialect is not None and self._dialect.name != dialect.name:
            raise ConfigError(
                f"connection: it is one of {dialect.name}, but {self!r} is one of "
                f"{self._dialect.name}; pass a connection to the same database"
            )
        return DatabaseSession(connection, dialect, self._source.text, given=True)

    @contextlib.contextmanager
    def _ending(self, connection: Any) -> Iterator[DatabaseSession]:
        """A session of a program's connection that no other block or batch ends.

        Another `Database` object over the same connection is not seen.

        Raises:
            ConfigError: if another one does, or if the connection is an idle one of this object.
        """
        session = self._session_of(connection)
        if not self._add(session):
            raise ConfigError(
                "connection: this Database uses it already, for an open block or batch or as its "
                "own idle connection; pass another connection"
            )
        try:
            yield session
        finally:
            with self._lock:
                self._sessions.discard(session)

    def _join(self, session: DatabaseSession, *, ends: bool = False) -> None:
        """Use the transaction of a program's connection, or begin one.

        Args:
            session: the session of the connection.
            ends: whether eoslog ends the transaction.
        """
        with session.errors():
            if ends:
                session.dialect.check_can_end(session.connection)
            session.dialect.check(session.connection)
            session.join()  # sets what makes its commit durable

    def _dialect_of(self, connection: Any) -> Dialect:
        """The dialect of a connection of the program, or of one that the source returned."""
        engine = self._source.engine
        if engine is None:
            return dialect_of(connection)
        if not is_async(connection):
            raise ConfigError(
                f"connection: expected an AsyncConnection or AsyncSession, got {shown(connection)}"
            )
        return engine.dialect

    def _store(self, session: DatabaseSession, consumer: Consumer) -> None:
        with consumer._use:
            commits = consumer._commits
            changes = commits.changes()
            store_offsets(session, self._tables, commits.group_id, changes)
            if session.given and changes:  # after the write, so that no read begins a snapshot
                self._tables.check_id(session, self.id)
            commits.stored(changes)

    def committed_offsets(
        self, group_id: str, partitions: Mapping[TopicPartition, bytes]
    ) -> dict[TopicPartition, int]:
        """Return the stored offsets of a consumer group.

        Args:
            group_id: the group.
            partitions: the partitions, each with the id of its topic (`Log.topic_id`).

        Returns:
            The next offset to read of each partition, without partitions that have none.

        Raises:
            DatabaseUnavailable: if the database is down or too slow; call again.
            DatabaseError: if its tables have another version.
        """
        with self._session() as session:
            return read_offsets(session, self._tables, group_id, partitions)

    # Outcomes of prepared transactions.

    def resolve(self, prepared: PreparedTransaction) -> Outcome:
        """Return whether the database has committed its part of a prepared transaction.

        If it has not, the call inserts a tombstone, so that a suspended worker cannot commit later.
        So ask only about transactions whose work is over or lost.

        `Log.atomic` registers the database as a resolver, so that programs need not call it.

        Args:
            prepared: the prepared transaction, from `Log.pending`.

        Returns:
            COMMIT or ABORT. UNKNOWN if the transaction was prepared with another database, or the
            worker's transaction has not ended.

        Raises:
            DatabaseUnavailable: if the database is down or too slow; call again.
            DatabaseError: if the tables of the database have another version, or were replaced.
            ConfigError: if `prepared` is not a prepared transaction.

        Durability:
            The answer is durable in the database when the call returns.
        """
        try:
            return self._answer(prepared)
        except DatabaseUnavailable as error:
            dialect = self._dialect  # None if no connection could be opened
            if dialect and error.__cause__ is not None and dialect.locked(error.__cause__):
                return Outcome.UNKNOWN
            raise

    def __call__(self, prepared: PreparedTransaction) -> Outcome:
        """Return the same as `resolve`, so that the database is a resolver itself."""
        return self.resolve(prepared)

    def _answer(self, prepared: PreparedTransaction) -> Outcome:
        """As `resolve`, but a lock raises DatabaseUnavailable."""
        if not isinstance(prepared, PreparedTransaction):
            raise ConfigError(f"resolve: expected a PreparedTransaction, got {shown(prepared)}")
        meta = prepared.meta if isinstance(prepared.meta, dict) else {}
        other = meta.get(META_KEY, self.id)
        if other != self.id:
            logger.warning(
                "token %s: prepared with the database of id %s, but %r has id %s: no answer",
                prepared.token,
                other,
                self,
                self.id,
            )
            return Outcome.UNKNOWN
        session = self._connect(own=True)  # its waits for locks are short
        try:
            session.check_unused()
            with session.errors():
                session.dialect.limit_waits(session.connection, _LOCK_WAIT_S)
            return decide(session, self._tables, self.id, prepared.token, prepared._committed)
        finally:
            session.close()

    def _join_log(self, log: Any) -> None:
        """Answer for this log from now on; also find outcome rows that it does not need.

        Raises:
            DatabaseError: if the log is an older copy than the database.
        """
        if log in self._logs:
            return
        with self._session() as session:
            rows = committed_rows(session, self._tables, log.cluster_id, _ROWS_AT_JOIN)
        refuse_older_log(log, rows, self._source.text, self._tables.outcome)
        self._book.sweep(rows, log)
        log.register_resolver(self.name, self)
        self._logs.add(log)

    # Connections.

    @contextlib.contextmanager
    def _session(self) -> Iterator[DatabaseSession]:
        """Lend a connection to this thread."""
        session = self._take()
        try:
            yield session
        finally:
            self._give(session)

    def _require_file(self, what: str) -> None:
        """Check that a file of SQLite exists, which a connection would create.

        Raises:
            ConfigError: if it does not.
        """
        path = self._source.file
        if path is not None and not os.path.exists(path):
            raise ConfigError(f"{what}: the SQLite file {path} does not exist; name another")

    def _take(self) -> DatabaseSession:
        if self._closed:
            raise IllegalState(f"{self._source.text}: the database is closed; create a new one")
        idle: list[DatabaseSession] = self._idle()
        while idle and idle[-1].replaced():  # by a restored backup, for example
            self._discard(idle.pop())
        session = idle.pop() if idle else self._open()
        try:
            if self._id is None:
                self._id = self._prepare(session)
        except BaseException:
            self._give(session)
            raise
        return session

    def _idle(self) -> list[DatabaseSession]:
        mine: list[DatabaseSession] = getattr(self._mine, "idle", [])
        if any(session.pid != os.getpid() for session in mine):
            # The parent uses these connections. Closing them here could release its locks.
            self._mine.inherited = mine
            mine = []
        self._mine.idle = mine
        return mine

    def _give(self, session: DatabaseSession) -> None:
        if session.rollback() and not self._closed:
            self._idle().append(session)
        else:
            self._discard(session)

    def _discard(self, session: DatabaseSession) -> None:
        with self._lock:
            self._sessions.discard(session)
        session.close()

    def _open(self) -> DatabaseSession:
        session = self._connect()
        if not self._add(session):
            raise IllegalState(
                f"{self._source.text}: the factory returned a connection that is in use; return a "
                "new connection at each call"
            )
        return session

    def _add(self, session: DatabaseSession) -> bool:
        """Note an open session; return False if its connection has one."""
        with self._lock:
            if self._with_connection(session.connection) is not None:
                return False
            self._sessions.add(session)
            return True

    def _with_connection(self, connection: Any) -> DatabaseSession | None:
        """The open session of a connection; the caller has the lock."""
        return next((one for one in [*self._sessions] if one.connection is connection), None)

    def _connect(self, *, own: bool = False) -> DatabaseSession:
        """Open a connection that the caller closes.

        Args:
            own: whether only eoslog uses it.
        """
        text = self._source.text
        try:
            connection = self._source.connect()
            if own:
                connection = self._dialect_of(connection).own(connection)
        except Exception as error:
            known = error_of_driver(error, text)
            if known is None:
                raise
            raise known from error
        found = self._dialect_of(connection)
        if self._dialect is None or self._dialect.name == found.name:
            self._dialect = found
        else:
            raise ConfigError(
                f"dialect={self._dialect.name}: the factory returned a connection of {found.name}"
            )
        session = DatabaseSession(connection, found, text)
        try:
            with session.errors():
                found.check(connection)
                session.note_file()
        except BaseException:
            session.close()
            raise
        return session

    def _prepare(self, session: DatabaseSession) -> str:
        found = self._tables.read_id(session)
        if found is None or not self._tables.complete(session):
            self._tables.create(session)
            found = self._tables.read_id(session)
        assert found is not None
        return found

    def close(self) -> None:
        """Close the connections that eoslog opened. A second call does nothing."""
        if not self._closed:
            with contextlib.suppress(Exception):  # the next process deletes these rows
                self._flush()
        self._closed = True
        with self._lock:
            sessions = list(self._sessions)
            self._sessions.clear()
        for session in sessions:
            if session.pid == os.getpid() and not session.given:
                session.close()

    async def __aenter__(self) -> Self:
        self._bind("async with")
        return self

    async def __aexit__(self, *raised: object) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def _flush(self) -> None:
        if self._book.waiting:
            with self._session() as session:
                self._book.flush(session)


def _autocommits(connection: Any) -> bool:
    autocommit = getattr(connection, "autocommit", None)
    if autocommit is True:
        return True
    return hasattr(connection, "isolation_level") and (
        autocommit is not False and connection.isolation_level is None
    )
