"""Producer snapshots of a partition: which one recovery starts from, the one that must be there
before what lies below it goes, and those that nobody needs.

Their bytes are those of `segments.read_snapshot` and `write_snapshot`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.storage import files
from eoslog.storage.segments import (
    LOG,
    SNAPSHOT,
    file_name,
    offsets_among,
    offsets_in,
    read_snapshot,
    write_snapshot,
)

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog


def newest_snapshot(path: str, bases: list[int], *, delete_bad: bool) -> tuple[int, bytes]:
    """(base, entries) of the newest valid snapshot at a segment's base; else the first base."""
    for base in reversed(bases):
        name = os.path.join(path, file_name(base, SNAPSHOT))
        try:
            entries = read_snapshot(name)
        except FileNotFoundError:
            continue
        if entries is not None:
            return base, entries
        if delete_bad:
            files.remove(name)
    return bases[0], b""


def demand_snapshot(log: PartitionLog, base: int) -> None:
    """Make the producer snapshot at a sealed segment's end if it is not there: who rolled may have
    died before writing it, and once what lies before it is gone nothing else knows its producers.

    What is damaged can't tell them: then there is none, as when the segment itself is lost.

    Raises:
        StorageError: it can't be written.
    """
    if files.exists(os.path.join(log.path, file_name(base, SNAPSHOT))):
        return
    bases = [b for b in offsets_in(log.path, LOG) if b < base]
    start, entries = newest_snapshot(log.path, bases, delete_bad=False)
    fold = _core.Partition(log.session.control, log.slot, -1, 0, log.path)
    fold.load(start, entries)
    for current in (b for b in bases if b >= start):
        fd = files.open_file(os.path.join(log.path, file_name(current, LOG)), read_only=True)
        try:
            fold.use_segment(current, fd)
            if fold.scan_segment(os.fstat(fd).st_size, False)[-1] is not None:
                return
        finally:
            files.close(fd)
    write_snapshot(log.path, base, fold.export_producers()[1])


def drop_torn_snapshots(path: str) -> None:
    """What a crash left of a snapshot is not shown to whoever opens the directory next."""
    for offset in offsets_in(path, SNAPSHOT):
        name = os.path.join(path, file_name(offset, SNAPSHOT))
        if read_snapshot(name) is None:
            files.remove(name)


def drop_stray_snapshots(path: str, names: list[str], end: int) -> bool:
    """Keep snapshots at segment bases, and the largest other one up to the end (Kafka
    ProducerStateManager.removeStraySnapshots); whether any went.
    """
    bases = set(offsets_among(names, LOG))
    strays = [offset for offset in offsets_among(names, SNAPSHOT) if offset not in bases]
    keep = max((o for o in strays if bases and max(bases) < o <= end), default=None)
    gone = [offset for offset in strays if offset != keep]
    for offset in gone:
        files.remove(os.path.join(path, file_name(offset, SNAPSHOT)))
    return bool(gone)
