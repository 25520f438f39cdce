"""Checking files against each other, and cutting off what is damaged when asked to.

A check reads every batch by its CRC and compares each index entry with the batches; it changes
nothing and may run while others write (up to the ends that it is given).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping

import numpy as np

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord, LockTimeout
from eoslog.model import CheckReport, Problem, RepairReport
from eoslog.storage import files
from eoslog.storage.kafka_repair import repair_as_kafka
from eoslog.storage.segments import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offsets_in,
    read_snapshot,
)
from eoslog.storage.session import CLEAN_SHUTDOWN_FILE, SESSION_FILE

_MAX = (1 << 63) - 1


def partition_directories(path: str) -> list[str]:
    """Names of the partition directories in a log directory."""
    found = []
    for name in files.names(path):
        topic, _, number = name.rpartition("-")
        if (
            topic
            and number.isdigit()
            and topic != "eoslog-staging"
            and os.path.isdir(os.path.join(path, name))
        ):
            found.append(name)
    return found


def check(path: str, *, full: bool = False, ends: Mapping[str, int] | None = None) -> CheckReport:
    """Check every partition of a directory.

    Args:
        path: the directory.
        full: decode every record too.
        ends: partition directory name -> offset (exclusive) up to which it is published; others
            are read to their files' ends.
    """
    partitions = batches = records = 0
    problems: list[Problem] = []
    for name in partition_directories(path):
        partitions += 1
        walk = _Walk(os.path.join(path, name), (ends or {}).get(name, _MAX), full)
        walk.run()
        batches += walk.batches
        records += walk.records
        problems += walk.problems
    return CheckReport(partitions, batches, records, problems)


class _Walk:
    """One partition directory: its batches in order, and what its indexes say of them."""

    def __init__(self, path: str, end: int, full: bool) -> None:
        self.path = path
        self.end = end
        self.full = full
        self.batches = 0
        self.records = 0
        self.problems: list[Problem] = []
        self.bad: tuple[int, int] | None = None  # (segment base, position) of the first bad batch

    def _problem(self, base: int, suffix: str, position: int, message: str) -> None:
        self.problems.append(
            Problem(os.path.join(self.path, file_name(base, suffix)), position, message)
        )

    def run(self) -> None:
        bases = offsets_in(self.path, LOG)
        expected = bases[0] if bases else 0
        for base in bases:
            if base >= self.end and base > 0:
                break
            if base < expected:
                self._problem(
                    base, LOG, 0, f"segment begins at {base}, the one before ends at {expected}"
                )
            expected = self._segment(base, expected)
            if self.bad is not None:
                break
        for offset in offsets_in(self.path, SNAPSHOT):
            if read_snapshot(os.path.join(self.path, file_name(offset, SNAPSHOT))) is None:
                self._problem(offset, SNAPSHOT, 0, "not a valid producer snapshot")

    def _segment(self, base: int, expected: int) -> int:
        path = os.path.join(self.path, file_name(base, LOG))
        size = os.path.getsize(path)
        starts: dict[int, tuple[int, int]] = {}
        if size:
            data = np.memmap(path, dtype=np.uint8, mode="r", shape=(size,))
            try:
                covered = 0
                for batch in _core.iter_batches(data):
                    if batch.base_offset >= self.end:
                        return expected
                    covered = batch.position + batch.size
                    if not batch.valid or batch.base_offset < expected:
                        what = (
                            "CRC does not match"
                            if not batch.valid
                            else f"base offset {batch.base_offset} below {expected}"
                        )
                        self._problem(base, LOG, batch.position, what)
                        self.bad = (base, batch.position)
                        return expected
                    if self.full and batch.magic == 2:
                        self.records += len(batch.records())
                    else:
                        self.records += batch.count
                    self.batches += 1
                    starts[batch.position] = (batch.last_offset, batch.max_timestamp)
                    expected = batch.last_offset + 1
                if covered < size and expected < self.end:
                    self._problem(
                        base, LOG, covered, f"{size - covered} bytes are no complete batch"
                    )
                    self.bad = (base, covered)
            except CorruptRecord as error:
                position = max(starts, default=-1)
                self._problem(base, LOG, max(position, 0), str(error))
                self.bad = (base, max(position, 0))
                return expected
        if self.end == _MAX or expected <= self.end:
            self._indexes(base, starts)
        return expected

    def _indexes(self, base: int, starts: dict[int, tuple[int, int]]) -> None:
        lasts = {last for last, _ in starts.values()}
        previous = -1
        for position, (relative, at) in self._entries(base, INDEX, ">ii"):
            offset = base + relative
            if offset < self.end and (
                at not in starts or offset not in lasts or offset <= previous
            ):
                self._problem(base, INDEX, position, f"entry ({offset}, {at}) fits no batch")
            previous = offset
        newest = -1
        for position, (timestamp, relative) in self._entries(base, TIME_INDEX, ">qi"):
            if base + relative < self.end and (timestamp < newest or base + relative not in lasts):
                self._problem(
                    base,
                    TIME_INDEX,
                    position,
                    f"entry ({timestamp}, {base + relative}) fits no batch",
                )
            newest = timestamp
        for position, (version, producer, first, last, _) in self._entries(
            base, TXN_INDEX, ">hqqqq"
        ):
            if last < self.end and (version != 0 or first > last or last not in lasts):
                self._problem(
                    base,
                    TXN_INDEX,
                    position,
                    f"aborted ({producer}, {first}, {last}) fits no marker",
                )

    def _entries(
        self, base: int, suffix: str, layout: str
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        entry = struct.Struct(layout)
        try:
            data = files.read_file(os.path.join(self.path, file_name(base, suffix)))
        except FileNotFoundError:
            return
        if len(data) % entry.size:
            self._problem(
                base, suffix, len(data), f"size {len(data)} is no multiple of {entry.size}"
            )
        for position in range(0, len(data) - entry.size + 1, entry.size):
            yield position, entry.unpack_from(data, position)


def repair(path: str, mode: str) -> RepairReport:
    """See `eoslog.repair`."""
    if mode == "as-kafka":
        return repair_as_kafka(path)
    if mode not in ("report", "cut"):
        raise ConfigError(f"mode {mode!r}: expected 'report', 'cut' or 'as-kafka'")
    fd = files.open_file(os.path.join(path, SESSION_FILE), create=True)
    try:
        if not _core.try_lock(fd, 1):
            raise LockTimeout(f"{path}: a process has the directory open")
        problems: list[Problem] = []
        cut = 0
        names = partition_directories(path)
        for name in names:
            walk = _Walk(os.path.join(path, name), _MAX, True)
            walk.run()
            problems += walk.problems
            if mode == "cut" and walk.bad is not None:
                cut += _cut(walk.path, *walk.bad)
        if mode == "cut" and problems:
            files.remove(
                os.path.join(path, CLEAN_SHUTDOWN_FILE)
            )  # indexes are rebuilt at the next open
            files.remove(os.path.join(path, "recovery-point-offset-checkpoint"))
            files.fsync_dir(path)
        return RepairReport(mode, len(names), problems, cut)
    finally:
        files.close(fd)


def _cut(path: str, base: int, position: int) -> int:
    """Truncate a partition at a byte of one segment; later segments go. Bytes lost."""
    log = os.path.join(path, file_name(base, LOG))
    lost = os.path.getsize(log) - position
    for later in offsets_in(path, LOG):
        if later > base:
            lost += os.path.getsize(os.path.join(path, file_name(later, LOG)))
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
    for offset in offsets_in(path, SNAPSHOT):
        if offset > base:
            files.remove(os.path.join(path, file_name(offset, SNAPSHOT)))
    files.fsync_dir(path)
    return lost
