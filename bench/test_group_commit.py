"""Durable records per second by 1, 8 and 64 writers on one partition.

They are compared with the disk's own rate. Group commit: one flush serves all waiting writers.
So 64 writers should reach the smaller of 15 times one writer's rate and half of their rate in
an `os` directory, where no writer waits for the disk. Writers are processes, or the threads of
one: each has a producer of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eoslog
from bench import data
from bench.contest import Contender, Contest
from bench.peers import limits
from tests.faults.harness import Child, live, start

RECORDS = {1: 200, 8: 200, 16: 200, 64: 100}
BATCH = 170
"""Bytes that a record takes in the log, in a batch of its own."""
VALUE = b"x" * 100


def prepare(child: Child, path: Path, durability: str) -> None:
    with eoslog.open(path, durability=durability) as log:
        log.create_topic(data.TOPIC)


def write(child: Child, path: Path, count: int) -> None:
    """Send one record after the other, each acknowledged before the next."""
    with eoslog.open(path) as log, log.producer(linger_ms=0) as producer:
        producer.produce(data.TOPIC, b"first")
        producer.flush()
        child.tell("ready", 1)
        while not (path.parent / "go").exists():
            time.sleep(0.0005)
        for _ in range(count):
            producer.produce(data.TOPIC, VALUE)
            producer.flush()
        child.tell("done", 1)
        while not (path.parent / "end").exists():  # closing is not measured
            time.sleep(0.005)


def look(child: Child, path: Path) -> None:
    """Tell the checksum of everything, and the durable end."""
    with eoslog.open(path) as log:
        child.tell("found", [*data.scanned(log), log.offsets(data.TOPIC, 0).high_watermark])


def writers(place: Path, number: int, durability: str) -> Contender:
    """So many processes, each with its own producer."""

    @contextlib.contextmanager
    def running() -> Iterator[tuple[Path, list[Any]]]:
        with data.folder(place) as folder:
            live(prepare, folder / "log", durability).fine()
            processes = [start(write, folder / "log", RECORDS[number]) for _ in range(number)]
            for process in processes:
                process.heard("ready")
            yield folder, processes
            (folder / "end").touch()
            for process in processes:
                process.end().fine()

    def run(state: tuple[Path, list[Any]]) -> None:
        folder, processes = state
        (folder / "go").touch()
        for process in processes:
            process.heard("done")

    def check(state: tuple[Path, list[Any]], _result: Any) -> None:
        found = live(look, state[0] / "log").fine().of("found")[0]
        written = [VALUE] * RECORDS[number] * number + [b"first"] * number
        assert found == [*data.checksum(written), len(written)]

    return Contender(
        f"{number} writers, {durability}", run, running, check, RECORDS[number] * number
    )


def threads(place: Path, number: int, durability: str) -> Contender:
    """So many threads of one process, each with its own producer."""

    @contextlib.contextmanager
    def running() -> Iterator[tuple[eoslog.Log, list[threading.Thread], threading.Event]]:
        go = threading.Event()

        def write(producer: eoslog.Producer) -> None:
            go.wait()
            for _ in range(RECORDS[number]):
                producer.produce(data.TOPIC, VALUE)
                producer.flush()

        with data.fresh_log(place, durability) as log, contextlib.ExitStack() as stack:
            producers = [stack.enter_context(log.producer(linger_ms=0)) for _ in range(number)]
            for producer in producers:
                producer.produce(data.TOPIC, b"first")
                producer.flush()
            found = [threading.Thread(target=write, args=(one,)) for one in producers]
            for thread in found:
                thread.start()
            yield log, found, go

    def run(state: tuple[eoslog.Log, list[threading.Thread], threading.Event]) -> None:
        _, found, go = state
        go.set()
        for thread in found:
            thread.join()

    def check(state: tuple[eoslog.Log, list[threading.Thread], threading.Event], _: Any) -> None:
        written = [VALUE] * RECORDS[number] * number + [b"first"] * number
        data.assert_durable(state[0], len(written))
        assert data.scanned(state[0]) == data.checksum(written)

    return Contender(
        f"{number} threads, {durability}", run, running, check, RECORDS[number] * number
    )


def test_64_writers(contest: Contest, place: Path) -> None:
    contest(
        writers(place, 64, "strict"), writers(place, 1, "strict"), writers(place, 64, "os"),
        units=64 * RECORDS[64], disk=True, rounds=3, warm=False,
    )  # fmt: skip


def of_one_partition(contest: Contest, place: Path, number: int) -> None:
    """Compare so many processes with plain appends and with the same in C."""
    count = RECORDS[number]
    contest(
        writers(place, number, "strict"),
        limits.appends(place, count, BATCH, name="append+fdatasync"),
        ("the same in C", lambda: limits.group_commit(place, number, count, BATCH)),
        units=number * count, disk=True, rounds=7, warm=False,
    )  # fmt: skip


def test_8_writers(contest: Contest, place: Path) -> None:
    of_one_partition(contest, place, 8)


def test_16_writers(contest: Contest, place: Path) -> None:
    of_one_partition(contest, place, 16)


def test_64_threads(contest: Contest, place: Path) -> None:
    contest(
        threads(place, 64, "strict"), threads(place, 64, "os"),
        units=64 * RECORDS[64], disk=True, rounds=5,
    )  # fmt: skip
