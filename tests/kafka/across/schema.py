"""The tables of the programs."""

from __future__ import annotations

import sqlite3

_TABLES = """
create table if not exists orders (number integer primary key);
create table if not exists outbox (
    id integer primary key autoincrement, topic text not null, value text not null
);
create table if not exists applied (value text not null);
"""


def connect(path: str) -> sqlite3.Connection:
    """Connect to the database, with synced commits and explicit transactions."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("pragma synchronous=full")
    return connection


def create(path: str) -> None:
    """Create the tables."""
    connection = connect(path)
    connection.executescript(_TABLES)
    connection.close()
