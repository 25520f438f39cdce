"""A copy of a directory that is in use: `Log.backup`.

The copy is equal to the state after a SIGKILL of every process at one point in time, which recovery
can handle. At that point the backup holds all append locks while it reads the end of each
partition. Then it copies the bytes below those ends, while appends continue above them. Finally it
opens the copy once: decided transactions get their markers, undecided ones are aborted, the last
segments get their indexes, and the copy is closed cleanly.

The backup holds the cleaner lock of each partition until all is copied, so compaction, retention
and `delete_records` wait. If a topic is deleted during the copy, the copy starts again.

A crash leaves `TARGET.copying`, which the next backup to the same place removes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from eoslog.engine.engine import Engine
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    IllegalState,
    LogPoisoned,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import CLUSTER_METADATA_TOPIC
from eoslog.reports import BackupReport
from eoslog.storage.check import checker as log_checker
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.directory import NotMade, built_aside
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.replacement import SEGMENT_SUFFIXES, unfinished_swap
from eoslog.storage.segment.segment import LOG, SEAL, SNAPSHOT, file_name, offsets_among

__all__ = ["backup"]

_TRIES = 10
_CLEANING_TIMEOUT_S = 300.0
_SMALL_FILES = (checkpoints.LEADER_EPOCH_CHECKPOINT, checkpoints.PARTITION_METADATA)

ConsistentCut = list[tuple[PartitionLog, dict[str, Any]]]
"""Every partition, with what its slot said at one instant."""


def backup(
    engine: Engine, path: str, *, check: bool, progress: Callable[[int, int], None] | None
) -> BackupReport:
    """See `Log.backup`."""
    if engine.read_only and not engine.is_fixed:
        raise IllegalState(
            f"{engine.path}: another process has the log open, so a backup needs its append locks, "
            "and this log is read-only; open the log for writing"
        )
    source, target = os.path.realpath(engine.path), os.path.realpath(path)
    if os.path.commonpath([source, target]) == source:
        raise ConfigError(f"{target} is inside the log {source}; choose a target outside of it")
    engine.session.directory.require()  # the caller means the log at the path
    for _ in range(_TRIES):
        try:
            with built_aside(target, ".copying", files.shared_mode(source)) as work:
                partitions, size = _copy(engine, work, progress)
                engine.session.directory.require()
                engine.refuse_outdated()  # a writer since then may have changed files
                files.failpoint("backup.copied")
                _settle(work, source)
                found = log_checker.check(work).problems if check else ()
                problems = [replace(one, path=one.path.replace(work, target)) for one in found]
        except _TopicDeleted:
            continue
        return BackupReport(target, partitions, size, problems)
    raise StorageError(f"topics were deleted in each of {_TRIES} attempts to copy", path=source)


class _TopicDeleted(Exception):
    """While it was copied: there is no such instant any more."""


def _copy(
    engine: Engine, work: str, progress: Callable[[int, int], None] | None
) -> tuple[int, int]:
    """Copy every partition as it is now; how many they are, and the bytes."""
    with ExitStack() as held:
        cut = _consistent_cut(engine, held)
        files.failpoint("backup.cut")
        todo: list[tuple[PartitionLog, str, int]] = []
        for log, view in cut:
            with _unless_deleted(engine, log):
                todo += [(log, name, size) for name, size in _files(log, view)]
        total, done = sum(size for *_, size in todo), 0

        def advance(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, total)

        for log, _ in cut:
            files.make_dir(os.path.join(work, log.name))
        for log, name, size in todo:
            with _unless_deleted(engine, log):
                target = os.path.join(work, log.name, name)
                files.copy_file(os.path.join(log.path, name), target, size, advance)
            files.failpoint("backup.file")
        for log, _ in cut:
            files.fsync_dir(os.path.join(work, log.name))
        ends = {(log.topic, log.partition): view["log_end"] for log, view in cut}
        starts = {(log.topic, log.partition): view["log_start"] for log, view in cut}
        cleaned = offset_checkpoints.read(engine.session.path, checkpoints.CLEANER_CHECKPOINT)
    for name, offsets in (
        (checkpoints.RECOVERY_POINT_CHECKPOINT, ends),
        (checkpoints.LOG_START_CHECKPOINT, starts),
        (checkpoints.CLEANER_CHECKPOINT, cleaned),
    ):
        offset_checkpoints.write(work, name, offsets)
    checkpoints.write_meta_properties(work, engine.properties)
    return len(cut), done


@contextmanager
def _unless_deleted(engine: Engine, log: PartitionLog) -> Iterator[None]:
    """Access a partition's files; if they are missing, its topic may be deleted."""
    try:
        with files.naming(log.path):
            yield
    except StorageError as error:
        engine.metadata.refresh()
        if error.errno == errno.ENOENT and log.topic_id in engine.metadata.deleted:
            raise _TopicDeleted from error
        raise


def _consistent_cut(engine: Engine, held: ExitStack) -> ConsistentCut:
    """List all partitions at one point in time; no cleaning runs until `held` closes."""
    if engine.is_fixed:
        return _unchanging(engine)
    found: dict[str, PartitionLog] = {}
    for _ in range(_TRIES):
        for log in _logs(engine, found):
            if log.name not in found:
                files.failpoint("backup.lock")
                held.enter_context(log.cleaner_lock.held(log.name, _CLEANING_TIMEOUT_S))
                try:
                    log.finish_swap()
                except UnknownTopicOrPartition as error:
                    raise _TopicDeleted from error
                found[log.name] = log
        views = engine.session.consistent_cut([log.slot for log in found.values()])
        cut = list(zip(found.values(), views, strict=True))
        for log, view in cut:
            if view["deleted"]:
                raise _TopicDeleted
            if view["poison"]:
                raise LogPoisoned(
                    "a flush failed; close the log in every process, then open it again",
                    0,
                    log.path,
                )
        torn = [log for log, view in cut if view["busy"]]
        for log in torn:  # its holder died in an append: who locks it next repairs it
            log.publish_log_start(log.log_start, segments_changed=False)
        # Records in the copy may name partitions that were created in the meantime.
        if not torn and all(log.name in found for log in _logs(engine, found)):
            return cut
    raise StorageError(
        f"partitions were created in each of {_TRIES} attempts to copy; retry", path=engine.path
    )


def _unchanging(engine: Engine) -> ConsistentCut:
    """Every partition as this reader found it, where no process writes.

    Raises:
        StorageError: a cleaning was cut short in one: only a writer can finish it.
    """
    found = []
    for log in _logs(engine, {}):
        if unfinished_swap(files.names(log.path)):
            raise StorageError(
                "a segment swap was interrupted; open the log once for writing, which completes it",
                path=log.path,
            )
        found.append((log, engine.session.control.slot_view(log.slot)))
    return found


def _logs(engine: Engine, found: Mapping[str, PartitionLog]) -> Iterator[PartitionLog]:
    """List the existing partitions without the user partitions in `found`.

    To open one of those again would wait for a lock that this backup holds.
    """
    metadata = engine.partitions.known(CLUSTER_METADATA_TOPIC, 0)
    assert metadata is not None  # opened with the directory
    yield metadata
    yield from engine.transaction_partitions()
    yield from engine.group_partitions()
    yield from engine.first_use.all()
    for key in engine.user_partitions():
        if "{}-{}".format(*key) in found:
            continue
        try:
            yield engine.partition(*key)
        except UnknownTopicOrPartition as error:
            raise _TopicDeleted from error
        except NotMade:
            continue  # it is empty, and the copy makes it at its first use


def _files(log: PartitionLog, view: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield name and size of each file to copy.

    The indexes of the last segment are rebuilt.
    """
    present = files.names(log.path)
    wanted = [
        file_name(base, suffix)
        for base in offsets_among(present, LOG)
        if base < view["active_base"]
        for suffix in SEGMENT_SUFFIXES
    ]
    wanted += [
        file_name(offset, suffix)
        for suffix in (SNAPSHOT, SEAL)
        for offset in offsets_among(present, suffix)
    ]
    for name in (*wanted, *_SMALL_FILES):
        status = files.status(os.path.join(log.path, name))
        if status is not None:  # an index there need not be, and a snapshot may go
            yield name, status.st_size
    yield file_name(view["active_base"], LOG), view["end_position"]


def _settle(path: str, source: str) -> None:
    """Open a copy and close it: it is recovered, and clean.

    Raises:
        CorruptRecord: what is damaged, by its place in the original, where it is to be looked for.
    """
    engine = Engine.open(path, create=False)
    try:
        for _ in _logs(engine, {}):
            pass
    except CorruptRecord as error:
        raise type(error)(f"not copied: {str(error).replace(path, source)}") from error
    finally:
        engine.close()
