"""The fold of the records of `__transaction_state`.

The value of an id is its newest record. A decision (PREPARE_*) is kept longer than that, by
(producer id, epoch of the data), until its markers are durable: the next transaction of the id may
be decided and flushed while these markers are still in the page cache.

Source: Kafka `TransactionStateManager`; protocol.md rows 1, 2 and 22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from eoslog.coordinator.transactions.prepared_records import (
    PreparedFold,
    TransactionKey,
    prepared_key,
)
from eoslog.coordinator.transactions.records import decode_key, decode_value
from eoslog.coordinator.transactions.state import Decided, OffsetSpan, TransactionMetadata
from eoslog.model import TopicPartition

__all__ = ["RECOVERY_PREFIX", "Decision", "TransactionLogFold"]

RECOVERY_PREFIX = "__recovery-"
"""Prefix of the ids under which recovery aborts open data without a transactional id."""


@dataclass(slots=True)
class Decision:
    """A decided transaction, kept while a marker or a snapshot depends on it.

    Attributes:
        prepared: the PREPARE_* record.
        decided: the decision in it.
        closed: for each partition where this process saw the transaction ended, a log end at that
            time. No marker of the transaction is at or beyond it.
        complete: whether COMPLETE_* was read: each partition has its marker, or had it before a
            power loss.
    """

    prepared: TransactionMetadata
    decided: Decided
    closed: dict[TopicPartition, int] = field(default_factory=dict)
    complete: bool = False

    @property
    def commit(self) -> bool:
        """Whether the decision is to commit."""
        return self.decided.commit

    @property
    def spans(self) -> Mapping[TopicPartition, OffsetSpan]:
        """The first and last offset of the transaction in each partition."""
        return self.prepared.spans

    @property
    def offset(self) -> int:
        """The offset of the decision in C; the decision is valid once that is durable."""
        return self.prepared.offset


class TransactionLogFold:
    """The fold of the records of one C partition. Reads no clock and no other log.

    Invariants:
        * `table[id]` is the value of the newest record of the id.
        * `decisions` has every PREPARE_* that was read, until `forget`.
        * `ids[producer id]` is the transactional id that has it, except recovery's own ids.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.table: dict[str, TransactionMetadata] = {}
        self.decisions: dict[TransactionKey, Decision] = {}
        self.ids: dict[int, str] = {}
        self.prepared = PreparedFold()

    def apply(
        self, offset: int, key: bytes | None, value: bytes | None
    ) -> TransactionMetadata | None:
        """Fold one record; return its value.

        For a tombstone, a record of a prepared transaction or an unknown key version it returns
        None.

        Raises:
            CorruptRecord: if the bytes are not a transaction record.
        """
        transactional_id = decode_key(key) if key is not None else None
        if transactional_id is None:
            found = prepared_key(key) if key is not None else None
            if found is not None:
                self.prepared.apply(*found, value, offset)
            return None
        if value is None:
            gone = self.table.pop(transactional_id, None)
            if gone is not None and self.ids.get(gone.producer_id) == transactional_id:
                del self.ids[gone.producer_id]
            return None
        return self.state(decode_value(transactional_id, value, offset))

    def state(self, metadata: TransactionMetadata) -> TransactionMetadata:
        """Fold the value of the record at `metadata.offset`."""
        name, state, decided = metadata.transactional_id, metadata.state, metadata.decided
        self.table[name] = metadata
        if not name.startswith(RECOVERY_PREFIX):
            self.ids[metadata.producer_id] = name
        if state.preparing and decided is not None:
            self.decisions[decided.key] = Decision(metadata, decided)
        elif state.complete:
            self._complete(metadata, decided)
        return metadata

    def _complete(self, metadata: TransactionMetadata, decided: Decided | None) -> None:
        if decided is not None:
            key = decided.key
            decision = self.decisions.get(key)
            if decision is None:
                return
            decision.complete = True
            if not decision.spans:
                del self.decisions[key]
            return
        # A COMPLETE_* that Kafka wrote: its markers were replicated first, so drop the decision.
        name = metadata.transactional_id
        for key in [k for k, d in self.decisions.items() if d.prepared.transactional_id == name]:
            del self.decisions[key]

    def forget(self, key: TransactionKey) -> None:
        """Drop a decision whose markers are all durable and that no snapshot needs."""
        self.decisions.pop(key, None)
