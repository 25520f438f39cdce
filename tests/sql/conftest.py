"""A server per run, and a database of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from tests.sql.databases import DISTINCT, LOCK_S, LOCK_TIMEOUT, SQLITE, Place
from tests.sql.server import Server, missing


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A running server; the tests that need it are skipped where none can be had."""
    if (why := missing()) is not None:
        pytest.skip(why)
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=DISTINCT)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty database."""
    return place_of(request, tmp_path)


def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty database of the kind that a fixture asks for."""
    if not request.param.startswith((*SQLITE, "postgresql")):
        pytest.importorskip("sqlalchemy")
    if request.param.endswith("postgresql"):
        server = request.getfixturevalue("server")
        return Place(request.param, server.schema(LOCK_TIMEOUT))
    return Place(request.param, str(tmp_path / "base.sqlite"), timeout=LOCK_S)


@pytest.fixture
def log(path: str) -> Iterator[eoslog.Log]:
    """A log with a topic of two partitions and six records in each."""
    with eoslog.open(path) as log:
        log.create_topic("orders", partitions=2)
        with log.producer() as producer:
            for number in range(12):
                producer.produce("orders", f"{number}", partition=number % 2)
        yield log


@pytest.fixture
def table(place: Place) -> Place:
    """The database with a table of the program."""
    place.run("create table placed (number integer)")
    return place


@pytest.fixture
def out(log: eoslog.Log) -> eoslog.Log:
    """A log with the topic `out`."""
    log.create_topic("out")
    return log


@pytest.fixture
def producer(out: eoslog.Log) -> Iterator[eoslog.Producer]:
    """A transactional producer."""
    with out.producer(transactional_id="t") as made:
        yield made
