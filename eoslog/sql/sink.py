"""Batches of a consumer, applied to a database together with their offsets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from eoslog._util.arguments import as_int, as_seconds, shown
from eoslog.client.consumer.consumer import Consumer
from eoslog.errors import CommitFailed, ConfigError, IllegalState
from eoslog.shown_paths import get_logger
from eoslog.sql.database import Database
from eoslog.sql.session import DatabaseSession
from eoslog.storage.fs.files import failpoint

if TYPE_CHECKING:
    from eoslog._core import Record

__all__ = ["BatchRecords", "Sink", "SinkBatch", "SinkTransaction", "check_arguments"]

logger = get_logger("eoslog.sql")


class BatchRecords(Sequence["Record"]):
    """The records of a batch, and its transaction."""

    def __init__(self, records: list[Record], transaction: SinkTransaction) -> None:
        """Hold the records of one poll."""
        self._records = records
        self._transaction = transaction

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._records[index]

    def __repr__(self) -> str:
        return f"<Batch of {len(self._records)} records>"


class SinkBatch(BatchRecords):
    """The records of a batch, and the database transaction that applies them.

    `Log.sink` returns batches::

        for batch in log.sink(consumer, database):
            rows = [(record.offset, record.value) for record in batch]
            batch.connection.executemany("insert into bill values (?, ?)", rows)
    """

    @property
    def connection(self) -> Any:
        """The database connection; its transaction begins at the first access.

        Do not end its transaction.

        Raises:
            IllegalState: if the batch was committed or rolled back.
            DatabaseUnavailable: if the database is down, or another connection holds its locks.
            ConfigError: if the settings of the database do not allow durable commits.
        """
        return self._transaction.connection()

    def commit(self) -> None:
        """Commit the rows and the offsets now.

        The loop does so too, when it asks for the next batch.

        Raises:
            CommitFailed: if another consumer owns a partition of the batch now. The transaction is
                rolled back, and the loop continues with the offsets of the database.
            IllegalState: if the program ended the transaction itself.
            DatabaseUnavailable: if the database is down or too slow. Nothing is lost: the next
                batch begins at the offsets that the database has.

        Durability:
            The rows and the offsets are durable together when the call returns.
        """
        self._transaction.commit()


def check_arguments(database: Any, records: Any, timeout: Any) -> float | None:
    """Check the arguments of a sink, and return the timeout in seconds.

    Raises:
        ConfigError: if one is invalid.
    """
    if not isinstance(database, Database):
        raise ConfigError(f"sink: expected an eoslog.sql.Database, got {shown(database)}")
    if as_int("records", records, "1 or more") < 1:
        raise ConfigError(f"records: expected 1 or more, got {records}")
    return None if timeout is None else as_seconds("timeout", timeout)


class Sink:
    """A loop over batches; each `for` begins at the offsets of the database.

    See `Log.sink`.
    """

    def __init__(
        self, consumer: Consumer, database: Database, records: int, timeout: float | None
    ) -> None:
        """Make the database the offset store of the consumer.

        Raises:
            ConfigError: if an argument is invalid, or the consumer cannot use an offset store.
        """
        if not isinstance(consumer, Consumer):
            raise ConfigError(f"sink: expected a Consumer, got {shown(consumer)}")
        self._timeout = check_arguments(database, records, timeout)
        database._refuse_async("sink")
        self._records = records
        self._consumer = consumer
        self._database = database
        consumer._store_offsets_in(database)

    def __iter__(self) -> Iterator[SinkBatch]:
        # A generator: when a loop ends by `break` or an exception, Python closes the generator.
        consumer = self._consumer
        while not consumer.closed:
            records = consumer.consume(self._records, self._timeout)
            if not records and (self._timeout is None or consumer.closed):
                return
            transaction = SinkTransaction(self._database, consumer, records=bool(records))
            try:
                yield SinkBatch(records, transaction)
                transaction.finish()
            except CommitFailed as error:
                logger.warning("batch rolled back, reading from the database's offsets: %s", error)
            finally:
                transaction.roll_back()


class SinkTransaction:
    """The transaction of one batch; it begins when it is needed."""

    def __init__(self, database: Database, consumer: Consumer, *, records: bool) -> None:
        self._database = database
        self._consumer = consumer
        self._has_records = records
        self._rewinds = consumer._subscription.rewinds
        self._session: DatabaseSession | None = None
        self._ended = False
        self._lease = contextlib.ExitStack()

    @property
    def ended(self) -> bool:
        """Whether the batch was committed or rolled back."""
        return self._ended

    @property
    def session(self) -> DatabaseSession | None:
        """The session with the open transaction; None without one."""
        return None if self._ended else self._session

    def connection(self) -> Any:
        """The connection, with an open transaction."""
        return self.begin().connection

    def begin(self) -> DatabaseSession:
        """Begin, unless the transaction has begun."""
        if self._ended:
            raise IllegalState("batch: the batch was committed or rolled back; use the next batch")
        if self._session is None:
            session = self._lease.enter_context(self._database._session())
            try:
                session.begin()
            except BaseException:
                self._lease.close()
                raise
            failpoint("sink.begun")
            self._session = session
        self._session.check_process()
        return self._session

    def finish(self) -> None:
        """Commit, unless the program has ended the transaction."""
        if not self._ended:
            self.commit()

    def commit(self) -> None:
        """See `SinkBatch.commit`."""
        if not self._has_records and self._session is None and not self._ended:
            self._ended = True
            return
        session = self.begin()
        try:
            if self._consumer._subscription.rewinds != self._rewinds:
                raise CommitFailed(
                    "batch: consumer.rewind() was called in the loop, so its records are read "
                    "again; the batch is rolled back"
                )
            session.flush()
            session.check_open()
            self._database._store(session, self._consumer)
            failpoint("sink.stored")
            session.check_mark()
            session.commit()
            failpoint("sink.committed")
        except BaseException:
            self.roll_back()
            raise
        self._ended = True
        self._lease.close()

    def roll_back(self) -> None:
        """Roll back, and read the records again; do nothing after the end."""
        if self._ended:
            return
        self._ended = True
        self._lease.close()  # rolls back, or closes a connection that is lost
        if self._has_records and not self._consumer.closed:
            self._consumer.rewind()
