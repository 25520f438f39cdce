"""`log.atomic` for coroutines: rows of a database, records and offsets.

The steps are those of `eoslog.sql.atomic`. They run in the thread of the producer, which has the
event loop make the calls of the database. So a cancelled task leaves no step in the background.
"""

from __future__ import annotations

from typing import Any, Self

from eoslog._util.arguments import shown
from eoslog.aio.producer import AsyncProducer
from eoslog.aio.transaction import AsyncTransaction
from eoslog.errors import ConfigError, IllegalState
from eoslog.sql.atomic import atomic_transaction
from eoslog.sql.database import Database

__all__ = ["AsyncAtomicTransaction"]


class AsyncAtomicTransaction(AsyncTransaction):
    """A transaction of a log and of a database, for coroutines of asyncio.

    `Log.atomic` returns it for an `AsyncProducer` and a `Database` over an AsyncEngine::

        async with log.atomic(producer, database) as tx:
            await tx.connection.execute(insert(orders).values(id=7, name="ada"))
            await tx.send("orders", "7", key="ada")

    The end of the block commits both. An exception in the block, also a cancellation, rolls back
    both, and the consumers that take part read the same records again.

    If the end of the block is cancelled, the commit runs to its end first. `state` then says
    whether both are committed.
    """

    def __init__(
        self, log: Any, producer: AsyncProducer, database: Database, connection: Any = None
    ) -> None:
        """Check the arguments; entering the block begins.

        Raises:
            ConfigError: if an argument is invalid.
            IllegalState: if the producer is not started.
        """
        if not isinstance(database, Database):
            raise ConfigError(f"atomic: expected an eoslog.sql.Database, got {shown(database)}")
        self._both = atomic_transaction(
            log, producer._client(), database, connection, of_coroutines=True
        )
        super().__init__(producer, self._both)
        self._database = database

    async def __aenter__(self) -> Self:
        self._producer._client()
        self._database._bind("atomic")
        await self._producer._thread.call(
            "begin_transaction", self._both.enter_connected, undo=self._both.cancel
        )
        return self

    @property
    def connection(self) -> Any:
        """The AsyncConnection or AsyncSession with the open transaction.

        Do not end its transaction.

        Raises:
            IllegalState: outside of the block.
        """
        session = self._both.session
        if session is None:
            raise IllegalState(
                "atomic: no transaction is open; use `connection` in the `async with` block"
            )
        return session.connection
