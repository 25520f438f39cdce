"""Producer snapshots of a partition: choosing, writing, demanding and removing them.

A snapshot is valid if its own CRC is right and no seal contradicts it. The CRC alone is not enough:
if two snapshot files were exchanged, both CRCs are right.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from eoslog import _core
from eoslog.errors import StorageError
from eoslog.storage.fs import files
from eoslog.storage.segment import seals
from eoslog.storage.segment.scans import scan_segments
from eoslog.storage.segment.segment import (
    LOG,
    SEAL,
    SNAPSHOT,
    file_name,
    file_path,
    offsets_in,
    snapshot_entries,
)

_ENTRY_SIZE = 46
_NOTHING_OPEN = b"\xff" * 8  # -1, the first offset of a transaction that is not open


def write_snapshot(directory: str, offset: int, entries: bytes) -> None:
    """Write a producer snapshot (docs/reference/file-format.md).

    Durability: the content is durable before the file has its name. Once retention has deleted
    the batches before it, only the snapshot has the producers that wrote them (KAFKA-9892).
    """
    body = struct.pack(">i", len(entries) // 46) + entries
    content = struct.pack(">hI", 1, _core.crc32c(body)) + body
    name = file_path(directory, offset, SNAPSHOT)
    with contextlib.suppress(StorageError):
        if seals.content(name) == content:
            return  # durable already: the name came last
    sealed = seals.release_snapshot(directory, offset, content)
    # A unique name: another process may be suspended while it writes the same snapshot.
    temporary = f"{name}.{time.monotonic_ns():x}.tmp"
    try:
        files.write_file(temporary, content, durable=True)
        files.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(StorageError):
            files.remove(temporary)
        raise
    if sealed is not None:
        seals.write(directory, sealed._replace(snapshot=seals.checksum(content)))


def valid_snapshot(path: str, offset: int) -> bytes | None:
    """Return the entries of the producer snapshot at an offset, or None if it is not valid.

    Raises:
        FileNotFoundError: if there is no such snapshot.
    """
    data = files.read_file(file_path(path, offset, SNAPSHOT))
    entries = snapshot_entries(data)
    return None if seals.refutes_snapshot(seals.read(path, offset), data) else entries


def open_transactions_at(path: str, offset: int) -> dict[int, int]:
    """Return the open transactions in the snapshot at an offset: first offsets, by producer id."""
    try:
        entries = valid_snapshot(path, offset) or b""
    except FileNotFoundError:
        return {}
    rows = struct.iter_unpack(">qhiqiqiq", entries)
    return {producer: first for producer, *_, first in rows if first >= 0}


def newest_snapshot(path: str, bases: list[int], *, delete_bad: bool) -> tuple[int, bytes]:
    """Return (base, entries) of the newest valid snapshot at a segment's base.

    Without one, returns the first base and no entries. `delete_bad` removes invalid snapshots.
    """
    for base in reversed(bases):
        try:
            entries = valid_snapshot(path, base)
        except FileNotFoundError:
            continue
        if entries is not None:
            return base, entries
        if delete_bad:
            files.remove(file_path(path, base, SNAPSHOT))
    return bases[0], b""


def agrees_with_snapshot(path: str, end: int, entries: bytes, seal: seals.Seal | None) -> bool:
    """Whether a fold at an offset agrees with the snapshot there; True if none is valid.

    After a clean close, recovery reads only the headers of the active segment, without their CRCs.
    The fold of these headers must give the last session's snapshot at the log end.

    Args:
        path: path of the partition's directory.
        end: the offset.
        entries: snapshot entries of the fold.
        seal: the seal at that offset, if any.
    """
    try:
        data = files.read_file(file_path(path, end, SNAPSHOT))
    except FileNotFoundError:
        return True
    closed = snapshot_entries(data)
    if closed is None or closed == entries or seals.refutes_snapshot(seal, data):
        return True
    then, now = (
        {rows[at : at + _ENTRY_SIZE] for at in range(0, len(rows), _ENTRY_SIZE)}
        for rows in (closed, entries)
    )
    # Producers that expired before the close are in the older snapshot that the fold began with.
    return then <= now and all(row.endswith(_NOTHING_OPEN) for row in now - then)


def demand_snapshot(path: str, base: int, new_fold: Callable[[], _core.Partition]) -> None:
    """Write the producer snapshot at a sealed segment's end, if there is no valid one.

    The process that rolled may have died before it wrote the snapshot. It must exist before the
    batches below it are deleted, because only they have the same producers. If a segment is
    damaged, no snapshot is written.

    Args:
        path: the partition's directory.
        base: the offset at which the segment ends.
        new_fold: returns an empty fold of the partition.

    Raises:
        StorageError: if the snapshot cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        if valid_snapshot(path, base) is not None:
            return
    bases = [b for b in offsets_in(path, LOG) if b < base]
    start, entries = newest_snapshot(path, bases, delete_bad=False)
    fold = new_fold()
    fold.load(start, entries)
    for scanned in scan_segments(fold, path, [b for b in bases if b >= start]):
        if scanned.fault is not None:
            return
    write_snapshot(path, base, fold.export_producers()[1])


def drop_torn_snapshots(path: str) -> None:
    """Remove invalid snapshots, for example those that a crash has left incomplete."""
    for offset in offsets_in(path, SNAPSHOT):
        if valid_snapshot(path, offset) is None:
            files.remove(file_path(path, offset, SNAPSHOT))


def drop_stray_snapshots(path: str, listed: Mapping[str, Sequence[int]], end: int) -> bool:
    """Keep only snapshots at segment bases, and the largest other one up to the end.

    As Kafka's ProducerStateManager.removeStraySnapshots. Returns whether any file was removed.
    """
    bases = set(listed[LOG])
    strays = sorted(set(listed[SNAPSHOT]) - bases)
    keep = max((o for o in strays if bases and max(bases) < o <= end), default=None)
    gone = [file_name(offset, SNAPSHOT) for offset in strays if offset != keep]
    # A seal beyond the end was written before a power loss that lost its segment.
    gone += [file_name(o, SEAL) for o in sorted(set(listed[SEAL]) - bases) if o != keep]
    for name in gone:
        files.remove(os.path.join(path, name))
    return bool(gone)
