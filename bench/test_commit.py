"""One small durable transaction: one record into each of two partitions, beside sqlite and lmdb with one row each."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNT = 40


def test_commit(measure: Callable[..., Any], open_log: Callable[..., Any]) -> None:
    producer = open_log(partitions=2).producer(transactional_id="bench", linger_ms=0)
    producer.init_transactions()

    def run() -> None:
        for _ in range(COUNT):
            producer.begin_transaction()
            producer.produce("t", b"a", partition=0)
            producer.produce("t", b"b", partition=1)
            producer.commit_transaction()

    measure(run, units=COUNT, rounds=4)
    producer.close()


def test_two_fdatasyncs(measure: Callable[..., Any], place: Path) -> None:
    """The limit of the protocol: data, then the decision."""
    fds = [
        os.open(place / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for name in ("data", "decision")
    ]

    def run() -> None:
        for _ in range(COUNT):
            for fd in fds:
                os.write(fd, bytes(100))
                os.fdatasync(fd)

    measure(run, units=COUNT, rounds=4)


def test_sqlite_commit(measure: Callable[..., Any], place: Path) -> None:
    base = sqlite3.connect(place / "base.db", isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    for name in "ab":
        base.execute(f"create table {name} (id integer primary key, value blob)")

    def run() -> None:
        for _ in range(COUNT):
            base.execute("begin")
            for name in "ab":
                base.execute(f"insert into {name} (value) values (?)", (b"v",))
            base.execute("commit")

    measure(run, units=COUNT, rounds=4)
    base.close()


def test_lmdb_commit(measure: Callable[..., Any], place: Path) -> None:
    import lmdb

    base = lmdb.open(str(place / "lmdb"), map_size=1 << 28)
    keys = iter(range(1 << 40))

    def run() -> None:
        for _ in range(COUNT):
            with base.begin(write=True) as txn:
                txn.put(b"a%012d" % next(keys), b"v")
                txn.put(b"b%012d" % next(keys), b"v")

    measure(run, units=COUNT, rounds=4)
    base.close()
