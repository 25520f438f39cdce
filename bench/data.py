"""The records that every contender stores and reads, and the logs with them."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.errors import CorruptRecord

KEY_SIZE = 16
TOPIC = "t"
_TIME_MS = 1_700_000_000_000


@functools.lru_cache(maxsize=2)
def keys(count: int) -> list[bytes]:
    """Keys of 16 bytes that differ."""
    return [b"key-%012d" % i for i in range(count)]


@functools.lru_cache(maxsize=3)
def values(count: int, size: int = 100) -> list[bytes]:
    """Values of `size` bytes that differ, as compressible as events in JSON are."""
    dice = random.Random(size)
    noise = dice.randbytes(1 << 20).hex().encode()
    starts = [f'{{"user":"{dice.randrange(10**6):06d}","amount":{dice.randrange(10**5) / 100:09.2f},'
              f'"kind":"{dice.choice(("view", "sale", "back"))}","session":"'.encode()
              for _ in range(1009)]  # fmt: skip
    rest = size - 8 - len(starts[0])
    return [
        starts[i % 1009] + noise[(at := i * 997 % ((2 << 20) - rest)) : at + rest] + b"%08d" % i
        for i in range(count)
    ]


def checksum(found: Iterable[bytes]) -> tuple[int, int]:
    """Count of values, and a sum over their CRCs that does not depend on the order."""
    count = total = 0
    for value in found:
        count += 1
        total += zlib.crc32(value)
    return count, total


@functools.lru_cache(maxsize=8)
def expected(count: int, size: int = 100) -> tuple[int, int]:
    """The checksum of `values(count, size)`."""
    return checksum(values(count, size))


@contextlib.contextmanager
def folder(place: Path) -> Iterator[Path]:
    """A new directory below, removed in the end."""
    path = Path(tempfile.mkdtemp(dir=place))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def fresh_log(
    place: Path, durability: str = "strict", partitions: int = 1, **config: Any
) -> Iterator[eoslog.Log]:
    """A new log with the topic `t`, its partitions open, removed in the end."""
    with folder(place) as path, eoslog.open(path / "log", durability=durability) as log:
        log.create_topic(TOPIC, partitions, config)
        for partition in range(partitions):
            log.offsets(TOPIC, partition)
        yield log


def fill(
    log: eoslog.Log, count: int, size: int = 100, *, per_batch: int | None = None, **config: Any
) -> None:
    """Write the records into partition 0.

    If `per_batch` is None, batches may have any length.
    """
    with log.producer(config) as producer:
        step = per_batch or count
        for at in range(0, count, step):
            some = slice(at, min(count, at + step))
            producer.produce_many(TOPIC, values(count, size)[some], keys(count)[some], partition=0)
            producer.flush()


def scanned(log: eoslog.Log, **options: Any) -> tuple[int, int]:
    """The checksum of what a scan gives."""
    return checksum(
        value for batch in log.scan(TOPIC, columns=["value"], **options)
        for value in batch.column(0).to_pylist()
    )  # fmt: skip


def log_files(log: eoslog.Log, partition: int = 0) -> list[Path]:
    """The `.log` files of a partition."""
    return sorted((Path(log.path) / f"{TOPIC}-{partition}").glob("*.log"))


def log_bytes(log: eoslog.Log, partition: int = 0) -> int:
    """Bytes of a partition's batches."""
    return sum(path.stat().st_size for path in log_files(log, partition))


def assert_checks_crc(log: eoslog.Log, read: Any) -> None:
    """A flipped bit in the middle of the log must end `read()` with CorruptRecord."""
    path = log_files(log)[0]
    at = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        for written in (byte ^ 1, byte):
            file.seek(at)
            file.write(bytes([written]))
            file.flush()
            if written != byte:
                with pytest.raises(CorruptRecord):
                    read()


def assert_durable(log: eoslog.Log, count: int, partition: int = 0) -> None:
    """Check that readers see the first `count` offsets and that they are durable.

    In a strict directory they are below the high watermark: flushed, or carried by a durable
    decision. A transaction's own marker may be above it: its decision is what was made durable.
    """
    found = log.offsets(TOPIC, partition)
    assert min(found.last_stable, found.high_watermark) >= count, (found, count)


def batches(
    count: int, per_batch: int = 140, *, time_ms: int = _TIME_MS, apart_ms: int = 0
) -> list[bytes]:
    """The records as batches of the product's own encoder.

    The batches are a fixed number of milliseconds apart.
    """
    from eoslog import _core

    records = [
        (time_ms + apart_ms * i, key, value, ())
        for i, (key, value) in enumerate(zip(keys(count), values(count), strict=True))
    ]
    return [
        bytes(_core.build_batch(records[at : at + per_batch], base_offset=at))
        for at in range(0, count, per_batch)
    ]


def place_of_benchmarks() -> Path:
    """A new directory on a real disk.

    On tmpfs `fdatasync` costs nothing and the comparison has no meaning.
    """
    return Path(
        tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("EOSLOG_BENCH_DIR", "."))
    ).resolve()
