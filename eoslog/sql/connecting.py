"""Connection factories: a function, a path of SQLite, or a connection string."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError
from eoslog.sql.async_engine import AsyncEngineSource, is_async
from eoslog.sql.over_sqlalchemy import factory_of, is_sqlalchemy
from eoslog.sql.postgresql import require_psycopg

__all__ = ["ConnectionSource", "source_of"]

_CONNECT_TIMEOUT_S = 10
_KEYWORDS = re.compile(
    r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|options|application_name"
    r"|sslmode|connect_timeout|target_session_attrs)\s*="
)
_UNDERSTOOD = (
    "a function that returns a connection, a SQLAlchemy engine or sessionmaker, the path of an "
    "SQLite file, sqlite:///PATH, postgresql://HOST/DBNAME, or 'host=... dbname=...'"
)


class ConnectionSource(NamedTuple):
    """Where connections come from."""

    connect: Callable[[], Any]
    dialect: str | None
    """The dialect that the source names; None if only a connection can tell."""
    text: str
    """The database in messages, without a password."""
    engine: AsyncEngineSource | None = None
    """The async engine, if the connections are of one."""
    file: str | None = None
    """The absolute path of the SQLite file; None for other sources."""


def source_of(connect: Any) -> ConnectionSource:
    """Return the source of connections for an argument.

    Raises:
        ConfigError: if it is not a function, a path or a known connection string.
    """
    if is_async(connect):
        engine = AsyncEngineSource(connect)
        return ConnectionSource(engine.connect, engine.dialect.name, engine.text, engine)
    if is_sqlalchemy(connect):
        return ConnectionSource(*factory_of(connect))
    if hasattr(connect, "cursor") and not isinstance(connect, type):
        raise ConfigError(
            f"connect: got the connection {shown(connect)}; pass a function that returns a new "
            "connection at each call"
        )
    if callable(connect):
        return ConnectionSource(connect, None, f"{getattr(connect, '__name__', 'connect')}()")
    if isinstance(connect, os.PathLike):
        connect = os.fspath(connect)
    if not isinstance(connect, str) or not connect.strip():
        raise ConfigError(f"connect: expected {_UNDERSTOOD}, got {shown(connect)}")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", connect)
    if scheme is None:
        return _postgresql(connect) if _KEYWORDS.match(connect) else _sqlite(connect)
    name = scheme[1].lower()
    if name in ("postgresql", "postgres"):
        return _postgresql(connect)
    if name == "sqlite":
        return _sqlite(_path_of_url(connect))
    if name == "file":
        return _sqlite(connect, uri=True)
    if "://" in connect:
        raise ConfigError(f"connect: the scheme {name}:// is not supported; expected {_UNDERSTOOD}")
    return _sqlite(connect)  # a file whose name has a colon, and ":memory:", which is refused later


def _path_of_url(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if not url.lower().startswith("sqlite:///") or len(path) < 2 or parts.query:
        raise ConfigError(
            f"connect: expected sqlite:///PATH (relative) or sqlite:////PATH, got {shown(url)}"
        )
    return path[1:]


def _sqlite(path: str, *, uri: bool = False) -> ConnectionSource:
    # Absolute, because the working directory may change before the first use.
    file: str | None = None
    if uri:
        path, file = _absolute_uri(path)
    elif path != ":memory:":
        path = file = os.path.abspath(path)

    def connect() -> sqlite3.Connection:
        folder = os.path.dirname(path)
        if not uri and folder and not os.path.isdir(folder):
            raise ConfigError(f"connect: the directory {folder} does not exist; create it")
        if not uri and os.path.isdir(path):
            raise ConfigError(f"connect: {path} is a directory; name a file in it")
        try:
            return sqlite3.connect(path, uri=uri)
        except (ValueError, sqlite3.OperationalError) as error:  # ValueError: a NUL, for example
            if getattr(error, "sqlite_errorcode", 1) != 1:  # SQLITE_ERROR, of the text itself
                raise
            raise ConfigError(
                f"connect: SQLite does not understand {shown(path)} ({error}); correct it"
            ) from error

    return ConnectionSource(connect, "sqlite", path, file=file)


def _absolute_uri(uri: str) -> tuple[str, str | None]:
    """A URI of SQLite with an absolute path, and this path; None if it names no file."""
    form = r"file:(?://(?:localhost)?(?=/))?((?!//)[^?#]+)(.*)"
    found = re.fullmatch(form, uri, re.DOTALL)
    if found is None or found[1] == ":memory:" or "mode=memory" in found[2]:
        return uri, None
    path = os.path.abspath(unquote(found[1]))
    return f"file:{quote(path)}{found[2]}", path


def _postgresql(dsn: str) -> ConnectionSource:
    psycopg = require_psycopg()
    try:
        known = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        # The message of libpq may have the password, so it is not repeated.
        raise ConfigError(
            "connect: libpq does not understand the connection string; write it as "
            "postgresql://HOST/DBNAME or 'host=... dbname=...'"
        ) from error
    options = {} if "connect_timeout" in known else {"connect_timeout": _CONNECT_TIMEOUT_S}
    text = f"{known.get('host', 'localhost')}/{known.get('dbname', '')}"
    return ConnectionSource(
        lambda: psycopg.connect(dsn, **options), "postgresql", f"postgresql://{text}"
    )
