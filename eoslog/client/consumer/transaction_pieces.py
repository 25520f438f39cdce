"""The parts of transactions in one partition, from the headers of its batches.

A transaction has at most one piece in each partition: the offsets from its first to its last
record. (Producer id, epoch) names a transaction, because every end of a transaction raises the
epoch. Brokers before transaction version 2 keep the epoch, so that one name may have several pieces
in a partition.

Source: KIP-98, KIP-890.
"""

from __future__ import annotations

from typing import Any

from eoslog import _core
from eoslog.errors import CorruptRecord, OffsetOutOfRange
from eoslog.model import TopicPartition

__all__ = ["TransactionPiece", "TransactionPieces"]

_READ_BYTES = 1 << 20
_TRIM_AFTER = 1024
"""Forgotten pieces that the list may have at its beginning."""
_ABORT = 0
"""The type of the control record that aborts a transaction."""


class TransactionPiece:
    """The records of one transaction in one partition.

    Attributes:
        key: the producer id and epoch.
        pieces: the partition.
        first: the first offset.
        end: the offset after the last record.
        marked: `end`, or the offset after the commit marker if that follows immediately.
        aborted: whether its marker aborts it.
    """

    __slots__ = ("aborted", "end", "first", "key", "marked", "pieces")

    def __init__(self, key: tuple[int, int], pieces: TransactionPieces, first: int) -> None:
        """Begin a piece whose end is not known yet."""
        self.key = key
        self.pieces = pieces
        self.first = first
        self.end = self.marked = first
        self.aborted = False


class TransactionPieces:
    """The pieces of transactions in one partition, from an offset to its end.

    Each batch header is read once. An aborted piece needs no care, because its records are not
    returned.

    Attributes:
        partition: the partition.
        topic_id: the id of its topic.
        begin: the first offset that is known.
        scanned: the offset after the last known batch.
        found: the pieces, by their first offset; forgotten ones may be left at the beginning.
        position: the position of the consumer.
        bound: the readable end that the cut may not pass.
        cut: the end of the records to return.
        next: the index in `found` of the first piece at or after the cut.
        marked: the highest `TransactionPiece.marked` of the pieces before the cut.
    """

    def __init__(
        self,
        partition: TopicPartition,
        by_key: dict[tuple[int, int], list[TransactionPiece]],
        *,
        check: bool,
    ) -> None:
        """Know nothing yet.

        Args:
            partition: the partition.
            by_key: the pieces of all partitions by their key; it is kept up to date.
            check: whether to verify the checksums of transactional batches.
        """
        self.partition = partition
        self.topic_id: bytes | None = None
        self._by_key = by_key
        self._check = check
        self._open: dict[int, TransactionPiece] = {}
        self.found: list[TransactionPiece] = []
        self._kept = 0  # the index in `found` of the first piece that is not forgotten
        self._ahead = 0  # all pieces before this index end at or before `position`
        self.begin = self.scanned = 0
        self.position = self.bound = self.cut = self.marked = 0
        self.next = 0

    def forget_all(self) -> None:
        """Forget all pieces."""
        for piece in self.found[self._kept :]:
            self._forget(piece)
        self.found = []
        self._open = {}
        self._kept = self._ahead = 0

    def start(self, log: Any, position: int, kept_from: int) -> None:
        """Begin a search for the next cut.

        Args:
            log: the partition's log.
            position: the position of the consumer.
            kept_from: an offset at or below the position; earlier pieces are not needed again.
        """
        known = self.topic_id == log.topic_id and self.begin <= position <= self.scanned
        if not known:
            self.forget_all()
            self.topic_id = log.topic_id
            self.begin = self.scanned = position
        if position < self.position:
            self._ahead = self._kept
        self.position = position
        self._keep_from(kept_from)
        found, ahead = self.found, self._ahead
        while ahead < len(found) and found[ahead].end <= position:
            ahead += 1
        self._ahead = ahead
        self.restart()

    def restart(self) -> None:
        """Move the cut back to the position."""
        self.cut = self.marked = self.position
        self.next = self._ahead

    def place(self) -> tuple[int, int, int]:
        """The place of the cut, for `put_back`."""
        return self.cut, self.next, self.marked

    def put_back(self, place: tuple[int, int, int]) -> None:
        """Move the cut back to an earlier place."""
        self.cut, self.next, self.marked = place

    def _keep_from(self, offset: int) -> None:
        found, kept = self.found, self._kept
        while kept < len(found) and found[kept].end <= offset:
            self._forget(found[kept])
            kept += 1
        if kept > _TRIM_AFTER and 2 * kept > len(found):
            del found[:kept]
            self._ahead = max(self._ahead - kept, 0)
            kept = 0
        self._ahead = max(self._ahead, kept)
        self._kept = kept
        self.begin = max(self.begin, offset)

    def _forget(self, piece: TransactionPiece) -> None:
        same = self._by_key.get(piece.key)
        if same is not None and piece in same:
            same.remove(piece)
            if not same:
                del self._by_key[piece.key]

    def scan(self, log: Any) -> bool:
        """Read the headers of the next batches.

        Returns:
            False if the end of the log is reached.

        Raises:
            CorruptRecord: if a batch is damaged.
        """
        start = max(self.scanned, log.log_start)
        end = log.log_end
        if start >= end:
            return False
        try:
            slices = log.read(start, end, _READ_BYTES)
        except OffsetOutOfRange:
            return True  # deleted since `start` was read
        for part in slices:
            for batch in _core.iter_batches(part.data, base_position=part.position):
                if batch.transactional:
                    if self._check and not batch.valid:
                        raise CorruptRecord(
                            f"{self.partition}: batch at offset {batch.base_offset} does not match "
                            "its CRC; run `eoslog repair`",
                            path=part.path,
                            position=batch.position,
                        )
                    self._add(batch)
            self.scanned = part.next_offset
        return bool(slices)

    def _add(self, batch: _core.Batch) -> None:
        producer_id = batch.producer_id
        if batch.control:
            piece = self._open.pop(producer_id, None)
            if piece is None:
                return
            if batch.control_type == _ABORT:
                piece.aborted = True
                self._forget(piece)
            elif piece.end == batch.base_offset:
                piece.marked = piece.end + 1
            return
        piece = self._open.get(producer_id)
        if piece is None or piece.key[1] != batch.producer_epoch:
            key = (producer_id, batch.producer_epoch)
            piece = TransactionPiece(key, self, batch.base_offset)
            self._open[producer_id] = piece
            self.found.append(piece)
            self._by_key.setdefault(key, []).append(piece)
        piece.end = piece.marked = batch.last_offset + 1

    # The cut.

    def coming(self) -> TransactionPiece | None:
        """The first piece that is not complete below the cut; None if there is none."""
        found = self.found
        while self.next < len(found):
            piece = found[self.next]
            if not piece.aborted and piece.end > self.cut:
                return piece
            self.next += 1
        return None

    def enter(self) -> list[TransactionPiece]:
        """Pass the pieces that begin below the cut, and return them."""
        found, entered = self.found, []
        while self.next < len(found) and found[self.next].first < self.cut:
            piece = found[self.next]
            self.next += 1
            if not piece.aborted and piece.end > self.position:
                entered.append(piece)
                self.marked = max(self.marked, piece.marked)
        return entered

    def pass_marker(self) -> None:
        """Move the cut past a commit marker that follows it immediately."""
        if self.marked == self.cut + 1 and self.cut < self.bound:
            self.cut += 1

    def records(self, log: Any) -> int:
        """Count the visible records from the position to the cut."""
        aborted = _core.AbortedTransactions(log.aborted(self.position, self.cut))
        return sum(
            batch.count
            for batch in log.batches(self.position, self.cut)
            if not batch.control and (batch.producer_id, batch.base_offset) not in aborted
        )
