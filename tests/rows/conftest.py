"""An open log and its engine for the row tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.engine.engine import Engine
from eoslog.errors import LockTimeout
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(directory: Path) -> Iterator[Any]:
    """A new strict log with the topics `t` (one partition) and `two` (two)."""
    with eoslog.open(directory) as opened:
        opened.create_topic("t")
        opened.create_topic("two", partitions=2)
        yield opened


@pytest.fixture
def engine(log: Any, directory: Path) -> Iterator[Engine]:
    """The layer below: partition logs and coordinators of the same directory."""
    opened = Engine.open(directory)
    yield opened
    opened.close()


@pytest.fixture
def ack_lost() -> Iterator[Callable[..., None]]:
    """`ack_lost(n)`: the answers of the next n appends do not reach the producer."""

    def arm(count: int = 1) -> None:
        if count:
            files._armed["producer.ack_lost"] = ["trip"] * count

    yield arm
    files.disarm_failpoints()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """`busy(True)` makes every append find its lock taken; `busy(False)` ends that."""
    append = PartitionLog.append

    def refused(self: PartitionLog, *arguments: Any, **keywords: Any) -> Any:
        raise LockTimeout("append lock not free")

    def switch(on: bool) -> None:
        monkeypatch.setattr(PartitionLog, "append", refused if on else append)

    return switch
