"""Fixtures of the tests of async clients: a log, and two event loops."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import eoslog

Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log", durability="os") as opened:
        opened.create_topic("in", 2)
        opened.create_topic("out")
        yield opened
        assert client_threads() == [], "no thread is left"


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function in an event loop of this kind."""
    return lambda main: anyio.run(main, backend=request.param)


def client_threads() -> list[str]:
    """The threads of clients that are alive now."""
    named = ("eoslog-consumer", "eoslog-producer", "eoslog-sender")
    return [one.name for one in threading.enumerate() if one.name.startswith(named)]
