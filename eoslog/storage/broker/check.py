"""Checking directories that a broker wrote: batches by checksum, index entries by the batches.

The check is less strict than that of eoslog's own files (`storage/check/checker.py`), because
Kafka's versions differ. An index entry may have any offset of an append, a time index entry any
record before the end, and zeros after entries and batches are left by an unclean stop. The check
changes no files.

A closed directory of eoslog is checked in the same way. In addition its files must agree with its
metadata log and with its seals. Where the log directory records a log start, or up to which offset
a cleaner has left gaps, other missing offsets are a missing segment file, as for `read_segments`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord
from eoslog.reports import CheckReport, Problem
from eoslog.storage.broker import lock as running_broker
from eoslog.storage.broker.directory import is_kafka_directory, read_kafka_directory
from eoslog.storage.check.checker import missing_offline, recovery_points
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.closed_metadata import METADATA, durable_ends, topic_ids
from eoslog.storage.directory.offset_jumps import gaps_to
from eoslog.storage.directory.session import SESSION_FILE
from eoslog.storage.format import checkpoints
from eoslog.storage.format.legacy_messages import LegacyBatch
from eoslog.storage.fs import files
from eoslog.storage.segment import kept_copies, seals, segment_files
from eoslog.storage.segment.carried_batches import CarriedBatches, missing_bytes
from eoslog.storage.segment.leader_epochs import EpochCheck
from eoslog.storage.segment.scans import zeros_are_space
from eoslog.storage.segment.segment import DELETED
from eoslog.storage.segment.segment_files import SegmentFiles

__all__ = ["check_kafka"]


def check_kafka(
    path: str,
    *,
    full: bool = False,
    read_only_anyway: bool = False,
    carried: Callable[[str], Sequence[CarriedBatches]] = lambda _: (),
) -> CheckReport:
    """Check a partition directory, or all partitions in a broker's log directory.

    Args:
        path: the directory.
        full: decode every record too.
        read_only_anyway: check even if a broker is running; its current appends may look torn.
        carried: the batches that decisions carry of a partition, by the name of its directory. They
            were read before this call, so a log in use has them.

    Raises:
        LockTimeout: if a broker has the directory open.
        ConfigError: if the path is neither a partition directory nor a broker's log directory.
        StorageError: if there is no such path, or a file cannot be read.
    """
    if not read_only_anyway:
        running_broker.refuse(path)
    points = recovery_points(path)
    if any(name.endswith(".log") for name in files.names(path)):
        places = [path]
    else:
        places = [
            os.path.join(path, name)
            for name in files.names(path)
            if os.path.isdir(os.path.join(path, name))
            and _is_partition(os.path.join(path, name), points)
        ]
        if not places:
            raise ConfigError(
                f"{path} is not a partition directory and does not contain one; give a log "
                "directory or a partition directory"
            )
    problems = [*_of_the_whole(path), *missing_offline(path)]
    # Before the logs: if a process writes them, they have what was durable before.
    durable = durable_ends(path)
    ids = _topic_ids(path if path not in places else os.path.dirname(path))
    keys = map(segment_files.partition_of_path, places)
    partitions = [
        _Partition(place, full, points.get(key, 0), durable.get(key, 0), ids.get(key))
        for place, key in zip(places, keys, strict=True)
    ]
    for partition in partitions:
        partition.run(carried)
    return CheckReport(
        len(partitions),
        sum(p.batches for p in partitions),
        sum(p.records for p in partitions),
        problems + [problem for p in partitions for problem in p.problems],
        [note for p in partitions for note in p.notes],
    )


def _is_partition(place: str, points: Mapping[tuple[str, int], int]) -> bool:
    """Whether a directory is a partition, by its files: other directories have such names too."""
    key = segment_files.partition_of_path(place)
    return key[1] >= 0 and (
        key in points
        or any(
            name == checkpoints.PARTITION_METADATA
            or segment_files.offset_of_name(name.removesuffix(DELETED)) is not None
            for name in files.names(place)
        )
    )


def _of_the_whole(path: str) -> list[Problem]:
    """Return the contradictions between the files of a log directory."""
    try:
        wrong: list[CorruptRecord] = []
        if is_kafka_directory(path):
            wrong += read_kafka_directory([path]).wrong_ids.values()
        elif checkpoints.read_meta_properties(path) is None and _is_own(path):
            wrong.append(
                CorruptRecord("missing", path=os.path.join(path, checkpoints.META_PROPERTIES))
            )
    except CorruptRecord as error:
        wrong = [error]
    return [Problem(error.path or path, error.position or 0, str(error)) for error in wrong]


def _is_own(path: str) -> bool:
    """Whether a directory is a log of eoslog that no broker has used since."""
    own = (SESSION_FILE, METADATA)
    return all(files.exists(os.path.join(path, name)) for name in own) and not is_kafka_directory(
        path
    )


def _topic_ids(root: str) -> dict[tuple[str, int], bytes]:
    try:
        return topic_ids(root) if _is_own(root) else {}
    except CorruptRecord:  # meta.properties or the metadata log, which are reported themselves
        return {}


class _Partition:
    def __init__(
        self, path: str, full: bool, flushed: int, durable: int, topic_id: bytes | None
    ) -> None:
        self.path = path
        self.full = full
        self.flushed = flushed
        self.durable = durable
        self.topic_id = topic_id
        self.batches = self.records = 0
        self.problems: list[Problem] = []
        self.notes = kept_copies.notes_of_copies(path)
        self.epochs = EpochCheck(path)
        key = segment_files.partition_of_path(path)
        root = os.path.dirname(os.path.abspath(path))
        self.gaps_to = gaps_to(root, key)
        self.clean = checkpoints.was_clean_shutdown(root)
        self.copied = (
            "" if _is_own(root) else ", unless the broker has copied a gap from its leader"
        )
        self.bounds = partial(offset_checkpoints.bounds_of, root, key)

    def _problem(self, path: str, position: int, message: str) -> None:
        self.problems.append(Problem(path, position, message))

    def run(self, carried: Callable[[str], Sequence[CarriedBatches]]) -> None:
        end = self._segments()
        if end < self.flushed:
            self._problem(
                self.path, 0,
                f"the log ends at offset {end}, but it was flushed up to offset {self.flushed}: a "
                "file is missing or truncated",
            )  # fmt: skip
            return
        try:
            batches = carried(os.path.basename(self.path))
        except CorruptRecord:  # of `partition.metadata`, which is reported itself
            return
        try:
            missing_bytes(self.path, end, batches)  # the next opening writes these
        except CorruptRecord as error:
            self._problem(self.path, 0, str(error))

    def _segments(self) -> int:
        """Check the files. Returns the offset at which the log ends."""
        try:
            segments = segment_files.list_segments(self.path)
        except ConfigError:
            return 0  # never written to
        # Read after the listing: a deletion in between would look like a missing segment.
        log_start, cleaned_to = self.bounds()
        expected = segments[0].base_offset
        if log_start is not None:
            expected = min(expected, log_start)
        for segment, after in zip_longest(segments, segments[1:]):
            if cleaned_to is not None and segment.base_offset > max(expected, cleaned_to):
                self._problem(
                    segment.path, 0,
                    f"offsets {expected} to {segment.base_offset - 1}, before this segment, are "
                    f"missing, and compaction did not remove them{self.copied}",
                )  # fmt: skip
            if segment.base_offset < expected:
                self._problem(
                    segment.path, 0,
                    f"segment begins at offset {segment.base_offset}, but the segment before it "
                    f"ends at {expected}",
                )  # fmt: skip
            expected = max(expected, segment.base_offset)
            following = None if after is None else after.base_offset
            expected = self._segment(segment, expected, following)
            self._identity(segment, following)
        for name in segment_files.list_snapshots(self.path):
            place = os.path.join(self.path, name)
            self._reads(place, partial(segment_files.read_snapshot, place))
        if self.epochs.fault is not None:
            self.problems.append(self.epochs.fault)
        fault = checkpoints.partition_metadata_fault(self.path, self.topic_id)
        if fault is not None:
            self._problem(fault.path or self.path, fault.position or 0, str(fault))
        return max(expected, segments[-1].base_offset)

    def _identity(self, segment: SegmentFiles, following: int | None) -> None:
        """Compare a segment without another fault with its seal."""
        end = following if following is not None else self.flushed if self.clean else None
        if end is None or self.gaps_to is None:
            return
        if all(problem.path != segment.path for problem in self.problems):
            wrong = seals.refuted(segment.path, segment.base_offset, end)
            if wrong is not None:
                self._problem(segment.path, 0, str(wrong))

    def _reads(self, path: str, read: Callable[[], object]) -> None:
        try:
            read()
        except CorruptRecord as error:
            self._problem(path, error.position or 0, str(error))
        except FileNotFoundError as error:  # a link to a file that is missing
            self._problem(path, 0, f"cannot be opened: {error}")

    def _segment(self, segment: SegmentFiles, expected: int, following: int | None) -> int:
        """Check a segment; `following` is the base of the next one or None."""
        starts: list[int] = []
        markers: set[int] = set()
        position: int | None = 0
        size = segment.size
        while position is not None and position < size:
            at = position
            try:
                for batch in segment.batches(at):
                    at = batch.position
                    self._batch(segment, batch, expected, last=following is None)
                    if isinstance(batch, _core.Batch) and kept_copies.is_gap(batch):
                        note = kept_copies.note_of_gap(self.path, segment.base_offset, batch)
                        self.notes.append(note)
                    expected = max(expected, batch.last_offset + 1)
                    starts.append(at)
                    if batch.control:
                        markers.add(batch.last_offset)
                    at += batch.size
                if at == size:
                    break
                if segment.blank_from(at):
                    durable = max(self.flushed, self.durable)
                    if zeros_are_space(expected, following, durable=durable, clean=self.clean):
                        break
                    self.flushed = durable  # the problem of the whole log says what is lost
                self._problem(segment.path, at, f"{size - at} bytes are not a complete batch")
            except CorruptRecord as error:
                self._problem(segment.path, at, str(error))
            position = segment.next_valid(at, expected - 1)
        self.problems += self.epochs.taken(segment.path)
        self._indexes(segment, starts, markers, expected)
        return expected

    def _batch(
        self, segment: SegmentFiles, batch: _core.Batch | LegacyBatch, expected: int, *, last: bool
    ) -> None:
        self.batches += 1
        fault = segment_files.fault_of(batch)
        if fault is not None:
            self._problem(segment.path, batch.position, fault)
            return
        base = batch.base_offset
        if base < expected:
            self._problem(
                segment.path, batch.position, f"base offset is {base}, expected {expected} or more"
            )
        if last and self.gaps_to is not None and base > max(expected, self.gaps_to):
            self._problem(
                segment.path, batch.position, f"base offset is {base}, expected {expected}"
            )
        self.epochs.look(batch.position, base, batch.last_offset, batch.leader_epoch)
        count = batch.count
        if self.full:
            try:
                count = len(batch.records())
            except CorruptRecord as error:
                self._problem(segment.path, batch.position, str(error))
        self.records += max(count, 0)

    def _indexes(
        self, segment: SegmentFiles, starts: list[int], markers: set[int], end: int
    ) -> None:
        path, base = segment.with_suffix("index"), segment.base_offset
        if not os.path.exists(path):
            self._problem(path, 0, "missing; a broker rebuilds it at its next start")
        previous = base - 1
        for number, (offset, at) in enumerate(segment_files.read_offset_index(path, base)):
            i = bisect_right(starts, at) - 1
            if offset <= previous or offset >= end or i < 0 or starts[i] != at:
                self._problem(path, 8 * number, f"entry ({offset}, {at}) matches no batch")
            previous = offset
        path, newest = segment.with_suffix("timeindex"), -1
        for number, (time, offset) in enumerate(segment_files.read_time_index(path, base)):
            if time < newest or not base <= offset < max(end, base + 1):
                self._problem(path, 12 * number, f"entry ({time}, {offset}) matches no batch")
            newest = time
        path = segment.with_suffix("txnindex")
        try:
            for number, entry in enumerate(segment_files.read_txn_index(path)):
                if entry.first_offset > entry.last_offset or entry.last_offset not in markers:
                    self._problem(
                        path, 34 * number,
                        f"aborted ({entry.producer_id}, {entry.first_offset}, "
                        f"{entry.last_offset}) matches no marker",
                    )  # fmt: skip
        except CorruptRecord as error:
            self._problem(path, error.position or 0, str(error))
