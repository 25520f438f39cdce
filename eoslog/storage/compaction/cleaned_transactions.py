"""Transactions in a compaction pass: which data is aborted, and which markers can be removed.

A marker must stay as long as there is data of its transaction. Without the entry of an abort
marker, the data would be visible. Without any marker, a later fold of the log would find the
transaction open. Therefore a pass that finds no batch of the transaction before the marker, not
even an empty one, sets a delete horizon. A pass after that horizon removes the marker.

A producer snapshot in which the transaction is open counts as a batch of it, because a fold may
begin there. It is the snapshot at a segment's base, and is removed when the segment is merged into
an earlier one.

Source: Kafka CleanedTransactionMetadata; KIP-534; KAFKA-8351, KAFKA-13727.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from eoslog import _core
from eoslog.storage.segment.segment_files import AbortedEntry

_ABORT = 0


class CleanedTransactions:
    """One pass over a log from its start, through all of its groups of segments."""

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        """Begin a pass with the entries of all abort indexes."""
        self._of_producer: dict[int, list[AbortedEntry]] = {}
        self._of_marker: dict[tuple[int, int], AbortedEntry] = {}
        for entry in sorted(aborted, key=lambda e: e.first_offset):
            self._of_producer.setdefault(entry.producer_id, []).append(entry)
            self._of_marker[entry.producer_id, entry.last_offset] = entry
        self._seen: set[int] = set()

    def is_aborted(self, batch: _core.Batch) -> bool:
        """Whether a transactional data batch belongs to an aborted transaction."""
        entries = self._of_producer.get(batch.producer_id)
        if entries is None:
            return False
        at = bisect_right(entries, batch.base_offset, key=lambda e: e.first_offset)
        return at > 0 and batch.base_offset <= entries[at - 1].last_offset

    def begin(self, opened: Iterable[int]) -> None:
        """Begin a cleaned segment; `opened` are the producers with open transactions in its
        snapshot.
        """
        self._seen.update(opened)

    def data(self, batch: _core.Batch) -> bool:
        """Record a transactional data batch of the source. Returns whether it is aborted."""
        self._seen.add(batch.producer_id)
        return self.is_aborted(batch)

    def marker(self, batch: _core.Batch) -> tuple[bool, AbortedEntry | None]:
        """Record a control batch of the source.

        Returns:
            (whether no data of its transaction is left, the entry to keep in the abort index).
        """
        if batch.count == 0:
            return True, None  # keeps the producer's state; the marker was removed earlier
        seen = batch.producer_id in self._seen
        self._seen.discard(batch.producer_id)
        if batch.control_type not in (0, 1):
            return False, None
        entry = None
        if seen and batch.control_type == _ABORT:
            entry = self._of_marker.get((batch.producer_id, batch.base_offset))
        return not seen, entry
