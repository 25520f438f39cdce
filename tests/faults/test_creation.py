"""A process that is killed while it creates a directory leaves one that opens."""

from __future__ import annotations

from pathlib import Path

import pytest

import eoslog
from tests.faults.harness import Child, every_point, live

pytestmark = pytest.mark.process


def creates(child: Child, path: Path) -> None:
    child.armed()
    eoslog.open(path).close()


def uses(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        log.create_topic("orders")
        with log.producer() as producer:
            producer.send("orders", b"1").result(60)
    with eoslog.open(path) as log:
        assert [record.value for record in log.read("orders")] == [b"1"]
    assert eoslog.check(path).ok


def test_a_creation_killed_at_any_write_or_sync_is_completed(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    killed = 0
    for _, _, path, life in every_point(creates, empty, most=1000):
        killed += life.killed
        live(uses, path).fine()
        assert (path / "eoslog.offsets").stat().st_size
    assert killed >= 4
