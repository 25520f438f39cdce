"""The parts of transactions in one partition, from the headers of its batches.

A transaction has at most one piece in each partition: the offsets from its first to its last
record. (Producer id, epoch) names a transaction, because every end of a transaction raises the
epoch. Brokers before transaction version 2 keep the epoch, so that one name may have several pieces
in a partition.

Source: KIP-98, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from eoslog import _core
from eoslog.errors import CorruptRecord, OffsetOutOfRange
from eoslog.model import TopicPartition

__all__ = ["FarPieces", "TransactionPiece", "TransactionPieces"]

_READ_BYTES, _WINDOW_BYTES = 1 << 20, 1 << 16
_TRIM_AFTER = 64
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
        more: the offset after its last record that was found after the window; 0: none.
        aborted: whether its marker aborts it.
    """

    __slots__ = ("aborted", "end", "first", "key", "marked", "more", "pieces")

    def __init__(self, key: tuple[int, int], pieces: TransactionPieces, first: int) -> None:
        """Begin a piece whose end is not known yet."""
        self.key = key
        self.pieces = pieces
        self.first = first
        self.end = self.marked = first
        self.more = 0
        self.aborted = False


class TransactionPieces:
    """The pieces of transactions in a window of one partition.

    An aborted piece needs no care, because its records are not returned.

    Attributes:
        partition: the partition.
        topic_id: the id of its topic.
        begin: the first offset that is known.
        scanned: the offset after the last known batch, the end of the window.
        complete: whether no batch came after it when it was read.
        readable: the readable end, as it was before the last batches were read.
        found: the pieces, by their first offset; forgotten ones may be left at the beginning.
        position: the position of the consumer.
        limit: the offset that the position may not pass: the readable end, or itself in a pause.
        bound: the offset that the cut may not pass; it is not after the window.
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
        self.begin = self.scanned = self.readable = 0
        self.complete = False
        self.position = self.limit = self.bound = self.cut = self.marked = 0
        self.next = 0

    def forget_all(self) -> None:
        """Forget all pieces."""
        for piece in self.found[self._kept :]:
            self._forget(piece)
        self.found = []
        self._open = {}
        self._kept = self._ahead = 0

    def start(self, log: Any, position: int) -> bool:
        """Begin a search for the next cut at the position of the consumer.

        Returns:
            Whether the pieces from there on are known.
        """
        known = self.topic_id == log.topic_id and self.begin <= position <= self.scanned
        if not known:
            self.forget_all()
            self.topic_id = log.topic_id
            self.begin = self.scanned = position
        if position < self.position:
            self._ahead = self._kept
        self.position = position
        self._keep_from(position)
        found, ahead = self.found, self._ahead
        while ahead < len(found) and (found[ahead].end <= position or found[ahead].aborted):
            ahead += 1
        self._ahead = ahead
        self.restart()
        return known

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
        while kept < len(found) and (found[kept].end <= offset or found[kept].aborted):
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

    def scan(self, log: Any, most: int) -> bool:
        """Read the headers of the next batches into the window.

        Returns:
            False if the window has `most` pieces, or the end of the log is reached.

        Raises:
            CorruptRecord: if a batch is damaged.
        """
        start = max(self.scanned, log.log_start)
        end = log.log_end
        self.complete = start >= end
        if self.complete or len(self.found) - self._ahead >= most:
            return False
        try:
            slices = log.read(start, end, _WINDOW_BYTES)
        except OffsetOutOfRange:
            return True  # deleted since `start` was read
        for part in slices:
            for batch in self._transactional(part):
                self._add(batch)
            self.scanned = part.next_offset
        return bool(slices)

    def _transactional(self, part: Any) -> Iterator[_core.Batch]:
        for batch in _core.iter_batches(part.data, base_position=part.position):
            if batch.transactional:
                if self._check and not batch.valid:
                    raise CorruptRecord(
                        f"{self.partition}: batch at offset {batch.base_offset} does not match "
                        "its CRC; run `eoslog repair`",
                        path=part.path,
                        position=batch.position,
                    )
                yield batch

    def look_ahead(
        self,
        log: Any,
        epochs: dict[int, int] | None,
        far: FarPieces,
        interrupted: Callable[[], bool],
    ) -> None:
        """Find pieces after the window that belong to known transactions.

        Nothing else is kept. A producer's epoch never falls, so a producer is done when a higher
        epoch is found.

        Args:
            log: the partition's log.
            epochs: the highest known epoch of each producer; None if this is the only partition, so
                that the end of the open pieces is enough.
            far: gets the end of the last piece of each transaction.
            interrupted: whether to stop.

        Raises:
            CorruptRecord: if a batch is damaged.
        """
        still_open, start = dict(self._open), self.scanned
        alone = epochs is None
        left = {pid: one.key[1] for pid, one in still_open.items()} if alone else dict(epochs or {})
        while left and not interrupted():
            start, end = max(start, log.log_start), log.log_end
            if start >= end:
                return
            try:
                slices = log.read(start, end, _READ_BYTES)
            except OffsetOutOfRange:
                continue  # deleted since `start` was read
            for part in slices:
                for batch in self._transactional(part):
                    producer_id = batch.producer_id
                    piece = still_open.get(producer_id)
                    if batch.control:
                        if piece is not None:
                            del still_open[producer_id]
                            if batch.control_type == _ABORT:
                                piece.aborted = True
                                self._forget(piece)
                        if alone:
                            left.pop(producer_id, None)
                        continue
                    if batch.producer_epoch > left.get(producer_id, -1):
                        left.pop(producer_id, None)
                        continue
                    key = (producer_id, batch.producer_epoch)
                    if piece is not None and piece.key == key:
                        piece.more = batch.last_offset + 1
                    if key in self._by_key:
                        far.setdefault(key, {})[self] = batch.last_offset + 1
                start = part.next_offset
            if not slices:
                return

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


FarPieces = dict[tuple[int, int], dict[TransactionPieces, int]]
"""The ends of pieces after the windows, by transaction and partition."""
