"""What one partition log must do, in lists and dicts: the model of the tests.

No answer is fast, cached or incremental: each is computed from all batches or from the table of
producers, in the words of the rules. A rejection is a `Refused` with the error's class name.
Source: Kafka's producer state rules (ProducerStateManager), abort index and read_committed filter
(TransactionIndex, CompletedFetch).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from .codec import MAX_SEQUENCE, Plain, sequence_add

WINDOW = 5
"""Batches a partition remembers by producer, with their offsets."""


class Refused(Exception):
    """The append is not done; the message is the name of the error's class."""


@dataclass
class ModelBatch:
    """A batch as it was accepted."""

    base_offset: int
    count: int
    timestamp: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    marker: bool | None = None
    """True for COMMIT, False for ABORT, None for data."""
    records: list[Plain] = field(default_factory=list)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.count - 1

    @property
    def last_sequence(self) -> int:
        return -1 if self.base_sequence < 0 else sequence_add(self.base_sequence, self.count - 1)


@dataclass
class ModelProducer:
    """What the partition knows of one producer id."""

    epoch: int = -1
    window: list[ModelBatch] = field(default_factory=list)
    first_sequence: int = -1
    """The first sequence accepted in this epoch."""
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    open_at: int | None = None
    """First offset of the open transaction."""

    @property
    def last_sequence(self) -> int:
        return self.window[-1].last_sequence if self.window else -1


@dataclass(frozen=True)
class Appended:
    """What an append answers; `base_offset` -1 where a duplicate is too old to know."""

    base_offset: int
    last_offset: int
    duplicate: bool = False


def behind(sequence: int, reference: int) -> bool:
    """Whether `sequence` is at or before `reference` in serial arithmetic.

    Half of the ring counts as before, half as after.
    """
    return (reference - sequence) % (MAX_SEQUENCE + 1) < (MAX_SEQUENCE + 1) // 2


class ModelLog:
    """One partition: its batches, its producers, its aborted transactions."""

    def __init__(self) -> None:
        self.batches: list[ModelBatch] = []
        self.producers: dict[int, ModelProducer] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.log_start = 0
        self.log_end = 0
        self.horizon = (0, 0)
        """Who is forgotten: last batch below an offset; only markers left, older than a time."""

    # -- writing

    def append(self, batch: ModelBatch, *, client: bool = True) -> Appended:
        """Append data; `client` turns on the sequence checks that only clients need."""
        assert batch.marker is None
        if batch.producer_id >= 0:
            state = self.producers.get(batch.producer_id, ModelProducer())
            if batch.producer_epoch < state.epoch:
                raise Refused("InvalidProducerEpoch")
            if client and (known := self.duplicate(state, batch)):
                return known
            if client:
                self.check_sequence(state, batch)
            if state.open_at is not None and not batch.transactional:
                raise Refused("InvalidTxnState")
        return self.accept(batch)

    @staticmethod
    def duplicate(state: ModelProducer, batch: ModelBatch) -> Appended | None:
        """Return the stored batch that this one repeats.

        It is among the last five, with its offset, or earlier in this epoch, without.
        """
        if batch.producer_epoch != state.epoch or not state.window:
            return None
        for known in state.window:
            if (known.base_sequence, known.last_sequence) == (
                batch.base_sequence,
                batch.last_sequence,
            ):
                return Appended(known.base_offset, known.last_offset, True)
        stored = behind(batch.last_sequence, state.last_sequence) and behind(
            batch.base_sequence, batch.last_sequence
        )
        if stored and behind(state.first_sequence, batch.base_sequence):
            return Appended(-1, -1, True)
        return None

    @staticmethod
    def check_sequence(state: ModelProducer, batch: ModelBatch) -> None:
        """Require the next sequence, or 0 in a new epoch, or any if none is known."""
        if state.epoch == -1 and not batch.transactional:
            return
        fresh = batch.producer_epoch != state.epoch or not state.window
        expected = 0 if fresh else sequence_add(state.last_sequence, 1)
        if batch.base_sequence != expected:
            raise Refused("OutOfOrderSequence")

    def accept(self, batch: ModelBatch) -> Appended:
        batch = copy.copy(batch)
        batch.base_offset = self.log_end
        self.batches.append(batch)
        self.log_end += batch.count
        if batch.producer_id >= 0:
            state = self.producers.setdefault(batch.producer_id, ModelProducer())
            self.enter_epoch(state, batch.producer_epoch)
            if not state.window:
                state.first_sequence = batch.base_sequence
            state.window = [*state.window, batch][-WINDOW:]
            state.last_timestamp = batch.timestamp
            if batch.transactional and state.open_at is None:
                state.open_at = batch.base_offset
        return Appended(batch.base_offset, batch.last_offset)

    @staticmethod
    def enter_epoch(state: ModelProducer, epoch: int) -> None:
        if epoch != state.epoch:
            state.epoch, state.window, state.first_sequence = epoch, [], -1

    def end(
        self, producer_id: int, epoch: int, commit: bool, timestamp: int, coordinator_epoch: int = 0
    ) -> Appended:
        """Append the marker that ends a transaction.

        A second one with nothing open changes nothing readable.
        """
        state = self.producers.setdefault(producer_id, ModelProducer())
        if epoch < state.epoch or (epoch == state.epoch and state.open_at is not None):
            raise Refused("InvalidProducerEpoch")
        offset = self.log_end
        self.batches.append(
            ModelBatch(offset, 1, timestamp, producer_id, epoch, transactional=True, marker=commit)
        )
        self.log_end += 1
        if state.open_at is not None and not commit:
            self.aborted.append((producer_id, state.open_at, offset))
        self.enter_epoch(state, epoch)
        state.open_at, state.coordinator_epoch, state.last_timestamp = (
            None,
            coordinator_epoch,
            timestamp,
        )
        return Appended(offset, offset)

    def delete_records(self, before: int) -> int:
        """The log starts at `before`; producers live on."""
        self.log_start = max(self.log_start, min(before, self.stable_end))
        return self.log_start

    def expire(self, below: int, before_ms: int) -> None:
        """Forget producers, never one whose transaction is open."""
        if below <= self.horizon[0]:
            return
        self.horizon = below, max(before_ms, self.horizon[1])
        self.producers = {pid: p for pid, p in self.producers.items() if not self.forgotten(p)}

    def forgotten(self, state: ModelProducer) -> bool:
        if state.open_at is not None:
            return False
        if not state.window:
            return state.last_timestamp < self.horizon[1]
        return state.window[-1].last_offset < self.horizon[0]

    def stored(self, batch: ModelBatch) -> bool:
        """Whether all sequence numbers of a batch were accepted once in its epoch."""
        there = {
            sequence_add(known.base_sequence, i)
            for known in self.batches
            if known.marker is None
            and (known.producer_id, known.producer_epoch)
            == (batch.producer_id, batch.producer_epoch)
            for i in range(known.count)
        }
        return there >= {sequence_add(batch.base_sequence, i) for i in range(batch.count)}

    # -- reading

    @property
    def stable_end(self) -> int:
        """First offset of the earliest open transaction, else the log's end."""
        return min(
            (p.open_at for p in self.producers.values() if p.open_at is not None),
            default=self.log_end,
        )

    def open_transactions(self) -> list[tuple[int, int, int]]:
        """(producer id, epoch, first offset), earliest first."""
        rows = [
            (pid, p.epoch, p.open_at) for pid, p in self.producers.items() if p.open_at is not None
        ]
        return sorted(rows, key=lambda row: row[2])

    def is_aborted(self, batch: ModelBatch) -> bool:
        return batch.transactional and any(
            pid == batch.producer_id and first <= batch.base_offset <= last
            for pid, first, last in self.aborted
        )

    def visible(
        self, isolation: str, start: int | None = None, end: int | None = None
    ) -> list[tuple[int, bytes | None]]:
        """(offset, value) of everything a reader gets between start and its bound."""
        bound = self.stable_end if isolation == "read_committed" else self.log_end
        start = self.log_start if start is None else max(start, self.log_start)
        bound = bound if end is None else min(end, bound)
        rows = []
        for batch in self.batches:
            if batch.marker is not None or (
                isolation == "read_committed" and self.is_aborted(batch)
            ):
                continue
            for index, record in enumerate(batch.records):
                if start <= batch.base_offset + index < bound:
                    rows.append((batch.base_offset + index, record[2]))
        return rows

    def aborted_between(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Aborted transactions that overlap [start, end), in the order of their markers."""
        return [row for row in self.aborted if row[2] >= start and row[1] < end]

    def offset_for_time(self, timestamp: int) -> int | None:
        """First record at or after the time, whatever became of its transaction."""
        for batch in self.batches:
            if batch.marker is not None:
                continue
            for index, record in enumerate(batch.records):
                if record[0] >= timestamp and batch.base_offset + index >= self.log_start:
                    return batch.base_offset + index
        return None

    def digest(self) -> dict[str, object]:
        """Everything that must survive a reopening unchanged."""
        producers = {
            pid: (
                p.epoch,
                p.last_sequence,
                p.coordinator_epoch,
                -1 if p.open_at is None else p.open_at,
            )
            for pid, p in sorted(self.producers.items())
        }
        return {
            "log_start": self.log_start, "log_end": self.log_end, "stable_end": self.stable_end,
            "producers": producers, "open": self.open_transactions(),
            "aborted": self.aborted_between(self.log_start, self.log_end),
            "committed": self.visible("read_committed"), "uncommitted": self.visible("read_uncommitted"),
        }  # fmt: skip
