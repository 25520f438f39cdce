"""Reopening after an unclean stop reads only what the last checkpoint lacks.

The tests count bytes.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import eoslog
from eoslog import Producer
from tests.simulation.machine import seam
from tests.simulation.machine.world import World
from tests.simulation.test_findings import CALM, Power

SEGMENT = 20_000


def fill(segments: int, tail: int):
    """A life that fills segments, checkpoints, writes `tail` records more, and dies."""

    def body(path: str) -> None:
        log = eoslog.open(path)
        log.create_topic("a", config={"segment.bytes": SEGMENT})
        producer = Producer({"log.dir": path, "batch.size": 1000})
        for _ in range(segments * SEGMENT // 1000):
            producer.produce("a", "x" * 900, partition=0)
        producer.flush()
        log._engine._checkpointer.checkpoint()
        for _ in range(tail):
            producer.produce("a", "y" * 900, partition=0)
        producer.flush()

    return body


def bytes_read(power: Power, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Bytes that opening and recovering the partition reads; the log end it finds."""
    total, end = [0], [0]
    pread = seam.Calls.pread

    def counted(self: seam.Calls, fd: int, data: int, size: int, at: int) -> int:
        n = pread(self, fd, data, size, at)
        total[0] += max(n, 0)
        return n

    def body(path: str) -> None:
        log = eoslog.open(path)
        end[0] = log._engine.partition("a", 0).log_end
        world.crash()

    world = World(Random(1), power.disk, CALM)
    world.reads = True
    process = world.spawn("p", lambda: body(power.disk.root))
    with monkeypatch.context() as patch:
        patch.setattr(seam.Calls, "pread", counted)
        with seam.installed(world):
            world.run()
    seam.bury(process)
    return total[0], end[0]


def measured(base: Path, monkeypatch: pytest.MonkeyPatch, segments: int, tail: int) -> int:
    base.mkdir()
    power = Power(base)
    power.life(fill(segments, tail))
    power.cut()
    read, end = bytes_read(power, monkeypatch)
    assert end == segments * SEGMENT // 1000 + tail
    return read


def test_reopening_reads_only_the_part_that_was_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = measured(tmp_path / "small", monkeypatch, 4, 10)
    large = measured(tmp_path / "large", monkeypatch, 60, 10)
    more = measured(tmp_path / "more", monkeypatch, 4, 100)
    assert large < small + 3 * SEGMENT, "fifteen times the log, the same tail"
    assert more > small + 90 * 900, "ten times the tail is read, all of it"
