"""Fixtures of client tests: a directory with topics, a transactional producer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from eoslog.client.producer.producer import Producer
from eoslog.log import Log
from eoslog.opening import open as open_log
from eoslog.storage.fs import files

TOPICS = {"t": 3, "one": 1, "a": 2, "b": 1}


@pytest.fixture
def log(tmp_path: Any) -> Iterator[Log]:
    with open_log(str(tmp_path / "log")) as opened:
        for name, partitions in TOPICS.items():
            opened.create_topic(name, partitions)
        yield opened
    files.disarm_failpoints()


@pytest.fixture
def producer(log: Log) -> Iterator[Producer]:
    with log.producer(transactional_id="x") as made:
        made.init_transactions()
        yield made


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Clients to be closed at the end, the last one first."""
    handles: list[Any] = []
    yield handles
    for handle in reversed(handles):
        handle.close()
