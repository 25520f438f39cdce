"""Check and repair of closed directories: `eoslog.check` and `eoslog.repair`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, cached_property

from eoslog._util.argument_types import explained
from eoslog._util.arguments import as_path
from eoslog.admin import repair as log_repair
from eoslog.coordinator.transactions.records import decode_carried, decode_key, decode_value
from eoslog.errors import EoslogError
from eoslog.model import TRANSACTION_STATE_TOPIC, TopicPartition
from eoslog.reports import CheckReport, RepairReport
from eoslog.storage.broker.check import check_kafka
from eoslog.storage.broker.directory import is_kafka_directory
from eoslog.storage.broker.repair import repair_as_kafka
from eoslog.storage.check.checker import partition_directories, recovery_points
from eoslog.storage.check.truncation import batches_after
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.segment.carried_batches import CarriedBatches, end_of
from eoslog.storage.segment.segment import LOG, offsets_in

__all__ = ["check", "repair"]


@explained
def check(
    *paths: str | os.PathLike[str],
    full: bool = False,
    read_only_anyway: bool = False,
    fix_indexes: bool = False,
) -> CheckReport:
    """Check every file of directories that are not open as a `Log`.

    Args:
        paths: directories of logs or brokers, or partition directories.
        full: decode every record, in addition to the checksums.
        read_only_anyway: check although a broker is running.
        fix_indexes: rebuild the indexes and producer snapshots that differ from the batches, and
            name them in `rebuilt`. Log files are never changed. Files that are derived from a
            damaged part of a log stay as they are. For directories of eoslog only.

    Returns:
        The problems that were found, and counts.

    Raises:
        LockTimeout: if a broker is running; with `fix_indexes`, if a process has the log open.
        ConfigError: if a path is neither a log nor a partition directory.
        StorageError: if a file cannot be read.
    """
    paths = tuple(map(as_path, paths))
    if fix_indexes:
        return _together([log_repair.fix_indexes(os.path.abspath(p), full=full) for p in paths])
    reports = []
    for place in map(os.path.abspath, paths):
        carried = _Carried(place)
        of = carried if carried.found else log_repair.nothing_carried  # read before the logs
        reports.append(check_kafka(place, full=full, read_only_anyway=read_only_anyway, carried=of))
    return _together(reports)


def _together(reports: list[CheckReport]) -> CheckReport:
    return CheckReport(
        sum(report.partitions for report in reports),
        sum(report.batches for report in reports),
        sum(report.records for report in reports),
        [problem for report in reports for problem in report.problems],
        [note for report in reports for note in report.notes],
        [path for report in reports for path in report.rebuilt],
    )


@explained
def repair(path: str | os.PathLike[str], mode: str = "report") -> RepairReport:
    """Report or remove damage in a directory that no process has open.

    This function does not ask before it changes files; `eoslog repair` does.

    Args:
        path: the directory of a log. For "as-kafka" also a stopped broker's log directory, or a
            partition directory in it.
        mode: "report" changes nothing.
            "skip" removes the damaged batches of each partition and keeps all complete batches
            after them. Readers step over the missing offsets. A lost transaction marker is written
            again. Internal topics are not changed (`refused`).
            "cut" truncates each damaged partition before its first damaged batch, and so removes
            complete batches after it too.
            "as-kafka" truncates in the same way, as a broker does after an unclean stop.
            All three let readers continue after a missing segment. They copy the removed bytes to
            `<segment>.log.cut-<ms>` in the partition's directory before they change a file.

    Returns:
        The damage that was found, and what was changed.

    Raises:
        LockTimeout: if a process has the directory open.
        ConfigError: if the mode is unknown.
        UnsupportedFormat: if a newer eoslog wrote the directory; nothing is changed.
        DiskFull: if there is no room for the copies; nothing is changed.

    Durability:
        The copies are durable before anything is removed. If the process dies, the next run
        completes the repair.
    """
    place = os.path.abspath(os.fspath(path))
    carried, decisions = _Carried(place), cache(lambda: _decisions(place))
    if mode != "as-kafka":
        return log_repair.repair(place, mode, decisions, carried)
    if is_kafka_directory(place) or not carried.found:
        return repair_as_kafka(place)
    before = log_repair.restore_carried(place, carried)
    done = repair_as_kafka(place)
    # A partition that is damaged below what decisions carry keeps the offsets.
    after = log_repair.repair(place, "cut", decisions, carried)
    return replace(
        done, problems=[*before.problems, *done.problems, *after.problems],
        kept=[*before.kept, *done.kept, *after.kept], bytes_cut=done.bytes_cut + after.bytes_cut,
    )  # fmt: skip


class _Carried:
    """What decisions carry in a directory that was not closed cleanly."""

    def __init__(self, path: str) -> None:
        self._path = path

    @cached_property
    def found(self) -> dict[tuple[TopicPartition, bytes], list[CarriedBatches]]:
        """The batches by partition and topic id, as of the first use."""
        path = self._path
        found: dict[tuple[TopicPartition, bytes], list[CarriedBatches]] = {}
        if not files.is_dir(path) or checkpoints.was_clean_shutdown(path):
            return found
        flushed = recovery_points(path)
        for _, value in _transaction_records(path):
            with contextlib.suppress(EoslogError):
                for (tp, topic_id), part in decode_carried(value).items():
                    if end_of([part]) > flushed.get((tp.topic, tp.partition), 0):
                        found.setdefault((tp, topic_id), []).append(part)
        return found

    def __call__(self, name: str) -> list[CarriedBatches]:
        """What decisions carry of a partition, by the name of its folder."""
        topic, _, number = name.rpartition("-")
        tp = TopicPartition(topic, int(number))
        if all(known != tp for known, _ in self.found):
            return []
        topic_id = checkpoints.read_partition_metadata(os.path.join(self._path, name))
        return self.found.get((tp, topic_id or b""), [])


def _decisions(path: str) -> dict[tuple[int, int], tuple[str, bool]]:
    """Return every decision in `__transaction_state`, including those after damage.

    The key is (producer id, epoch of the data); the value is the transactional id, and whether
    the decision was to commit.
    """
    found = {}
    for transactional_id, value in _transaction_records(path):
        try:
            decided = decode_value(transactional_id, value).decided
        except EoslogError:
            continue
        if decided is not None:
            found[decided.key] = transactional_id, decided.commit
    return found


def _transaction_records(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield (transactional id, value) of `__transaction_state`, also after damage."""
    for name in partition_directories(path):
        if name.rpartition("-")[0] != TRANSACTION_STATE_TOPIC:
            continue
        place = os.path.join(path, name)
        first = next(iter(offsets_in(place, LOG)), 0)
        for batch in batches_after(place, (first, -1, first)):
            for _, _, key, value, _ in () if batch.control else batch.records():
                with contextlib.suppress(EoslogError):
                    transactional_id = decode_key(key or b"")
                    if transactional_id is not None and value is not None:
                        yield transactional_id, value
