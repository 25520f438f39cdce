"""`log.sink` for coroutines: batches applied to a database with their offsets.

The steps are those of `eoslog.sql.sink`. They run in the thread of the consumer, which has the
event loop make the calls of the database.

A loop that ends by `break` or an exception drops its iterator. The iterator then has the thread
roll the batch back, before any later call of the consumer.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Self

from eoslog._util.arguments import shown
from eoslog.aio.consumer import AsyncConsumer
from eoslog.errors import CommitFailed, ConfigError, IllegalState
from eoslog.shown_paths import get_logger
from eoslog.sql.database import Database
from eoslog.sql.sink import BatchRecords, SinkTransaction, check_arguments

if TYPE_CHECKING:
    from eoslog._core import Record

__all__ = ["AsyncSink", "AsyncSinkBatch"]

logger = get_logger("eoslog.aio")


class AsyncSinkBatch(BatchRecords):
    """The records of a batch, and the database transaction that applies them.

    `Log.sink` returns batches for an `AsyncConsumer` and a `Database` over an AsyncEngine::

        async for batch in log.sink(consumer, database):
            for record in batch:
                await batch.connection.execute(insert(bill).values(text=record.value.decode()))
    """

    def __init__(
        self, records: list[Record], transaction: SinkTransaction, consumer: AsyncConsumer
    ) -> None:
        """Hold the records of one read."""
        super().__init__(records, transaction)
        self._consumer = consumer

    @property
    def connection(self) -> Any:
        """The AsyncConnection or AsyncSession with the open transaction.

        Do not end its transaction.

        Raises:
            IllegalState: if the batch was committed or rolled back, or has no records.
        """
        session = self._transaction.session
        if session is None:
            raise IllegalState(
                "batch: the batch was committed or rolled back; use the next batch"
                if self._records
                else "batch: a batch without records has no transaction; use an own connection"
            )
        return session.connection

    async def commit(self) -> None:
        """Commit the rows and the offsets now.

        The loop does so too, when it asks for the next batch. Cancelled: the commit runs to its
        end first.

        Raises:
            EoslogError: as `SinkBatch.commit`.

        Durability:
            The rows and the offsets are durable together when the call returns.
        """
        self._consumer._client()
        await self._consumer._thread.call(
            "commit of a batch", self._transaction.commit, certain=True
        )


class AsyncSink:
    """A loop over batches; each `async for` begins at the database's offsets.

    See `Log.sink`.
    """

    def __init__(
        self, consumer: AsyncConsumer, database: Database, records: int, timeout: float | None
    ) -> None:
        """Check the arguments; the loop makes the database the consumer's offset store.

        Raises:
            ConfigError: if an argument is invalid.
            IllegalState: if the consumer is not started.
        """
        if not isinstance(consumer, AsyncConsumer):
            raise ConfigError(f"sink: expected an AsyncConsumer, got {shown(consumer)}")
        self._timeout = check_arguments(database, records, timeout)
        self._records = records
        self._consumer = consumer
        self._database = database
        consumer._client()

    def __aiter__(self) -> _SinkLoop:
        self._database._bind("sink")
        return _SinkLoop(self._consumer, self._database, self._records, self._timeout)


class _SinkLoop:
    """One loop over the batches."""

    _transaction: SinkTransaction | None = None

    def __init__(
        self, consumer: AsyncConsumer, database: Database, records: int, timeout: float | None
    ) -> None:
        self._consumer = consumer
        self._database = database
        self._limit = records
        self._timeout = timeout

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncSinkBatch:
        await self._finish()
        consumer, database = self._consumer, self._database
        if consumer.closed:
            raise StopAsyncIteration
        try:
            reader, thread = consumer._client(), consumer._thread
            await thread.call("sink", lambda: reader._store_offsets_in(database))
            records = await self._read()
        except IllegalState:
            if consumer.closed:
                raise StopAsyncIteration from None
            raise
        transaction = SinkTransaction(database, reader, records=bool(records))
        self._transaction = consumer._batch = transaction
        if records:
            try:
                await thread.call("begin of a batch", transaction.begin)
            except BaseException:
                self._drop()
                raise
        return AsyncSinkBatch(records, transaction, consumer)

    async def _read(self) -> list[Record]:
        reader, timeout = self._consumer._client(), self._timeout
        end = None if timeout is None else time.monotonic() + timeout

        def read() -> list[Record]:
            left = None if end is None else max(end - time.monotonic(), 0)
            return reader.consume(self._limit, left)

        while True:
            records = await self._consumer._read("sink", read)
            if records or (records is not None and end is not None and time.monotonic() >= end):
                return records  # else another call has interrupted this one

    async def _finish(self) -> None:
        """Commit the batch that the loop body has had."""
        transaction = self._transaction
        if transaction is None:
            return
        if self._consumer.closed or transaction.ended:  # the end of the consumer rolled it back
            self._transaction = None
            return
        try:
            await self._consumer._thread.call("commit of a batch", transaction.finish, certain=True)
        except CommitFailed as error:
            logger.warning("batch rolled back, reading from the database's offsets: %s", error)
        finally:
            self._drop()

    def _drop(self) -> None:
        """Have the thread roll back an open batch before its later calls."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None and not transaction.ended:
            with contextlib.suppress(IllegalState):  # closed, which has rolled it back
                self._consumer._thread.post(transaction.roll_back)

    def __del__(self) -> None:
        self._drop()
