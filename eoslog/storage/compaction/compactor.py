"""Log compaction as in Kafka: the last record of each key stays, and offsets never change.

    clean                     dirty                      not cleanable
    [seg 0][seg 1]            [seg 2][seg 3]             [seg 4][active]
    ^ log start               ^ checkpoint               ^ last stable offset, lag, active segment

A pass reads the dirty segments into a map of key -> last offset. It then rewrites all segments up
to the map's end, in groups that become one segment each. It does not read the active segment, nor
anything from the last stable offset or a coordinator's bound on.

| batch | result |
|---|---|
| aborted data | removed |
| data | keeps the records without a later one in the map, and tombstones until their horizon |
| marker, with data of its transaction, or a snapshot in which that is open | stays |
| marker, without data of its transaction | gets a delete horizon; a later pass removes it |
| last batch of a known producer, last batch of a group | stays, as an empty batch if necessary |

Source: Kafka Cleaner, KIP-58, KIP-354, KIP-534.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from eoslog import _core
from eoslog.errors import CorruptRecord, EoslogError
from eoslog.storage.compaction.cleaned_segment import CleanedSegment
from eoslog.storage.compaction.cleaned_transactions import CleanedTransactions
from eoslog.storage.fs import files
from eoslog.storage.log.segment_swap import swap_in
from eoslog.storage.log.settings import FOR_EVER
from eoslog.storage.segment.producer_snapshots import open_transactions_at
from eoslog.storage.segment.segment import LOG, TXN_INDEX, file_path
from eoslog.storage.segment.segment_files import AbortedEntry, read_txn_index

if TYPE_CHECKING:
    from eoslog.storage.log.partition_log import PartitionLog

MAP_MEMORY = 128 << 20
"""Limit of the key map in bytes (`log.cleaner.dedupe.buffer.size`); one segment always fits."""
_WINDOW = 8 << 20
_MAX_SPAN = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Plan:
    """The part of a partition that can be cleaned; sizes in bytes.

    Attributes:
        bases: bases of the segments from the log start up to `end`.
        sizes: sizes of these segments.
        dirty_start: first offset that no pass has read.
        end: first offset that must not be cleaned, the base of a segment.
        due: whether the dirty ratio or the largest lag requires a pass.
    """

    bases: tuple[int, ...]
    sizes: tuple[int, ...]
    dirty_start: int
    end: int
    due: bool

    @property
    def dirty_bytes(self) -> int:
        """The size of the segments that no pass has read."""
        return sum(s for b, s in zip(self.bases, self.sizes, strict=True) if b >= self.dirty_start)

    @property
    def dirty_ratio(self) -> float:
        """The share of dirty bytes in the segments that can be cleaned."""
        return self.dirty_bytes / max(sum(self.sizes), 1)


@dataclass(slots=True)
class Cleaned:
    """The result of a pass: `end` is the next pass's `dirty_start`; sizes in bytes."""

    end: int
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    segments_before: int = 0
    segments_after: int = 0
    keys: int = 0
    map_memory: int = field(default=0, repr=False)


def plan(log: PartitionLog, dirty_start: int, now_ms: int, bound: int | None = None) -> Plan:
    """Find the segments that can be cleaned now.

    Args:
        log: the partition.
        dirty_start: the cleaner's checkpoint; if out of range, the log start is used.
        now_ms: wall clock time in ms.
        bound: offset from which on a coordinator still needs every record.
    """
    settings = log.settings
    end = min(log.stable_end, log.durable_end, log.log_end)
    end = end if bound is None else min(end, bound)
    active = log.core.active_base
    listed = [*(base for base in log.segments.bases() if base < active), active]
    bases: list[int] = []
    stop = listed[0]
    for base, following in pairwise(listed):
        if following > end:
            break
        largest = _largest_timestamp(log, base)
        if settings.min_compaction_lag_ms and largest > now_ms - settings.min_compaction_lag_ms:
            break
        bases.append(base)
        stop = following
    if not bases or not bases[0] <= dirty_start <= log.log_end:
        dirty_start = listed[0]
    # No longer the base of a segment, if a pass died between its last swap and its checkpoint.
    dirty_start = max((base for base in listed if base <= dirty_start), default=dirty_start)
    by_base = log.segments.sizes()
    sizes = [by_base.get(base, 0) for base in bases]
    found = Plan(tuple(bases), tuple(sizes), dirty_start, stop, False)
    due = found.dirty_bytes > 0 and found.dirty_ratio > settings.min_cleanable_dirty_ratio
    if not due and found.dirty_bytes and settings.max_compaction_lag_ms < FOR_EVER:
        oldest = min(
            _first_timestamp(log, base, following)
            for base, following in pairwise([*bases, stop])
            if base >= dirty_start
        )
        due = 0 <= oldest < now_ms - settings.max_compaction_lag_ms
    return Plan(found.bases, found.sizes, dirty_start, stop, due)


def _largest_timestamp(log: PartitionLog, base: int) -> int:
    largest = log.reader.derived.largest_timestamp(base)
    if largest >= 0:
        return largest
    path = log.segment(base).path()
    with files.naming(path):
        return int(os.stat(path).st_mtime * 1000)


def _first_timestamp(log: PartitionLog, base: int, following: int) -> int:
    for batch in _batches(log.path, base, following):
        return int(batch.max_timestamp)
    return -1


class CleaningStopped(EoslogError):
    """The directory is being closed; the current group of segments stays unchanged."""


def compact(
    log: PartitionLog,
    found: Plan,
    now_ms: int,
    *,
    memory: int = MAP_MEMORY,
    stop: threading.Event | None = None,
) -> Cleaned:
    """Run one pass; the caller holds the partition's cleaner lock.

    Args:
        log: the partition.
        found: result of `plan`, under the same lock.
        now_ms: wall clock time in ms, for horizons.
        memory: limit of the key map in bytes.
        stop: checked before each batch.

    Raises:
        CleaningStopped: if `stop` was set.
        CorruptRecord: if a batch does not match its CRC or does not parse. This group and the
            following ones stay unchanged.
        DiskFull, StorageError: if a file operation fails, with the same effect.

    Durability: new segments are durable; a crash leaves each group entirely old or new.
    """
    transactions = CleanedTransactions(_aborted_entries(log))
    offsets, end = _read_keys(log, found, transactions, memory, stop)
    result = Cleaned(end, keys=len(offsets), map_memory=offsets.memory)
    if end == (found.bases[0] if found.bases else end):
        return result
    bases = [base for base in found.bases if base < end]
    bounds = dict(pairwise([*bases, end]))
    sizes = dict(zip(found.bases, found.sizes, strict=True))
    # The sum must fit into 64 bits, even if the retention is the largest value.
    horizon = (now_ms, min(log.settings.delete_retention_ms, FOR_EVER - now_ms))
    last = _last_of_producers(log)
    for group in _groups(log, bases, sizes, bounds):
        files.failpoint("clean.group")
        _rewrite(log, group, bounds[group[-1]], offsets, transactions, last, horizon, result, stop)
        log.segments.outdate()
    return result


def _go_on(log: PartitionLog, stop: threading.Event | None) -> None:
    log.context.check_not_deleted()
    if stop is not None and stop.is_set():
        raise CleaningStopped(f"{log.name}: cleaning was stopped")


def _aborted_entries(log: PartitionLog) -> list[AbortedEntry]:
    entries: list[AbortedEntry] = []
    for base in log.segments.bases():
        if log.segments.sealed(base):
            rows = struct.iter_unpack(">hqqqq", log.reader.derived.of(base).abort_index())
            entries += [AbortedEntry(*row[1:]) for row in rows]
        else:
            entries += read_txn_index(log.segment(base).path(TXN_INDEX))
    return [entry for entry in entries if entry.last_offset < log.durable_end]


def _read_keys(
    log: PartitionLog,
    found: Plan,
    transactions: CleanedTransactions,
    memory: int,
    stop: threading.Event | None,
) -> tuple[_core.OffsetMap, int]:
    """Return the key map of as many dirty segments as fit, and the offset where it ends."""
    offsets = _core.OffsetMap()
    end = min(found.dirty_start, found.end)
    for base, following in pairwise([*found.bases, found.end]):
        if base < found.dirty_start:
            continue
        if len(offsets) and offsets.memory >= memory:
            break
        for batch in _batches(log.path, base, following):
            _go_on(log, stop)
            if batch.control or batch.count == 0:
                continue
            if batch.transactional and transactions.is_aborted(batch):
                continue
            offsets.add(batch)
        end = following
    return offsets, end


def _batches(path: str, base: int, following: int) -> Iterator[_core.Batch]:
    """Yield every batch of a sealed segment, checking its CRC and its place.

    The CRC does not cover the base offset. The batch must begin after the batch before it, and end
    before the next segment, whose base is `following`.
    """
    name = file_path(path, base, LOG)
    with files.naming(name):
        size = files.size(name)
        if size == 0:
            return
        data = np.memmap(name, dtype=np.uint8, mode="r", shape=(size,))
    position, expected = 0, base
    window = _WINDOW
    while position < size:
        try:
            batches = _core.iter_batches(data, position, min(size, position + window), strict=False)
        except CorruptRecord as error:
            raise CorruptRecord(f"{name}: {error}") from error
        if not batches:
            if position + window >= size:
                raise CorruptRecord(
                    f"{name}: the last {size - position} bytes, from position {position}, "
                    "are not a complete batch; run `eoslog repair`"
                )
            window *= 4
            continue
        for batch in batches:
            if not batch.valid:
                raise CorruptRecord(
                    f"{name}: the batch at position {batch.position}, offset {batch.base_offset}, "
                    "does not match its CRC; run `eoslog repair`"
                )
            if batch.base_offset < expected or batch.last_offset >= following:
                raise CorruptRecord(
                    f"{name}: the batch at position {batch.position} has offsets "
                    f"{batch.base_offset} to {batch.last_offset}, expected {expected} or more and "
                    f"the segment's end below {following}; run `eoslog repair`"
                )
            expected = batch.last_offset + 1
            yield batch
        position = batches[-1].position + batches[-1].size


def _last_of_producers(log: PartitionLog) -> dict[int, tuple[int, int]]:
    """Return {producer id: (epoch, last data offset or -1)} of all producers of the partition."""
    log.fold()
    _, entries = log.core.export_producers()
    return {
        producer: (epoch, last)
        for producer, epoch, _, last, *_ in struct.iter_unpack(">qhiqiqiq", entries)
    }


def _groups(
    log: PartitionLog, bases: list[int], sizes: dict[int, int], bounds: dict[int, int]
) -> list[list[int]]:
    """Return groups of segments that become one segment each, within the size limit."""
    limit = log.settings.segment_bytes
    entries = max(log.settings.segment_index_bytes // 12 - 1, 1)
    groups: list[list[int]] = []
    size = 0
    for base in bases:
        fits = (
            bool(groups)
            and size + sizes[base] <= limit
            and (size + sizes[base]) // max(log.settings.index_interval_bytes, 1) < entries
            and bounds[base] - 1 - groups[-1][0] <= _MAX_SPAN
        )
        if fits:
            groups[-1].append(base)
            size += sizes[base]
        else:
            groups.append([base])
            size = sizes[base]
    return groups


def _rewrite(
    log: PartitionLog,
    group: list[int],
    end: int,
    offsets: _core.OffsetMap,
    transactions: CleanedTransactions,
    last_of: dict[int, tuple[int, int]],
    horizon: tuple[int, int],
    result: Cleaned,
    stop: threading.Event | None,
) -> None:
    now, retention = horizon
    transactions.begin(open_transactions_at(log.path, group[0]))
    with CleanedSegment(log.path, group[0], log.settings.index_interval_bytes) as out:
        for base, following in pairwise([*group, end]):
            for batch in _batches(log.path, base, following):
                _go_on(log, stop)
                result.bytes_before += batch.size
                result.records_before += batch.count
                kept = _is_last(batch, last_of) or batch.last_offset + 1 == end
                if batch.control:
                    data = _marker(batch, transactions, out, now, retention)
                else:
                    data = _data(batch, transactions, offsets, now, retention)
                if data is None and kept:
                    data = _core.empty_batch(batch)
                if data is not None:
                    records = int.from_bytes(data[57:61], "big")
                    stamp = int.from_bytes(data[35:43], "big", signed=True) if records else -1
                    out.append(data, batch.last_offset, stamp)
                    result.records_after += records
        out.finish()
        result.bytes_after += out.size
        result.segments_before += len(group)
        result.segments_after += 1
    swap_in(log, group[0], group, end)


def _is_last(batch: _core.Batch, last_of: dict[int, tuple[int, int]]) -> bool:
    """Whether this batch is the last one with a producer's state."""
    known = last_of.get(batch.producer_id)
    if known is None:
        return False
    epoch, last_offset = known
    if last_offset >= 0:
        return last_offset == batch.last_offset
    return batch.control and batch.producer_epoch == epoch


def _data(
    batch: _core.Batch,
    transactions: CleanedTransactions,
    offsets: _core.OffsetMap,
    now: int,
    retention: int,
) -> bytes | None:
    if batch.transactional and transactions.data(batch):
        return None
    if batch.count == 0:
        return None
    count, data = offsets.rewrite(batch, now, retention)
    return data if data is not None or count == 0 else batch.tobytes()


def _marker(
    batch: _core.Batch,
    transactions: CleanedTransactions,
    out: CleanedSegment,
    now: int,
    retention: int,
) -> bytes | None:
    gone, entry = transactions.marker(batch)
    if entry is not None:
        out.abort(entry)
    if not gone:
        return batch.tobytes()
    if batch.count == 0:
        return None
    if batch.delete_horizon_ms is None:
        return _core.stamp_horizon(batch, now + retention)
    return None if batch.delete_horizon_ms <= now else batch.tobytes()
