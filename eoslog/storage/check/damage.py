"""Finding the damaged stretches of a partition, and its missing segments.

A stretch is a run of bytes that is not a complete, valid batch. It ends at the next valid batch
that can follow, or at the end of the segment. The CRC does not cover base offset, length and leader
epoch. So a batch with a right CRC is damaged too if its offsets are impossible: they begin below
the end of the batch before, reach into the next segment, or overlap the batch after it. In the last
segment, they must also not begin above the end of the batch before.

A damaged header is used only if something else confirms it. Its producer fields are used if the
sequence follows that producer's batch before it, or precedes that producer's batch after it. A
damaged marker is identified if the marker of an open transaction has the same CRC as the stored
one, or the same bytes under the CRC. If its bytes identify nothing, it is still known to be missing
when its producer continues with the next epoch.

A missing segment is a stretch without bytes, at the begin of the segment after it. Markers that
were in it are found in the same way.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.storage.check.truncation import reached
from eoslog.storage.format import legacy_messages
from eoslog.storage.log.torn_tails import valid_batch_after
from eoslog.storage.segment import kept_copies
from eoslog.storage.segment.segment import LOG, file_path, offsets_in
from eoslog.storage.segment.segment_files import SegmentFiles, fault_of

__all__ = ["Lost", "Marker", "Stretch", "filler", "find"]

_HEAD, _BODY = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")
_HEADER = _HEAD.size + _BODY.size
_CRC_AT, _SUMMED_FROM, _COORDINATOR_AT = 17, 21, 73
_MARKER_SIZE = 78
_LAST_DELTA = (1 << 31) - 1
_TRANSACTIONAL = 0x10


@dataclass(slots=True)
class Marker:
    """A lost marker: its transaction and, if known, whether that was committed."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    commit: bool | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """A producer's damaged batch with a confirmed header: an empty batch keeps its sequences."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool


@dataclass(slots=True)
class Stretch:
    """Damaged bytes, and what is known about their content.

    Attributes:
        base: base of the segment.
        position: the first byte.
        size: number of bytes.
        first: the offset after the last valid batch before.
        last: the last offset before the next valid batch; below `first` if no offset is missing.
        before_ms: largest timestamp of the valid batch before, -1 for none.
        after_ms: largest timestamp of the valid batch after, -1 for none.
        records_after: number of valid records after this stretch in the partition.
        bytes_after: bytes from the end of this stretch to the end of the partition.
        open: transactions open at this offset: first offset by (producer id, epoch).
        markers: markers that were in the stretch.
        producer: the confirmed producer of the batch.
        plain: whether it was a batch without a producer, by three fields of its header.
        header: producer id and epoch in the header, if readable.
        began: transactions that began in a missing segment, by producer id and epoch, with their
            decision if a marker follows. The epoch of a marker may be the next one.
    """

    base: int
    position: int
    size: int
    first: int
    last: int
    before_ms: int = -1
    after_ms: int = -1
    records_after: int = 0
    bytes_after: int = 0
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)
    producer: Lost | None = None
    plain: bool = False
    header: tuple[int, int] | None = None
    began: dict[tuple[int, int], bool | None] = field(default_factory=dict)

    @property
    def is_gap(self) -> bool:
        """Whether it is a missing segment."""
        return not self.size


Preallocated = Callable[[int, int, int], bool]
"""Whether a segment (its base) from a byte and an offset on has preallocated space, and no more."""


def _never(*_: int) -> bool:
    return False


def find(
    path: str, flushed: int, allowed: int | None = None, cleaned: int | None = None,
    preallocated: Preallocated = _never,
) -> list[Stretch]:  # fmt: skip
    """Find the damaged stretches of a partition, in order.

    Args:
        path: the partition's directory, which no process may have open.
        flushed: the recovery point.
        allowed: offset up to which the last segment may have gaps; None: everywhere.
        cleaned: offset up to which segments may be missing; None: all.
        preallocated: tells space from damage.

    Raises:
        CorruptRecord: if there are messages of formats 0 or 1, which only mode `as-kafka` supports.
    """
    finder = _Finder(path, flushed, allowed, cleaned, preallocated)
    finder.run()
    return finder.stretches


def filler(stretch: Stretch) -> bytes:
    """Return the replacement of a stretch: an empty batch, and the markers that were in it.

    Raises:
        CorruptRecord: if there were more markers than the stretch has offsets.
    """
    first, last = stretch.first, stretch.last
    count = len(stretch.markers)
    if count and last - first + 1 < count:
        raise CorruptRecord(f"{count} markers are lost in only offsets {first} to {last}")
    lost = stretch.producer if not count else None
    empty = empty_batch(first, last - count, lost) if last - count >= first else b""
    made = bytearray(empty)
    for number, marker in enumerate(stretch.markers):
        made += _core.build_marker(
            marker.producer_id, marker.producer_epoch + 1, bool(marker.commit),
            timestamp=max(stretch.before_ms, 0), base_offset=last - count + 1 + number,
        ) if marker.data is None else _moved(marker.data, last - count + 1 + number)  # fmt: skip
    return bytes(made)


def empty_batch(first: int, last: int, lost: Lost | None = None) -> bytes:
    """Return a batch without records for a range of offsets, as compaction leaves them.

    Its leader epoch is -1.

    Args:
        first: the first offset.
        last: the last offset.
        lost: the producer whose sequences the batch keeps.
    """
    producer = (-1, -1, -1)
    attributes = 0
    if lost is not None:
        producer = lost.producer_id, lost.producer_epoch, lost.base_sequence
        attributes = _TRANSACTIONAL if lost.transactional else 0
    body = _BODY.pack(attributes, last - first, -1, -1, *producer, 0)
    return _HEAD.pack(first, len(body) + 9, -1, 2, _core.crc32c(body)) + body


def _moved(marker: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + marker[8:]


class _Finder:
    """One walk over a partition, including the batches after damage."""

    def __init__(
        self, path: str, flushed: int, allowed: int | None, cleaned: int | None,
        preallocated: Preallocated,
    ) -> None:  # fmt: skip
        self.stretches: list[Stretch] = []
        self._preallocated = preallocated
        self._cleaned = cleaned
        self._gap: Stretch | None = None  # the last one
        self._since: set[int] = set()  # producers with batches after it
        self._path, self._flushed, self._allowed = path, flushed, allowed
        self._open: dict[int, tuple[int, int]] = {}  # producer id: epoch, first offset
        # producer id: epoch, last sequence, whether transactional (a producer always is, or never)
        self._sequences: dict[int, tuple[int, int, bool]] = {}
        self._waiting: dict[int, Stretch] = {}  # open ones: first stretch since their last batch
        self._unconfirmed: dict[int, tuple[Stretch, Lost]] = {}
        self._records: list[int] = []
        self._count = 0
        self._latest = -1

    def run(self) -> None:
        bases = offsets_in(self._path, LOG)
        expected, behind, sizes = 0, 0, {}
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            data = kept_copies.bytes_of(file_path(self._path, base, LOG))
            sizes[base] = len(data)
            if number and self._cleaned is not None and base > max(expected, self._cleaned):
                self._gap = Stretch(base, 0, 0, expected, base - 1, self._latest)
                self._since = set()
                self._add(self._gap)
            expected = self._segment(data, base, max(expected, base), following)
        for stretch, before in zip(self.stretches, self._records, strict=True):
            stretch.records_after = self._count - before
            behind = sum(size for base, size in sizes.items() if base >= stretch.base)
            stretch.bytes_after = behind - stretch.position - stretch.size

    def _segment(
        self, data: bytes | mmap.mmap, base: int, expected: int, following: int | None
    ) -> int:
        position = 0
        while position < len(data):
            batch = _whole(data, position, expected, following)
            raised = batch is not None and following is None and self._raised(batch, expected)
            if batch is not None and not raised:
                self._fold(batch)
                position, expected = position + batch.size, batch.last_offset + 1
                continue
            self._refuse_legacy(base, position)
            if self._preallocated(base, position, expected):
                break
            found = _next_whole(data, position, expected, following)
            end = len(data) if found is None else found.position
            if found is not None:
                last = found.base_offset - 1
            elif following is not None:
                last = following - 1
            else:
                last = reached(self._path, (base, position, expected), self._flushed) - 1
            last = min(last, base + _LAST_DELTA)
            stretch = Stretch(base, position, end - position, expected, last, self._latest)
            stretch.after_ms = -1 if found is None else found.max_timestamp
            self._damaged(stretch, bytes(data[position : min(end, position + _MARKER_SIZE)]))
            position, expected = end, max(expected, last + 1)
        return expected

    def _raised(self, batch: _core.Batch, expected: int) -> bool:
        """Whether there is a gap before a batch of the last segment that is not allowed."""
        return self._allowed is not None and batch.base_offset > max(expected, self._allowed)

    def _refuse_legacy(self, base: int, position: int) -> None:
        name = file_path(self._path, base, LOG)
        segment = SegmentFiles(name, base)
        if legacy_messages.is_legacy(segment.data, position):
            try:
                found = next(segment.batches(position), None)
            except CorruptRecord:
                return
            if isinstance(found, legacy_messages.LegacyBatch) and found.valid:
                raise CorruptRecord(
                    "this mode does not support message formats 0 and 1; use mode 'as-kafka'",
                    path=name,
                    position=position,
                )

    def _fold(self, batch: _core.Batch) -> None:
        """Fold a valid batch: follow its producer, and confirm or find lost headers and markers."""
        self._latest = max(batch.max_timestamp, -1)
        if not batch.control:
            self._count += batch.count
        producer, epoch = batch.producer_id, batch.producer_epoch
        if producer < 0 or (batch.control and batch.control_type not in (0, 1)):
            return
        self._confirm(batch)
        if self._gap is not None and producer not in self._since:
            self._since.add(producer)
            self._first_after(self._gap, batch)
        before = self._open.get(producer)
        stretch = self._waiting.pop(producer, None)
        if before is not None and stretch is not None:
            # A marker has the epoch of its transaction, or the next one; later data has the next.
            same = before[0] + 1 >= epoch if batch.control else before[0] == epoch
            if not same:
                stretch.markers.append(Marker(producer, *before))
                before = None
        if batch.control:
            self._open.pop(producer, None)
            return
        if batch.transactional:
            first = before[1] if before is not None else batch.base_offset
            self._open[producer] = (epoch, first)
        if batch.base_sequence >= 0:
            self._sequences[producer] = (epoch, batch.last_sequence, batch.transactional)

    def _first_after(self, gap: Stretch, batch: _core.Batch) -> None:
        """Compare a producer's first batch after a gap with its last one before."""
        producer, epoch = batch.producer_id, batch.producer_epoch
        known, before = self._sequences.get(producer), self._open.get(producer)
        if batch.control:
            if before is None or before[0] + 1 < epoch:
                gap.began[producer, epoch] = batch.control_type == 1
            return
        follows = known is not None and known[:2] == (epoch, (batch.base_sequence - 1) & 0x7FFFFFFF)
        if before is not None and before[0] == epoch:
            if follows:
                gap.open.pop((producer, epoch), None)  # it lost nothing
        elif batch.transactional and batch.base_sequence > 0 and not follows:
            gap.began[producer, epoch] = None

    def _confirm(self, batch: _core.Batch) -> None:
        """Accept an earlier damaged header if this batch of the same producer follows it."""
        stretch, lost = self._unconfirmed.pop(batch.producer_id, (None, None))
        if stretch is None or lost is None or batch.control:
            return
        after = (lost.base_sequence + stretch.last - stretch.first + 1) & 0x7FFFFFFF
        if (batch.producer_epoch, batch.base_sequence) == (lost.producer_epoch, after):
            self._accept(stretch, lost, batch.transactional)

    def _accept(self, stretch: Stretch, lost: Lost, transactional: bool) -> None:
        lost = replace(lost, transactional=transactional)  # its own bit is not confirmed
        stretch.producer = lost
        last = (lost.base_sequence + stretch.last - stretch.first) & 0x7FFFFFFF
        self._sequences[lost.producer_id] = (lost.producer_epoch, last, transactional)
        if lost.transactional and lost.producer_id not in self._open:
            self._open[lost.producer_id] = (lost.producer_epoch, stretch.first)

    def _add(self, stretch: Stretch) -> None:
        self.stretches.append(stretch)
        self._records.append(self._count)
        stretch.open = {(p, epoch): first for p, (epoch, first) in self._open.items()}
        for producer in self._open:
            self._waiting.setdefault(producer, stretch)

    def _damaged(self, stretch: Stretch, data: bytes) -> None:
        self._add(stretch)
        room = stretch.last - stretch.first
        if stretch.size == _MARKER_SIZE and room >= 0:
            marker = _nearest_marker(data, stretch.open)
            if marker is not None:
                stretch.markers.append(marker)
                self._open.pop(marker.producer_id)
                self._waiting.pop(marker.producer_id)
                return
        if len(data) < _HEADER:
            return
        attributes, delta, _, _, producer, epoch, sequence, count = _BODY.unpack_from(
            data, _HEAD.size
        )
        known = self._sequences.get(producer)
        if producer >= 0 and attributes & _TRANSACTIONAL and (known is None or known[2]):
            stretch.header = producer, epoch
        if (delta, count) != (room, room + 1):
            return
        if (producer, epoch, sequence) == (-1, -1, -1):
            stretch.plain = True
        elif producer >= 0 and epoch >= 0 and sequence >= 0:
            lost = Lost(producer, epoch, sequence, bool(attributes & _TRANSACTIONAL))
            if known is not None and known[:2] == (epoch, (sequence - 1) & 0x7FFFFFFF):
                self._accept(stretch, lost, known[2])
            else:
                self._unconfirmed[producer] = stretch, lost


def _whole(
    data: bytes | mmap.mmap, position: int, expected: int, following: int | None
) -> _core.Batch | None:
    """Return the batch at a byte, if it is valid and its offsets are possible."""
    batch = _batch_at(data, position)
    if batch is None or fault_of(batch) or batch.base_offset < expected:
        return None
    if following is not None and batch.last_offset >= following:
        return None
    if batch.base_offset > expected:
        after = _batch_at(data, position + batch.size)
        least = expected + batch.last_offset - batch.base_offset + 1
        if (
            after is not None
            and least <= after.base_offset <= batch.last_offset
            and fault_of(after) is None
        ):
            return None
    try:
        batch.records()
    except CorruptRecord:
        return None
    return batch


def _batch_at(data: bytes | mmap.mmap, position: int) -> _core.Batch | None:
    try:
        found = _core.iter_batches(data, position, strict=False, limit=1)
    except CorruptRecord:
        return None
    return found[0] if found and isinstance(found[0], _core.Batch) else None


def _next_whole(
    data: bytes | mmap.mmap, position: int, expected: int, following: int | None
) -> _core.Batch | None:
    """Return the first valid batch after a damaged byte, if any."""
    at = position + 1
    while (found := valid_batch_after(data, expected - 1, at)) is not None:
        batch = _whole(data, found, expected, following)
        if batch is not None:
            return batch
        at = found + 1
    return None


def _nearest_marker(data: bytes, open_here: dict[tuple[int, int], int]) -> Marker | None:
    """Return the marker of an open transaction that damaged bytes were, if only one matches."""
    coordinator = int.from_bytes(data[_COORDINATOR_AT : _COORDINATOR_AT + 4], "big", signed=True)
    times = {t for t in struct.unpack_from(">qq", data, 27) if t >= -1}
    found = []
    for (producer, epoch), first in open_here.items():
        for ended in (epoch, epoch + 1):
            for commit in (False, True):
                for time in times:
                    made = _core.build_marker(
                        producer, ended, commit, coordinator_epoch=coordinator, timestamp=time
                    )
                    crc = data[_CRC_AT:_SUMMED_FROM] == made[_CRC_AT:_SUMMED_FROM]
                    if crc or data[_SUMMED_FROM:] == made[_SUMMED_FROM:]:
                        found.append(Marker(producer, epoch, first, commit, made))
    return found[0] if len(found) == 1 else None
