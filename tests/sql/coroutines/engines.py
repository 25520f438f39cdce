"""Async engines of SQLAlchemy for the databases of tests."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from tests.sql.databases import Place


def engine_of(place: Place, **options: Any) -> AsyncEngine:
    """An engine for the database of a place, by the driver in its kind."""
    driver = place.kind.partition("-")[0]
    if driver == "aiosqlite":
        return create_async_engine(
            f"sqlite+aiosqlite:///{place.where}", connect_args={"timeout": place.timeout}, **options
        )
    connect = _psycopg(place) if driver == "psycopg" else _asyncpg(place)
    return create_async_engine(f"postgresql+{driver}://", async_creator=connect, **options)


def _psycopg(place: Place) -> Callable[[], Any]:
    import psycopg

    return lambda: psycopg.AsyncConnection.connect(place.where)


def _asyncpg(place: Place) -> Callable[[], Any]:
    import asyncpg
    from psycopg.conninfo import conninfo_to_dict

    known = conninfo_to_dict(place.where)
    settings = dict(item.split("=") for item in known.get("options", "").split() if item != "-c")
    return lambda: asyncpg.connect(
        host=known["host"], user=known["user"], database=known["dbname"], server_settings=settings
    )


def act_at_statement(engine: AsyncEngine, number: int, act: Callable[[], None]) -> None:
    """Call `act` before the statement of this number, or before or after that commit."""
    steps = iter(range(1, number + 1))

    def step() -> None:
        if next(steps, None) == number:
            act()

    module = import_module(type(engine.sync_engine.dialect.loaded_dbapi).__module__)
    name = f"AsyncAdapt_{engine.sync_engine.dialect.driver}"
    cursor, adapted = getattr(module, f"{name}_cursor"), getattr(module, f"{name}_connection")
    execute, commit = cursor.execute, adapted.commit

    def executed(self: Any, *arguments: Any, **options: Any) -> Any:
        step()
        return execute(self, *arguments, **options)

    def committed(self: Any) -> None:
        step()
        commit(self)
        step()

    cursor.execute, adapted.commit = executed, committed


async def run(connection: Any, sql: str) -> Any:
    """Run plain SQL on an AsyncConnection or AsyncSession."""
    assert not isinstance(connection, AsyncSession) or connection.in_transaction()
    return await connection.execute(text(sql))
