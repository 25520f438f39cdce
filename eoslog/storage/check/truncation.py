"""Truncating a damaged partition, without reusing its producer ids and offsets.

The metadata log records which producer ids are allocated. If a truncation removed such a record,
the ids would be allocated again, and partitions would treat the records of the new producers as
duplicates. So a repair first adds a record to the metadata log that reserves all ids used in any
partition. The record is written over the first damaged bytes, before the log is truncated: after a
crash in between there is still damage, and the next repair starts again.

Offsets are not reused either. Consumer groups and checkpoints of streams may have positions beyond
the truncated end, and would never read records that are written there later. An empty batch, as
compaction leaves them, keeps those offsets; it is written in the same way.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.model import STAGED_TRANSACTIONS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.reports import Problem
from eoslog.storage.directory.closed_metadata import METADATA, batches_before_damage
from eoslog.storage.format.serde import Reader
from eoslog.storage.fs import files
from eoslog.storage.log.torn_tails import valid_batch_after
from eoslog.storage.metadata.metadata_log import PRODUCER_ID_BLOCK
from eoslog.storage.metadata.records import ProducerIdsRecord, decode
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.kept_copies import MORE, bytes_of, keep, set_aside
from eoslog.storage.segment.scans import is_blank
from eoslog.storage.segment.segment import (
    INDEX,
    LOG,
    SEAL,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_path,
    offsets_in,
)

LogPosition = tuple[int, int, int]
"""Base of a segment, byte of its file, and the offset there."""

_LAST_ID = (1 << 63) - 2 * PRODUCER_ID_BLOCK
"""Higher ids are ignored: a client may have invented one, and none is left above to allocate."""
_NEXT_ID_TAG = 1
_HEAD, _BODY = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")
_LAST_DELTA = (1 << 31) - 1
_STATE_HEAD = struct.Struct(">hqhib")
_OF_TRANSACTIONS = (TRANSACTION_STATE_TOPIC, STAGED_TRANSACTIONS_TOPIC)


def keep_producer_ids(
    root: str, bad: LogPosition | None = None
) -> tuple[LogPosition, list[Problem]]:
    """Reserve in the metadata log all producer ids that a directory contains.

    Args:
        root: the directory, which no process may have open.
        bad: where the metadata log will be truncated; None: not at all.

    Returns:
        (where to truncate now, problems found). With a problem, the directory must not count as
        cleanly closed.

    Durability: durable on return.
    """
    path = os.path.join(root, METADATA)
    if not files.is_dir(path):  # there is nothing to truncate or to add to
        return bad or (0, 0, 0), []
    place, known = _metadata_end(path, bad)
    highest = max((found for found in _ids(root) if found < _LAST_ID), default=-1)
    if highest < known:
        return place, []
    base, position, offset = place
    following = (highest // PRODUCER_ID_BLOCK + 1) * PRODUCER_ID_BLOCK
    value = ProducerIdsRecord(following).encode()
    now = time.time_ns() // 1_000_000
    batch = _core.build_batch([(now, None, value, ())], base_offset=offset)
    name = file_path(path, base, LOG)
    files.own(name)
    fd = files.open_file(name, create=True)
    try:
        with files.naming(name):
            _core.os_pwrite(fd, batch, position)
            _core.os_sync(fd)
    finally:
        files.close(fd)
    files.fsync_dir(path)
    problem = Problem(
        name, position,
        f"producer id {highest} is in use, but ids from {known} on were still to be allocated; "
        f"allocation continues at {following}",
    )  # fmt: skip
    return (base, position + len(batch), offset + 1), [problem]


def _metadata_end(path: str, bad: LogPosition | None) -> tuple[LogPosition, int]:
    """Return the end of the metadata log, or its cut, and its first free producer id."""
    place, following = (0, 0, 0), 0
    for base in offsets_in(path, LOG):
        place = base, 0, max(base, place[2])
        for batch in batches_before_damage(file_path(path, base, LOG)):
            if bad is not None and (base, batch.position) >= bad[:2]:
                return bad, following
            place = base, batch.position + batch.size, batch.last_offset + 1
            for _, _, _, value, _ in () if batch.control else batch.records():
                record = decode(value)
                if isinstance(record, ProducerIdsRecord):
                    following = max(following, record.next_producer_id)
    return bad or place, following


def _ids(root: str) -> Iterator[int]:
    """Yield every producer id in batches, snapshots and records of transactions."""
    for directory in files.names(root):
        topic, _, number = directory.rpartition("-")
        path = os.path.join(root, directory)
        if not number.isdecimal() or directory == METADATA or not files.is_dir(path):
            continue
        for name in segment_files.list_snapshots(path):
            with contextlib.suppress(CorruptRecord):
                entries = segment_files.read_snapshot(os.path.join(path, name))
                yield from (entry.producer_id for entry in entries)
        for base in offsets_in(path, LOG):
            for batch in batches_before_damage(file_path(path, base, LOG)):
                yield batch.producer_id
                if topic in _OF_TRANSACTIONS and not batch.control:
                    with contextlib.suppress(CorruptRecord):
                        for _, _, key, value, _ in batch.records():
                            yield from _record_ids(topic, key or b"", value)


def _record_ids(topic: str, key: bytes, value: bytes | None) -> tuple[int, ...]:
    """Return the producer ids of a record of an internal topic of transactions."""
    reader = Reader(key)
    if topic == STAGED_TRANSACTIONS_TOPIC:
        return (reader.i64(),)
    if reader.i16() != 0:  # a prepared transaction, named by its producer id
        return (reader.i64(),)
    return () if value is None else _state_ids(value)


def _state_ids(value: bytes) -> tuple[int, int]:
    """Return the producer id of a transactional id, and its next producer id or -1."""
    reader = Reader(value)
    version, producer_id, *_ = reader.unpack(_STATE_HEAD)
    if version != 1:  # Kafka's older format has no next producer id
        return producer_id, -1
    for _ in range(reader.compact_array()):
        reader.compact_string()
        for _ in range(reader.compact_array()):
            reader.i32()
        reader.tagged()
    reader.raw(16)  # two timestamps
    following = reader.tagged().get(_NEXT_ID_TAG)
    return producer_id, -1 if following is None else Reader(following).i64()


def keep_offsets(path: str, bad: LogPosition, flushed: int) -> tuple[LogPosition, list[Problem]]:
    """Write an empty batch for the offsets that a truncation removes, so that none is reused.

    Args:
        path: the partition's directory.
        bad: where the log will be truncated.
        flushed: the recovery point.

    Returns:
        (where to truncate now, the note about the offsets).

    Durability: the batch is durable on return.
    """
    base, position, offset = bad
    first = max(offset, base)
    last = min(reached(path, bad, flushed) - 1, base + _LAST_DELTA)
    if last < first:
        return bad, []
    name = file_path(path, base, LOG)
    body = _BODY.pack(0, last - first, -1, -1, -1, -1, -1, 0)
    head = _HEAD.pack(first, len(body) + 9, -1, 2, _core.crc32c(body))
    following = position + len(head) + len(body)
    files.own(name)
    fd = files.open_file(name, create=True)
    try:
        with files.naming(name):
            # Damage must follow until the log is truncated, because later segments still exist.
            # Zeros would be preallocated space.
            more = MORE if is_blank(fd, following, os.fstat(fd).st_size) else b""
            _core.os_pwrite(fd, head + body + more, position)
            _core.os_sync(fd)
    finally:
        files.close(fd)
    files.fsync_dir(path)
    text = (
        f"offsets {first} to {last} remain unused; consumers positioned there resume at {last + 1}"
    )
    return (base, following, last + 1), [Problem(name, position, text)]


def reached(path: str, place: LogPosition, flushed: int) -> int:
    """Return the highest known end that a partition had before it was damaged at `place`."""
    base, position, offset = place
    log = file_path(path, base, LOG)
    whole = bytes_of(log)
    data = whole[position : position + _HEAD.size + _BODY.size]
    end = max([offset, flushed, *offsets_in(path, SNAPSHOT), *offsets_in(path, LOG)])
    if len(data) == _HEAD.size + _BODY.size:  # use the damaged batch if its fields are consistent
        first, size, _, _, crc = _HEAD.unpack_from(data)
        _, last, *_, count = _BODY.unpack_from(data, _HEAD.size)
        if first == offset and last == count - 1:
            end = max(end, first + count)
        elif first > offset and _core.crc32c(whole[position + 21 : position + 12 + size]) == crc:
            end = max(end, offset + last + 1)  # only the base offset is wrong
    return max([end, *(batch.last_offset + 1 for batch in batches_after(path, place))])


def batches_after(path: str, place: LogPosition) -> Iterator[_core.Batch]:
    """Yield the valid batches after damage, in its segment and later ones, also after more damage.

    Only batches of format v2 with a right CRC.
    """
    base, position, offset = place
    for later in offsets_in(path, LOG):
        data = bytes_of(file_path(path, later, LOG))
        if later == base:
            yield from _whole_batches(data, position + 1, offset)
        elif later > base:
            yield from _whole_batches(data, 0, later)


def _whole_batches(data: bytes | mmap.mmap, at: int, offset: int) -> Iterator[_core.Batch]:
    """Yield the valid batches with ascending offsets, from a byte and an offset on."""
    while (found := valid_batch_after(data, offset - 1, at)) is not None:
        (batch,) = _core.iter_batches(data, found, strict=False, limit=1)
        yield batch
        at, offset = found + batch.size, batch.last_offset + 1


def bytes_after(path: str, base: int, position: int) -> int:
    """Return how many bytes a truncation at a position removes from a partition."""
    logs = [file_path(path, b, LOG) for b in offsets_in(path, LOG) if b >= base]
    return sum(map(os.path.getsize, logs)) - position


def keep_what_goes(path: str, bad: LogPosition, now_ms: int) -> list[str]:
    """Copy a segment from its first bad byte on, before it is truncated. Returns the copies' paths.

    Later segments are renamed by `cut_at`.

    Durability: the copies are durable on return.
    """
    copy = keep(path, bad[0], bad[1], None, now_ms)
    return [] if copy is None else [copy]


def cut_at(path: str, base: int, position: int, end: int, now_ms: int | None = None) -> list[str]:
    """Truncate a partition at a byte of one segment, where the offset is `end`.

    Renames later segments to copies, and removes index entries from `end` on.

    Returns:
        The new paths of later segments.

    Durability: durable on return. The renames are durable before the truncation.
    """
    log = file_path(path, base, LOG)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    copies = []
    for later in offsets_in(path, LOG):
        if later > base:
            aside = set_aside(path, later, now_ms)
            copies += [] if aside is None else [aside]
            for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, SEAL):
                files.remove(file_path(path, later, suffix))
    files.fsync_dir(path)
    files.own(log)
    fd = files.open_file(log)
    try:
        with files.naming(log):
            _core.os_truncate(fd, position)
            _core.os_sync(fd)
    finally:
        files.close(fd)
    for suffix, layout in ((INDEX, ">ii"), (TIME_INDEX, ">qi"), (TXN_INDEX, ">hqqqq")):
        name = file_path(path, base, suffix)
        with contextlib.suppress(FileNotFoundError):
            data = files.read_file(name)
            entry = struct.Struct(layout)
            kept = b""
            for values in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
                last = {INDEX: base + values[0], TIME_INDEX: base + values[1]}.get(
                    suffix, values[-2]
                )
                if last >= end:
                    break
                kept += entry.pack(*values)
            files.write_file(name, kept, durable=True)
    for offset in offsets_in(path, SNAPSHOT):
        if offset > base:
            files.remove(file_path(path, offset, SNAPSHOT))
    files.fsync_dir(path)
    return copies
