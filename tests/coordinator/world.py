"""Helpers of coordinator tests: processes, and writers without a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eoslog._core import build_batch
from eoslog.coordinator.transactions.coordinator import TransactionCoordinator
from eoslog.model import TopicPartition
from tests.reference.memory_engine import MemoryDirectory, MemoryProcess

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class World:
    """A directory with topics a (2 partitions) and b (1), opened by processes."""

    def __init__(self, durability: str = "strict") -> None:
        self.directory = MemoryDirectory(durability)
        self.directory.create("a", 2)
        self.directory.create("b", 1)
        self.process, self.coordinator = self.open()

    def open(self) -> tuple[MemoryProcess, TransactionCoordinator]:
        """One more process."""
        process = self.directory.process()
        return process, TransactionCoordinator(process)

    def log(self, tp: TopicPartition) -> Any:
        return self.directory.logs[tp]

    def clog(self, name: str) -> Any:
        return self.process.transaction_partition(name)

    def state(self, name: str) -> str:
        """Kafka's name of the id's state, read again from the start by a new process."""
        _, reader = self.open()
        return reader.describe_transactions([name])[0].state

    def values(self, tp: TopicPartition, isolation: str = "read_committed") -> list[bytes]:
        return [value for _, value in self.log(tp).model.visible(isolation)]

    def crash(self, **keep: int) -> TransactionCoordinator:
        """Power cut, then a new session that recovers every partition."""
        self.crash_unrecovered(**keep)
        for log in [
            log for tp, log in self.directory.logs.items() if tp.topic != "__transaction_state"
        ]:
            self.coordinator.recover_partition(log)
        return self.coordinator

    def crash_unrecovered(self, **keep: int) -> TransactionCoordinator:
        """Power cut, then a new session that has not recovered a partition."""
        self.directory.power_cut({TopicPartition(*_split(k)): v for k, v in keep.items()})
        self.process, self.coordinator = self.open()
        return self.coordinator


def _split(name: str) -> tuple[str, int]:
    return name[:-1], int(name[-1])


class Writer:
    """A transactional producer without buffers: each `write` is one batch."""

    def __init__(
        self,
        world: World,
        name: str,
        coordinator: TransactionCoordinator | None = None,
        timeout_ms: int = 60_000,
    ) -> None:
        self.world, self.name = world, name
        self.coordinator = coordinator or world.coordinator
        found = self.coordinator.init_producer_id(name, timeout_ms)
        self.outcome = found.outcome
        self.become(found.producer_id, found.producer_epoch)

    def become(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.sequences: dict[TopicPartition, int] = {}
        self.spans: dict[TopicPartition, tuple[int, int]] = {}

    @property
    def identity(self) -> tuple[str, int, int]:
        return (self.name, self.producer_id, self.epoch)

    def write(
        self, tp: TopicPartition, *values: bytes, register: Callable[[], Any] | None = None
    ) -> Any:
        """Append one batch, registering the partition first, as often as C moves."""
        while True:
            expect = [self.coordinator.add_partitions_to_txn(*self.identity, [tp])]
            result = self.append(tp, *values, expect=expect)
            if result is not None:
                return result

    def append(self, tp: TopicPartition, *values: bytes, expect: Any = ()) -> Any:
        sequence = self.sequences.get(tp, 0)
        batch = build_batch(
            [(0, None, value, ()) for value in values],
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence,
            transactional=True,
        )  # fmt: skip
        result = self.world.log(tp).append(batch, expect=expect)
        if result is not None:
            self.sequences[tp] = sequence + len(values)
            first = self.spans.get(tp, (result.base_offset, 0))[0]
            self.spans[tp] = (first, result.last_offset)
        return result

    def end(self, commit: bool) -> tuple[int, int]:
        found = self.coordinator.end_txn(*self.identity, commit, self.spans if commit else None)
        self.become(*found)
        return found

    def commit(self) -> tuple[int, int]:
        return self.end(True)

    def abort(self) -> tuple[int, int]:
        return self.end(False)
