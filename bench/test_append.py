"""Durable appends, beside `write` + `fdatasync` of the same bytes into a new file, sqlite and lmdb."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

BATCHES = 24
PER_BATCH = 9_600
"""Values of 100 bytes in a batch of about 1 MiB."""


def chunks(values: list[bytes]) -> list[list[bytes]]:
    return [values[:PER_BATCH]] * BATCHES


def test_append_1mib(
    measure: Callable[..., Any], open_log: Callable[..., Any], values: list[bytes]
) -> None:
    from eoslog.model import TopicPartition  # noqa: F401  (the import is part of no round)

    log = open_log()
    producer = log.producer(acks="all", linger_ms=0)

    def run() -> None:
        for chunk in chunks(values):
            producer.produce_many("t", chunk, partition=0)
            producer.flush()

    measure(run, units=BATCHES, rounds=4)
    producer.close()


def test_append_encoded_1mib(
    measure: Callable[..., Any], open_log: Callable[..., Any], values: list[bytes]
) -> None:
    """The log alone: batches that are encoded already, as the peer's bytes are."""
    from eoslog import _core

    batch = bytes(_core.build_batch([(1_700_000_000_000, None, v, ()) for v in values[:PER_BATCH]]))
    partition = open_log().engine.partition("t", 0)
    partition.settings = replace(partition.settings, max_message_bytes=2 << 20)

    def run() -> None:
        for _ in range(BATCHES):
            partition.append(batch)
            partition.flush()

    measure(run, units=BATCHES, rounds=4)


def test_write_fdatasync_1mib(
    measure: Callable[..., Any], place: Path, values: list[bytes]
) -> None:
    from eoslog import _core

    batch = bytes(_core.build_batch([(1_700_000_000_000, None, v, ()) for v in values[:PER_BATCH]]))
    rounds = iter(range(100))

    def run() -> None:
        fd = os.open(place / f"raw-{next(rounds)}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for _ in range(BATCHES):
            os.write(fd, batch)
            os.fdatasync(fd)
        os.close(fd)

    measure(run, units=BATCHES, rounds=4)


def test_sqlite_1mib(measure: Callable[..., Any], place: Path, values: list[bytes]) -> None:
    base = sqlite3.connect(place / "base.db", isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table t (id integer primary key, value blob)")

    def run() -> None:
        for chunk in chunks(values)[:4]:
            base.execute("begin")
            base.executemany("insert into t (value) values (?)", ((v,) for v in chunk))
            base.execute("commit")

    measure(run, units=4, rounds=2)
    base.close()


def test_lmdb_1mib(measure: Callable[..., Any], place: Path, values: list[bytes]) -> None:
    import lmdb

    base = lmdb.open(str(place / "lmdb"), map_size=1 << 30)
    keys = iter(range(1 << 40))

    def run() -> None:
        for chunk in chunks(values)[:4]:
            with base.begin(write=True) as txn:
                for value in chunk:
                    txn.put(b"%012d" % next(keys), value, append=True)

    measure(run, units=4, rounds=2)
    base.close()
