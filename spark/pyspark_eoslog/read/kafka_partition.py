"""A broker's partition folder, read from its files alone.

The folder's abort and time indexes have no checksum, so neither is used. Each file is verified
before use: batches by their CRC and order, log files by eoslog's seals if there are any, and the
end by the record of a clean close.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import zip_longest

from eoslog.connector import (
    LOG_START_CHECKPOINT,
    Batch,
    LegacyBatch,
    TransactionFold,
    bounds_of,
    damage_at_end,
    fault_of,
    feed_transactions,
    list_snapshots,
    offset_of_name,
    open_before,
    partition_of_path,
    read_checkpoint,
    read_snapshot,
)
from eoslog.connector.byte_ranges import PartitionFiles
from eoslog.errors import CorruptRecord

Aborted = tuple[tuple[int, int, int], ...]


class KafkaLayoutPartition:
    """One partition folder.

    Attributes:
        files: The segments.
        start: The first readable offset. If the first segment is missing, it is below the existing
            segments, and a read from it raises an error.
        end: The log end. If the files end before the offset at which the log was closed, it is
            beyond the readable offsets.
        stable_end: The last stable offset.
    """

    def __init__(self, directory: str) -> None:
        """Read all headers.

        Raises:
            CorruptRecord: if damage makes the log end unknown.
        """
        self.files = PartitionFiles(directory)
        self._segments = self.files.segments
        self._first = self._segments[0].base_offset
        root, name = os.path.split(directory)
        key = partition_of_path(name)
        recorded, self._cleaned_to = bounds_of(root, key)
        self.start = self._start(root, key, recorded)
        self._damage: CorruptRecord | None = None
        whole = self._fold(0)
        self._known_to = max(whole.next_offset, self._first)
        # Damaged batches may have ended the transactions that are open before them.
        self._decided_to = min([*whole.open.values(), self._known_to])
        self._aborted = whole.aborted
        # After damage in the middle, the newest snapshot and the batches after it give the end.
        fold = whole
        self._goes_on_at = self._known_to
        if self._damage is not None:
            number = self._first_to_fold(directory)
            self._goes_on_at = self._segments[number].base_offset
            fold = self._fold(number)
        self.end = max(fold.next_offset, self._segments[-1].base_offset)
        # The fold has no offset of an empty last segment: its own end would be 0.
        self.stable_end = min([*fold.open.values(), self.end])
        self._end_at(damage_at_end(directory))

    def _start(self, root: str, key: tuple[str, int], recorded: int | None) -> int:
        """Return the log start.

        A recorded start without a checksum counts only within the first segment. Beyond that
        segment there is no proof that records were deleted.
        """
        if recorded is not None:
            return recorded
        start = read_checkpoint(root, LOG_START_CHECKPOINT).get(key, 0)
        if start < self._first or (self.files.bases[1:] and start >= self.files.bases[1]):
            return self._first
        return start

    def _end_at(self, fault: tuple[int, CorruptRecord] | None) -> None:
        """Set the log end; if the end is damaged, reads up to it must raise an error."""
        if fault is None:
            return
        right, damage = fault
        if self._damage is None or right < self._known_to:
            self._damage = damage
        self._known_to = min(self._known_to, right)
        self._decided_to = min(self._decided_to, right)
        self._goes_on_at = self.end = self.stable_end = max(self.end, right + 1)

    def _fold(self, first: int) -> TransactionFold:
        tail = self._segments[first:]
        fold = TransactionFold(open_before(tail))
        try:
            feed_transactions(fold, tail, self._cleaned_to)
        except CorruptRecord as error:
            if first or self._damage is not None or len(tail) == 1:
                raise
            self._damage = error
        return fold

    def aborted(self, start: int, end: int) -> Aborted:
        """Return the aborted transactions in [start, end).

        Raises:
            CorruptRecord: if `check` fails, if the range reaches beyond damage, or if it holds
                records of a transaction that is open at the damage, which may have ended it.
        """
        self.check(start, end)
        if self._damage is not None and end > self._decided_to:
            raise self._damage
        return tuple(one for one in self._aborted if one[2] >= start and one[1] < end)

    def check(self, start: int, end: int) -> None:
        """Refuse a range of which a part is damaged or missing.

        Raises:
            CorruptRecord: if a part is damaged or missing.
        """
        if start < min(self._first, end):
            raise self._missing(start)
        if self._damage is not None and end > self._known_to and start < self._goes_on_at:
            raise self._damage

    def _missing(self, start: int) -> CorruptRecord:
        return CorruptRecord(
            f"offsets {start} to {self._first - 1} are missing: no deletion is recorded, so a "
            "segment file was removed; see `eoslog repair`",
            path=self._segments[0].path,
            position=0,
        )

    def _first_to_fold(self, directory: str) -> int:
        """Return the number of the segment with the newest readable producer snapshot."""
        snapshots = {offset_of_name(n) for n in list_snapshots(directory)}
        for number in range(len(self._segments) - 1, 0, -1):
            segment = self._segments[number]
            if segment.base_offset in snapshots:
                try:
                    read_snapshot(segment.with_suffix("snapshot"))
                except CorruptRecord:
                    continue
                return number
        return len(self._segments) - 1

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Find the first readable offset at or after a time, from all batches before it.

        Raises:
            CorruptRecord: if one of those batches is damaged or missing.
        """
        found = next(self._offsets_at(timestamp_ms), None)
        self.check(self.start, self.end if found is None else found + 1)
        return found

    def _offsets_at(self, timestamp_ms: int) -> Iterator[int]:
        """Yield the offsets of records at or after a time, in order."""
        for base, following in zip_longest(self.files.bases, self.files.bases[1:]):
            if following is not None and following <= self.start:
                continue
            for batch in self._confirmed(base):
                if batch.last_offset < self.start:
                    continue
                if (fault := fault_of(batch)) is not None:
                    raise CorruptRecord(fault, path=self.files.path(base), position=batch.position)
                if batch.control or batch.max_timestamp < timestamp_ms:
                    continue
                for offset, timestamp, *_ in batch.records():
                    if timestamp >= timestamp_ms and self.start <= offset < self.end:
                        yield offset

    def _confirmed(self, base: int) -> Iterator[Batch | LegacyBatch]:
        """Yield batches of a segment, each after the next one has confirmed its offsets."""
        before = None
        for batch in self.files.batches(base, 0):
            if before is not None:
                yield before
            before = batch
        if before is not None:
            yield before
