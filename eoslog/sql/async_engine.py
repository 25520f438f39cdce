"""SQLAlchemy's async engines, whose event loop makes the calls of threads.

A connection of such an engine belongs to one event loop. The threads of async consumers and
producers, and those that ask resolvers, have the loop make each of their calls, and wait for it.

    the loop has closed, or is ending    DatabaseUnavailable
    the loop is blocked for a while      the call is cancelled; DatabaseUnavailable
    the thread is the one of the loop    IllegalState, because the loop would wait for itself

DatabaseUnavailable leaves open what the call has done. So it is handled as a lost answer of the
database is: the commit of a batch is read again, and a prepared transaction stays undecided.

Source: https://docs.sqlalchemy.org/en/20/orm/extensions/asyncio.html.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError, DatabaseUnavailable, EoslogError, IllegalState
from eoslog.sql.async_drivers import ASYNC_DRIVERS
from eoslog.sql.dialect import StatementResult
from eoslog.sql.over_sqlalchemy import OverSQLAlchemy

if TYPE_CHECKING:
    import asyncio

__all__ = ["AsyncEngineSource", "EngineLoop", "OverAsyncSQLAlchemy", "is_async"]

T = TypeVar("T")

_BLOCKED_S = 10.0
_LOOK_S = 0.5


def is_async(source: Any) -> bool:
    """Whether an object is of the async extension of SQLAlchemy."""
    return any(cls.__module__.startswith("sqlalchemy.ext.asyncio") for cls in type(source).__mro__)


class EngineLoop:
    """The event loop that an engine belongs to. Thread-safe."""

    def __init__(self) -> None:
        """Know no loop yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def bind(self) -> None:
        """Use the running loop from now on.

        Raises:
            ConfigError: if the running loop is not one of asyncio.
            IllegalState: if another loop runs and uses the engine.
        """
        import asyncio

        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "connect: an async engine of SQLAlchemy needs the event loop of asyncio; use "
                "asyncio.run"
            ) from None
        with self._lock:
            if self._loop is not running:
                if self._loop is not None and self._loop.is_running():
                    raise IllegalState(
                        "the Database over an async engine is used in another event loop; create "
                        "an engine and a Database in each loop"
                    )
                self._loop = running

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function in the loop, and return what it returns.

        Raises:
            IllegalState: if no loop was bound, or this is the thread of the loop.
            DatabaseUnavailable: if the loop ends, or does not run for a while.
        """
        import asyncio
        from concurrent.futures import CancelledError, wait

        loop = self._loop
        if loop is None:
            raise IllegalState(
                "the Database over an async engine has no event loop yet; create it in a coroutine"
            )
        if asyncio._get_running_loop() is loop:
            raise IllegalState(
                "this call would block the event loop; await log.sink or log.atomic, or call it "
                "with asyncio.to_thread"
            )
        coroutine = work()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError as error:  # the loop is closed
            coroutine.close()
            raise _ended(error) from error
        try:
            while not wait([future], _LOOK_S).done:
                if not _runs(loop):
                    future.cancel()
                    raise DatabaseUnavailable(
                        "the event loop of the async engine has ended, or was blocked for "
                        f"{_BLOCKED_S:g} s, so the answer of the database is unknown; call again"
                    )
        except BaseException:
            future.cancel()
            raise
        try:
            return future.result()
        except CancelledError as error:
            raise _ended(error) from error


def _runs(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop runs a callback soon."""
    ran = threading.Event()
    try:
        loop.call_soon_threadsafe(ran.set)
    except RuntimeError:
        return False
    waited = 0.0
    while not ran.wait(_LOOK_S):
        waited += _LOOK_S
        if loop.is_closed() or waited >= _BLOCKED_S:
            return False
    return True


def _ended(error: BaseException) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the event loop of the async engine is ending ({type(error).__name__}), so the answer of "
        "the database is unknown; call again in a new loop"
    )


class AsyncEngineSource:
    """The connections of an async engine or async_sessionmaker."""

    def __init__(self, source: Any) -> None:
        """Check the engine.

        Raises:
            ConfigError: if it is another object of SQLAlchemy, or its driver is not known.
        """
        from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

        engine = source.kw.get("bind") if isinstance(source, async_sessionmaker) else source
        if not isinstance(engine, AsyncEngine):
            raise ConfigError(
                "connect: expected a SQLAlchemy AsyncEngine, or an async_sessionmaker with one as "
                f"`bind`, got {shown(source)}"
            )
        self._engine: AsyncEngine = engine
        self._sessions = source if isinstance(source, async_sessionmaker) else None
        self._owner = os.getpid()
        self.loop = EngineLoop()
        self.dialect = OverAsyncSQLAlchemy(engine.dialect, self.loop)
        self.text = engine.url.render_as_string(hide_password=True)

    def connect(self) -> Any:
        """Return a new AsyncConnection or AsyncSession.

        Raises:
            EoslogError: if the database is down.
        """
        if self._owner != os.getpid():  # connections of the pool are those of the parent
            self._owner = os.getpid()
            self._engine.sync_engine.dispose(close=False)

        async def connected() -> Any:
            return await self._engine.connect() if self._sessions is None else self._sessions()

        try:
            return self.loop.run(connected)
        except EoslogError:
            raise
        except Exception as error:
            known = self.dialect.error(error, self.text)
            if known is None:
                raise
            raise known from error


class OverAsyncSQLAlchemy:
    """A dialect whose connections are SQLAlchemy's AsyncConnection or AsyncSession."""

    pooled = True

    def __init__(self, dialect: Any, loop: EngineLoop) -> None:
        """Use the driver of a dialect of SQLAlchemy.

        Raises:
            ConfigError: if the driver is not known.
        """
        found = ASYNC_DRIVERS.get((dialect.name, dialect.driver))
        if found is None:
            raise ConfigError(
                f"connect: the driver {dialect.name}+{dialect.driver} of the async engine is not "
                "supported; use sqlite+aiosqlite://, postgresql+asyncpg:// or "
                "postgresql+psycopg://"
            )
        make, adapt = found
        self._inner = OverSQLAlchemy(make(), adapt)
        self._loop = loop
        self.name = self._inner.name
        self.timestamp = self._inner.timestamp

    def _run(self, function: Callable[..., T], connection: Any, *arguments: Any) -> T:
        """Call a function with the synchronous connection of an async one, in the loop."""

        async def work() -> T:
            found: T = await connection.run_sync(lambda sync: function(sync, *arguments))
            return found

        return self._loop.run(work)

    def raw(self, connection: Any) -> Any:
        """See `Dialect.raw`."""
        return self._run(self._inner.raw, connection)

    def own(self, connection: Any) -> Any:
        """See `Dialect.own`; a session is replaced by a connection of its engine."""
        from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

        if not isinstance(connection, AsyncSession):
            return connection

        async def connected() -> Any:
            engine = AsyncEngine(connection.get_bind().engine)
            await connection.close()
            return await engine.connect()

        return self._loop.run(connected)

    def close(self, connection: Any) -> None:
        """See `Dialect.close`."""
        self._loop.run(connection.close)

    def check(self, connection: Any) -> None:
        """See `Dialect.check`."""
        self._run(self._inner.check, connection)

    def check_can_end(self, connection: Any) -> None:
        """See `Dialect.check_can_end`; SQLAlchemy lets blocks be ended early."""

    def execute(self, connection: Any, sql: str, values: Sequence[Any]) -> StatementResult:
        """See `Dialect.execute`."""
        return self._run(self._inner.execute, connection, sql, values)

    def in_transaction(self, connection: Any) -> bool:
        """See `Dialect.in_transaction`."""
        return bool(connection.in_transaction())

    def is_open(self, connection: Any) -> bool:
        """See `Dialect.is_open`."""
        return self._run(self._inner.is_open, connection)

    def begin(self, connection: Any, mark: str) -> None:
        """See `Dialect.begin`."""
        self._run(self._inner.begin, connection, mark)

    def join(self, connection: Any, mark: str) -> None:
        """See `Dialect.join`."""
        self._run(self._inner.join, connection, mark)

    def marked(self, connection: Any, mark: str) -> bool:
        """See `Dialect.marked`."""
        return self._run(self._inner.marked, connection, mark)

    def flush(self, connection: Any) -> None:
        """See `Dialect.flush`."""
        self._run(self._inner.flush, connection)

    def commit(self, connection: Any) -> None:
        """See `Dialect.commit`."""
        self._run(self._inner.commit, connection)

    def rollback(self, connection: Any) -> None:
        """See `Dialect.rollback`."""
        self._run(self._inner.rollback, connection)

    def limit_waits(self, connection: Any, seconds: float) -> None:
        """See `Dialect.limit_waits`; the connection leaves the pool with the limit."""
        self._run(self._inner.limit_waits, connection, seconds)

    def lock_schema(self, connection: Any, prefix: str) -> None:
        """See `Dialect.lock_schema`."""
        self._run(self._inner.lock_schema, connection, prefix)

    def usable(self, connection: Any) -> bool:
        """See `Dialect.usable`."""
        with contextlib.suppress(DatabaseUnavailable):
            return self._run(self._inner.usable, connection)
        return False

    def error(self, error: BaseException, database: str) -> EoslogError | None:
        """See `Dialect.error`."""
        known = self._inner.error(error, database)
        if known is None and isinstance(error, OSError):  # asyncpg's, of a connection
            known = DatabaseUnavailable(
                f"{database}: the connection failed ({error or type(error).__name__}); call again"
            )
        return known

    def undecodable(self, error: BaseException) -> bool:
        """See `Dialect.undecodable`."""
        return self._inner.undecodable(error)

    def locked(self, error: BaseException) -> bool:
        """See `Dialect.locked`."""
        return self._inner.locked(error)

    def missing_table(self, error: BaseException) -> bool:
        """See `Dialect.missing_table`."""
        return self._inner.missing_table(error)
