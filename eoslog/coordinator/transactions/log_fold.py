"""The fold of the records of `__transaction_state`.

The value of an id is its newest record. A decision (PREPARE_*) is kept longer than that, by
(producer id, epoch of the data), until its markers are durable: the next transaction of the id may
be decided and flushed while these markers are still in the page cache.

Source: Kafka `TransactionStateManager`; protocol.md rows 1, 2 and 22.
"""

from __future__ import annotations

from typing import TypeAlias

from eoslog import _core
from eoslog.coordinator.transactions.prepared_records import (
    PreparedFold,
    TransactionKey,
    prepared_key,
)
from eoslog.coordinator.transactions.records import decode_key, decode_value
from eoslog.coordinator.transactions.state import TransactionMetadata

__all__ = ["RECOVERY_PREFIX", "Decision", "TransactionLogFold"]

Decision: TypeAlias = _core.Decision[TransactionMetadata]
RECOVERY_PREFIX = "__recovery-"
"""Prefix of the ids under which recovery aborts open data without a transactional id."""


class TransactionLogFold(_core.TransactionTable[TransactionMetadata]):
    """The fold of the records of one C partition. Reads no clock and no other log.

    Invariants:
        * `table[id]` is the value of the newest record of the id.
        * `decisions` has every PREPARE_* that was read, until `forget`.
        * `ids[producer id]` is the transactional id that has it, except recovery's own ids.
    """

    def __init__(self) -> None:
        """Start empty."""
        super().__init__(RECOVERY_PREFIX)
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

    def forget(self, key: TransactionKey) -> None:
        """Drop a decision whose markers are all durable and that no snapshot needs."""
        self.decisions.pop(key, None)
