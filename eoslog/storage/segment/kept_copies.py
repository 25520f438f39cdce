"""Copies of the bytes that a repair removes from a partition: `<base>.log.cut-<ms>`.

A copy has the original bytes from the damaged batch on. Its name ends with the wall clock time in
ms. Recovery, retention, compaction, segment ingest and backup ignore this suffix, and deleting the
topic removes the copy. `eoslog dump` reads it.

*A crash leaves* a `.tmp` file, which the next repair or recovery removes, or a complete copy of
bytes that are still in the log, which the next repair uses again.
"""

from __future__ import annotations

import mmap
import os
import re

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.reports import Problem
from eoslog.storage.fs import files
from eoslog.storage.segment.segment import HEADER_SIZE, LOG, file_name, file_path

__all__ = [
    "MORE", "bytes_of", "gap_at", "is_gap", "keep", "kept_in", "name_without_mark", "note_of_gap",
    "notes_of_copies", "set_aside",
]  # fmt: skip

_KEPT = re.compile(r"(\d{20}\.log)\.cut-\d+")
_STEP = 4 << 20
MORE = b"\1"
"""A byte of no batch: `truncation.keep_offsets` leaves it where nothing else shows damage."""


def kept_in(path: str) -> list[str]:
    """Return the names of the copies in a partition's directory."""
    return [name for name in files.names(path) if _KEPT.fullmatch(name)]


def name_without_mark(name: str) -> str:
    """Return the name of a copy's segment; any other name unchanged."""
    found = _KEPT.fullmatch(name)
    return found[1] if found else name


def notes_of_copies(path: str) -> list[Problem]:
    """Return the notes of `check` about the copies in a partition's directory."""
    notes = []
    for name in kept_in(path):
        place = os.path.join(path, name)
        size = os.path.getsize(place)
        text = f"a repair removed these {size} bytes; `eoslog dump` reads them"
        notes.append(Problem(place, 0, text))
    return notes


def is_gap(batch: _core.Batch) -> bool:
    """Whether a repair wrote this empty batch (compaction keeps the leader epoch of a batch)."""
    return bool(batch.count == 0 and batch.leader_epoch == -1)


def gap_at(path: str, base: int, position: int) -> bool:
    """Whether a repair wrote the batch at a byte of a segment (see `is_gap`)."""
    log = bytes_of(file_path(path, base, LOG))
    try:
        found = _core.iter_batches(log[position : position + HEADER_SIZE], strict=False)
    except CorruptRecord:
        return False
    return bool(found and found[0].valid and is_gap(found[0]))


def note_of_gap(path: str, base: int, batch: _core.Batch) -> Problem:
    """Return the note of `check` about offsets whose records a repair has removed."""
    text = (
        f"offsets {batch.base_offset} to {batch.last_offset} have no records, because a repair "
        f"removed them; readers continue at {batch.last_offset + 1}"
    )
    return Problem(file_path(path, base, LOG), batch.position, text)


def bytes_of(path: str) -> bytes | mmap.mmap:
    """Return a file's bytes, mapped; empty if the file is missing or empty."""
    try:
        fd = files.open_file(path, read_only=True)
    except FileNotFoundError:
        return b""
    try:
        with files.naming(path):  # an empty file has no mapping
            return mmap.mmap(fd, 0, prot=mmap.PROT_READ) if os.fstat(fd).st_size else b""
    finally:
        files.close(fd)


def keep(path: str, base: int, position: int, end: int | None, now_ms: int) -> str | None:
    """Copy bytes of a segment before they are removed.

    Args:
        path: the partition's directory.
        base: base offset of the segment.
        position: the first byte.
        end: the byte after the last one; None: the end of the file.
        now_ms: wall clock time in ms, for the name.

    Returns:
        The path of the copy, which may be from an earlier run; None if there is nothing to keep.

    Durability: bytes and name are durable on return.
    """
    log = file_path(path, base, LOG)
    data = bytes_of(log)
    end = len(data) if end is None else end
    first = data[position : position + 1]
    if end - position <= _STEP and not data[position + (first == MORE) : end].strip(b"\0"):
        return None  # preallocated space, perhaps after what `truncation.keep_offsets` has written
    for name in files.names(path):
        if name.startswith(file_name(base, LOG)) and name.endswith(".tmp"):
            files.remove(os.path.join(path, name))
    for name in kept_in(path):
        place = os.path.join(path, name)
        if name_without_mark(name) == file_name(base, LOG) and _ends_with(
            bytes_of(place), data, position, end
        ):
            return place
    target = _free_name(path, base, now_ms)
    temporary = f"{target}.tmp"
    fd = files.open_file(temporary, create=True)
    try:
        with files.naming(temporary):
            _core.os_truncate(fd, 0)
            for at in range(position, end, _STEP):
                _core.os_pwrite(fd, data[at : min(at + _STEP, end)], at - position)
            _core.os_sync(fd, data_only=False)
    finally:
        files.close(fd)
    files.rename(temporary, target)
    files.fsync_dir(path)
    return target


def set_aside(path: str, base: int, now_ms: int) -> str | None:
    """Rename a segment's log file to a copy. If it is empty, remove it and return None.

    Durability: durable after `fsync_dir` of the directory.
    """
    log = file_path(path, base, LOG)
    if os.path.getsize(log) == 0:
        files.remove(log)
        return None
    target = _free_name(path, base, now_ms)
    files.rename(log, target)
    return target


def _free_name(path: str, base: int, now_ms: int) -> str:
    while True:
        name = os.path.join(path, f"{file_name(base, LOG)}.cut-{now_ms}")
        if not files.exists(name):
            return name
        now_ms += 1


def _ends_with(copy: bytes | mmap.mmap, data: bytes | mmap.mmap, position: int, end: int) -> bool:
    """Whether a copy ends with bytes [position, end) of `data`; a repair may change its first."""
    start = len(copy) - (end - position)
    return start >= 0 and all(
        copy[start + at - position : start + min(at + _STEP, end) - position]
        == data[at : min(at + _STEP, end)]
        for at in range(position, end, _STEP)
    )
