"""Recovery of a partition directory as a Kafka broker does it at its start after an unclean stop.

Every segment from the recovery point on is read batch by batch, the log is cut at the first one
that is not valid, later segments are deleted, indexes are written anew and producer snapshots taken
on the way. The outcome is Kafka's own, as measured: logs and indexes byte for byte, snapshots entry
for entry. So a bad batch costs the valid ones behind it, which a broker would fetch from a replica.
eoslog's own recovery (`log_loader.py`) never does that.

What a crash in here leaves is recovered by the next run: nothing is changed but what Kafka's
recovery would change again. A log that is hard-linked elsewhere is copied before it is cut.

Source: Kafka LogLoader, LogSegment.recover, ProducerStateManager.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.model import Problem
from eoslog.storage import checkpoints, files, segment_files
from eoslog.storage.kafka_producers import ProducerStates
from eoslog.storage.segment_files import SegmentFiles
from eoslog.storage.segment_swap import finish_renames

__all__ = ["Recovered", "recover"]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LEGACY = struct.Struct(">qiIbbq")
_OVERHEAD, _TO_MAGIC, _HEADER_SIZE = 12, 17, 61
_SMALLEST = 14  # of any format's length field
_OFFSET_ENTRY, _TIME_ENTRY, _ABORTED = (
    struct.Struct(">ii"),
    struct.Struct(">qi"),
    struct.Struct(">hqqqq"),
)
_FAR = (1 << 31) - 1
_NO_TIME = -1
_CONTROL, _TRANSACTIONAL = 0x20, 0x10


class Header(NamedTuple):
    """What recovery needs of a batch of any format."""

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int = -1
    attributes: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    last_sequence: int = -1


@dataclass
class Recovered:
    """What became of a partition.

    Attributes:
        log_start, log_end: offsets.
        bytes_cut: from the segment that was damaged, and with the segments behind it.
        problems: one for each thing that was cut or made anew.
    """

    log_start: int
    log_end: int
    bytes_cut: int = 0
    problems: list[Problem] = field(default_factory=list)


def recover(
    path: str,
    *,
    recovery_point: int = 0,
    log_start: int = 0,
    clean: bool = False,
    index_interval: int = 4096,
    expire_before_ms: int | None = None,
) -> Recovered:
    """Recover a partition directory in place.

    Args:
        path: the directory; nobody has it open.
        recovery_point: offset from the checkpoint file, 0 where there is none.
        log_start: the same.
        clean: the broker stopped cleanly: only segments without an index are looked into.
        index_interval: bytes, the topic's index.interval.bytes.
        expire_before_ms: a producer without an open transaction whose last record is at least this
            old is forgotten when a snapshot is loaded: now minus producer.id.expiration.ms. None
            forgets nobody.

    Raises:
        StorageError: a file cannot be read or written.
    """
    return _Recovery(path, log_start, index_interval, expire_before_ms).run(recovery_point, clean)


class _Recovery:
    def __init__(
        self, path: str, log_start: int, index_interval: int, expire_before_ms: int | None
    ) -> None:
        self.path = path
        self.log_start = log_start
        self.index_interval = index_interval
        self.expire_before_ms = expire_before_ms
        self.epochs = _leader_epochs(path)
        self.report = Recovered(log_start, 0)
        self.loaded: list[int] = []

    def run(self, recovery_point: int, clean: bool) -> Recovered:
        finish_renames(self.path, as_kafka=True)
        bases = self._bases()
        for base in bases:
            self._load(base)
        if not clean:
            floor = max((b for b in bases if b <= recovery_point), default=bases[0] if bases else 0)
            todo = [b for b in bases if b >= floor]
            for i, base in enumerate(todo):
                if self._recover_segment(base):
                    self._delete_segments(todo[i + 1 :])
                    break
        end = self._end()
        if self.loaded and end < self.log_start:
            self._delete_segments(self.loaded)
            self.epochs.clear()
            ProducerStates(self.path, self.expire_before_ms).remove_all()
        if not self.loaded:
            self._make_segment(self.log_start)
            end = self.log_start
        self._cut_epochs(end)
        states = ProducerStates(self.path, self.expire_before_ms)
        states.remove_strays(self.loaded)
        start = max(self.log_start, self.loaded[0])
        if clean and states.empty:
            for offset in sorted({*self.loaded[-2:], end}):
                states.map_end = offset
                states.take_snapshot()
        else:
            self._rebuild(states, start, end)
        files.fsync_dir(self.path)
        self.report.log_start, self.report.log_end = start, end
        return self.report

    # --- segments -------------------------------------------------------------------------------

    def _bases(self) -> list[int]:
        return sorted(
            offset
            for name in files.names(self.path)
            if name.endswith(".log") and (offset := segment_files.offset_of_name(name)) is not None
        )

    def _file(self, base: int, suffix: str) -> str:
        return os.path.join(self.path, f"{base:020}.{suffix}")

    def _bytes(self, base: int) -> memoryview:
        return SegmentFiles(self._file(base, "log"), base).data.data

    def _problem(self, base: int, suffix: str, position: int, message: str) -> None:
        self.report.problems.append(Problem(self._file(base, suffix), position, message))

    def _load(self, base: int) -> None:
        """Open a segment as every start does: it is recovered now if its indexes say nothing."""
        reason = None
        if not os.path.exists(self._file(base, "index")):
            reason = "there is no offset index"
        else:
            if not os.path.exists(self._file(base, "timeindex")):
                files.write_file(self._file(base, "timeindex"), b"")
            try:
                entries = segment_files.read_txn_index(self._file(base, "txnindex"))
                if any(entry.last_offset < base for entry in entries):
                    reason = "the transaction index speaks of offsets before its segment"
            except CorruptRecord as error:
                reason = str(error)
        if reason is not None:
            self._problem(base, "index", 0, f"{reason}: the segment's indexes are made anew")
            self._recover_segment(base)
        self.loaded.append(base)

    def _recover_segment(self, base: int) -> bool:
        """Check one segment and write its indexes; True when bytes had to go."""
        states = ProducerStates(self.path, self.expire_before_ms)
        self._rebuild(states, self.log_start, base)
        path = self._file(base, "log")
        size = os.path.getsize(path)
        index, time_index, aborted = bytearray(), bytearray(), bytearray()
        used = indexed_at = 0
        last_indexed = base - 1
        latest, latest_offset = _NO_TIME, -1
        last_time, last_time_offset = _NO_TIME, base
        reason = None
        data = self._bytes(base)
        try:
            for header in self._headers(data):
                if not 0 <= header.last_offset - base <= _FAR:
                    reason = f"offset {header.last_offset} cannot lie in a segment of base {base}"
                    break
                if header.max_timestamp > latest:
                    latest, latest_offset = header.max_timestamp, header.last_offset
                if used - indexed_at > self.index_interval:
                    if header.last_offset <= last_indexed or (
                        time_index and latest_offset < last_time_offset
                    ):
                        used = 0  # a broker empties a segment whose offsets go back
                        index, time_index, aborted = bytearray(), bytearray(), bytearray()
                        reason = f"offset {header.last_offset} after {last_indexed}"
                        break
                    index += _OFFSET_ENTRY.pack(header.last_offset - base, used)
                    last_indexed = header.last_offset
                    if latest > last_time:
                        time_index += _TIME_ENTRY.pack(latest, latest_offset - base)
                        last_time, last_time_offset = latest, latest_offset
                    indexed_at = used
                used += header.size
                if header.magic >= 2:
                    if header.leader_epoch > (self.epochs[-1][0] if self.epochs else -1):
                        self._assign_epoch(header.leader_epoch, header.base_offset)
                    entry = states.apply(
                        header, data[header.position : header.position + header.size]
                    )
                    if entry is not None:
                        aborted += _ABORTED.pack(0, *entry)
        except CorruptRecord as error:
            reason = str(error)
        finally:
            data.release()
        if used and latest > last_time:
            time_index += _TIME_ENTRY.pack(latest, latest_offset - base)
        if used < size:
            self._problem(base, "log", used, reason or f"{size - used} bytes are no whole batch")
            self.report.bytes_cut += size - used
            self._cut(path, used)
        self._settle(self._file(base, "index"), bytes(index))
        self._settle(self._file(base, "timeindex"), bytes(time_index))
        if aborted or os.path.exists(self._file(base, "txnindex")):
            self._settle(self._file(base, "txnindex"), bytes(aborted))
        states.take_snapshot()
        return used < size

    def _headers(self, data: memoryview) -> Iterator[Header]:
        """The batches of a segment with their checksums right.

        Raises:
            CorruptRecord: at the first one that is not; a partial one ends the walk silently.
        """
        position, end = 0, len(data)
        while end - position > _TO_MAGIC:
            header = header_at(data, position, end)
            if header is None:
                return
            check_crc(data, header)
            yield header
            position += header.size

    def _delete_segments(self, bases: list[int]) -> None:
        for base in list(bases):
            self.report.bytes_cut += os.path.getsize(self._file(base, "log"))
            self._problem(base, "log", 0, "it lies behind a cut: the segment is deleted")
            for suffix in ("log", "index", "timeindex", "txnindex", "snapshot"):
                files.remove(self._file(base, suffix))
            self.loaded.remove(base)

    def _make_segment(self, base: int) -> None:
        for suffix in ("log", "index", "timeindex"):
            files.write_file(self._file(base, suffix), b"")
        self.loaded.append(base)

    def _end(self) -> int:
        """The offset after the last batch of the last segment; its base where it has none."""
        if not self.loaded:
            return self.log_start
        end = base = self.loaded[-1]
        data = self._bytes(base)
        position = 0
        while len(data) - position > _TO_MAGIC:
            try:
                header = header_at(data, position, len(data))
            except CorruptRecord:
                break
            if header is None:
                break
            end = header.last_offset + 1
            position += header.size
        return end

    def _cut(self, path: str, size: int) -> None:
        files.own(path)
        fd = files.open_file(path)
        try:
            with files.naming(path):
                _core.os_truncate(fd, size)
                _core.os_sync(fd, data_only=False)
        finally:
            files.close(fd)

    def _settle(self, path: str, content: bytes) -> None:
        try:
            if files.read_file(path) == content:
                return
        except FileNotFoundError:
            pass
        files.own(path)
        files.write_file(path, content, durable=True)

    # --- leader epochs and producers ------------------------------------------------------------

    def _assign_epoch(self, epoch: int, start: int) -> None:
        self.epochs = [e for e in self.epochs if e[0] < epoch and e[1] < start]
        self.epochs.append((epoch, start))

    def _cut_epochs(self, end: int) -> None:
        kept = [entry for entry in self.epochs if entry[1] < end]
        before = [entry for entry in kept if entry[1] <= self.log_start]
        if before and self.log_start > 0:
            kept = [(before[-1][0], self.log_start), *kept[len(before) :]]
        if kept != _leader_epochs(self.path):
            path = os.path.join(self.path, checkpoints.LEADER_EPOCH_CHECKPOINT)
            checkpoints.write_leader_epochs(path, kept)

    def _rebuild(self, states: ProducerStates, start: int, end: int) -> None:
        """Load the newest snapshot up to an offset and replay the log from there to it."""
        wanted = set(self.loaded[-2:])
        states.load(start, end)
        if end > states.map_end and self.loaded:  # a log that begins behind 0 starts with none
            following = [*self.loaded[1:], None]
            for base, after in zip(self.loaded, following, strict=True):
                if base >= end or (after is not None and after <= states.map_end):
                    continue
                states.map_end = max(base, states.map_end, start)
                if base in wanted:
                    states.take_snapshot()
                self._replay(states, base, end)
        states.map_end = end
        states.take_snapshot()

    def _replay(self, states: ProducerStates, base: int, end: int) -> None:
        data = self._bytes(base)
        begin, position = states.map_end, 0
        while len(data) - position > _TO_MAGIC:
            try:
                header = header_at(data, position, len(data))
            except CorruptRecord:
                return
            if header is None or header.base_offset >= end:
                return
            if header.last_offset >= begin and header.magic >= 2:
                states.apply(header, data[position : position + header.size])
            position += header.size


def header_at(data: memoryview, position: int, end: int) -> Header | None:
    """The header of the batch or message at a position; None where a partial one ends the data.

    Raises:
        CorruptRecord: a length that none can have.
    """
    base, length = struct.unpack_from(">qi", data, position)
    if length < _SMALLEST:
        raise CorruptRecord(f"batch length {length} is less than {_SMALLEST}", position=position)
    size = length + _OVERHEAD
    if size > end - position:
        return None
    magic = struct.unpack_from(">b", data, position + _TO_MAGIC - 1)[0]
    if magic < 2:
        time = _NO_TIME
        if magic == 1 and size >= _LEGACY.size:
            time = struct.unpack_from(">q", data, position + 18)[0]
        return Header(position, size, magic, base, base, time)
    if size < _HEADER_SIZE:
        raise CorruptRecord(f"batch of {size} bytes is shorter than its header", position=position)
    (
        base, _, leader_epoch, magic, _, attributes, delta, _, latest, producer_id, epoch,
        sequence, _,
    ) = _HEADER.unpack_from(data, position)  # fmt: skip
    last_sequence = -1 if sequence < 0 else (sequence + delta) & 0x7FFFFFFF
    return Header(
        position, size, magic, base, base + delta, latest, leader_epoch, attributes, producer_id,
        epoch, last_sequence,
    )  # fmt: skip


def check_crc(data: memoryview, header: Header) -> None:
    """Raise CorruptRecord where the checksum does not match."""
    whole = data[header.position : header.position + header.size]
    if header.magic >= 2:
        stored, actual = struct.unpack_from(">I", whole, 17)[0], _core.crc32c(whole[21:])
    else:
        stored, actual = struct.unpack_from(">I", whole, 12)[0], zlib.crc32(whole[16:])
    if stored != actual:
        raise CorruptRecord(
            f"CRC {actual:#010x} of the bytes differs from the stored {stored:#010x}",
            position=header.position,
        )


def _leader_epochs(path: str) -> list[tuple[int, int]]:
    try:
        return checkpoints.read_leader_epochs(
            os.path.join(path, checkpoints.LEADER_EPOCH_CHECKPOINT)
        )
    except CorruptRecord:
        return []
