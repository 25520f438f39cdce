"""Checking directories that a broker wrote: batches by checksum, index entries by the batches.

It is laxer than the check of eoslog's own files (`log_checker.py`) where Kafka's versions differ:
an index entry may name any offset of an append, a time index any record that is not past the end,
and an unclean stop leaves zeros behind entries and batches. Nothing is changed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial

from eoslog import _core
from eoslog.errors import ConfigError, CorruptRecord
from eoslog.model import CheckReport, Problem
from eoslog.storage import checkpoints, files, running_broker, segment_files
from eoslog.storage.kafka_directory import is_kafka_directory, read_kafka_directory
from eoslog.storage.legacy_messages import LegacyBatch
from eoslog.storage.log_checker import missing_offline, recovery_points
from eoslog.storage.segment_files import SegmentFiles
from eoslog.storage.segments import DELETED

__all__ = ["check_kafka"]


def check_kafka(path: str, *, full: bool = False, read_only_anyway: bool = False) -> CheckReport:
    """Check a partition directory, or all in a broker's log directory.

    Args:
        path: the directory.
        full: decode every record too.
        read_only_anyway: though a broker is running; what it is just appending may look torn.

    Raises:
        LockTimeout: a broker has the directory open.
        ConfigError: neither a partition directory nor one of a broker.
        StorageError: no such path, or a file cannot be read.
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
            raise ConfigError(f"{path} holds no partition directory and is none")
    problems = [*_of_the_whole(path), *missing_offline(path)]
    partitions = [
        _Partition(place, full, points.get(segment_files.partition_of_path(place), 0))
        for place in places
    ]
    for partition in partitions:
        partition.run()
    return CheckReport(
        len(partitions),
        sum(p.batches for p in partitions),
        sum(p.records for p in partitions),
        problems + [problem for p in partitions for problem in p.problems],
    )


def _is_partition(place: str, points: Mapping[tuple[str, int], int]) -> bool:
    """Whether a folder is one by what it holds or held: other folders are named NAME-NUMBER too."""
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
    """What the files of a log directory say of each other."""
    try:
        wrong: list[CorruptRecord] = []
        if is_kafka_directory(path):
            wrong += read_kafka_directory([path]).wrong_ids.values()
        else:
            checkpoints.read_meta_properties(path)  # eoslog's own, or there is none
    except CorruptRecord as error:
        wrong = [error]
    return [Problem(error.path or path, error.position or 0, str(error)) for error in wrong]


class _Partition:
    def __init__(self, path: str, full: bool, flushed: int) -> None:
        self.path = path
        self.full = full
        self.flushed = flushed
        self.batches = self.records = 0
        self.problems: list[Problem] = []

    def _problem(self, path: str, position: int, message: str) -> None:
        self.problems.append(Problem(path, position, message))

    def run(self) -> None:
        end = self._segments()
        if end < self.flushed:
            self._problem(
                self.path, 0,
                f"the log ends at offset {end}, it was flushed up to offset {self.flushed}: a file "
                "is missing or cut short",
            )  # fmt: skip

    def _segments(self) -> int:
        """Checks the files; the offset that the log ends at."""
        try:
            segments = segment_files.list_segments(self.path)
        except ConfigError:
            return 0  # made, and never written to
        expected = segments[0].base_offset
        for segment in segments:
            if segment.base_offset < expected:
                self._problem(
                    segment.path, 0,
                    f"begins at {segment.base_offset}, the segment before ends at {expected}",
                )  # fmt: skip
            expected = self._segment(segment, expected, last=segment is segments[-1])
        for name in segment_files.list_snapshots(self.path):
            place = os.path.join(self.path, name)
            self._reads(place, partial(segment_files.read_snapshot, place))
        epochs = os.path.join(self.path, checkpoints.LEADER_EPOCH_CHECKPOINT)
        self._reads(epochs, lambda: checkpoints.read_leader_epochs(epochs))
        fault = checkpoints.partition_metadata_fault(self.path)
        if fault is not None:
            self._problem(fault.path or self.path, fault.position or 0, str(fault))
        return max(expected, segments[-1].base_offset)

    def _reads(self, path: str, read: Callable[[], object]) -> None:
        try:
            read()
        except CorruptRecord as error:
            self._problem(path, error.position or 0, str(error))

    def _segment(self, segment: SegmentFiles, expected: int, *, last: bool) -> int:
        starts: list[int] = []
        markers: set[int] = set()
        position: int | None = 0
        size = len(segment.data)
        while position is not None and position < size:
            at = position
            try:
                for batch in segment.batches(at):
                    at = batch.position
                    self._batch(segment, batch, expected)
                    expected = max(expected, batch.last_offset + 1)
                    starts.append(at)
                    if batch.control:
                        markers.add(batch.last_offset)
                    at += batch.size
                if at == size or (last and segment.blank_from(at)):
                    break
                self._problem(segment.path, at, f"{size - at} bytes are no whole batch")
            except CorruptRecord as error:
                self._problem(segment.path, at, str(error))
            position = segment.next_valid(at, expected - 1)
        self._indexes(segment, starts, markers, expected)
        return expected

    def _batch(
        self, segment: SegmentFiles, batch: _core.Batch | LegacyBatch, expected: int
    ) -> None:
        self.batches += 1
        fault = segment_files.fault_of(batch)
        if fault is not None:
            self._problem(segment.path, batch.position, fault)
            return
        base = batch.base_offset
        if base < expected:
            self._problem(segment.path, batch.position, f"base offset {base} below {expected}")
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
        path, base = segment.beside("index"), segment.base_offset
        if not os.path.exists(path):
            self._problem(path, 0, "missing: a broker makes it anew at its next start")
        previous = base - 1
        for number, (offset, at) in enumerate(segment_files.read_offset_index(path, base)):
            i = bisect_right(starts, at) - 1
            if offset <= previous or offset >= end or i < 0 or starts[i] != at:
                self._problem(path, 8 * number, f"entry ({offset}, {at}) fits no batch")
            previous = offset
        path, newest = segment.beside("timeindex"), -1
        for number, (time, offset) in enumerate(segment_files.read_time_index(path, base)):
            if time < newest or not base <= offset < max(end, base + 1):
                self._problem(path, 12 * number, f"entry ({time}, {offset}) fits no batch")
            newest = time
        path = segment.beside("txnindex")
        try:
            for number, entry in enumerate(segment_files.read_txn_index(path)):
                if entry.first_offset > entry.last_offset or entry.last_offset not in markers:
                    self._problem(
                        path, 34 * number,
                        f"aborted ({entry.producer_id}, {entry.first_offset}, "
                        f"{entry.last_offset}) fits no marker",
                    )  # fmt: skip
        except CorruptRecord as error:
            self._problem(path, error.position or 0, str(error))
