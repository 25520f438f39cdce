"""The last records of a topic, read from its end backwards."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from eoslog._util.arguments import as_int, shown
from eoslog.client.scan.log_scan import ScanOptions, scan
from eoslog.client.scan.same_topics import of_same_topics
from eoslog.client.scan.scan import Bound
from eoslog.errors import ConfigError, OffsetOutOfRange
from eoslog.model import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.engine.engine import Engine

__all__ = ["last_records"]

_FIRST_STEP = 256
"""Offsets of the first step back; each further step is twice as long."""


def last_records(
    engine: Engine,
    topic: str,
    count: int,
    *,
    partition: int | None = None,
    key: str | bytes | None = None,
    end: Bound = None,
    isolation: str | IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> list[Record]:
    """Return the last records of a topic; `Log.last` describes the arguments."""
    if as_int("n", count) < 1:
        raise ConfigError(f"n: expected 1 or more records, got {count}")
    if key is not None and not isinstance(key, str | bytes):
        raise ConfigError(f"key: expected bytes, str or None, got {shown(key)}")
    if not isinstance(topic, str):
        raise ConfigError(f"topic: expected the name of one topic, got {shown(topic)}")
    wanted = key.encode() if isinstance(key, str) else key
    partitions = None if partition is None else [partition]
    whole = ScanOptions(partitions=partitions, end=end, isolation=isolation)

    def read() -> list[Record]:
        found: list[Record] = []
        for at, (first, after) in scan(engine, topic, whole).ranges.items():
            found += _of_partition(engine, at, first, after, count, isolation, wanted)
        return found

    found = of_same_topics(engine, [topic], read)
    found.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    return found[-count:]


def _of_partition(
    engine: Engine, at: TopicPartition, start: int, end: int, count: int,
    isolation: str | IsolationLevel, key: bytes | None,
) -> list[Record]:  # fmt: skip
    found: list[Record] = []
    step = max(_FIRST_STEP, 2 * count)
    while start < end and len(found) < count:
        low = max(start, end - step)
        options = ScanOptions(
            partitions=[at.partition], start={at: low}, end={at: end}, isolation=isolation
        )
        try:
            records = scan(engine, at.topic, options).records()
            if key is not None:
                records = (record for record in records if record.key == key)
            found = [*deque(records, maxlen=count - len(found)), *found]
        except OffsetOutOfRange:  # retention has deleted the start
            log_start = engine.partition(at.topic, at.partition).log_start
            if log_start <= start:
                raise
            start = log_start
            continue
        end, step = low, 2 * step
    return found
