"""What the bytes of the log say about transactions, their writers and their ends.

Nothing here asks a producer, a coordinator or the demo itself: segment files in, facts out. A
transaction is named by (producer id, epoch), since the epoch is raised at every end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eoslog.coordinator.transactions.records import decode_key, decode_value
from eoslog.coordinator.transactions.state import Decided
from eoslog.demo import plan
from eoslog.storage.format import codecs as _codecs  # noqa: F401  (binds them to the core)
from eoslog.storage.segment.segment_files import SegmentFiles

OFFSETS = "__consumer_offsets"
DECISIONS = "__transaction_state"

Identity = tuple[int, int]
"""(producer id, producer epoch) of data batches."""


@dataclass(frozen=True)
class DataBatch:
    """One data batch in a partition, from a producer with an id."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    producer_id: int
    epoch: int
    base_sequence: int
    count: int
    transactional: bool
    writer: str

    @property
    def identity(self) -> Identity:
        """Return the transaction that the batch belongs to."""
        return self.producer_id, self.epoch


@dataclass(frozen=True)
class FoundMarker:
    """One control record that ended a transaction in a partition."""

    topic: str
    partition: int
    offset: int
    producer_id: int
    epoch: int
    commit: bool


@dataclass
class FoundTransaction:
    """All that one transaction left in the log."""

    identity: Identity
    batches: list[DataBatch] = field(default_factory=list)
    ends: list[FoundMarker] = field(default_factory=list)
    unended: int = 0
    """Partitions with data and no marker behind them."""

    @property
    def committed(self) -> bool:
        """Say whether every partition with data ended in a commit marker."""
        return not self.unended and all(end.commit for end in self.ends)

    @property
    def aborted(self) -> bool:
        """Say whether every partition with data ended in an abort marker."""
        return not self.unended and not any(end.commit for end in self.ends)

    @property
    def writer(self) -> str:
        """Return the process that wrote its records; empty for offsets alone."""
        return next((batch.writer for batch in self.batches if batch.writer), "")

    @property
    def records(self) -> int:
        """Return how many records it wrote, visible or not; committed offsets are none."""
        return sum(batch.count for batch in self.batches if batch.topic != OFFSETS)


@dataclass
class Evidence:
    """The folded log: batches by place, transactions and decisions by id, notes."""

    batches: list[DataBatch] = field(default_factory=list)
    transactions: dict[Identity, FoundTransaction] = field(default_factory=dict)
    decisions: dict[Identity, Decided] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def of(self, role: str) -> list[FoundTransaction]:
        """Return the transactions of writers whose name begins with `role`, oldest first."""
        found = [t for t in self.transactions.values() if t.writer.startswith(role)]
        return sorted(found, key=lambda transaction: transaction.identity)

    def noted(self, kind: str) -> list[dict[str, Any]]:
        """Return the notes of one kind."""
        return [note for note in self.notes if note["kind"] == kind]

    def last_of(self, writer: str) -> FoundTransaction | None:
        """Return the last transaction that `writer` left in the log."""
        own = [t for t in self.transactions.values() if t.writer == writer]
        return max(own, key=lambda transaction: transaction.identity, default=None)

    def torn(self) -> list[Identity]:
        """Return the transactions that are neither whole nor nothing."""
        return [
            identity
            for identity, transaction in self.transactions.items()
            if not transaction.committed and not transaction.aborted
        ]

    def cause(self, transaction: FoundTransaction) -> str:
        """Return the reason in a transaction's decision; empty without a decision."""
        decided = self.decisions.get(transaction.identity)
        return decided.cause.name if decided else ""

    def undecided(self) -> list[Identity]:
        """Return the transactions without a decision, or with markers that contradict it."""
        return [
            identity
            for identity, transaction in self.transactions.items()
            if (decided := self.decisions.get(identity)) is None
            or decided.commit != transaction.committed
        ]

    def repeated_sequences(self) -> int:
        """Return how many batches repeat an earlier sequence of their producer."""
        seen: set[tuple[str, int, int, int, int]] = set()
        repeated = 0
        for batch in self.batches:
            if batch.base_sequence < 0:
                continue  # offsets written by a coordinator bear no sequence
            place = (batch.topic, batch.partition, *batch.identity, batch.base_sequence)
            repeated += place in seen
            seen.add(place)
        return repeated

    def batches_between(
        self, topic: str, partition: int, first: int, last: int
    ) -> Iterator[DataBatch]:
        """Yield the data batches that hold any offset from `first` to `last`."""
        for batch in self._by_partition()[topic, partition]:
            if batch.base_offset <= last and batch.last_offset >= first:
                yield batch

    def _by_partition(self) -> dict[tuple[str, int], list[DataBatch]]:
        if not hasattr(self, "_places"):
            places: dict[tuple[str, int], list[DataBatch]] = defaultdict(list)
            for batch in self.batches:
                places[batch.topic, batch.partition].append(batch)
            self._places = places
        return self._places


def gather(directory: str | Path, topics: Iterable[str]) -> Evidence:
    """Fold the partitions of `topics`, the committed offsets and the notes.

    Args:
        directory: An eoslog directory; it may be closed.
        topics: The topics whose transactions matter.
    """
    evidence = Evidence()
    for topic in [*topics, OFFSETS]:
        for partition, path in partitions(directory, topic):
            _fold(evidence, topic, partition, path)
    for _, _, value in _records(directory, plan.FAULTS):
        evidence.notes.append(json.loads(value))
    for _, key, value in _records(directory, DECISIONS):
        name = decode_key(key)
        decided = decode_value(name, value).decided if name and value is not None else None
        if decided is not None:
            evidence.decisions[decided.key] = decided
    return evidence


def _records(directory: str | Path, topic: str) -> Iterator[tuple[int, Any, Any]]:
    """Yield (offset, key, value) of every record that is not a control record."""
    for _, path in partitions(directory, topic):
        for batch in batches(path):
            if not batch.control:
                for offset, _, key, value, _ in batch.records():
                    yield offset, key, value


def partitions(directory: str | Path, topic: str) -> Iterator[tuple[int, Path]]:
    """Yield (number, folder) of each partition of a topic."""
    for path in Path(directory).iterdir():
        name, _, number = path.name.rpartition("-")
        if name == topic and number.isdecimal() and path.is_dir():
            yield int(number), path


def batches(path: Path) -> Iterator[Any]:
    """Yield every batch of a partition's segment files in order."""
    for segment in sorted(path.glob("*.log")):
        yield from SegmentFiles(str(segment), int(segment.stem)).batches()


def _fold(evidence: Evidence, topic: str, partition: int, path: Path) -> None:
    """Fold one partition; a marker ends what its producer has open there."""
    opened: dict[int, Identity] = {}
    for batch in batches(path):
        if batch.control:
            marker = FoundMarker(
                topic,
                partition,
                batch.base_offset,
                batch.producer_id,
                batch.producer_epoch,
                commit=batch.control_type == 1,
            )
            identity = opened.pop(batch.producer_id, None)
            if identity is not None:
                evidence.transactions[identity].ends.append(marker)
            continue
        if batch.producer_id < 0:
            continue
        data = DataBatch(
            topic,
            partition,
            batch.base_offset,
            batch.last_offset,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.count,
            batch.transactional,
            _writer(batch) if topic != OFFSETS else "",
        )
        evidence.batches.append(data)
        if data.transactional:
            opened[data.producer_id] = data.identity
            transaction = evidence.transactions.setdefault(
                data.identity, FoundTransaction(data.identity)
            )
            transaction.batches.append(data)
    for identity in opened.values():
        evidence.transactions[identity].unended += 1


def _writer(batch: Any) -> str:
    """Return the writer that the first record of a batch names in its header."""
    for _, _, _, _, headers in batch.records()[:1]:
        for key, value in headers:
            if key == plan.WRITER_HEADER and value is not None:
                return bytes(value).decode()
    return ""
