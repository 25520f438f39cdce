"""SQLAlchemy connections and sessions that take the tests' plain SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool


class PlainConnection(Connection):
    def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(statement, str):
            return self.exec_driver_sql(statement, *args, **kwargs)
        return super().execute(statement, *args, **kwargs)


class PlainSession(Session):
    def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        known = text(statement) if isinstance(statement, str) else statement
        return super().execute(known, *args, **kwargs)


def engine_of(kind: str, where: str, creator: Callable[[], Any] | None = None) -> Engine:
    """An engine; `creator` makes the driver's connections."""
    url = "postgresql+psycopg://" if kind.endswith("postgresql") else f"sqlite:///{where}"
    options = {} if creator is None else {"creator": creator, "poolclass": NullPool}
    engine = create_engine(url, **options)
    engine._connection_cls = PlainConnection
    return engine


def sessions_of(engine: Engine) -> sessionmaker[PlainSession]:
    return sessionmaker(engine, class_=PlainSession)
