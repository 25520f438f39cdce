"""Percentiles of the time of a commit: alone, and with eight writers.

SQLite (WAL, `synchronous=full`) commits one row of the same size. Eight writers are processes. Those
of eoslog have a producer each and one partition; those of SQLite have one table, and wait for its
lock as the library does (`timeout`).
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import eoslog
from bench import data
from bench.contest import Contest, settle
from bench.peers import stores
from tests.faults.harness import Child, live, start

ALONE, PIECE = 3_000, 50
"""Commits of one writer, and how many of them follow each other before the peer's turn."""
WRITERS, EACH, ROUNDS = 8, 150, 4
VALUE = b"v" * 100
Commit = Callable[[], None]


@contextlib.contextmanager
def with_log(path: Path, name: str) -> Iterator[Commit]:
    """Yield what commits a transaction of one record."""
    with eoslog.open(path) as log, log.producer(transactional_id=name) as producer:
        producer.init_transactions()

        def commit() -> None:
            producer.begin_transaction()
            producer.produce(data.TOPIC, VALUE, partition=0)
            producer.commit_transaction()

        yield commit


def prepare_log(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        log.create_topic(data.TOPIC)


def rows_of_log(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        child.tell("rows", data.scanned(log)[0])


@contextlib.contextmanager
def with_sqlite(path: Path, name: str) -> Iterator[Commit]:
    """Yield what commits a transaction of one row."""
    with contextlib.closing(stores.sqlite_at(path)) as base:

        def commit() -> None:
            base.execute("begin immediate")
            base.execute("insert into t (value) values (?)", (VALUE,))
            base.execute("commit")

        yield commit


def prepare_sqlite(child: Child, path: Path) -> None:
    stores.sqlite_at(path).close()


def rows_of_sqlite(child: Child, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as base:
        child.tell("rows", *base.execute("select count(*) from t").fetchone())


SYSTEMS: dict[str, tuple[Any, Any, Any]] = {
    "": (prepare_log, with_log, rows_of_log),
    "SQLite": (prepare_sqlite, with_sqlite, rows_of_sqlite),
}


def timed(commit: Commit, count: int) -> list[float]:
    """Seconds of each of the commits."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        commit()
        found.append(time.perf_counter() - begun)
    return found


def write(child: Child, system: str, path: Path, go: Path, name: str) -> None:
    with SYSTEMS[system][1](path, name) as commit:
        commit()
        child.tell("ready", 1)
        while not go.exists():
            time.sleep(0.0005)
        child.tell("took", timed(commit, EACH))


def rows(system: str, path: Path) -> int:
    """How many records or rows are stored."""
    return int(live(SYSTEMS[system][2], path).fine().of("rows")[0])


def test_commit_alone(contest: Contest, place: Path) -> None:
    paths = {system: place / f"alone-{system}" for system in SYSTEMS}
    for system, path in paths.items():
        live(SYSTEMS[system][0], path).fine()

    def measure() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        with contextlib.ExitStack() as stack:
            commits = {
                system: stack.enter_context(SYSTEMS[system][1](path, "alone"))
                for system, path in paths.items()
            }
            for commit in commits.values():
                commit()
            settle(disk=True)
            for _ in range(ALONE // PIECE):
                for system, commit in commits.items():
                    found[system] += timed(commit, PIECE)
        for system, path in paths.items():
            assert rows(system, path) == ALONE + 1
        return found

    contest.note(measure, unit="commits", ours="")


def test_commit_with_8_writers(contest: Contest, place: Path) -> None:
    def of(system: str) -> list[float]:
        with data.folder(place) as folder:
            path, go = folder / "data", folder / "go"
            live(SYSTEMS[system][0], path).fine()
            processes = [start(write, system, path, go, f"w{i}") for i in range(WRITERS)]
            for process in processes:
                process.heard("ready")
            settle(disk=True)
            go.touch()
            found = [time for process in processes for time in process.end().fine().of("took")[0]]
            assert rows(system, path) == WRITERS * (EACH + 1)
        return found

    def measure() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        for _ in range(ROUNDS):
            for system in SYSTEMS:
                found[system] += of(system)
        return found

    contest.note(measure, unit="commits", ours="")
