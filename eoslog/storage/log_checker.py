"""Checking files against each other, and cutting off what is damaged when asked to.

A check reads every batch by its CRC and compares each index entry with the batches; it changes
nothing and may run while others write (up to the ends that it is given).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord, LockTimeout, StorageError, UnsupportedFormat
from eoslog.model import STAGING_TOPIC, CheckReport, Problem, RepairReport
from eoslog.storage import checkpoints, files, segment_files
from eoslog.storage.kafka_repair import repair_as_kafka
from eoslog.storage.log_cut import (
    METADATA,
    Place,
    batches_behind,
    bytes_behind,
    cut_at,
    keep_offsets,
    keep_producer_ids,
    living_partitions,
)
from eoslog.storage.segment_swap import finish_renames, unfinished_swap
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
from eoslog.storage.session import (
    CLEAN_SHUTDOWN_FILE,
    CONTROL_FILE,
    FORMAT,
    MAGIC,
    SESSION_FILE,
)

_MAX = (1 << 63) - 1


def partition_directories(path: str) -> list[str]:
    """Names of the partition directories in a log directory."""
    found = []
    for name in files.names(path):
        topic, _, number = name.rpartition("-")
        if (
            topic
            and number.isdecimal()
            and topic != STAGING_TOPIC
            and files.is_dir(os.path.join(path, name))
        ):
            found.append(name)
    return found


def check(
    path: str,
    *,
    full: bool = False,
    ends: Mapping[str, int] | None = None,
    versions: Callable[[str], int] | None = None,
    flushed: Mapping[tuple[str, int], int] | None = None,
    ids: Mapping[str, bytes] | None = None,
) -> CheckReport:
    """Check every partition of a directory.

    Args:
        path: the directory.
        full: decode every record too.
        ends: partition directory name -> offset (exclusive) up to which it is published; others
            are read to their files' ends.
        versions: the version of a partition's list of segments; one that changes while a partition
            is read means that it has to be read again.
        flushed: recovery points, as they were before `ends`: what lies below them must be there.
            None: those that the directory has.
        ids: partition directory name -> id of the topic that it must say it belongs to.
    """
    partitions = batches = records = 0
    problems: list[Problem] = []
    points = recovery_points(path) if flushed is None else flushed
    names = partition_directories(path)
    for name in names:
        partitions += 1
        while True:
            version = versions(name) if versions is not None else None
            end = (ends or {}).get(name, _MAX)
            walk = _Walk(os.path.join(path, name), end, full, points, (ids or {}).get(name))
            with contextlib.suppress(FileNotFoundError):
                walk.run()
                if versions is None or version == versions(name):
                    break  # else segments were cleaned or deleted meanwhile
            if versions is None:
                raise StorageError(f"{walk.path}: segments vanish while it is checked", path=path)
        batches += walk.batches
        records += walk.records
        problems += walk.problems
    return CheckReport(partitions, batches, records, problems)


def recovery_points(path: str) -> dict[tuple[str, int], int]:
    """(topic, partition) -> offset (exclusive) up to which a directory notes it as flushed."""
    place = os.path.join(path, checkpoints.RECOVERY_POINT_CHECKPOINT)
    return checkpoints.read_offsets(place, lenient=True)


def missing(path: str, points: Mapping[tuple[str, int], int]) -> list[Problem]:
    """The partitions that held something when `points` were read and have no directory now.

    Points of deleted topics stay noted: the caller knows which topics there are.
    """
    problems = []
    for (topic, number), point in sorted(points.items()):
        place = _directory(path, topic, number)
        if point > 0 and not files.is_dir(place):
            problems.append(
                Problem(place, 0, f"the directory is missing; it held offsets up to {point}")
            )
    return problems


def _directory(path: str, topic: str, number: int) -> str:
    return os.path.join(path, f"{topic}-{number}")


def missing_offline(path: str) -> list[Problem]:
    """The same of a directory that nobody has open; none where it is a broker's."""
    if not files.exists(os.path.join(path, SESSION_FILE)):
        return []  # a broker's partitions move away, and its points of them stay for a while
    living = living_partitions(path)
    return missing(path, {k: p for k, p in recovery_points(path).items() if k in living})


class _Walk:
    """One partition directory: its batches in order, and what its indexes say of them."""

    def __init__(
        self,
        path: str,
        end: int,
        full: bool,
        points: Mapping[tuple[str, int], int],
        topic_id: bytes | None = None,
    ) -> None:
        self.path = path
        self.end = end
        self.full = full
        self._points = points
        self._topic_id = topic_id
        self.batches = 0
        self.records = 0
        self.problems: list[Problem] = []
        # (segment base, position) of the first bad batch, and the offset behind the last good one
        self.bad: Place | None = None
        self.short: Place | None = None  # the same, of a log that ends too early
        self.gap = 0  # base of the last segment that offsets are missing before
        self._open: dict[int, int] = {}
        self._log_start = 0

    def _problem(self, base: int, suffix: str, position: int, message: str) -> None:
        self.problems.append(
            Problem(os.path.join(self.path, file_name(base, suffix)), position, message)
        )

    def run(self) -> None:
        fault = checkpoints.partition_metadata_fault(self.path, self._topic_id)
        if fault is not None:
            self.problems.append(Problem(fault.path or self.path, fault.position or 0, str(fault)))
        half = unfinished_swap(files.names(self.path))
        if half is not None:
            self.problems.append(
                Problem(
                    os.path.join(self.path, half), 0,
                    "a swap of segments is half done; the next opening for writing finishes it",
                )
            )  # fmt: skip
            return
        bases = offsets_in(self.path, LOG)
        expected = bases[0] if bases else 0
        if bases:
            self._open = segment_files.open_before(segment_files.list_segments(self.path))
        # Below it a broker's cleaner may have left gaps between segments; ours leaves none.
        cleaned = os.path.join(os.path.dirname(self.path), checkpoints.CLEANER_CHECKPOINT)
        cleaned_to = checkpoints.read_offsets(cleaned, lenient=True).get(self.key, 0)
        starts = os.path.join(os.path.dirname(self.path), checkpoints.LOG_START_CHECKPOINT)
        self._log_start = checkpoints.read_offsets(starts, lenient=True).get(self.key, 0)
        for base in bases:
            if base >= self.end and base > 0:
                break
            if base < expected:
                self._problem(
                    base, LOG, 0, f"segment begins at {base}, the one before ends at {expected}"
                )
            elif base > max(expected, cleaned_to):
                self.gap = base
                self._problem(
                    base, LOG, 0,
                    f"offsets {expected} to {base - 1}, before this segment, are missing, and no "
                    "compaction took them",
                )  # fmt: skip
            expected = self._segment(base, expected)
            if self.bad is not None:
                break
        # Less by now: the topic was deleted and made again.
        now = recovery_points(os.path.dirname(self.path))
        flushed = min(points.get(self.key, 0) for points in (self._points, now))
        if self.bad is None and expected < flushed:
            self.short = self._end(bases[-1] if bases else 0, expected)
            self._problem(
                bases[-1] if bases else 0, LOG, 0,
                f"the log ends at offset {expected}, it was flushed up to offset {flushed}: a file "
                "is missing or cut short",
            )  # fmt: skip
        for offset in offsets_in(self.path, SNAPSHOT):
            if read_snapshot(os.path.join(self.path, file_name(offset, SNAPSHOT))) is None:
                self._problem(offset, SNAPSHOT, 0, "not a valid producer snapshot")

    def _end(self, base: int, expected: int) -> Place:
        """Where the last segment ends; one that is gone has no bytes."""
        log = os.path.join(self.path, file_name(base, LOG))
        return base, os.path.getsize(log) if files.exists(log) else 0, expected

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        topic, _, number = os.path.basename(self.path).rpartition("-")
        return topic, int(number)

    def _segment(self, base: int, expected: int) -> int:
        starts: dict[int, tuple[int, int]] = {}
        aborted: dict[tuple[int, int], int] = {}
        position = 0
        for batch, fault in self._batches(base):
            if batch is None:
                if expected < self.end:
                    self._damaged(base, position, expected, fault)
                break
            if batch.base_offset >= self.end:
                return expected
            fault = segment_files.fault_of(batch) or fault
            if not fault and batch.base_offset < expected:
                fault = f"base offset {batch.base_offset} below {expected}"
            if fault:
                self._damaged(base, batch.position, expected, fault)
                break
            try:
                self.records += len(batch.records()) if self.full else batch.count
                self._transaction(batch, aborted)
            except CorruptRecord as error:
                self._damaged(base, batch.position, expected, str(error))
                break
            self.batches += 1
            starts[batch.position] = (batch.last_offset, batch.max_timestamp)
            position = batch.position + batch.size
            expected = batch.last_offset + 1
        # Below the log's start is what a killed deletion has left: no reader asks its indexes.
        deleted = expected <= self._log_start
        if self.bad is None and not deleted and (self.end == _MAX or expected <= self.end):
            self._indexes(base, starts, aborted)
        return expected

    def _batches(self, base: int) -> Iterator[tuple[_core.Batch | None, str]]:
        """Every batch of a segment; at the end (None, what is wrong) if it does not end there."""
        path = os.path.join(self.path, file_name(base, LOG))
        with files.naming(path):
            size = os.path.getsize(path)
        if size == 0:
            return
        data = np.memmap(path, dtype=np.uint8, mode="r", shape=(size,))
        position = 0
        try:
            while position < size:
                found = _core.iter_batches(data, position, strict=False)
                if not found:
                    yield None, f"{size - position} bytes are no complete batch"
                    return
                for batch in found:
                    yield batch, ""
                position = found[-1].position + found[-1].size
        except CorruptRecord as error:
            yield None, str(error)

    def _transaction(self, batch: _core.Batch, aborted: dict[tuple[int, int], int]) -> None:
        """Follow transactions: which abort markers the abort index must have an entry for."""
        if not batch.control:
            if batch.transactional:
                self._open.setdefault(batch.producer_id, batch.base_offset)
            return
        kind = batch.control_type
        if kind in (0, 1):
            first = self._open.pop(batch.producer_id, None)
            if kind == 0 and first is not None:
                aborted[batch.producer_id, batch.base_offset] = first

    def _damaged(self, base: int, position: int, expected: int, what: str) -> None:
        """Note the first bad batch, what lies before it, and what a cut there would lose."""
        self.bad = (base, position, expected)
        behind = batches_behind(self.path, self.bad)
        lost = sum(batch.count for batch in behind if not batch.control)
        kept = f"offsets below {expected} are whole"
        tail = f"{lost} whole records follow and go with a cut" if lost else "nothing whole follows"
        path = os.path.join(self.path, file_name(base, LOG))
        self.problems.append(Problem(path, position, f"{what}; {kept}, {tail}", lost))

    def _indexes(
        self,
        base: int,
        starts: dict[int, tuple[int, int]],
        aborted: dict[tuple[int, int], int],
    ) -> None:
        for suffix in (INDEX, TIME_INDEX):
            if not files.exists(os.path.join(self.path, file_name(base, suffix))):
                self._problem(base, suffix, 0, "missing; it is made again from the batches")
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
            least = aborted.get((producer, last), last)
            if last < self.end and (version != 0 or first > least or last not in lasts):
                self._problem(
                    base,
                    TXN_INDEX,
                    position,
                    f"aborted ({producer}, {first}, {last}) fits no marker",
                )
            aborted.pop((producer, last), None)
        for (producer, last), first in aborted.items():
            self._problem(
                base,
                TXN_INDEX,
                0,
                f"no entry for producer {producer}'s aborted transaction at [{first}, {last}]: "
                "its records would be seen",
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
    try:
        fd = files.open_file(os.path.join(path, SESSION_FILE))
    except FileNotFoundError:
        raise StorageError(f"not an eoslog directory: no {SESSION_FILE}", 2, path) from None
    try:
        if not _core.try_lock(fd, 1):
            raise LockTimeout(f"{path}: a process has the directory open")
        lasting = _identity_problems(path)  # first: a newer format is not ours to touch
        lasting += missing_offline(path)  # nothing makes it again either
        problems = _directory_problems(path)
        if mode == "cut":
            for problem in problems:
                files.remove(problem.path)  # made again by the next opening
        cut = 0
        names = partition_directories(path)
        points = recovery_points(path)
        for name in names:
            place = os.path.join(path, name)
            half = unfinished_swap(files.names(place))
            if half is not None and mode == "cut":
                problems.append(
                    Problem(os.path.join(place, half), 0, "a swap, half done, is finished")
                )
                finish_renames(place)
            walk = _Walk(place, _MAX, True, points)
            walk.run()
            problems += walk.problems
            bad = walk.bad or (walk.short if name != METADATA else None)
            if mode == "cut" and bad is not None:
                cut += bytes_behind(walk.path, *bad[:2]) if walk.bad else 0
                if name == METADATA:
                    kept, told = keep_producer_ids(path, bad)
                else:
                    kept, told = keep_offsets(walk.path, bad, points.get(walk.key, 0))
                problems += told
                cut_at(walk.path, kept[0], kept[1], bad[2])
            if mode == "cut" and walk.gap:
                _accept_gap(path, name, walk.gap)
        if mode == "cut":
            problems += keep_producer_ids(path)[1]
        if mode == "cut" and problems:
            # The next opening scans everything and makes every index anew; a partition whose
            # directory is gone it still misses, instead of giving out its offsets again.
            files.remove(os.path.join(path, CLEAN_SHUTDOWN_FILE))
            checkpoints.write_offsets(
                os.path.join(path, checkpoints.RECOVERY_POINT_CHECKPOINT),
                {k: p for k, p in points.items() if not files.is_dir(_directory(path, *k))},
            )
        return RepairReport(mode, len(names), lasting + problems, cut)
    finally:
        files.close(fd)


def _accept_gap(path: str, name: str, base: int) -> None:
    """Records below `base` are gone for good: readers may go on behind them."""
    topic, _, number = name.rpartition("-")
    place = os.path.join(path, checkpoints.CLEANER_CHECKPOINT)
    known = checkpoints.read_offsets(place, lenient=True)
    known[topic, int(number)] = max(base, known.get((topic, int(number)), 0))
    checkpoints.write_offsets(place, known)


def _directory_problems(path: str) -> list[Problem]:
    """What is wrong with the files beside the partitions that can be made again from them."""
    problems = []
    for name in (
        checkpoints.RECOVERY_POINT_CHECKPOINT,
        checkpoints.LOG_START_CHECKPOINT,
        checkpoints.CLEANER_CHECKPOINT,
    ):
        try:
            checkpoints.read_offsets(os.path.join(path, name))
        except CorruptRecord as error:
            problems.append(Problem(os.path.join(path, name), 0, f"{error}; it counts as empty"))
    control = os.path.join(path, CONTROL_FILE)
    with contextlib.suppress(FileNotFoundError):
        head = files.read_file(control)[:12]
        if head[:8] != MAGIC or int.from_bytes(head[8:12], "little") != FORMAT:
            problems.append(
                Problem(
                    control, 0,
                    f"begins with {head!r}, expected {MAGIC!r} format {FORMAT}; "
                    "nothing is lost with it, all partitions are scanned",
                )
            )  # fmt: skip
    return problems


def _identity_problems(path: str) -> list[Problem]:
    """What is wrong with the file that says what the directory is; nothing can make it again.

    Raises:
        UnsupportedFormat: a newer eoslog wrote the directory: what looks damaged need not be.
    """
    try:
        if checkpoints.read_meta_properties(path) is not None or not partition_directories(path):
            return []
        message = "missing"
    except UnsupportedFormat:
        raise
    except CorruptRecord as error:
        message = str(error)
    return [Problem(os.path.join(path, checkpoints.META_PROPERTIES), 0, message)]
