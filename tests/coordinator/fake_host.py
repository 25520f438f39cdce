"""An in-memory directory for the group coordinator: logs, topics, processes."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from eoslog import _core
from eoslog.coordinator.groups.coordinator import GroupCoordinator
from eoslog.coordinator.trace import Trace
from eoslog.errors import InvalidProducerEpoch, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.model import AppendOrigin, AppendResult, TopicPartition
from eoslog.storage.log.published_end import PublishedEnd


@dataclass
class FakeSlice:
    data: bytes
    base_offset: int
    next_offset: int
    path: str = "t-0.log"
    position: int = 0


class FakeLog:
    """Batches as bytes, with Kafka's offsets; everything is durable immediately."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.topic_id = topic.encode()
        self.core = SimpleNamespace(deleted=False)
        self.log_start = self.log_end = 0
        self.cleaned_to = self.cleaned_version = 0
        self.flushed = 0
        self.entries: list[tuple[int, bytes]] = []
        self.epochs: dict[int, int] = {}
        self.refusals = 0
        self.leader_epochs = None
        self.visible: int | None = None  # Where the high watermark is held back.
        self._open: dict[int, int] = {}
        self._aborted: list[tuple[int, int, int]] = []
        self._changed = threading.Condition()

    def append(
        self,
        batch: bytes,
        *,
        expect: Sequence[tuple[Any, int]] = (),
        origin: AppendOrigin = AppendOrigin.CLIENT,
        timeout: float | None = None,
    ) -> AppendResult | None:
        with self._changed:
            if self.refusals > 0:
                self.refusals -= 1
                return None
            if any(log.log_end != end for log, end in expect):
                return None
            head = _core.iter_batches(batch)[0]
            if head.producer_id >= 0:
                known = self.epochs.get(head.producer_id, -1)
                if head.producer_epoch < known:
                    raise InvalidProducerEpoch(f"{head.producer_epoch} < {known}")
                self.epochs[head.producer_id] = head.producer_epoch
            base = self.log_end
            self._track(head, base)
            self.entries.append((base, struct.pack(">q", base) + bytes(batch)[8:]))
            self.log_end = base + head.count
            self._changed.notify_all()
            return AppendResult(base, self.log_end - 1)

    def batches(self, start: int, end: int) -> Iterator[Any]:
        for base, data in list(self.entries):
            batch = _core.iter_batches(data)[0]
            if batch.last_offset >= start and base < end:
                yield batch

    @property
    def high_watermark(self) -> int:
        return self.log_end if self.visible is None else self.visible

    @property
    def flushed_end(self) -> int:
        return self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return min([self.high_watermark, *self._open.values()])

    def read(self, start: int, end: int, max_bytes: int = 1 << 20) -> list[FakeSlice]:
        if start < self.log_start or start > self.log_end:
            raise OffsetOutOfRange(f"{start} not in [{self.log_start}, {self.log_end})")
        out: list[FakeSlice] = []
        size = 0
        for base, data in self.entries:
            after = base + _core.iter_batches(data)[0].count
            if after <= start or base >= end or size >= max_bytes:
                continue
            out.append(FakeSlice(data, base, after))
            size += len(data)
        return out

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        return [a for a in self._aborted if a[2] >= start and a[1] < end]

    def offset_for_time(self, timestamp_ms: int, end: int) -> int | None:
        for batch in self.batches(0, end):
            for offset, timestamp, *_ in batch.records():
                if timestamp >= timestamp_ms and not batch.control:
                    return offset
        return None

    def _track(self, head: Any, base: int) -> None:
        if head.control:
            first = self._open.pop(head.producer_id, None)
            if first is not None and head.control_type == 0:
                self._aborted.append((head.producer_id, first, base))
        elif head.transactional:
            self._open.setdefault(head.producer_id, base)

    def flush(self, up_to: int | None = None) -> None:
        self.flushed = max(self.flushed, self.log_end if up_to is None else up_to)

    def wait(self, beyond: int, timeout: float, *, of: PublishedEnd = PublishedEnd.LOG_END) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: of.of(self) > beyond, timeout)

    def put(self, *values: str, timestamp: int = 0, **header: Any) -> int:
        """Append one batch of values; returns its base offset."""
        records = [(timestamp, None, value.encode(), ()) for value in values]
        result = self.append(_core.build_batch(records, **header))
        assert result is not None
        return result.base_offset

    def mark(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Write a transaction's marker."""
        self.append(_core.build_marker(producer_id, producer_epoch, commit, timestamp=0))


@dataclass
class FakeTopic:
    name: str
    topic_id: bytes
    partitions: dict[int, Any]
    deleted: bool = False


class FakeMetadata:
    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self._next = 1

    def refresh(self) -> None:
        pass

    def create(self, name: str, partitions: int) -> None:
        topic_id = self._next.to_bytes(16, "big")
        self._next += 1
        self.topics[name] = FakeTopic(name, topic_id, dict.fromkeys(range(partitions)))


class FakeTransactions:
    """Everything is Ongoing; a test decides what resolving blockers does."""

    def __init__(self) -> None:
        self.log = FakeLog("__transaction_state", 0)
        self.events = Trace()
        self.added: list[tuple[str, int, int, str]] = []
        self.resolve: Callable[[FakeLog], None] = lambda log: None

    def add_offsets_to_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str,
        also: Collection[TopicPartition] = (),
    ) -> tuple[FakeLog, int]:  # fmt: skip
        self.added.append((transactional_id, producer_id, producer_epoch, group_id))
        return self.log, self.log.log_end

    def held_offsets(self, group_id: str) -> list[Any]:
        return []

    def groups_with_held_offsets(self) -> set[str]:
        return set()

    def await_appends(self, group_id: str, timeout_s: float) -> bool:
        return True

    def resolve_blockers(self, log: FakeLog) -> None:
        self.resolve(log)


@dataclass
class FakeDisk:
    """What the processes share."""

    logs: dict[tuple[str, int], FakeLog] = field(default_factory=dict)
    metadata: FakeMetadata = field(default_factory=FakeMetadata)
    # Process (number, nonce) -> seconds since its last beat.
    living: dict[tuple[int, int], float] = field(default_factory=dict)


class FakeHost:
    """One process that has the directory open."""

    path = "memory"
    read_only = False
    is_fixed = False

    def __init__(self, disk: FakeDisk | None = None, number: int = 0) -> None:
        self.disk = disk or FakeDisk()
        self.process_number, self.process_nonce = number, 1000 + number
        self.disk.living[number, self.process_nonce] = 0.0
        self.metadata = self.disk.metadata
        self.transactions = FakeTransactions()
        self.scheduled: list[tuple[float, Callable[[], object]]] = []
        self.idle_member = 0
        self.groups = GroupCoordinator(self)

    def close(self) -> None:
        pass

    def wait_any(
        self,
        bounds: Sequence[tuple[FakeLog, int]],
        timeout: float,
        *,
        of: PublishedEnd = PublishedEnd.LOG_END,
        on_unflushed: Callable[[], None] | None = None,
    ) -> bool:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if any(of.of(log) > beyond for log, beyond in bounds):
                return True
            time.sleep(0.001)
        return False

    def die(self) -> None:
        del self.disk.living[self.process_number, self.process_nonce]

    def topic(self, name: str) -> FakeTopic:
        if name not in self.metadata.topics:
            raise UnknownTopicOrPartition(name)
        return self.metadata.topics[name]

    def partition(self, topic: str, partition: int) -> FakeLog:
        if partition not in self.topic(topic).partitions:
            raise UnknownTopicOrPartition(f"{topic}-{partition}")
        place = (topic, partition)
        log = self.disk.logs.setdefault(place, FakeLog(*place))
        log.topic_id = self.topic(topic).topic_id
        return log

    def group_partition(self, group_id: str) -> FakeLog:
        place = ("__consumer_offsets", abs(_core.java_hash(group_id)) % 50)
        return self.disk.logs.setdefault(place, FakeLog(*place))

    def group_partitions(self) -> Iterable[FakeLog]:
        return [log for log in self.disk.logs.values() if log.topic == "__consumer_offsets"]

    def process_pid(self, number: int, nonce: int) -> int | None:
        return None

    def process_alive(self, number: int, nonce: int) -> bool:
        return (number, nonce) in self.disk.living

    def process_heartbeat_age(self, number: int) -> float:
        return next((age for (n, _), age in self.disk.living.items() if n == number), 1e9)

    def note_idle_member(self, member: int, since_ms: int) -> None:
        self.idle_member = member

    def schedule(self, what: str, interval_s: float, run: Callable[[], object]) -> None:
        self.scheduled.append((interval_s, run))

    def refuse_outdated(self) -> None:
        """Accept every call: this directory is never outdated."""

    def clock_ms(self) -> int:
        return int(time.time() * 1000)
