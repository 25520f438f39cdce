"""Partitions, transactions over them, and what a reader may get."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eoslog.model import TopicPartition
from tests.coordinator.fake_host import FakeDisk, FakeHost

PLAIN = -1


@dataclass
class Transaction:
    number: int
    producer_id: int
    epoch: int
    records: dict[int, list[int]] = field(default_factory=dict)
    commit: bool | None = None
    unmarked: set[int] = field(default_factory=set)


class World:
    """A topic, written by transactional producers and by a plain one.

    A value is the number of its transaction. With `same_epoch`, a producer keeps its epoch over
    its transactions, as with brokers before transaction version 2.
    """

    def __init__(self, partitions: int = 3, *, same_epoch: bool = False) -> None:
        disk = FakeDisk()
        disk.metadata.create("t", partitions)
        self.host = FakeHost(disk)
        self.partitions = [TopicPartition("t", number) for number in range(partitions)]
        self.logs = [self.host.partition("t", number) for number in range(partitions)]
        self.same_epoch = same_epoch
        self.open: dict[int, Transaction] = {}
        self.all: list[Transaction] = []
        self.plain = [0] * partitions

    def write(self, producer: int, partition: int, count: int = 1) -> None:
        """Write records of the producer's transaction, unless that is decided already."""
        transaction = self.open.get(producer)
        if transaction is None:
            done = sum(1 for t in self.all if t.producer_id == producer)
            transaction = Transaction(len(self.all), producer, 0 if self.same_epoch else 2 * done)
            self.open[producer] = transaction
            self.all.append(transaction)
        if transaction.commit is not None:
            return
        first = self.logs[partition].put(
            *[str(transaction.number)] * count, producer_id=producer,
            producer_epoch=transaction.epoch, base_sequence=0, transactional=True,
        )  # fmt: skip
        transaction.records.setdefault(partition, []).extend(range(first, first + count))

    def write_plain(self, partition: int, count: int = 1) -> None:
        self.logs[partition].put(*[str(PLAIN)] * count)
        self.plain[partition] += count

    def decide(self, producer: int, *, commit: bool) -> None:
        transaction = self.open.get(producer)
        if transaction is not None and transaction.commit is None:
            transaction.commit = commit
            transaction.unmarked = set(transaction.records)

    def mark(self, producer: int, partition: int) -> None:
        """Write the marker of one partition, if it is missing."""
        transaction = self.open.get(producer)
        if transaction is None or partition not in transaction.unmarked:
            return
        assert transaction.commit is not None
        epoch = transaction.epoch + (not self.same_epoch)
        self.logs[partition].mark(producer, epoch, commit=transaction.commit)
        transaction.unmarked.discard(partition)
        if not transaction.unmarked:
            del self.open[producer]

    def end(self, producer: int, *, commit: bool = True) -> None:
        """Decide, and write all markers."""
        self.decide(producer, commit=commit)
        for partition in range(len(self.logs)):
            self.mark(producer, partition)

    def end_all(self) -> None:
        for producer in list(self.open):
            self.end(producer)

    def readable(self, positions: list[int]) -> bool:
        """Whether a closed cut above the positions has a record."""
        cut = [log.last_stable_offset for log in self.logs]
        committed = [t for t in self.all if t.commit is not False]
        changed = True
        while changed:
            changed = False
            for one in committed:
                left = {
                    p: kept
                    for p, found in one.records.items()
                    if (kept := [offset for offset in found if offset >= positions[p]])
                }
                if all(kept[-1] < cut[p] for p, kept in left.items()):
                    continue
                for p, kept in left.items():
                    if kept[0] < cut[p]:
                        cut[p] = kept[0]
                        changed = True
        return self.skipped(positions, cut)

    def skipped(self, before: list[int], after: list[int]) -> bool:
        """Whether a record between positions is not of an aborted transaction."""
        aborted = {
            (p, offset)
            for t in self.all
            if t.commit is False
            for p, found in t.records.items()
            for offset in found
        }
        return any(
            not batch.control and (p, offset) not in aborted and before[p] <= offset < after[p]
            for p, log in enumerate(self.logs)
            for batch in log.batches(before[p], after[p])
            for offset, *_ in batch.records()
        )

    def check(self, records: list[Any]) -> list[int]:
        """Check that the records split no transaction; return the numbers of these."""
        numbers: dict[int, dict[int, list[int]]] = {}
        for record in records:
            found = numbers.setdefault(int(record.value), {})
            found.setdefault(record.partition, []).append(record.offset)
        for offsets in numbers.values():
            for found in offsets.values():
                assert found == sorted(set(found))
        for number, offsets in numbers.items():
            if number != PLAIN:
                assert offsets == self.all[number].records
                assert self.all[number].commit
        return [number for number in numbers if number != PLAIN]
