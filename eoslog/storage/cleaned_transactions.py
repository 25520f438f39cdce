"""What a cleaning has to know of transactions: which data is aborted, which markers may go.

A marker outlives the data of its transaction: without an abort marker's entry the data would be
visible, and without any marker the transaction would be open again when the log is folded anew. So
a marker may go only when a whole pass met no batch of its transaction in front of it, not even an
empty one; and then only after the delete horizon that this pass sets has gone by.

A producer snapshot that has the transaction open counts as a batch of it: folds may begin there.
It is the one at a segment's base, and goes when the segment becomes part of an earlier one.

Source: Kafka CleanedTransactionMetadata; KIP-534; KAFKA-8351, KAFKA-13727.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from eoslog import _core
from eoslog.storage.segment_files import AbortedEntry

_ABORT = 0


class CleanedTransactions:
    """One pass over a log from its start, through all of its groups of segments."""

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        """`aborted`: every entry of the abort indexes that concerns the pass."""
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
        """A cleaned segment begins; the producers whose transactions its snapshot has open."""
        self._seen.update(opened)

    def data(self, batch: _core.Batch) -> bool:
        """Note a transactional data batch of the source; whether it is aborted."""
        self._seen.add(batch.producer_id)
        return self.is_aborted(batch)

    def marker(self, batch: _core.Batch) -> tuple[bool, AbortedEntry | None]:
        """A control batch of the source.

        Returns:
            Whether nothing is left of the transaction that it ends, and the entry of the abort
            index to keep for it, if any.
        """
        if batch.count == 0:
            return True, None  # the trace of a producer; its marker was removed earlier
        seen = batch.producer_id in self._seen
        self._seen.discard(batch.producer_id)
        if batch.control_type not in (0, 1):
            return False, None
        entry = None
        if seen and batch.control_type == _ABORT:
            entry = self._of_marker.get((batch.producer_id, batch.base_offset))
        return not seen, entry
