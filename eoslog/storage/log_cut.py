"""What a repair cuts off, and the producer ids that stay taken all the same.

The metadata log says which ids are in use; where a block of them is cut off, or its file is gone,
the ids would be handed out again, and partitions take the records of who gets one for duplicates of
those that they have. So a repair that cuts has the log say that ids go on above all that any
partition names. That is written over the first damaged bytes, before they are cut: a crash in
between leaves damage there, and the next repair begins anew.

Nor is an offset used twice. Groups and the checkpoints of streams stand at offsets that a cut
takes, and what would be written there later they would never read. An empty batch, as a cleaner
leaves them, holds those offsets; it is written in the same way.
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
from eoslog.model import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Problem
from eoslog.storage import files, segment_files
from eoslog.storage.log_loader import valid_batch_after
from eoslog.storage.metadata import PRODUCER_ID_BLOCK
from eoslog.storage.metadata_fold import MetadataFold
from eoslog.storage.metadata_records import ProducerIdsRecord, decode
from eoslog.storage.segments import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offsets_in,
)
from eoslog.storage.serde import Reader

METADATA = f"{CLUSTER_METADATA_TOPIC}-0"
Place = tuple[int, int, int]
"""Base of a segment, byte of its file, and the offset there."""

_LAST_ID = (1 << 63) - 2 * PRODUCER_ID_BLOCK
"""A client may have made up a higher one: there are no ids above it to hand out."""
_NEXT_ID_TAG = 1
_HEAD, _BODY = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")
_LAST_DELTA = (1 << 31) - 1
_STATE_HEAD = struct.Struct(">hqhib")


def keep_producer_ids(root: str, bad: Place | None = None) -> tuple[Place, list[Problem]]:
    """Have a directory's metadata log say that ids go on above all that its partitions name.

    Nobody may have the directory open.

    Args:
        root: the directory.
        bad: where its metadata log is to be cut next; None: at its end.

    Returns:
        Where to cut now, and what was found wrong: with that, the directory was not closed cleanly.

    Durability: what it writes is durable on return.
    """
    path = os.path.join(root, METADATA)
    place, known = _metadata_end(path, bad)
    highest = max((found for found in _ids(root) if found < _LAST_ID), default=-1)
    if highest < known or not files.is_dir(path):
        return place, []
    base, position, offset = place
    following = (highest // PRODUCER_ID_BLOCK + 1) * PRODUCER_ID_BLOCK
    value = ProducerIdsRecord(following).encode()
    now = time.time_ns() // 1_000_000
    batch = _core.build_batch([(now, None, value, ())], base_offset=offset)
    name = os.path.join(path, file_name(base, LOG))
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
        f"producer id {highest} is in use, and ids from {known} on would be handed out; "
        f"they go on at {following}",
    )  # fmt: skip
    return (base, position + len(batch), offset + 1), [problem]


def _metadata_end(path: str, bad: Place | None) -> tuple[Place, int]:
    """Where the metadata log ends, or is to be cut, and the first id that it knows as free."""
    place, following = (0, 0, 0), 0
    for base in offsets_in(path, LOG):
        place = base, 0, max(base, place[2])
        for batch in _batches(os.path.join(path, file_name(base, LOG))):
            if bad is not None and (base, batch.position) >= bad[:2]:
                return bad, following
            place = base, batch.position + batch.size, batch.last_offset + 1
            for _, _, _, value, _ in () if batch.control else batch.records():
                record = decode(value)
                if isinstance(record, ProducerIdsRecord):
                    following = max(following, record.next_producer_id)
    return bad or place, following


def living_partitions(root: str) -> set[tuple[str, int]]:
    """(topic, number) of all that a directory's metadata log names, up to damage in it.

    Without topics whose name a deleted one had: what is noted under it may be that one's.
    """
    fold = MetadataFold({}, {}, 0)
    path = os.path.join(root, METADATA)
    with contextlib.suppress(CorruptRecord):
        for base in offsets_in(path, LOG) if files.is_dir(path) else ():
            for batch in _batches(os.path.join(path, file_name(base, LOG))):
                for _, _, _, value, _ in () if batch.control else batch.records():
                    fold.apply(decode(value))
    deleted = {topic.name for topic in fold.deleted.values()}
    return {
        (topic.name, number)
        for topic in fold.topics.values()
        if topic.name not in deleted
        for number in topic.partitions
    }


def _batches(path: str) -> Iterator[_core.Batch]:
    """The batches of a segment up to the first that is damaged."""
    segment = segment_files.SegmentFiles(path, segment_files.offset_of_name(path) or 0)
    with contextlib.suppress(CorruptRecord):
        for batch in segment.batches():
            if not isinstance(batch, _core.Batch) or not batch.valid:
                return
            yield batch


def _ids(root: str) -> Iterator[int]:
    """Every producer id that a partition names: in batches, snapshots, transactions' states."""
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
            for batch in _batches(os.path.join(path, file_name(base, LOG))):
                yield batch.producer_id
                if topic == TRANSACTION_STATE_TOPIC and not batch.control:
                    with contextlib.suppress(CorruptRecord):
                        for _, _, _, value, _ in batch.records():
                            yield from () if value is None else _state_ids(value)


def _state_ids(value: bytes) -> tuple[int, int]:
    """The id that a transactional id has, and the one that it goes on with, or -1."""
    reader = Reader(value)
    version, producer_id, *_ = reader.unpack(_STATE_HEAD)
    if version != 1:  # Kafka's of before it had a next one
        return producer_id, -1
    for _ in range(reader.compact_array()):
        reader.compact_string()
        for _ in range(reader.compact_array()):
            reader.i32()
        reader.tagged()
    reader.raw(16)  # its times
    following = reader.tagged().get(_NEXT_ID_TAG)
    return producer_id, -1 if following is None else Reader(following).i64()


def keep_offsets(path: str, bad: Place, flushed: int) -> tuple[Place, list[Problem]]:
    """Have an empty batch hold the offsets that a cut takes, so that no other record gets them.

    Args:
        path: the partition's directory.
        bad: where it is to be cut.
        flushed: its recovery point.

    Returns:
        Where to cut now, and what was kept.

    Durability: the batch is durable on return.
    """
    base, position, offset = bad
    first = max(offset, base)
    last = min(_reached(path, bad, flushed) - 1, base + _LAST_DELTA)
    if last < first:
        return bad, []
    name = os.path.join(path, file_name(base, LOG))
    body = _BODY.pack(0, last - first, -1, -1, -1, -1, -1, 0)
    head = _HEAD.pack(first, len(body) + 9, -1, 2, _core.crc32c(body))
    following = position + len(head) + len(body)
    files.own(name)
    fd = files.open_file(name, create=True)
    try:
        with files.naming(name):
            # Behind it there must be damage until the cut is done, for what lies in later segments.
            more = b"" if os.fstat(fd).st_size > following else b"\0"
            _core.os_pwrite(fd, head + body + more, position)
            _core.os_sync(fd)
    finally:
        files.close(fd)
    files.fsync_dir(path)
    text = (
        f"offsets {first} to {last} are given to no other record: who stands there goes on at "
        f"{last + 1}"
    )
    return (base, following, last + 1), [Problem(name, position, text)]


def _reached(path: str, place: Place, flushed: int) -> int:
    """The end that a partition had before it was damaged at `place`, as far as anything tells."""
    base, position, offset = place
    log = os.path.join(path, file_name(base, LOG))
    data = _mapped(log)[position : position + _HEAD.size + _BODY.size]
    end = max([offset, flushed, *offsets_in(path, SNAPSHOT), *offsets_in(path, LOG)])
    if len(data) == _HEAD.size + _BODY.size:  # the damaged batch itself, if its own numbers agree
        first, *_ = _HEAD.unpack_from(data)
        _, last, *_, count = _BODY.unpack_from(data, _HEAD.size)
        if first == offset and last == count - 1:
            end = max(end, first + count)
    return max([end, *(batch.last_offset + 1 for batch in batches_behind(path, place))])


def batches_behind(path: str, place: Place) -> Iterator[_core.Batch]:
    """The whole batches behind damage, past further damage too: in its segment and in later ones.

    Batches of format v2 only, found by headers whose checksum is right.
    """
    base, position, offset = place
    for later in offsets_in(path, LOG):
        data = _mapped(os.path.join(path, file_name(later, LOG)))
        if later == base:
            yield from _whole_batches(data, position + 1, offset)
        elif later > base:
            yield from _whole_batches(data, 0, later)


def _whole_batches(data: bytes | mmap.mmap, at: int, offset: int) -> Iterator[_core.Batch]:
    """Those of ascending offsets, from a byte and an offset on."""
    while (found := valid_batch_after(data, offset - 1, at)) is not None:
        (batch,) = _core.iter_batches(data, found, strict=False, limit=1)
        yield batch
        at, offset = found + batch.size, batch.last_offset + 1


def _mapped(path: str) -> bytes | mmap.mmap:
    """A file's bytes, not in memory until they are looked at; none where there is no file."""
    try:
        fd = files.open_file(path, read_only=True)
    except FileNotFoundError:
        return b""
    try:
        with files.naming(path):  # an empty file has no mapping
            return mmap.mmap(fd, 0, prot=mmap.PROT_READ) if os.fstat(fd).st_size else b""
    finally:
        files.close(fd)


def bytes_behind(path: str, base: int, position: int) -> int:
    """How many bytes a cut there takes from a partition."""
    logs = [os.path.join(path, file_name(b, LOG)) for b in offsets_in(path, LOG) if b >= base]
    return sum(map(os.path.getsize, logs)) - position


def cut_at(path: str, base: int, position: int, end: int) -> None:
    """Truncate a partition at a byte of one segment, `end` being the offset there; later segments
    and index entries go.
    """
    log = os.path.join(path, file_name(base, LOG))
    for later in offsets_in(path, LOG):
        if later > base:
            for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT):
                files.remove(os.path.join(path, file_name(later, suffix)))
    files.own(log)
    fd = files.open_file(log)
    try:
        with files.naming(log):
            _core.os_truncate(fd, position)
            _core.os_sync(fd)
    finally:
        files.close(fd)
    for suffix, layout in ((INDEX, ">ii"), (TIME_INDEX, ">qi"), (TXN_INDEX, ">hqqqq")):
        name = os.path.join(path, file_name(base, suffix))
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
            files.remove(os.path.join(path, file_name(offset, SNAPSHOT)))
    files.fsync_dir(path)
