"""Named positions: set in a transaction, on a condition, and read.

P is partition 0 of `__positions`. Its fold is the only state. A record of an open transaction is
pending until the transaction's marker is in P.

**A set is a compare-and-set.** `set` appends one record, and C is the `__transaction_state`
partition of the transactional id:

    1 C lists P as a partition of the transaction          -> C ends at c
    2 fold P                                               -> P ends at p
    3 refuse if another transaction has a pending record of the name
    4 refuse if the visible position is not the expected one
    5 append to P, on the condition that P ends at p and C ends at c; otherwise start again at 1

Two transactions that expect the same position cannot both commit. Their records are in P in some
order. When the second one was appended (5), its writer had folded all of P before it (2). If the
first transaction was open there, step 3 refused. If it had committed there, step 4 compared the
second transaction's expectation with the first one's value. If it had aborted there, the first one
does not commit. From its record to its marker, a transaction thus holds the name alone, and no
check at the commit is necessary: what step 4 saw is still the position when the transaction is
decided. So the transactions of a name commit in the order of their records in P, and the last
committed record of a name is its position.

This holds after a crash. A record is in P before its transaction is decided, and a decision to
commit carries or flushes all of P up to there. A power loss removes the end of P: no committed
record is in it, because those are durable. It may remove markers. Recovery, and step 3, write the
markers of decided transactions again, before another transaction can set the name. If a marker was
lost, so was every record after it, so no later transaction with the name has committed.

A fenced producer fails at step 1, or at step 5 because C has changed.

A deletion is a plain tombstone, appended on the same conditions except that of C.

Source: protocol.md rows 1, 18 and 19; KIP-98.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from eoslog._core import build_batch
from eoslog._util.arguments import shown
from eoslog.coordinator.host import HostLog, PositionHost
from eoslog.coordinator.positions.records import (
    PositionChange,
    PositionValue,
    check_name,
    decode_name,
    decode_value,
    encode_value,
)
from eoslog.coordinator.retry import again
from eoslog.errors import CorruptRecord, PositionConflict
from eoslog.model import POSITIONS_TOPIC, AppendOrigin, AppendResult, TopicPartition
from eoslog.storage.fs.files import failpoint

_COMMIT_MARKER = 1


class PositionBatch(Protocol):
    """The part of a batch (`_core.Batch`) that the fold uses."""

    base_offset: int
    producer_id: int
    transactional: bool
    control: bool

    @property
    def control_type(self) -> int | None:
        """1 for COMMIT, 0 for ABORT."""

    def records(self) -> list[tuple[int, int, bytes | None, bytes | None, object]]:
        """(offset, timestamp, key, value, headers) of each record, in order."""


class PositionFold:
    """The fold of P. It uses no clock, lock or I/O.

    Invariants:
        - `visible` has the last committed value of each name, without deleted ones.
        - `pending` has the values of each open transaction, by producer id.
        - Folding from the log start gives the same state.
    """

    def __init__(self, next_offset: int = 0) -> None:
        """Start with the state of an empty partition."""
        self.visible: dict[str, PositionValue] = {}
        self.pending: dict[int, dict[str, PositionValue]] = {}
        self.next_offset = next_offset
        self.plain_end = 0
        """The offset after the last deletion; it must be durable before it is acted on."""

    def apply(self, batch: PositionBatch) -> None:
        """Fold one batch, data or marker.

        Raises:
            CorruptRecord: if a record is not a position.
        """
        if batch.control:
            if batch.control_type is not None:
                values = self.pending.pop(batch.producer_id, {})
                if batch.control_type == _COMMIT_MARKER:
                    self.visible.update(values)
            return
        for offset, _, key, value, _ in batch.records():
            if offset < self.next_offset:
                continue
            name = decode_name(key)
            if value is None:
                self.visible.pop(name, None)
                self.plain_end = offset + 1
            elif batch.transactional:
                self.pending.setdefault(batch.producer_id, {})[name] = decode_value(value)
            else:
                self.visible[name] = decode_value(value)
                self.plain_end = offset + 1

    def holder(self, name: str, producer_id: int = -1) -> int | None:
        """The producer id of another open transaction that sets a name."""
        for other, values in self.pending.items():
            if other != producer_id and name in values:
                return other
        return None

    def seen_by(self, name: str, producer_id: int) -> PositionValue | None:
        """The position of a name as a transaction sees it: its own value first."""
        own = self.pending.get(producer_id, {})
        return own[name] if name in own else self.visible.get(name)


class _FoldedPositions:
    """P in this process. Thread-safe: the fold is used only inside `folded`."""

    def __init__(self, log: HostLog) -> None:
        self.log = log
        self._mutex = threading.Lock()
        self._fold = PositionFold(log.log_start)
        self._cleaned = log.cleaned_to

    @contextmanager
    def folded(self) -> Iterator[tuple[PositionFold, int]]:
        """Yield the fold up to the published end, and that end.

        A marker is acted on before it is durable: its decision is durable, and so is the data.
        """
        with self._mutex:
            end = self._refresh()
            yield self._fold, end

    def _refresh(self) -> int:
        log = self.log
        while True:
            cleaned = log.cleaned_to
            behind = self._fold.next_offset < cleaned and self._cleaned < cleaned
            if behind or self._fold.next_offset < log.log_start:
                # Tombstones that were not folded may be cleaned away: fold all again.
                self._fold = PositionFold(log.log_start)
            self._cleaned = cleaned
            start = self._fold.next_offset
            end = log.log_end
            try:
                for batch in log.batches(start, end) if start < end else ():
                    try:
                        self._fold.apply(batch)
                    except CorruptRecord as error:
                        where = f"{log.topic}-{log.partition}, offset {batch.base_offset}"
                        raise CorruptRecord(f"{where}: {error}") from error
            except BaseException:
                self._fold = PositionFold(log.log_start)  # it may have a part of a batch
                raise
            self._fold.next_offset = max(start, end)
            if log.cleaned_to == cleaned:
                return end
            if start < log.cleaned_to:
                # Cleaned during the read: old and new records are mixed.
                self._fold = PositionFold(log.log_start)


class Positions:
    """The named positions of a directory. Safe with other threads and processes."""

    def __init__(self, host: PositionHost) -> None:
        """Keep the engine; nothing is opened or created."""
        self._host = host
        self._mutex = threading.Lock()
        self._known: _FoldedPositions | None = None

    def set(
        self, transactional_id: str, producer_id: int, producer_epoch: int, change: PositionChange
    ) -> AppendResult:
        """Set a position in an open transaction.

        Returns:
            The place of the record.

        Raises:
            PositionConflict: if the position is not the expected one, or another open transaction
                sets it too.
            KafkaError: as `TransactionCoordinator.add_partitions_to_txn`.

        Durability:
            The record is published. The commit makes it durable.
        """
        log, transactions = self._host.internal_topic(POSITIONS_TOPIC), self._host.transactions
        folded = self._of(log)
        tp = TopicPartition(log.topic, log.partition)
        attempts, asked = None, False
        while True:
            listed = transactions.add_partitions_to_txn(
                transactional_id, producer_id, producer_epoch, {tp}
            )
            with folded.folded() as (fold, end):
                holder = fold.holder(change.name, producer_id)
                found = fold.seen_by(change.name, producer_id)
            if holder is not None:
                if not asked:
                    asked = True  # it may be decided, overdue, or without a living process
                    transactions.resolver.resolve_blockers(log, grace_s=0.0)
                    continue
                raise PositionConflict(
                    f"position {change.name!r} is part of an open transaction of producer id "
                    f"{holder}; abort this transaction, and read the position again when the other "
                    "one has ended"
                )
            if not change.fits(found):
                raise PositionConflict(
                    f"position {change.name!r}: expected {shown(change.expected)}, found "
                    f"{shown(found)}; abort this transaction, and read the position again"
                )
            failpoint("position.checked")
            done = self._append(
                log, end, change.name, encode_value(change.value), [listed],
                producer_id=producer_id, producer_epoch=producer_epoch, transactional=True,
            )  # fmt: skip
            if done is not None:
                failpoint("position.set")
                return done
            asked = False
            attempts = again(attempts, "position", repr(change.name))

    def get(self, name: str) -> PositionValue | None:
        """Return the committed position of a name; None if there is none."""
        check_name("position", name)
        with self._settled() as fold:
            return fold.visible.get(name)

    def all(self) -> dict[str, PositionValue]:
        """Return all committed positions, in the order of their names."""
        with self._settled() as fold:
            return dict(sorted(fold.visible.items()))

    def delete(self, name: str) -> bool:
        """Delete a position, and return whether it existed.

        Raises:
            PositionConflict: if an open transaction sets it.

        Durability:
            The deletion is durable on return.
        """
        check_name("delete_position", name)
        attempts = None
        while True:
            with self._settled() as fold:
                holder, known = fold.holder(name), name in fold.visible
                end = fold.next_offset
            if holder is not None:
                raise PositionConflict(
                    f"position {name!r} is part of an open transaction of producer {holder}; "
                    "delete it when that transaction has ended"
                )
            if not known:
                return False
            log = self._host.internal_topic(POSITIONS_TOPIC)
            done = self._append(log, end, name, None, [])
            if done is not None:
                failpoint("position.deleted")
                log.flush(done.last_offset + 1)
                return True
            attempts = again(attempts, "deletion of position", repr(name))

    def _append(
        self, log: HostLog, end: int, name: str, value: bytes | None, expect: list[Any],
        **header: Any,
    ) -> AppendResult | None:  # fmt: skip
        batch = build_batch([(self._host.clock_ms(), name.encode(), value, ())], **header)
        return log.append(batch, expect=[(log, end), *expect], origin=AppendOrigin.COORDINATOR)

    @contextmanager
    def _settled(self) -> Iterator[PositionFold]:
        """Yield the fold, after ending transactions that are decided or overdue."""
        log = self._host.existing_internal_topic(POSITIONS_TOPIC)
        if log is None:
            yield PositionFold()
            return
        folded = self._of(log)
        if not self._host.read_only:
            with folded.folded() as (fold, _):
                pending, plain_end = bool(fold.pending), fold.plain_end
            if pending:
                self._host.transactions.resolver.resolve_blockers(log, grace_s=0.0)
            if plain_end > log.high_watermark:
                log.flush(plain_end)
        with folded.folded() as (fold, _):
            yield fold

    def _of(self, log: HostLog) -> _FoldedPositions:
        with self._mutex:
            if self._known is None or self._known.log is not log:
                self._known = _FoldedPositions(log)
            return self._known
