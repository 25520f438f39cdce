"""State of an open directory, lag of its groups, and its cleaning.

A partition that cannot be opened (it is damaged, a file is missing, the disk fails, or no writer
has recovered it yet) is reported by name. The other partitions are still reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from eoslog.client.visible_lag import lag_of
from eoslog.coordinator.transactions.prepared_records import INLINE, STAGED
from eoslog.coordinator.transactions.state import PARKED
from eoslog.engine.engine import Engine
from eoslog.errors import (
    CorruptRecord,
    EoslogError,
    LockTimeout,
    StorageError,
    TooManyOpenFiles,
    UnknownTopicOrPartition,
)
from eoslog.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    AppendLock,
    Offsets,
    TopicPartition,
)
from eoslog.reports import CheckReport, Problem
from eoslog.shown_paths import get_logger, shown
from eoslog.storage.check import checker as log_checker
from eoslog.storage.directory.directory import NeverUsed
from eoslog.storage.directory.processes import Processes
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog

logger = get_logger("eoslog.health")

__all__ = [
    "OPEN_STATES", "check", "clean", "lag", "locks", "offline_partitions", "offsets_of_log",
    "stats",
]  # fmt: skip

OPEN_STATES = frozenset({"Ongoing", "Prepared", "Parked", "PrepareCommit", "PrepareAbort"})
"""The states of a transactional id in which it has a transaction."""

_CREATION_S = 1.0
"""How long the directory of a topic may be missing while another process creates the topic."""


def offsets_of_log(log: PartitionLog) -> Offsets:
    """The published ends of a partition now."""
    start, stable, high, end = (
        log.log_start,
        log.last_stable_offset,
        log.high_watermark,
        log.log_end,
    )
    return Offsets(start, min(stable, high), high, end)


def _opened(engine: Engine) -> Iterator[tuple[TopicPartition, PartitionLog | EoslogError]]:
    """Every partition of the user topics, open, or why it cannot be opened."""
    for key in engine.user_partitions():
        found: PartitionLog | EoslogError
        try:
            found = engine.partition(*key)
        except UnknownTopicOrPartition:
            continue  # deleted in the meantime
        except TooManyOpenFiles:
            raise  # not caused by this partition
        except (CorruptRecord, StorageError, LockTimeout) as error:
            found = error  # DiskFull too: its creation stopped half way, and the others work
        yield TopicPartition(*key), found


def _internal_opened(
    engine: Engine,
) -> list[tuple[TopicPartition, PartitionLog | EoslogError]]:
    """Open each used partition of the internal topics; return it or its error."""
    found: list[tuple[TopicPartition, PartitionLog | EoslogError]] = []
    stored = engine.properties
    for topic, count in (
        (TRANSACTION_STATE_TOPIC, stored.transaction_partitions),
        (CONSUMER_OFFSETS_TOPIC, stored.offsets_partitions),
    ):
        for number in range(count):
            tp = TopicPartition(topic, number)
            try:
                found += [(tp, log) for log in engine.partitions.existing(topic, 1, first=number)]
            except TooManyOpenFiles:
                raise
            except (CorruptRecord, StorageError, LockTimeout) as error:
                found.append((tp, error))
    engine.metadata.refresh()
    for topic in engine.metadata.first_use_topics:
        try:
            log = engine.existing_internal_topic(topic)
        except TooManyOpenFiles:
            raise
        except (CorruptRecord, StorageError, LockTimeout) as error:
            found.append((TopicPartition(topic, 0), error))
        else:
            found += [(TopicPartition(topic, 0), log)] if log is not None else []
    return found


def offline_partitions(engine: Engine) -> dict[TopicPartition, EoslogError]:
    """See `Log.offline_partitions`."""
    return {tp: found for tp, found in _opened(engine) if isinstance(found, EoslogError)}


def _prepared(engine: Engine) -> dict[str, Any]:
    """Count the prepared transactions that are not decided."""
    pending = [entry for _, entry in engine.transactions.prepared.index.pending()]
    oldest = min((entry.prepared_at_ms for entry in pending), default=None)
    return {
        "inline": sum(entry.mode == INLINE for entry in pending),
        "staged": sum(entry.mode == STAGED for entry in pending),
        "parked": sum(entry.state is PARKED for entry in pending),
        "bytes": sum(entry.size for entry in pending),
        "oldest_age_s": None if oldest is None else max(0.0, (engine.clock_ms() - oldest) / 1000),
    }


def _stats_of(engine: Engine, log: PartitionLog) -> dict[str, Any]:
    offsets = offsets_of_log(log)
    return {
        **offsets._asdict(),
        "lso_lag": offsets.high_watermark - offsets.last_stable,
        "bytes": log.segments.size(),
        "segments": len(log.segments.bases()),
        **engine.cleaning.describe(log),
        "open_transactions": 0 if engine.read_only else len(log.open_transactions()),
    }


def stats(engine: Engine) -> dict[str, Any]:
    """See `Log.stats`."""
    partitions, offline = {}, {}
    for tp, log in _opened(engine):
        if isinstance(log, EoslogError):
            offline[str(tp)] = str(log)
            continue
        try:
            partitions[str(tp)] = _stats_of(engine, log)
        except UnknownTopicOrPartition:
            continue  # deleted in the meantime
        except CorruptRecord as error:  # its files are missing since it was opened
            offline[str(tp)] = str(error)
    internal = _internal_opened(engine)
    offline |= {str(tp): str(e) for tp, e in internal if isinstance(e, EoslogError)}
    coordinators = [log for tp, log in internal if tp.topic == TRANSACTION_STATE_TOPIC]
    described = not any(name.startswith(TRANSACTION_STATE_TOPIC) for name in offline)
    transactions = engine.transactions.describe_transactions() if described else None
    grouped = not any(name.startswith(CONSUMER_OFFSETS_TOPIC) for name in offline)
    return {
        "path": engine.path,
        "durability": engine.durability,
        "topics": len(engine.metadata.topics),
        "groups": len(engine.groups.list_groups()) if grouped else None,
        "transactional_ids": None if transactions is None else len(transactions),
        "open_transactions": None
        if transactions is None
        else sum(t.state in OPEN_STATES for t in transactions),
        "prepared_transactions": _prepared(engine) if described else None,
        "transaction_log_bytes": sum(
            log.segments.size() for log in coordinators if isinstance(log, PartitionLog)
        ),
        "cleaning": engine.cleaning.stats(),
        "offline": offline,
        "partitions": partitions,
    }


def lag(engine: Engine, group_id: str) -> dict[TopicPartition, int]:
    """See `Log.lag`."""
    found = {}
    for tp, committed in sorted(engine.groups.describe_group(group_id).offsets.items()):
        with contextlib.suppress(UnknownTopicOrPartition):  # deleted; its offsets are still there
            log = engine.partition(tp.topic, tp.partition)
            end = offsets_of_log(log).last_stable
            found[tp] = lag_of(log, committed.offset, end, committed_only=True)
    return found


def locks(engine: Engine) -> dict[TopicPartition, AppendLock]:
    """See `Log.locks`."""
    engine.metadata.refresh()
    found = {}
    processes = Processes(engine.session)
    for info in (*engine.metadata.internal_topics.values(), *engine.metadata.topics.values()):
        for number, partition in info.partitions.items():
            try:
                view = engine.session.control.slot_view(partition.slot)
            except IndexError:  # no process has used the slot yet
                continue
            # A process that was killed leaves its pid there; the kernel has freed its lock.
            if view["holder_pid"] and (
                holder := processes.holder(partition.slot, "append", view["holder_pid"])
            ):
                held = (time.monotonic_ns() - view["holder_since_ns"]) / 1e9
                found[TopicPartition(info.name, number)] = AppendLock(
                    holder.pid, held, holder.command, holder.stopped
                )
    return found


def clean(engine: Engine, topic: str | None, *, roll: bool) -> dict[TopicPartition, int]:
    """See `Log.clean`."""
    engine.session.directory.require()  # not an error of one partition
    if topic is not None:
        engine.topic(topic)
    internal = [tp for tp, _ in _internal_opened(engine)]
    keys = [*internal, *(TopicPartition(*key) for key in engine.user_partitions())]
    freed = {}
    for tp in keys:
        if topic not in (None, tp.topic):
            continue
        try:
            freed[tp] = engine.cleaning.clean(tp.topic, tp.partition, force=True, roll=roll)
        except (UnknownTopicOrPartition, CorruptRecord, StorageError) as error:
            if topic is not None or isinstance(error, TooManyOpenFiles):
                raise
            if not isinstance(error, UnknownTopicOrPartition):  # else deleted in the meantime
                logger.warning("%s is not cleaned, the others are: %s", tp, error)
    return freed


def check(engine: Engine, *, full: bool) -> CheckReport:
    """See `Log.check`."""
    place = engine.session.path
    flushed = log_checker.recovery_points(place)  # before the ends, which are never below
    names = log_checker.partition_directories(place)  # before opening: a later one has no end
    opened = [*_internal_opened(engine), *_opened(engine)]
    found = [log for _, log in opened if isinstance(log, PartitionLog)]
    unread = {tp: error for tp, error in opened if isinstance(error, EoslogError)}
    logs = {log.name: log for log in found}
    # Under a living topic's name the directory of a deleted one may stand yet.
    deleted = {topic.name for topic in engine.metadata.deleted.values()}
    report = log_checker.check(
        place,
        full=full,
        names=names,
        ends={name: log.log_end for name, log in logs.items()},
        logs=logs,
        flushed=flushed,
        ids={name: log.topic_id for name, log in logs.items() if log.topic not in deleted},
    )
    # Points know names only: those of a deleted topic stay until its namesake is used.
    left = {key: flushed.get(key, 0) for key in _living(engine) if key[0] not in deleted}
    files.failpoint("check.listed")
    locked = {tp for tp, error in unread.items() if isinstance(error, LockTimeout)}
    if report.problems and locked and not locked <= _locked(engine):
        return check(engine, full=full)  # a writer was changing these files
    absent, others, notes = log_checker.missing(place, left), [], []
    told = {problem.path for problem in absent}
    for tp, error in unread.items():
        where = os.path.join(place, f"{tp.topic}-{tp.partition}")
        problem = Problem(where, 0, f"the partition cannot be opened: {error}")
        if isinstance(error, LockTimeout):
            notes.append(Problem(where, 0, f"only its files were checked: {error}"))
        elif problem.path in told:
            pass
        elif isinstance(error, CorruptRecord):  # it was read as its files are
            if not _reported(error.path or where, report.problems):
                others.append(problem)
        elif isinstance(error, NeverUsed):
            absent.append(problem)
        else:
            others.append(problem)  # the files may say nothing of it
    problems = [*_still_absent(engine, absent), *others, *report.problems]
    return dataclasses.replace(report, problems=problems, notes=[*report.notes, *notes])


def _reported(path: str, problems: Sequence[Problem]) -> bool:
    """Whether one of the problems is in the partition with this folder or file."""
    folder = shown(path if files.is_dir(path) else os.path.dirname(path))
    return any(folder in (problem.path, os.path.dirname(problem.path)) for problem in problems)


def _locked(engine: Engine) -> set[TopicPartition]:
    """Return the partitions that another process is recovering, or has to recover."""
    opened = [*_internal_opened(engine), *_opened(engine)]
    return {tp for tp, error in opened if isinstance(error, LockTimeout)}


def _living(engine: Engine) -> list[tuple[str, int]]:
    """Return the partitions that have a directory once they are created or used."""
    users = engine.user_partitions()  # refreshes the metadata
    return [*users, *((name, 0) for name in engine.metadata.first_use_topics)]


def _still_absent(engine: Engine, problems: list[Problem]) -> list[Problem]:
    """Return the problems of directories that no process is creating or deleting."""
    deadline = time.monotonic() + _CREATION_S
    while True:
        left = [problem for problem in problems if not files.is_dir(problem.path)]
        living = {f"{name}-{number}" for name, number in _living(engine)}
        problems = [one for one in left if os.path.basename(one.path) in living]
        if not problems or engine.is_fixed or time.monotonic() > deadline:
            return problems
        time.sleep(0.01)
