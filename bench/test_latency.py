"""From `produce` in one process to the return of a blocked `poll` in another.

The time is compared with the disk's flush.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import eoslog
from bench.contest import Contest
from tests.faults.harness import Child, live, start

COUNT = 150


def prepare(child: Child, path: Path, durability: str) -> None:
    with eoslog.open(path, durability=durability) as log:
        log.create_topic("t")


def receive(child: Child, path: Path, count: int) -> None:
    """Block in `poll` and report what came, and when."""
    with eoslog.open(path) as log, log.consumer("t", auto_offset_reset="earliest") as consumer:
        child.tell("ready", 1)
        for i in range(count):
            record = consumer.poll(30)
            now = time.monotonic_ns()
            assert record.value == b"%08d" % i
            child.tell("came", now)


@pytest.mark.parametrize("durability", ["strict", "os"])
def test_to_a_blocked_consumer(contest: Contest, place: Path, durability: str) -> None:
    """The disk's flush is that of an append of as many bytes.

    It is taken between two records.
    """
    path = place / "log"
    live(prepare, path, durability).fine()
    reader = start(receive, path, COUNT)
    reader.heard("ready")
    fd = os.open(place / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def measure() -> dict[str, list[float]]:
        begun, flushes = [], []
        with eoslog.open(path) as log, log.producer(linger_ms=0) as producer:
            for i in range(COUNT):
                time.sleep(0.002)  # the reader is asleep again
                before = time.perf_counter()
                os.write(fd, bytes(80))
                os.fdatasync(fd)
                flushes.append(time.perf_counter() - before)
                time.sleep(0.002)
                begun.append(time.monotonic_ns())
                producer.produce("t", b"%08d" % i)
                producer.flush()
                reader.heard("came", i + 1)
        came = reader.end().fine().of("came")
        took = [(t - before) / 1e9 for t, before in zip(came, begun, strict=True)]
        return {"": took, "fdatasync": flushes}

    try:
        contest.note(measure, unit="records")
    finally:
        os.close(fd)
