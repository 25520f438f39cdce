"""Rebuilding the derived files of a closed partition: indexes, producer snapshots, seals.

`rebuild` folds every segment with the core, as recovery does, and replaces the files that differ.
It never changes a `.log` file. Files are replaced atomically: a crash leaves the old or new
content.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import pairwise

from eoslog import _core
from eoslog.reports import Problem
from eoslog.storage.fs import files
from eoslog.storage.segment import seals
from eoslog.storage.segment.producer_snapshots import (
    newest_snapshot,
    valid_snapshot,
    write_snapshot,
)
from eoslog.storage.segment.scans import scan_segments, zeros_are_space
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

__all__ = ["rebuild"]

_CONTROL_SIZE = 1 << 20


def rebuild(path: str, index_interval: int, *, first: int = 0) -> tuple[list[str], list[Problem]]:
    """Write the derived files of a partition again that do not agree with its batches.

    Args:
        path: the partition's directory, which no process may have open.
        index_interval: the topic's `index.interval.bytes`.
        first: base of the first segment whose files may be changed.

    Returns:
        (paths of the files written or removed, damage to the log, from which on nothing is
        written).

    Durability: changes are durable on return.
    """
    bases = offsets_in(path, LOG)
    if not bases:
        return [], []
    earlier = [base for base in bases if base <= first] or bases[:1]
    start, entries = newest_snapshot(path, earlier, delete_bad=False)
    changed: list[str] = []
    with _fold(path, index_interval) as core:
        core.load(start, entries)
        todo = [base for base in bases if base >= start]
        following = dict(pairwise(todo))
        for scanned in scan_segments(core, path, todo, active=todo[-1]):
            base, end = scanned.base, following.get(scanned.base)
            # The check says whether zeros are preallocated space.
            if scanned.blank and zeros_are_space(scanned.offset, end, durable=0, clean=False):
                scanned.fault = None
            if scanned.fault is not None:
                text = (
                    f"{scanned.fault}; derived files from this offset on were not changed, run "
                    "`eoslog repair`"
                )
                return changed, [Problem(scanned.path, scanned.position, text)]
            if base >= first:
                wanted = {
                    INDEX: scanned.offset_index,
                    TIME_INDEX: scanned.times,
                    TXN_INDEX: scanned.aborted,
                }
                changed += _replace(path, base, end, wanted)
                if end is not None:
                    changed += _drop_bad_seal(path, base, end, wanted)
            if end is not None and scanned.offset >= first:
                changed += _demand_snapshot(path, end, scanned.offset, core)
        changed += _drop_bad_snapshots(path)
    return changed, []


@contextlib.contextmanager
def _fold(path: str, index_interval: int) -> Iterator[_core.Partition]:
    """Make a fold of a partition that no session has open, with a private control file."""
    memory = os.memfd_create("eoslog.control")
    try:
        os.ftruncate(memory, _CONTROL_SIZE)
        control = _core.ControlFile(memory)
        control.map_chunks(1)
        control.session = 1
        core = _core.Partition(control, 0, -1, 0, path)
        core.configure(index_interval_bytes=index_interval)
        yield core
    finally:
        os.close(memory)


def _replace(path: str, base: int, end: int | None, wanted: dict[str, bytes]) -> list[str]:
    """Replace a segment's indexes that differ, and remove its seal if any does."""
    changed: list[str] = []
    for suffix, content in wanted.items():
        name = file_path(path, base, suffix)
        try:
            found: bytes | None = files.read_file(name)
        except FileNotFoundError:
            found = None
        if found == content or (found is None and suffix == TXN_INDEX and not content):
            continue
        if not changed and end is not None:
            files.remove(file_path(path, end, SEAL))
        files.write_atomically(name, content)
        changed.append(name)
    return changed


def _drop_bad_seal(path: str, base: int, end: int, wanted: dict[str, bytes]) -> list[str]:
    """Remove a segment's seal that contradicts its files; the next opening makes a new one."""
    name = file_path(path, end, SEAL)
    if not files.exists(name):
        return []
    seal = seals.read(path, end, base=base)
    aborted = seals.checksum(seals.content(file_path(path, base, TXN_INDEX)))
    times = seals.checksum(wanted[TIME_INDEX])
    if seal is not None and seal.times == times and aborted == seal.aborted:
        log = file_path(path, base, LOG)
        if seals.fault(seal, log) is None:
            return []
    files.remove(name)
    return [name]


def _demand_snapshot(path: str, base: int, end: int, core: _core.Partition) -> list[str]:
    """Write the producer snapshot at a segment's base if it is missing or damaged."""
    name = file_path(path, base, SNAPSHOT)
    with contextlib.suppress(FileNotFoundError):
        if valid_snapshot(path, base) is not None:
            return []
    if end != base:  # offsets are missing in between: recovery reports that
        return []
    files.remove(name)
    write_snapshot(path, base, core.export_producers()[1])
    return [name]


def _drop_bad_snapshots(path: str) -> list[str]:
    """Remove damaged snapshots that are not at a segment's base, and cannot be rebuilt."""
    gone: list[str] = []
    for offset in offsets_in(path, SNAPSHOT):
        name = file_path(path, offset, SNAPSHOT)
        if valid_snapshot(path, offset) is None:
            files.remove(name)
            gone.append(name)
    if gone:
        files.fsync_dir(path)
    return gone
