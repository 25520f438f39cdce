"""Records of `__transaction_state` put into a stopped broker's partitions.

Each partition has a record of an id before the records of the test, and one of another id after
them. So a test sees whether the broker has read the whole partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from eoslog._core import build_batch
from eoslog.coordinator.transactions.records import encode_key
from eoslog.engine.shards import shard_of
from eoslog.storage.format.serde import Writer
from tests.kafka.broker import Broker

COUNT = 8
"""Partitions of `__transaction_state`, and of the topic that the transactions write to."""
TOPIC = "targets"
DAY_MS = 86_400_000
NO_TIMEOUT_MS = 2**31 - 1
TAG_PREPARED = 10006
PAYLOAD = b"\x40 PREPARED payload"
KEPT = {2: b"\0\2", TAG_PREPARED: PAYLOAD}
BEFORE = (7000, 5)
AFTER = (8000, 9)
"""Producer id and epoch of the ids around the records."""

Rows = Iterable[tuple[bytes, bytes | None]]


class Placed(NamedTuple):
    """One partition of `__transaction_state`, and names that belong to it."""

    partition: int

    def name(self, prefix: str) -> str:
        """The first transactional id with this prefix that belongs to the partition."""
        numbers = range(1000)
        return next(
            name
            for name in (f"{prefix}-{number}" for number in numbers)
            if shard_of(name, COUNT) == self.partition
        )

    @property
    def producer_id(self) -> int:
        """The producer id of the transaction that the test places."""
        return 9000 + self.partition


def transaction(
    place: Placed,
    state: int,
    *,
    version: int = 1,
    timeout_ms: int = NO_TIMEOUT_MS,
    days: float = 5,
    tags: Mapping[int, bytes] | None = None,
) -> Rows:
    """The record of the partition's id, in this state since so many days."""
    started = round(time.time() * 1000 - days * DAY_MS)
    value = Writer().i16(version).i64(place.producer_id).i16(4).i32(timeout_ms).i8(state)
    if state == 0:
        value.compact_array(-1)
    elif version == 0:
        value.array(1).string(TOPIC).array(1).i32(place.partition)
    else:
        value.compact_array(1).compact_string(TOPIC).compact_array(1).i32(place.partition).tagged()
    value.i64(started).i64(started if state else -1)
    if version == 1:
        value.tagged(tags or {})
    yield encode_key(place.name("prepared")), value.take()


def _idle(name: str, producer_id: int, epoch: int) -> Rows:
    now = int(time.time() * 1000)
    value = Writer().i16(1).i64(producer_id).i16(epoch).i32(60_000).i8(0).compact_array(-1)
    yield encode_key(name), value.i64(now).i64(-1).tagged({2: b"\0\2"}).take()


def _first_log(broker: Broker, topic: str, partition: int) -> Path:
    return broker.logs / f"{topic}-{partition}" / f"{0:020}.log"


def state_log(broker: Broker, place: Placed) -> Path:
    """The first segment of the partition of `__transaction_state`."""
    return _first_log(broker, "__transaction_state", place.partition)


def write(broker: Broker, place: Placed, rows: Rows) -> None:
    """Write the records into an empty partition of a stopped broker."""
    now = int(time.time() * 1000)
    before = _idle(place.name("before"), BEFORE[0] + place.partition, BEFORE[1])
    after = _idle(place.name("after"), AFTER[0] + place.partition, AFTER[1])
    batches = [
        build_batch([(now, key, value, ())], base_offset=offset)
        for offset, (key, value) in enumerate([*before, *rows, *after])
    ]
    state_log(broker, place).write_bytes(b"".join(batches))


def write_open_data(broker: Broker, place: Placed) -> None:
    """Write a record of the id's transaction into the empty target partition."""
    batch = build_batch(
        [(int(time.time() * 1000), b"k", b"undecided", ())],
        producer_id=place.producer_id, producer_epoch=4, base_sequence=0, transactional=True,
    )  # fmt: skip
    _first_log(broker, TOPIC, place.partition).write_bytes(batch)
