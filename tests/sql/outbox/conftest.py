"""A database of two kinds, a log with a topic, and a relay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.sql import Database, OutboxRelay
from tests.sql.databases import LOCK_S, LOCK_TIMEOUT, Place


@pytest.fixture(params=["wal", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty database."""
    if request.param == "postgresql":
        server = request.getfixturevalue("server")
        return Place("postgresql", server.schema(LOCK_TIMEOUT))
    return Place(request.param, str(tmp_path / "base.sqlite"), timeout=LOCK_S)


@pytest.fixture
def log(path: str) -> Iterator[eoslog.Log]:
    """A log with an empty topic."""
    with eoslog.open(path) as log:
        log.create_topic("out")
        yield log


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    with Database(place.connect) as database:
        yield database


@pytest.fixture
def relay(database: Database, log: eoslog.Log) -> Iterator[OutboxRelay]:
    """A relay whose table exists."""
    with OutboxRelay(database, log, name="shop") as relay:
        relay.create()
        yield relay
