"""Durable records a second by 1, 8 and 64 processes on one partition, beside the disk's own rate; wake-up.

Group commit: one flush serves all who wait, so 64 writers should reach the smaller of 15 times one
writer's rate and half of what they reach in an `os` directory, where nobody waits for the disk.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eoslog
from tests.faults.harness import Child, live, start

RECORDS = {1: 100, 8: 100, 64: 30}


def prepare(child: Child, path: Path, durability: str) -> None:
    with eoslog.open(path, durability=durability) as log:
        log.create_topic("t")


def write(child: Child, path: Path, count: int) -> None:
    """Send one record after the other, each acknowledged before the next."""
    with eoslog.open(path) as log, log.producer(linger_ms=0) as producer:
        producer.produce("t", b"first")
        producer.flush()
        child.tell("ready", 1)
        while not (path.parent / "go").exists():
            time.sleep(0.0005)
        for _ in range(count):
            producer.produce("t", b"x" * 100)
            producer.flush()
        child.tell("done", 1)
        while not (path.parent / "end").exists():  # closing is not measured
            time.sleep(0.005)


@pytest.mark.parametrize("durability", ["strict", "os"])
@pytest.mark.parametrize("writers", [1, 8, 64])
def test_durable_records(
    measure: Callable[..., Any], place: Path, writers: int, durability: str
) -> None:
    numbers = itertools.count()
    running: list[Any] = []

    def begin() -> tuple[tuple[Path], dict[str, Any]]:
        _finish(running)
        folder = place / str(next(numbers))
        folder.mkdir()
        live(prepare, folder / "log", durability).fine()
        running[:] = [start(write, folder / "log", RECORDS[writers]) for _ in range(writers)]
        for process in running:
            process.heard("ready")
        return (folder,), {}

    def run(folder: Path) -> None:
        (folder / "go").touch()
        for process in running:
            process.heard("done")
        (folder / "end").touch()

    measure(run, units=writers * RECORDS[writers], rounds=3, setup=begin)
    _finish(running)


def _finish(running: list[Any]) -> None:
    for process in running:
        process.end().fine()
    running.clear()


def test_fdatasync(measure: Callable[..., Any], place: Path) -> None:
    """The disk's own rate: an append of 170 bytes and a sync."""
    fd = os.open(place / "file", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def run() -> None:
        for _ in range(50):
            os.write(fd, bytes(170))
            os.fdatasync(fd)

    measure(run, units=50, rounds=3)


def receive(child: Child, path: Path, count: int) -> None:
    """Block in `poll` and tell when each record came."""
    with eoslog.open(path) as log, log.consumer("t", auto_offset_reset="earliest") as consumer:
        child.tell("ready", 1)
        for _ in range(count):
            consumer.poll(30)
            child.tell("came", time.monotonic_ns())


@pytest.mark.parametrize("durability", ["strict", "os"])
def test_wake_up_of_a_blocked_poll_in_another_process(
    benchmark: Any, place: Path, durability: str
) -> None:
    """From the return of `flush` in one process to the return of `poll` in the other; negative is before."""
    path, count = place / "log", 100
    live(prepare, path, durability).fine()
    reader = start(receive, path, count)
    reader.heard("ready")
    sent: list[tuple[int, int]] = []
    with eoslog.open(path) as log, log.producer(linger_ms=0) as producer:

        def run() -> None:
            time.sleep(0.005)
            begun = time.monotonic_ns()
            producer.produce("t", b"x")
            producer.flush()
            sent.append((begun, time.monotonic_ns()))

        benchmark.pedantic(run, rounds=count)
    came = reader.end().fine().of("came")
    after = sorted(t - done for t, (_, done) in zip(came, sent, strict=True))
    whole = sorted(t - begun for t, (begun, _) in zip(came, sent, strict=True))
    benchmark.extra_info |= {
        "units": 1,
        "after_flush_us": [round(after[len(after) * p // 100] / 1000) for p in (50, 90, 99)],
        "from_produce_us": [round(whole[len(whole) * p // 100] / 1000) for p in (50, 90, 99)],
    }
    print(f"\nwake-up, {durability}: {benchmark.extra_info}")
