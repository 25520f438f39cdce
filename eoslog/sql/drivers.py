"""The drivers that eoslog knows, and their detection."""

from __future__ import annotations

import sqlite3
from typing import Any

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError, EoslogError
from eoslog.sql.async_engine import is_async
from eoslog.sql.dialect import Dialect
from eoslog.sql.over_sqlalchemy import (
    OverSQLAlchemy,
    driver_error,
    is_sqlalchemy,
    supported_dialect,
)
from eoslog.sql.postgresql import PostgreSQL
from eoslog.sql.sqlite import SQLite

__all__ = ["dialect_named", "dialect_of", "error_of_driver"]


def dialect_named(name: Any) -> Dialect:
    """Return a dialect by its name.

    Raises:
        ConfigError: if there is no such dialect.
    """
    if name == "sqlite":
        return SQLite()
    if name in ("postgresql", "postgres"):
        return PostgreSQL()
    raise ConfigError(f'dialect: expected "sqlite" or "postgresql", got {shown(name)}')


def dialect_of(connection: Any) -> Dialect:
    """Return the dialect of a connection.

    Raises:
        ConfigError: if it is not a connection of `sqlite3` or `psycopg`.
    """
    if isinstance(connection, sqlite3.Connection):
        return dialect_named("sqlite")
    names = {
        f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(connection).__mro__
    }
    if "psycopg.Connection" in names:
        return dialect_named("postgresql")
    if is_async(connection):
        raise ConfigError(
            f"connect: got {shown(connection)}, which only a Database over an async engine uses; "
            "create it with Database(engine), and use log.async_producer or log.async_consumer"
        )
    if is_sqlalchemy(connection):
        return OverSQLAlchemy(dialect_named(_of_sqlalchemy(connection)))
    if "psycopg.AsyncConnection" in names:
        raise ConfigError(
            "connect: got a psycopg.AsyncConnection; return a psycopg.Connection instead"
        )
    raise ConfigError(
        "connect: expected the factory to return a connection of sqlite3, psycopg or SQLAlchemy, "
        "got "
        f"{shown(connection)}"
    )


def error_of_driver(error: BaseException, database: str) -> EoslogError | None:
    """The error of eoslog for an error of any driver; None for other errors."""
    found = driver_error(error)
    module = type(found).__module__.partition(".")[0]
    if module == "sqlalchemy":  # no driver is concerned, so any dialect knows the error
        return OverSQLAlchemy(SQLite()).error(error, database)
    name = {"sqlite3": "sqlite", "psycopg": "postgresql"}.get(module)
    return None if name is None or found is None else dialect_named(name).error(found, database)


def _of_sqlalchemy(connection: Any) -> str:
    from sqlalchemy.engine import Connection
    from sqlalchemy.exc import UnboundExecutionError
    from sqlalchemy.orm import Session

    if isinstance(connection, Session):
        try:
            return supported_dialect(connection.get_bind().dialect)
        except UnboundExecutionError as error:
            raise ConfigError(
                f"connect: the SQLAlchemy session has no engine ({error}); create it with "
                "Session(engine)"
            ) from error
    if isinstance(connection, Connection):
        return supported_dialect(connection.dialect)
    raise ConfigError(
        f"connect: expected a SQLAlchemy Connection or Session, got {shown(connection)}"
    )
