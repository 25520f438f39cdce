"""Recovery of a partition directory as a Kafka broker does it at its start after an unclean stop.

Every segment from the recovery point on is read batch by batch. The log is truncated at the first
invalid batch, later segments are deleted, indexes are rebuilt, and producer snapshots are written.
The result is the same as Kafka's: logs and indexes byte for byte, snapshots entry for entry. So a
bad batch costs the valid batches after it, which a broker would fetch from a replica. eoslog's own
recovery (`storage/log/loader.py`) never removes durable batches.

After a crash, the next run recovers the partition, because only files are changed that Kafka's
recovery would change again. A hard-linked log file is copied before it is truncated.

Source: Kafka LogLoader, LogSegment.recover, ProducerStateManager.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.reports import Problem
from eoslog.storage.broker.headers import TO_MAGIC, Header, check_crc, header_at
from eoslog.storage.broker.producers import ProducerStates
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.segment import kept_copies, segment_files
from eoslog.storage.segment.replacement import finish_renames
from eoslog.storage.segment.segment_files import SegmentFiles

__all__ = ["Recovered", "recover"]

_OFFSET_ENTRY, _TIME_ENTRY, _ABORTED = (
    struct.Struct(">ii"),
    struct.Struct(">qi"),
    struct.Struct(">hqqqq"),
)
_FAR = (1 << 31) - 1
_NO_TIME = -1


@dataclass
class Recovered:
    """The result of a partition's recovery.

    Attributes:
        log_start, log_end: offsets.
        bytes_cut: bytes removed from the damaged segment, and with later segments.
        problems: one for each file that was truncated, deleted or rebuilt.
        kept: paths of the copies of removed bytes.
    """

    log_start: int
    log_end: int
    bytes_cut: int = 0
    problems: list[Problem] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def recover(
    path: str,
    *,
    recovery_point: int = 0,
    log_start: int = 0,
    clean: bool = False,
    index_interval: int = 4096,
    expire_before_ms: int | None = None,
    keep_ms: int | None = None,
) -> Recovered:
    """Recover a partition directory in place.

    Args:
        path: the directory, which no process may have open.
        recovery_point: offset from the checkpoint file, 0 if there is none.
        log_start: offset from the checkpoint file, 0 if there is none.
        clean: whether the broker stopped cleanly; then only segments without an index are read.
        index_interval: the topic's index.interval.bytes.
        expire_before_ms: loading a snapshot drops producers without an open transaction whose last
            record is not newer: now minus producer.id.expiration.ms. None drops none.
        keep_ms: wall clock time in ms, for the names of copies of removed bytes (`kept_copies.py`);
            None keeps none, as a broker does.

    Raises:
        StorageError: if a file cannot be read or written.
    """
    recovery = _Recovery(path, log_start, index_interval, expire_before_ms, keep_ms)
    return recovery.run(recovery_point, clean)


class _Recovery:
    def __init__(
        self,
        path: str,
        log_start: int,
        index_interval: int,
        expire_before_ms: int | None,
        keep_ms: int | None,
    ) -> None:
        self.path = path
        self.log_start = log_start
        self.index_interval = index_interval
        self.expire_before_ms = expire_before_ms
        self.keep_ms = keep_ms
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
        """Load a segment as every start does, and recover it if an index is missing or invalid."""
        reason = None
        if not os.path.exists(self._file(base, "index")):
            reason = "there is no offset index"
        else:
            if not os.path.exists(self._file(base, "timeindex")):
                files.write_file(self._file(base, "timeindex"), b"")
            try:
                entries = segment_files.read_txn_index(self._file(base, "txnindex"))
                if any(entry.last_offset < base for entry in entries):
                    reason = "the transaction index has entries of offsets before its segment"
            except CorruptRecord as error:
                reason = str(error)
        if reason is not None:
            self._problem(base, "index", 0, f"{reason}; the segment's indexes are rebuilt")
            self._recover_segment(base)
        self.loaded.append(base)

    def _recover_segment(self, base: int) -> bool:
        """Check one segment and write its indexes. Returns whether bytes were removed."""
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
                    reason = f"offset {header.last_offset} cannot be in a segment of base {base}"
                    break
                if header.max_timestamp > latest:
                    latest, latest_offset = header.max_timestamp, header.last_offset
                if used - indexed_at > self.index_interval:
                    if header.last_offset <= last_indexed or (
                        time_index and latest_offset < last_time_offset
                    ):
                        used = 0  # a broker empties a segment whose offsets do not rise
                        index, time_index, aborted = bytearray(), bytearray(), bytearray()
                        reason = f"offset {header.last_offset} follows {last_indexed}"
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
            self._problem(
                base, "log", used, reason or f"{size - used} bytes are not a complete batch"
            )
            self.report.bytes_cut += size - used
            if self.keep_ms is not None:
                self._note(kept_copies.keep(self.path, base, used, None, self.keep_ms))
            self._cut(path, used)
        self._settle(self._file(base, "index"), bytes(index))
        self._settle(self._file(base, "timeindex"), bytes(time_index))
        if aborted or os.path.exists(self._file(base, "txnindex")):
            self._settle(self._file(base, "txnindex"), bytes(aborted))
        states.take_snapshot()
        return used < size

    def _headers(self, data: memoryview) -> Iterator[Header]:
        """Yield the valid batches of a segment, up to an incomplete one.

        Raises:
            CorruptRecord: at the first invalid batch.
        """
        position, end = 0, len(data)
        while end - position > TO_MAGIC:
            header = header_at(data, position, end)
            if header is None:
                return
            check_crc(data, header)
            yield header
            position += header.size

    def _delete_segments(self, bases: list[int]) -> None:
        for base in list(bases):
            self.report.bytes_cut += os.path.getsize(self._file(base, "log"))
            self._problem(
                base, "log", 0, "the log is truncated before this segment; the segment is deleted"
            )
            if self.keep_ms is not None:
                self._note(kept_copies.set_aside(self.path, base, self.keep_ms))
            for suffix in ("log", "index", "timeindex", "txnindex", "snapshot"):
                files.remove(self._file(base, suffix))
            self.loaded.remove(base)

    def _note(self, copy: str | None) -> None:
        if copy is not None:
            self.report.kept.append(copy)

    def _make_segment(self, base: int) -> None:
        for suffix in ("log", "index", "timeindex"):
            files.write_file(self._file(base, suffix), b"")
        self.loaded.append(base)

    def _end(self) -> int:
        """Return the offset after the last batch of the last segment, or its base."""
        if not self.loaded:
            return self.log_start
        end = base = self.loaded[-1]
        data = self._bytes(base)
        position = 0
        while len(data) - position > TO_MAGIC:
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
        """Load the newest snapshot up to an offset, and replay the log from the snapshot on."""
        wanted = set(self.loaded[-2:])
        states.load(start, end)
        if end > states.map_end and self.loaded:  # no producers before the log start
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
        while len(data) - position > TO_MAGIC:
            try:
                header = header_at(data, position, len(data))
            except CorruptRecord:
                return
            if header is None or header.base_offset >= end:
                return
            if header.last_offset >= begin and header.magic >= 2:
                states.apply(header, data[position : position + header.size])
            position += header.size


def _leader_epochs(path: str) -> list[tuple[int, int]]:
    try:
        return checkpoints.read_leader_epochs(
            os.path.join(path, checkpoints.LEADER_EPOCH_CHECKPOINT)
        )
    except CorruptRecord:
        return []
