"""Partition logs in memory, with the calls that coordinators make.

`MemoryDirectory` is the disk and the shared page, `MemoryProcess` one process on it. The rules of
storage are in `model_log.py`. This module has offsets, durability, expectations and the faults that
tests ask for: `fail`, `power_cut`, `kill`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eoslog import errors
from eoslog._core import java_hash
from eoslog.coordinator.producer_ids import ProducerIds
from eoslog.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    AppendOrigin,
    AppendResult,
    TopicPartition,
)

from . import codec
from .model_log import ModelBatch, ModelLog, Refused


class MemoryBatch:
    """One stored batch as the core shows it."""

    def __init__(self, data: bytes, base_offset: int) -> None:
        self.data = data
        self.ref = codec.decode_batch(data)
        self.control = self.ref.control
        self.control_type = self.ref.control_type
        self.producer_id, self.producer_epoch = self.ref.producer_id, self.ref.producer_epoch
        self.base_offset = base_offset
        self.last_offset = base_offset + self.ref.last_offset_delta

    def records(self) -> list[tuple[int, int, bytes | None, bytes | None, Any]]:
        """(offset, timestamp, key, value, headers) of each record."""
        rows = enumerate(self.ref.records)
        return [(self.base_offset + i, r.timestamp, r.key, r.value, r.headers) for i, r in rows]


class MemoryLog:
    """One partition; `faults` maps "append" or "flush" to an error for the next call."""

    def __init__(
        self, topic: str, partition: int, directory: MemoryDirectory, topic_id: bytes = bytes(16)
    ) -> None:
        self.topic, self.partition, self.topic_id = topic, partition, topic_id
        self.directory = directory
        self.core = self  # publishes the ends
        self.stored: list[MemoryBatch] = []
        self.model = ModelLog()
        self.durable_end = 0
        self.log_start = 0
        self.cleaned_to = self.cleaned_version = 0
        self.flushes = 0
        self.faults: dict[str, Exception] = {}
        self.broken: Exception | None = None
        self.deleted = False
        self.before_append: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def log_end(self) -> int:
        return self.model.log_end

    @property
    def stable_end(self) -> int:
        return self.model.stable_end

    @property
    def flushed_end(self) -> int:
        return self.high_watermark

    def carry(self, end: int, most: int) -> None:
        """Nothing is carried: a commit flushes."""

    @property
    def high_watermark(self) -> int:
        return self.durable_end if self.directory.durability == "strict" else self.log_end

    @property
    def last_stable_offset(self) -> int:
        return min(self.stable_end, self.high_watermark)

    def append(
        self, batch: bytes, *, expect: Sequence[tuple[MemoryLog, int]] = (),
        origin: AppendOrigin = AppendOrigin.CLIENT, timeout: float | None = None,
    ) -> AppendResult | None:  # fmt: skip
        with self.directory.appending:
            return self._append(batch, expect, origin)

    def _append(
        self, batch: bytes, expect: Sequence[tuple[MemoryLog, int]], origin: AppendOrigin
    ) -> AppendResult | None:
        if self.before_append is not None:
            rival, self.before_append = self.before_append, None
            rival()
        if self.broken is not None:
            raise self.broken
        if "append" in self.faults:
            raise self.faults.pop("append")
        if self.deleted:
            raise errors.UnknownTopicOrPartition(f"{self} is deleted")
        if any(log.log_end != end for log, end in expect):
            return None
        added = MemoryBatch(bytes(batch), self.log_end)
        try:
            done = self._apply(added, origin is not AppendOrigin.COORDINATOR, bool(expect))
        except Refused as refusal:
            raise getattr(errors, str(refusal))(f"{self}: {refusal}") from None
        if not done.duplicate:
            self.stored.append(added)
            self.directory.trail.append(("append", repr(self), added))
        return AppendResult(done.base_offset, done.last_offset, done.duplicate)

    def _apply(self, added: MemoryBatch, client: bool, verified: bool) -> Any:
        ref = added.ref
        if added.control:
            return self.model.end(
                ref.producer_id,
                ref.producer_epoch,
                added.control_type == 1,
                ref.max_timestamp,
                ref.coordinator_epoch,
            )
        state = self.model.producers.get(ref.producer_id)
        is_open = state is not None and state.open_at is not None
        if is_open and state is not None and ref.producer_epoch > state.epoch:
            raise Refused("InvalidTxnState")
        stale = (
            state is not None and ref.producer_epoch < state.epoch
        )  # refused below, with the better reason
        if client and ref.transactional and not is_open and not verified and not stale:
            raise Refused("InvalidTxnState")
        batch = ModelBatch(
            added.base_offset, ref.count, ref.max_timestamp, ref.producer_id, ref.producer_epoch,
            ref.base_sequence, ref.transactional,
            records=[(r.timestamp, r.key, r.value, ()) for r in ref.records],
        )  # fmt: skip
        return self.model.append(batch, client=client)

    def flush(self, up_to: int | None = None) -> None:
        if self.broken is not None:
            raise self.broken
        if "flush" in self.faults:
            raise self.faults.pop("flush")
        if self.directory.durability == "strict":
            self.flushes += 1
            self.durable_end = self.log_end
            self.directory.trail.append(("flush", repr(self), self.log_end))

    def batches(self, start: int, end: int) -> Iterator[MemoryBatch]:
        return iter([b for b in self.stored if b.last_offset >= start and b.base_offset < end])

    def open_transactions(self) -> list[tuple[int, int, int, int]]:
        return [
            (pid, epoch, first, self.model.producers[pid].window[-1].last_offset)
            for pid, epoch, first in self.model.open_transactions()
        ]

    def open_transaction(self, producer_id: int) -> tuple[int, int, int] | None:
        return next((row[1:] for row in self.open_transactions() if row[0] == producer_id), None)

    def producer_entry(self, producer_id: int) -> tuple[int, int, int, int] | None:
        p = self.model.producers.get(producer_id)
        if p is None:
            return None
        _, first, last = self.open_transaction(producer_id) or (-1, -1, -1)
        return (p.epoch, p.coordinator_epoch, first, last)

    def markers(self) -> list[tuple[int, int, bool]]:
        """(producer id, epoch, commit) of every marker, in order."""
        return [
            (b.producer_id, b.producer_epoch, b.control_type == 1) for b in self.stored if b.control
        ]

    def replay(self, keep: int) -> None:
        """What recovery finds when everything from `keep` on is lost."""
        kept = [b for b in self.stored if b.last_offset < keep]
        self.stored, self.model = [], ModelLog()
        for batch in kept:
            self._apply(batch, False, True)
            self.stored.append(batch)
        self.durable_end = self.log_end
        self.broken = None
        self.faults.clear()


class MemoryDirectory:
    """All partitions and live processes; `trail` lists appends and flushes in order."""

    def __init__(self, durability: str = "strict", transaction_partitions: int = 4) -> None:
        self.durability = durability
        self.transaction_count = transaction_partitions
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.alive: set[tuple[int, int]] = set()
        self.now_ms = 1_700_000_000_000
        self.next_block = 0
        self.trail: list[tuple[str, str, Any]] = []
        self.appending = threading.RLock()
        self._numbers = itertools.count(1)

    def create(self, topic: str, partitions: int = 1) -> None:
        topic_id = topic.encode().ljust(16, b"\0")[:15] + bytes([len(self.trail) % 256])
        for p in range(partitions):
            self.logs[TopicPartition(topic, p)] = MemoryLog(topic, p, self, topic_id)

    def delete(self, topic: str) -> None:
        for tp in [tp for tp in self.logs if tp.topic == topic]:
            self.logs.pop(tp).deleted = True

    def log(self, topic: str, partition: int = 0) -> MemoryLog:
        return self.logs[TopicPartition(topic, partition)]

    def process(self) -> MemoryProcess:
        number = next(self._numbers)
        self.alive.add((number, number * 1000))
        return MemoryProcess(self, number)

    def power_cut(self, keep: dict[TopicPartition, int] | None = None) -> None:
        """Every process dies and what was not durable is lost, save what `keep` names."""
        self.alive.clear()
        for tp, log in self.logs.items():
            log.replay(max(log.durable_end, (keep or {}).get(tp, 0)))

    def user_partitions(self) -> list[TopicPartition]:
        return [tp for tp in self.logs if not tp.topic.startswith("__")]


class MemoryProcess:
    """The `TransactionHost` of coordinators."""

    def __init__(self, directory: MemoryDirectory, number: int) -> None:
        self.directory = directory
        self.read_only = self.is_fixed = False
        self.process_number, self.process_nonce = number, number * 1000
        self.producer_ids = ProducerIds(self._block)

    def _block(self) -> range:
        start = self.directory.next_block
        self.directory.next_block += 1000
        return range(start, start + 1000)

    def kill(self) -> None:
        self.directory.alive.discard((self.process_number, self.process_nonce))

    def partition(self, topic: str, partition: int) -> MemoryLog:
        try:
            return self.directory.logs[TopicPartition(topic, partition)]
        except KeyError:
            raise errors.UnknownTopicOrPartition(f"no partition {topic}-{partition}") from None

    def _internal(self, topic: str, partition: int) -> MemoryLog:
        tp = TopicPartition(topic, partition)
        return self.directory.logs.setdefault(tp, MemoryLog(topic, partition, self.directory))

    def transaction_partition(self, transactional_id: str) -> MemoryLog:
        return self._internal(
            TRANSACTION_STATE_TOPIC,
            abs(java_hash(transactional_id)) % self.directory.transaction_count,
        )

    def transaction_partitions(self) -> list[MemoryLog]:
        return [
            log
            for tp, log in sorted(self.directory.logs.items())
            if tp.topic == TRANSACTION_STATE_TOPIC
        ]

    def internal_topic(self, name: str) -> MemoryLog:
        return self._internal(name, 0)

    def existing_internal_topic(self, name: str) -> MemoryLog | None:
        return self.directory.logs.get(TopicPartition(name, 0))

    def has_internal_topic(self, name: str) -> bool:
        return self.existing_internal_topic(name) is not None

    def open_logs(self) -> list[MemoryLog]:
        return list(self.directory.logs.values())

    def group_partition(self, group_id: str) -> MemoryLog:
        return self._internal(CONSUMER_OFFSETS_TOPIC, abs(java_hash(group_id)) % 2)

    def process_alive(self, number: int, nonce: int) -> bool:
        return (number, nonce) in self.directory.alive

    def process_text(self, owner: tuple[int, int]) -> str:
        return ""

    def flush_many(self, targets: Sequence[tuple[MemoryLog, int]]) -> None:
        for log, end in targets:
            log.flush(end)

    def clock_ms(self) -> int:
        return self.directory.now_ms
