"""`Database` over async engines: `log.atomic` and `log.sink` in coroutines."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import anyio
import pytest

from eoslog import Outcome
from eoslog.errors import (
    ConfigError,
    DatabaseUnavailable,
    IllegalState,
    PreparedTransactionPending,
)
from eoslog.sql import Database, OutboxRelay, async_engine
from tests.aio.cancelling import Cancelled
from tests.sql.conftest import place_of
from tests.sql.databases import ASYNC_KINDS

pytest.importorskip("sqlalchemy")
pytest.importorskip("aiosqlite")

from sqlalchemy import create_engine, text  # noqa: E402
from sqlalchemy.ext.asyncio import (  # noqa: E402
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column  # noqa: E402

from tests.sql.coroutines.engines import engine_of, run  # noqa: E402

SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest"}
ALL = list(range(12))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "ordered"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(params=ASYNC_KINDS)
def place(request, tmp_path):
    place = place_of(request, tmp_path).patient()
    place.run("create table ordered (number integer primary key)")
    return place


@pytest.fixture
def sqlite(tmp_path):
    """The URL of a database, for tests that are the same for every driver."""
    return f"sqlite+aiosqlite:///{tmp_path / 'base.sqlite'}"


def numbers(place):
    return sorted(number for (number,) in place.rows("select number from ordered"))


def visible(log):
    return sorted(int(record.value) for record in log.read("orders"))


async def insert(connection, number):
    if isinstance(connection, AsyncSession):
        connection.add(Order(number=number))
    else:
        await run(connection, f"insert into ordered values ({number})")


@pytest.fixture(params=["engine", "session"])
def source(request, place):
    """A function that returns what `Database` takes."""

    def made():
        engine = engine_of(place)
        return engine if request.param == "engine" else async_sessionmaker(engine)

    return made


def test_atomic_commits_both_and_an_exception_neither(log, place, source):
    async def main():
        async with (
            Database(source()) as database,
            log.async_producer(transactional_id="shop") as producer,
        ):
            async with log.atomic(producer, database) as tx:
                await insert(tx.connection, 100)
                await tx.send("orders", "100")
            assert tx.state == "committed"
            with pytest.raises(ZeroDivisionError):
                async with log.atomic(producer, database) as tx:
                    await insert(tx.connection, 101)
                    await tx.send("orders", "101")
                    raise ZeroDivisionError
            assert tx.state == "aborted"
            with pytest.raises(IllegalState, match="no transaction is open"):
                _ = tx.connection

    asyncio.run(main())
    assert numbers(place) == [100]
    assert visible(log) == [*ALL, 100]
    assert log.pending() == []


def test_atomic_reads_records_and_commits_their_offsets(log, place, source):
    """A consumer that takes part is rewound when the block fails."""

    async def main():
        async with (
            Database(source()) as database,
            log.async_producer(transactional_id="shop") as producer,
            log.async_consumer("orders", enable_auto_commit=False, **SETTINGS) as consumer,
        ):
            for fails in (True, False):
                try:
                    async with log.atomic(producer, database) as tx:
                        for _ in ALL:
                            record = await consumer.getone()
                            await insert(tx.connection, int(record.value))
                        await tx.commit_offsets(consumer)
                        if fails:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    assert fails

    asyncio.run(main())
    assert numbers(place) == ALL
    assert sum(at.offset for at in log.committed("g").values()) == 12


def test_a_given_session_takes_part_with_its_pending_objects(log, place):
    async def main():
        engine = engine_of(place)
        async with (
            Database(engine) as database,
            log.async_producer(transactional_id="shop") as producer,
            AsyncSession(engine) as session,
        ):
            session.add(Order(number=100))  # not flushed before the block
            async with log.atomic(producer, database, connection=session) as tx:
                assert tx.connection is session
                await tx.send("orders", "100")

    asyncio.run(main())
    assert numbers(place) == [100]
    assert visible(log) == [*ALL, 100]


@pytest.mark.parametrize("fails", [False, True], ids=["break", "exception"])
def test_a_sink_applies_each_record_once(log, place, source, fails):
    async def main():
        database = Database(source())
        async with log.async_consumer("orders", **SETTINGS) as consumer:
            for ends in (True, False):
                try:
                    async for batch in log.sink(consumer, database, records=5, timeout=0.1):
                        if not batch:
                            with pytest.raises(IllegalState, match="without records"):
                                _ = batch.connection
                            break
                        for record in batch:
                            await insert(batch.connection, int(record.value))
                        if ends and fails:
                            raise ZeroDivisionError
                        if ends:
                            break
                except ZeroDivisionError:
                    assert ends

    asyncio.run(main())
    assert numbers(place) == ALL


def test_a_sink_commits_a_batch_when_the_program_says_so(log, place, source):
    async def main():
        async with log.async_consumer("orders", **SETTINGS) as consumer:
            async for batch in log.sink(consumer, Database(source()), records=12):
                await insert(batch.connection, len(batch))
                await batch.commit()
                with pytest.raises(IllegalState, match="committed or rolled back"):
                    _ = batch.connection
                return len(batch)

    count = asyncio.run(main())
    assert numbers(place) == [count]


def test_a_consumer_that_stops_rolls_back_the_open_batch(log, place, source):
    async def main():
        engine = source()
        database = Database(engine)
        async with log.async_consumer("orders", **SETTINGS) as consumer:
            async for batch in log.sink(consumer, database):
                await insert(batch.connection, 1)
                await consumer.stop()

    asyncio.run(main())
    assert numbers(place) == []
    place.run("insert into ordered values (2)")  # no lock is left


def test_the_offset_store_of_an_async_consumer_is_the_database(log, place):
    async def main():
        database = Database(engine_of(place))
        async with log.async_consumer("orders", offset_store=database, **SETTINGS) as consumer:
            async for batch in log.sink(consumer, database):
                await insert(batch.connection, len(batch))
                if sum(numbers(place)) + len(batch) == 12:
                    await batch.commit()
                    return
        return

    asyncio.run(main())
    assert numbers(place)[-1] <= 12


@pytest.mark.slow
@pytest.mark.parametrize("way", ["once", "late", "twice"])
def test_atomic_cancelled_at_any_wait_leaves_both_or_neither(log, place, way):
    kind = {} if way == "once" else {way: True}
    states = set()

    async def main():
        database = Database(engine_of(place))
        async with log.async_producer(transactional_id="shop") as producer:
            await asyncio.to_thread(database.create)

            async def order(number):
                tx = log.atomic(producer, database)
                try:
                    async with tx:
                        await run(tx.connection, f"insert into ordered values ({number})")
                        await tx.send("orders", f"{number}")
                finally:
                    states.add(tx.state)

            for nth in itertools.count(1):
                cancelled = Cancelled(nth, **kind)
                await cancelled.of_asyncio(order(100 + nth))
                if not cancelled.reached:
                    break
            return nth

    last = asyncio.run(main())
    assert last > 3
    assert visible(log) == [*ALL, *numbers(place)]
    assert log.pending() == []
    assert {"committed", "aborted"} <= states


@pytest.mark.slow
@pytest.mark.parametrize("way", ["once", "late", "twice"])
def test_a_sink_cancelled_at_any_wait_applies_each_record_once(log, place, way):
    kind = {} if way == "once" else {way: True}
    cancellations = 0

    async def main():
        nonlocal cancellations
        database = Database(engine_of(place))
        async with log.async_consumer("orders", **SETTINGS) as consumer:

            async def applied():
                async for batch in log.sink(consumer, database, records=2, timeout=0.1):
                    for record in batch:
                        await run(
                            batch.connection,
                            f"insert into ordered values ({record.value.decode()})",
                        )
                    if not batch:
                        return

            with anyio.fail_after(300):
                for nth in itertools.count(1):
                    cancelled = Cancelled(nth, **kind)
                    await cancelled.of_asyncio(applied())
                    cancellations += cancelled.reached
                    if not cancelled.reached:
                        break

    asyncio.run(main())
    assert cancellations > 4
    assert numbers(place) == ALL


def test_a_transaction_left_by_a_dead_worker_is_decided_by_a_resolver(log, place, source):
    """The thread of the resolver has the event loop ask the database."""

    async def main():
        async with (
            Database(source()) as database,
            log.async_producer(transactional_id="shop") as producer,
        ):
            async with log.atomic(producer, database):
                pass  # registers the database
            name, meta = await asyncio.to_thread(lambda: (database.name, database.id))
            with log.producer(transactional_id="other") as other:
                other.init_transactions()
                other.begin_transaction()
                other.produce("orders", "100")
                left = other.prepare_transaction(resolver=name, meta={"eoslog.database": meta})
            log.recheck(left.token)
            while log.outcome(left.token) is Outcome.UNKNOWN:
                await asyncio.sleep(0.01)
            return log.outcome(left.token)

    assert asyncio.run(main()) is Outcome.ABORT


def test_start_keeps_a_prepared_transaction_and_begin_rejects_it(log):
    async def main():
        with log.producer(transactional_id="shop") as dead:
            dead.init_transactions()
            dead.begin_transaction()
            dead.produce("orders", "100")
            left = dead.prepare_transaction()
        async with log.async_producer(transactional_id="shop") as producer:
            with pytest.raises(PreparedTransactionPending):
                await producer.begin_transaction()
            log.resolve(left.token, Outcome.COMMIT)
            async with producer.transaction() as tx:
                await tx.send("orders", "101")

    asyncio.run(main())
    assert visible(log) == [*ALL, 100, 101]


@pytest.mark.slow
def test_a_server_that_stops_in_the_block_leaves_neither(log):
    from tests.sql.server import Server, missing

    if (why := missing()) is not None:
        pytest.skip(why)
    pytest.importorskip("asyncpg")
    for driver in ("asyncpg", "psycopg"):
        server = Server()
        server.start()
        try:

            async def main(driver=driver, server=server):
                engine = create_async_engine(
                    f"postgresql+{driver}://eoslog@/postgres?host={server.directory}"
                )
                async with log.async_producer(transactional_id=driver) as producer:
                    database = Database(engine)
                    with pytest.raises(DatabaseUnavailable):
                        async with log.atomic(producer, database) as tx:
                            await tx.send("orders", "100")
                            server.stop("immediate")
                    with pytest.raises(DatabaseUnavailable):
                        async with log.atomic(producer, database):
                            pytest.fail("the block was entered")
                    server.start()
                    async with log.atomic(producer, database) as tx:  # also with a pool that is old
                        await tx.send("orders", "200")

            asyncio.run(main())
        finally:
            server.remove()
    assert visible(log) == [*ALL, 200, 200]
    assert log.pending() == []


def test_a_database_is_used_in_one_event_loop_after_another(log, sqlite):
    engine = create_async_engine(sqlite)
    database = Database(engine)

    async def main(number):
        async with log.async_producer(transactional_id="shop") as producer:
            async with log.atomic(producer, database) as tx:
                await tx.send("orders", f"{number}")
        await engine.dispose()

    asyncio.run(main(100))
    asyncio.run(main(101))
    assert visible(log) == [*ALL, 100, 101]
    with pytest.raises(DatabaseUnavailable, match="event loop"):
        database.committed_offsets("g", {})


def test_a_blocked_event_loop_is_unavailable(sqlite, monkeypatch):
    monkeypatch.setattr(async_engine, "_BLOCKED_S", 0.05)
    monkeypatch.setattr(async_engine, "_LOOK_S", 0.02)
    raised = []

    async def main():
        database = Database(create_async_engine(sqlite))

        def create():
            try:
                database.create()
            except DatabaseUnavailable as error:
                raised.append(error)

        thread = threading.Thread(target=create)
        thread.start()
        while not raised:
            time.sleep(0.01)  # blocks the loop
        thread.join()

    asyncio.run(main())
    assert "was blocked" in str(raised[0])


def test_calls_that_would_block_the_loop_are_rejected(log, sqlite):
    async def main():
        database = Database(create_async_engine(sqlite))
        with pytest.raises(IllegalState, match="would block the event loop"):
            database.create()

    asyncio.run(main())
    with pytest.raises(IllegalState, match="no event loop yet"):
        Database(create_async_engine(sqlite)).create()


def test_clients_of_threads_reject_an_async_engine(log, sqlite):
    database = Database(create_async_engine(sqlite))
    with log.producer(transactional_id="t") as producer:
        with pytest.raises(ConfigError, match="over an async engine"):
            log.atomic(producer, database)
    with log.consumer("orders", group_id="g") as consumer:
        with pytest.raises(ConfigError, match="over an async engine"):
            log.sink(consumer, database)
    with pytest.raises(ConfigError, match="over an async engine"):
        OutboxRelay(database, log, name="shop")


def test_async_clients_reject_a_blocking_database(log, tmp_path):
    async def main():
        database = Database(tmp_path / "base.sqlite")
        async with (
            log.async_producer(transactional_id="t") as producer,
            log.async_consumer("orders", group_id="g") as consumer,
        ):
            with pytest.raises(ConfigError, match="has blocking connections"):
                async with log.atomic(producer, database):
                    pytest.fail("the block was entered")
            with pytest.raises(ConfigError, match="has blocking connections"):
                async for _ in log.sink(consumer, database):
                    pytest.fail("the loop was entered")

    asyncio.run(main())


def test_another_event_loop_than_asyncio_is_rejected(log, sqlite):
    async def main():
        async with log.async_producer(transactional_id="t") as producer:
            with pytest.raises(ConfigError, match="needs the event loop of asyncio"):
                async with log.atomic(producer, Database(create_async_engine(sqlite))):
                    pytest.fail("the block was entered")

    anyio.run(main, backend="trio")


def test_other_async_objects_of_sqlalchemy_are_rejected(sqlite):
    engine = create_async_engine(sqlite)
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    for given in (engine.connect(), async_sessionmaker(), scoped):
        with pytest.raises(ConfigError, match="connect: expected a SQLAlchemy AsyncEngine"):
            Database(given)
    engine.dialect.driver = "other"
    with pytest.raises(ConfigError, match=r"the driver sqlite\+other of the async engine"):
        Database(engine)
    with pytest.raises(ConfigError, match="only a Database over an async engine uses"):
        Database(lambda: create_async_engine(sqlite).connect()).create()


def test_a_connection_of_another_kind_is_rejected(log, sqlite):
    async def main():
        async with log.async_producer(transactional_id="t") as producer:
            other = create_engine(sqlite.replace("+aiosqlite", "")).connect()
            with pytest.raises(ConfigError, match="expected an AsyncConnection or AsyncSession"):
                async with log.atomic(producer, Database(create_async_engine(sqlite)), other):
                    pytest.fail("the block was entered")
            other.close()

    asyncio.run(main())


def test_an_asyncpg_engine_with_autocommit_is_rejected(log, server):
    pytest.importorskip("asyncpg")

    async def main():
        engine = create_async_engine(
            f"postgresql+asyncpg://eoslog@/postgres?host={server.directory}",
            isolation_level="AUTOCOMMIT",
        )
        with pytest.raises(ConfigError, match="AUTOCOMMIT"):
            await asyncio.to_thread(Database(engine).create)
        await engine.dispose()

    asyncio.run(main())


def test_a_program_that_commits_inside_of_atomic_gets_an_error(log, place, source):
    async def main():
        async with log.async_producer(transactional_id="shop") as producer:
            with pytest.raises(IllegalState, match="the program ended the transaction"):
                async with log.atomic(producer, Database(source())) as tx:
                    await tx.connection.execute(text("insert into ordered values (100)"))
                    await tx.connection.commit()
                    await tx.send("orders", "100")

    asyncio.run(main())
    assert visible(log) == ALL
