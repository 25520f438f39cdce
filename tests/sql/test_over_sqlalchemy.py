"""`Database` over engines, sessions and pools of SQLAlchemy."""

from __future__ import annotations

import os

import pytest

import eoslog
from eoslog import Outcome
from eoslog.errors import ConfigError, DatabaseUnavailable, IllegalState
from eoslog.sql import Database

sqlalchemy = pytest.importorskip("sqlalchemy")

from sqlalchemy import create_engine, event, select, text  # noqa: E402
from sqlalchemy.orm import (  # noqa: E402
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

SETTINGS = {"group_id": "g", "auto_offset_reset": "earliest"}


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "ordered"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'base.sqlite'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def producer(log):
    with log.producer(transactional_id="shop") as made:
        yield made


def numbers(engine):
    with Session(engine) as session:
        return sorted(session.scalars(select(Order.number)))


def visible(log):
    return sorted(int(record.value) for record in log.read("orders"))


@pytest.mark.parametrize("make", [lambda engine: engine, sessionmaker], ids=["engine", "session"])
def test_a_sink_applies_mapped_objects_and_rows_once(log, engine, make):
    with Database(make(engine)) as database:
        for fails in (True, False, False):
            with log.consumer("orders", **SETTINGS) as consumer:
                for batch in log.sink(consumer, database, records=5, timeout=0.2):
                    if not batch:
                        break
                    for record in batch:
                        if isinstance(batch.connection, Session):
                            batch.connection.add(Order(number=int(record.value)))
                        else:
                            insert = sqlalchemy.insert(Order).values(number=int(record.value))
                            batch.connection.execute(insert)
                    if fails:
                        break
    assert numbers(engine) == list(range(12))
    assert engine.pool.checkedout() == 0


def test_a_session_that_is_open_takes_part_with_its_pending_objects(log, engine, producer):
    with Database(engine) as database:
        database.create()
        with Session(engine) as session:
            session.add(Order(number=100))  # not flushed before the block
            with log.atomic(producer, database, connection=session) as tx:
                assert tx.connection is session
                tx.produce("orders", "100")
            with pytest.raises(ZeroDivisionError):
                with log.atomic(producer, database, connection=session) as tx:
                    session.add(Order(number=101))
                    tx.produce("orders", "101")
                    raise ZeroDivisionError
    assert numbers(engine) == [100]
    assert visible(log) == [*range(12), 100]


def test_a_connection_that_has_only_read_takes_part(log, engine, producer):
    """The driver begins no transaction for a query, SQLAlchemy does."""
    with Database(engine) as database, engine.connect() as connection:
        database.create()
        assert connection.execute(text("select count(*) from ordered")).scalar() == 0
        with log.atomic(producer, database, connection=connection) as tx:
            connection.execute(text("insert into ordered values (100)"))
            tx.produce("orders", "100")
    assert numbers(engine) == [100]
    assert visible(log) == [*range(12), 100]


def test_an_object_that_the_database_rejects_leaves_neither(log, engine, producer):
    with Database(sessionmaker(engine)) as database:
        for number in (100, 100):
            try:
                with log.atomic(producer, database) as tx:
                    tx.connection.add(Order(number=number))
                    tx.produce("orders", f"{number}")
            except sqlalchemy.exc.IntegrityError:
                break
        else:
            pytest.fail("the second object was accepted")
        assert log.pending() == []
    assert numbers(engine) == [100]
    assert visible(log) == [*range(12), 100]


def test_a_program_that_commits_its_session_gets_an_error(log, engine, producer):
    with Database(sessionmaker(engine)) as database:
        with pytest.raises(eoslog.errors.IllegalState, match="the program ended the transaction"):
            with log.atomic(producer, database) as tx:
                tx.connection.add(Order(number=100))
                tx.connection.commit()
                tx.produce("orders", "100")
    assert visible(log) == list(range(12))


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        ("close", IllegalState, "the program closed the connection"),
        ("invalidate", DatabaseUnavailable, "the connection was lost in the transaction"),
    ],
)
def test_a_connection_that_ends_in_the_block_commits_neither(
    log, engine, producer, end, kind, message
):
    with Database(engine) as database:
        with pytest.raises(kind, match=message):
            with log.atomic(producer, database) as tx:
                tx.connection.execute(sqlalchemy.insert(Order).values(number=100))
                tx.produce("orders", "100")
                getattr(tx.connection, end)()
        with log.atomic(producer, database) as tx:
            tx.connection.execute(sqlalchemy.insert(Order).values(number=101))
            tx.produce("orders", "101")
    assert numbers(engine) == [101]
    assert visible(log) == [*range(12), 101]


def test_a_flush_whose_error_is_caught_commits_neither(log, engine, producer):
    with Database(sessionmaker(engine)) as database:
        with pytest.raises(IllegalState, match="an earlier statement of the transaction failed"):
            with log.atomic(producer, database) as tx:
                tx.produce("orders", "100")
                tx.connection.execute(sqlalchemy.insert(Order).values(number=100))
                tx.connection.add(Order(number=100))
                with pytest.raises(sqlalchemy.exc.IntegrityError):
                    tx.connection.flush()
    assert numbers(engine) == []
    assert visible(log) == list(range(12))


def test_offsets_are_stored_in_a_session_of_the_program(log, engine):
    with Database(engine) as database:
        for expected in (12, 0):
            with (
                log.consumer("orders", offset_store=database, **SETTINGS) as consumer,
                Session(engine) as session,
            ):
                records = consumer.consume(50, timeout=0.5)
                session.add_all(Order(number=int(record.value)) for record in records)
                if records:
                    database.store_offsets(session, consumer)
                session.commit()
                assert len(records) == expected
    assert numbers(engine) == list(range(12))


def test_an_answer_leaves_the_pool_as_it_was(log, engine, producer):
    """Its short wait for locks must not stay with a connection of the pool."""
    with engine.connect() as connection:
        before = connection.exec_driver_sql("pragma busy_timeout").scalar()
    with Database(sessionmaker(engine)) as database:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", "100")
        prepared = producer.prepare_transaction(
            resolver=database.name, meta={"eoslog.database": database.id}
        )
        assert database.resolve(prepared) is Outcome.ABORT
    held = [engine.connect() for _ in range(4)]
    after = {connection.exec_driver_sql("pragma busy_timeout").scalar() for connection in held}
    for connection in held:
        connection.close()
    assert after == {before}


def test_every_connection_of_the_pool_commits_durably(log, engine):
    """The pool may lend another connection than the first use has checked."""

    @event.listens_for(engine, "connect")
    def weaken(connection, record):
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=off")

    with Database(engine) as database:
        database.create()
        held = [engine.connect() for _ in range(2)]
        with log.consumer("orders", **SETTINGS) as consumer:
            for batch in log.sink(consumer, database, timeout=0.2):
                level = batch.connection.exec_driver_sql("pragma synchronous").scalar()
                break
        for connection in held:
            connection.close()
    assert level >= 2


def test_transactions_that_a_listener_of_the_engine_begins_work(log, engine, producer):
    """SQLAlchemy's own recipe for SAVEPOINT with sqlite3."""

    @event.listens_for(engine, "connect")
    def connected(connection, record):
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection):
        connection.exec_driver_sql("BEGIN")

    engine.dispose()
    with Database(engine) as database:
        with log.atomic(producer, database) as tx:
            with tx.connection.begin_nested():
                tx.connection.execute(text("insert into ordered values (100)"))
            tx.produce("orders", "100")
    assert numbers(engine) == [100]
    assert visible(log) == [*range(12), 100]


def test_a_pool_without_a_free_connection_is_unavailable(tmp_path):
    engine = create_engine(
        f"sqlite:///{tmp_path / 'base.sqlite'}", pool_size=1, max_overflow=0, pool_timeout=0.05
    )
    with engine.connect(), Database(engine) as database:
        with pytest.raises(DatabaseUnavailable, match="connections of the engine's pool"):
            database.create()
    engine.dispose()


def test_a_forked_child_uses_no_connection_of_its_parent(engine):
    opened = []
    event.listen(engine, "connect", lambda connection, record: opened.append(os.getpid()))
    with Database(engine) as database:
        database.create()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                database.committed_offsets("g", {})
                code = 0 if os.getpid() in opened else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert database.id


def test_other_objects_of_sqlalchemy_are_rejected(engine):
    with engine.connect() as connection:
        for given in (connection, sessionmaker(), scoped_session(sessionmaker(engine)), engine.url):
            with pytest.raises(ConfigError, match="connect: expected a SQLAlchemy Engine"):
                Database(given)
    engine.dialect.driver = "pysqlcipher"
    with pytest.raises(ConfigError, match=r"the driver sqlite\+pysqlcipher"):
        Database(engine)


def test_a_session_without_an_engine_is_rejected():
    with pytest.raises(ConfigError, match="the SQLAlchemy session has no engine"):
        Database(Session).create()


def test_a_database_in_memory_is_rejected():
    with pytest.raises(ConfigError, match="in memory"):
        Database(create_engine("sqlite://")).create()


def test_a_password_of_an_engine_is_not_shown():
    pytest.importorskip("psycopg")
    engine = create_engine("postgresql+psycopg://ada:secret@localhost/shop")
    assert "secret" not in repr(Database(engine))
