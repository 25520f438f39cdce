"""A PostgreSQL server that allows prepared transactions, and two databases of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import eoslog
from tests.sql.server import Server, missing
from tests.tpc.banks import connect, create


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A running server; the tests that need it are skipped where none can be had."""
    if (why := missing()) is not None:
        pytest.skip(why)
    server = Server(max_prepared_transactions="40")
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="module")
def databases(server: Server) -> tuple[str, str]:
    return server.database(), server.database()


@pytest.fixture
def banks(databases: tuple[str, str]) -> tuple[str, str]:
    """Two databases with one account each, and no prepared transaction."""
    create(*databases)
    return databases


@pytest.fixture
def log(path: str) -> Iterator[eoslog.Log]:
    with eoslog.open(path) as log:
        log.create_topic("moves")
        yield log


@pytest.fixture
def first(banks) -> Iterator[Any]:
    with connect(banks[0]) as connection:
        yield connection


@pytest.fixture
def second(banks) -> Iterator[Any]:
    with connect(banks[1]) as connection:
        yield connection
