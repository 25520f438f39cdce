"""Checking the files of partitions against each other.

A check verifies the CRC of every batch and compares each index entry with the batches. It changes
no file, and may run while other processes write (up to the given ends).
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise

from eoslog import _core
from eoslog.errors import CorruptRecord, DirectoryReplaced, StorageError, UnsupportedFormat
from eoslog.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    STAGING_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from eoslog.reports import CheckReport, Problem
from eoslog.storage.check.truncation import LogPosition, batches_after
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.closed_metadata import durable_ends, living_partitions
from eoslog.storage.directory.directory import is_of_a_directory
from eoslog.storage.directory.offset_jumps import gaps_to
from eoslog.storage.directory.session import CONTROL_FILE, FORMAT, MAGIC, SESSION_FILE
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment import kept_copies, seals, segment_files
from eoslog.storage.segment.leader_epochs import EpochCheck
from eoslog.storage.segment.listing import LISTINGS, was_taken
from eoslog.storage.segment.replacement import unfinished_swap
from eoslog.storage.segment.scans import is_blank, zeros_are_space
from eoslog.storage.segment.segment import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_path,
    is_of_a_partition,
    offsets_in,
    read_snapshot,
)

_MAX = (1 << 63) - 1
_PAUSE_S = 0.002


def partition_directories(path: str) -> list[str]:
    """Return the names of the partition directories in a log directory."""
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
    names: Sequence[str] | None = None,
    ends: Mapping[str, int] | None = None,
    logs: Mapping[str, PartitionLog] | None = None,
    flushed: Mapping[tuple[str, int], int] | None = None,
    ids: Mapping[str, bytes] | None = None,
) -> CheckReport:
    """Check every partition of a directory.

    Args:
        path: the directory.
        full: decode every record too.
        names: the partition directories, listed before the partitions were opened; None: all.
        ends: partition directory name -> published end (exclusive); other partitions are read to
            the ends of their files.
        logs: partition directory name -> open partition. None: no process has the directory open.
        flushed: recovery points, read before `ends`; records below them must exist. None: those in
            the directory.
        ids: partition directory name -> topic id that the directory must have.
    """
    partitions = batches = records = 0
    problems: list[Problem] = []
    notes: list[Problem] = []
    points = recovery_points(path) if flushed is None else flushed
    names = partition_directories(path) if names is None else names
    durable = cache(lambda: durable_ends(path))
    for name in names:
        end, topic_id = (ends or {}).get(name, _MAX), (ids or {}).get(name)
        new = partial(Walk, os.path.join(path, name), end, full, points, durable, topic_id)
        walk = _walked(new) if logs is None else _walked_in_use(new, logs.get(name))
        if walk is None:
            continue
        partitions += 1
        batches += walk.batches
        records += walk.records
        problems += walk.problems
        notes += walk.notes
    known = {*names, *partition_directories(path)}  # `names` lacks those of newer topics
    notes += strangers(path, lambda name: name in known or is_of_a_directory(name))
    return CheckReport(partitions, batches, records, problems, notes)


def _walked(new: Callable[[], Walk]) -> Walk:
    """Check a partition that no process has open."""
    walk = new()
    try:
        walk.run()
    except FileNotFoundError:
        raise StorageError(
            f"{walk.path}: segments were deleted during the check; check the open log instead",
            path=os.path.dirname(walk.path),
        ) from None
    return walk


def _walked_in_use(new: Callable[[], Walk], log: PartitionLog | None) -> Walk | None:
    """Check a partition in use, again if its segments were replaced or deleted.

    Args:
        new: returns a new walk.
        log: the open partition; None if it could not be opened, or is not a topic's.

    Returns:
        None if the partition was deleted, because another one may have its name now.
    """
    deadline, attempts = time.monotonic() + LOCK_TIMEOUT_S, LISTINGS
    while True:
        version, walk = _version(log), new()
        missing: FileNotFoundError | StorageError | None = None
        try:
            walk.run()
        except FileNotFoundError as error:
            missing = error
        except StorageError as error:
            if isinstance(error, DirectoryReplaced) or not was_taken(error):
                raise
            missing = error
        deleted = log.core.deleted if log is not None else not files.is_dir(walk.path)
        if deleted:
            return None
        if missing is None and walk.half:
            if log is None or _is_dead_swap(log) or time.monotonic() > deadline:
                return walk
            time.sleep(_PAUSE_S)
            continue
        now, attempts = _version(log), attempts - 1
        # A roll or a deletion may make a right file look wrong, but not a wrong one look right.
        moved = version != now if walk.problems else version[0] != now[0]
        if missing is None and not (moved and attempts):
            return walk
        if missing is not None and not attempts:
            raise missing


def _is_dead_swap(log: PartitionLog) -> bool:
    """Whether no process is at work on an incomplete segment swap."""
    if not log.cleaner_lock.try_take():  # also if the log is read-only
        return False
    try:
        return unfinished_swap(files.names(log.path)) is not None
    finally:
        log.cleaner_lock.release()


def _version(log: PartitionLog | None) -> tuple[int, int]:
    """Return numbers that change with a segment swap, and a roll or deletion."""
    return (0, 0) if log is None else (log.cleaned_version, log.core.published_segments_version)


def strangers(path: str, known: Callable[[str], bool]) -> list[Problem]:
    """Return notes about files with names that neither eoslog nor Kafka uses."""
    text = "not a file of eoslog or Kafka; ignored"
    return [
        Problem(os.path.join(path, name), 0, text) for name in files.names(path) if not known(name)
    ]


def recovery_points(path: str) -> dict[tuple[str, int], int]:
    """Return the recorded recovery points: (topic, partition) -> offset (exclusive)."""
    return offset_checkpoints.read(path, checkpoints.RECOVERY_POINT_CHECKPOINT)


def missing(path: str, points: Mapping[tuple[str, int], int]) -> list[Problem]:
    """Return problems for partitions that had records according to `points`, but no directory now.

    Recovery points of deleted topics may remain: the caller must leave those out.
    """
    problems = []
    for (topic, number), point in sorted(points.items()):
        place = _directory(path, topic, number)
        if point > 0 and not files.is_dir(place):
            problems.append(
                Problem(place, 0, f"the directory is missing; it had offsets up to {point}")
            )
    return problems


def _directory(path: str, topic: str, number: int) -> str:
    return os.path.join(path, f"{topic}-{number}")


def missing_offline(path: str) -> list[Problem]:
    """Return `missing` for a directory that no process has open; empty for a broker's."""
    if not files.exists(os.path.join(path, SESSION_FILE)):
        return []  # a broker's partitions may be moved away, while their points remain
    living = living_partitions(path)
    internal = (CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)
    points = recovery_points(path)
    return missing(path, {k: p for k, p in points.items() if k in living or k[0] in internal})


class Walk:
    """The check of one partition directory: batches in order, and their indexes."""

    def __init__(
        self,
        path: str,
        end: int,
        full: bool,
        points: Mapping[tuple[str, int], int],
        durable: Callable[[], Mapping[tuple[str, int], int]],
        topic_id: bytes | None = None,
        *,
        carried: int = 0,
    ) -> None:
        self.path = path
        self.end = end
        self.full = full
        self._points = points
        self._durable = durable
        self._carried = carried  # the end of what decisions carry, which files may lack
        self._topic_id = topic_id
        self.batches = 0
        self.records = 0
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []  # not damage, for example copies of an earlier repair
        # (segment base, position) of the first bad batch, and the offset after the last good one
        self.bad: LogPosition | None = None
        self.half = False  # whether a segment swap is incomplete, so nothing was read
        self.short: LogPosition | None = None  # end of a log that ends too early
        self.gap = 0  # base of the last segment before which offsets are missing
        self.cleaned = 0  # offset below which a cleaning may have removed them
        self._open: dict[int, int] = {}
        self._log_start = 0
        self._bases: list[int] = []
        self._stop = 0, 0  # base of the last segment that was read, and the byte after its batches
        self._gaps_to: int | None = None  # where gaps are allowed in the last segment; None: all
        self._epochs = EpochCheck(path)

    def _problem(self, base: int, suffix: str, position: int, message: str) -> None:
        self.problems.append(Problem(file_path(self.path, base, suffix), position, message))

    def run(self) -> None:
        """Read the partition, and set the attributes."""
        fault = checkpoints.partition_metadata_fault(self.path, self._topic_id)
        if fault is not None:
            self.problems.append(Problem(fault.path or self.path, fault.position or 0, str(fault)))
        if self._epochs.fault is not None:
            self.problems.append(self._epochs.fault)
        half = unfinished_swap(files.names(self.path))
        if half is not None:
            self.half = True
            self.problems.append(
                Problem(
                    os.path.join(self.path, half), 0,
                    "a segment swap is incomplete; the next opening for writing finishes it",
                )
            )  # fmt: skip
            return
        self.notes += kept_copies.notes_of_copies(self.path)
        self.notes += strangers(self.path, is_of_a_partition)
        bases = self._bases = offsets_in(self.path, LOG)
        expected = bases[0] if bases else 0
        if bases:
            self._open = segment_files.open_before(segment_files.list_segments(self.path))
        # Below `cleaned_to` a broker's cleaner may have left gaps between segments.
        root = os.path.dirname(self.path)
        cleaned = offset_checkpoints.read(root, checkpoints.CLEANER_CHECKPOINT)
        self.cleaned = cleaned_to = cleaned.get(self.key, 0)
        starts = offset_checkpoints.read(root, checkpoints.LOG_START_CHECKPOINT)
        self._log_start = starts.get(self.key, 0)
        if offset_checkpoints.is_recorded(root):
            expected = min(expected, self._log_start)
        for base in bases:
            if base >= self.end and base > 0:
                break
            self._gaps_to = gaps_to(root, self.key) if base == bases[-1] else None
            if base < expected:
                self._problem(
                    base, LOG, 0,
                    f"segment begins at offset {base}, but the segment before it ends at "
                    f"{expected}",
                )  # fmt: skip
            elif base > max(expected, cleaned_to):
                self.gap = base
                self._problem(
                    base, LOG, 0,
                    f"offsets {expected} to {base - 1}, before this segment, are missing, and "
                    "compaction did not remove them",
                )  # fmt: skip
            expected = self._segment(base, expected)
            if self.bad is not None:
                break
        for base, end in pairwise(bases):
            if end <= self.end and self.bad is None:
                self._identity(base, end)
        flushed = max(self._flushed(), self._carried)
        # An adopted log may end with offsets that a broker's cleaner has removed.
        published = self.end if cleaned_to < self.end < _MAX else 0
        if self.bad is None and expected < max(flushed, published):
            how = "published" if published > flushed else "flushed"
            self.short = self._end(bases[-1] if bases else 0, expected)
            self._problem(
                bases[-1] if bases else 0, LOG, 0,
                f"the log ends at offset {expected}, but it was {how} up to offset "
                f"{max(flushed, published)}: a file is missing or truncated",
            )  # fmt: skip
        for offset in offsets_in(self.path, SNAPSHOT):
            try:
                valid = read_snapshot(file_path(self.path, offset, SNAPSHOT))
            except FileNotFoundError:
                valid = None  # a link to a file that is missing
            if valid is None:
                self._problem(offset, SNAPSHOT, 0, "not a valid producer snapshot")

    def _end(self, base: int, expected: int) -> LogPosition:
        """Return the end of the last segment's batches; a missing one has no bytes."""
        return base, self._stop[1] if self._stop[0] == base else 0, expected

    def preallocated(self, base: int, position: int, expected: int) -> bool:
        """Whether the rest of a segment is preallocated space, and no lost batch.

        By the rule of recovery (`zeros_are_space`).
        """
        if self.end < _MAX:
            return False
        following = next((other for other in self._bases if other > base), None)
        durable = max(self._flushed(), self._durable().get(self.key, 0))
        clean = checkpoints.was_clean_shutdown(os.path.dirname(self.path))
        if not zeros_are_space(expected, following, durable=durable, clean=clean):
            return False
        fd = files.open_file(file_path(self.path, base, LOG), read_only=True)
        try:
            return is_blank(fd, position, os.fstat(fd).st_size)
        finally:
            files.close(fd)

    def _flushed(self) -> int:
        """The recovery point. It is lower now if the topic was deleted and re-created."""
        now = recovery_points(os.path.dirname(self.path))
        return min(points.get(self.key, 0) for points in (self._points, now))

    @property
    def key(self) -> tuple[str, int]:
        """The topic name and partition number."""
        topic, _, number = os.path.basename(self.path).rpartition("-")
        return topic, int(number)

    def _identity(self, base: int, end: int) -> None:
        """Compare a sealed segment's file, whose batches are valid, with its seal."""
        log = file_path(self.path, base, LOG)
        seal = seals.read(self.path, end, base=base)
        wrong = None if seal is None or not seal.size else seals.fault(seal, log)
        if wrong is not None and all(problem.path != log for problem in self.problems):
            self.problems.append(Problem(log, 0, str(wrong)))

    def _segment(self, base: int, expected: int) -> int:
        starts: dict[int, tuple[int, int]] = {}
        aborted: dict[tuple[int, int], int] = {}
        position = 0
        for batch, fault in self._batches(base):
            if batch is None:
                if expected < self.end and not self.preallocated(base, position, expected):
                    self._damaged(base, position, expected, fault)
                break
            if self.end < _MAX and batch.base_offset >= self.end:
                return expected
            fault = segment_files.fault_of(batch) or fault
            if not fault and batch.base_offset < expected:
                fault = f"base offset is {batch.base_offset}, expected {expected} or more"
            if not fault and self._raised(base, batch, expected):
                fault = f"base offset is {batch.base_offset}, expected {expected}"
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
            if kept_copies.is_gap(batch):
                self.notes.append(kept_copies.note_of_gap(self.path, base, batch))
            self._epochs.look(
                batch.position, batch.base_offset, batch.last_offset, batch.leader_epoch
            )
            starts[batch.position] = (batch.last_offset, batch.max_timestamp)
            position = batch.position + batch.size
            expected = batch.last_offset + 1
        self._stop = base, position
        self.problems += self._epochs.taken(file_path(self.path, base, LOG))
        # A segment below the log start is left from an interrupted deletion: no reader uses it.
        deleted = expected <= self._log_start
        if self.bad is None and not deleted and (self.end == _MAX or expected <= self.end):
            self._indexes(base, starts, aborted)
        return expected

    def _raised(self, base: int, batch: _core.Batch, expected: int) -> bool:
        """Whether there is a gap before a batch that compaction cannot have left."""
        allowed = self._gaps_to
        return allowed is not None and batch.base_offset > max(base, expected, allowed)

    def _batches(self, base: int) -> Iterator[tuple[_core.Batch | None, str]]:
        """Yield (batch, "") for each batch of a segment, and (None, fault) before invalid bytes."""
        path = file_path(self.path, base, LOG)
        data, size = segment_files.log_bytes(path)
        position = 0
        try:
            while found := _core.iter_batches(data, position, strict=False):
                for batch in found:
                    yield batch, ""
                position = found[-1].position + found[-1].size
        except CorruptRecord as error:
            yield None, str(error)
            return
        if position < size:
            yield None, f"{size - position} bytes are not a complete batch"

    def _transaction(self, batch: _core.Batch, aborted: dict[tuple[int, int], int]) -> None:
        """Follow transactions, to find the abort markers that the abort index must include."""
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
        """Record the first bad batch, and what truncating the log there would lose."""
        self.bad = (base, position, expected)
        behind = batches_after(self.path, self.bad)
        lost = sum(batch.count for batch in behind if not batch.control)
        kept = f"offsets below {expected} are intact"
        tail = f"{lost} intact records follow" if lost else "no intact records follow"
        path = file_path(self.path, base, LOG)
        self.problems.append(Problem(path, position, f"{what}; {kept}, {tail}", lost))

    def _indexes(
        self,
        base: int,
        starts: dict[int, tuple[int, int]],
        aborted: dict[tuple[int, int], int],
    ) -> None:
        for suffix in (INDEX, TIME_INDEX):
            if not files.exists(file_path(self.path, base, suffix)):
                self._problem(base, suffix, 0, "missing; it is rebuilt from the batches")
        lasts = {last for last, _ in starts.values()}
        previous = -1
        for position, (relative, at) in self._entries(base, INDEX, ">ii"):
            offset = base + relative
            if offset < self.end and (
                at not in starts or offset not in lasts or offset <= previous
            ):
                self._problem(base, INDEX, position, f"entry ({offset}, {at}) matches no batch")
            previous = offset
        newest = -1
        for position, (timestamp, relative) in self._entries(base, TIME_INDEX, ">qi"):
            if base + relative < self.end and (timestamp < newest or base + relative not in lasts):
                self._problem(
                    base,
                    TIME_INDEX,
                    position,
                    f"entry ({timestamp}, {base + relative}) matches no batch",
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
                    f"aborted ({producer}, {first}, {last}) matches no marker",
                )
            aborted.pop((producer, last), None)
        for (producer, last), first in aborted.items():
            self._problem(
                base,
                TXN_INDEX,
                0,
                f"no entry for producer {producer}'s aborted transaction [{first}, {last}]; "
                "without it, its records are visible",
            )

    def _entries(
        self, base: int, suffix: str, layout: str
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        entry = struct.Struct(layout)
        try:
            data = files.read_file(file_path(self.path, base, suffix))
        except FileNotFoundError:
            return
        if len(data) % entry.size:
            self._problem(
                base, suffix, len(data), f"size must be a multiple of {entry.size}, got {len(data)}"
            )
        for position in range(0, len(data) - entry.size + 1, entry.size):
            yield position, entry.unpack_from(data, position)


def directory_problems(path: str) -> list[Problem]:
    """Return what is wrong with the directory's files that can be rebuilt from its partitions."""
    problems = []
    record = offset_checkpoints.fault(path)
    if record is not None:
        problems.append(
            Problem(record.path or path, 0, f"{record}; the next checkpoint replaces it")
        )
    for name in offset_checkpoints.NAMES:
        try:
            checkpoints.read_offsets(os.path.join(path, name))
        except CorruptRecord as error:
            problems.append(Problem(os.path.join(path, name), 0, f"{error}; treated as empty"))
    control = os.path.join(path, CONTROL_FILE)
    with contextlib.suppress(FileNotFoundError):
        head = files.read_file(control)[:12]
        if head[:8] != MAGIC or int.from_bytes(head[8:12], "little") != FORMAT:
            problems.append(
                Problem(
                    control, 0,
                    f"begins with {head!r}, expected {MAGIC!r} and format {FORMAT}; no data is "
                    "lost: all partitions are scanned",
                )
            )  # fmt: skip
    return problems


def identity_problems(path: str) -> list[Problem]:
    """Return what is wrong with meta.properties, which cannot be rebuilt.

    Raises:
        UnsupportedFormat: if a newer eoslog wrote the directory, so that its files may be valid.
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
