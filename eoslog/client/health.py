"""An open directory as a whole: how it is, how far its groups are, and its cleaning.

A partition that cannot be opened as it is (damaged, a file gone, a disk that fails) is named; it
keeps nobody from seeing the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

from eoslog.engine import Engine
from eoslog.errors import (
    CorruptRecord,
    DiskFull,
    EoslogError,
    StorageError,
    TooManyOpenFiles,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendLock, CheckReport, Offsets, TopicPartition
from eoslog.storage import files, log_checker
from eoslog.storage.partition_log import PartitionLog

__all__ = [
    "OPEN_STATES", "check", "clean", "lag", "locks", "offline_partitions", "offsets_of_log",
    "stats",
]  # fmt: skip

OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
"""The states of a transactional id in which it has a transaction."""


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
            continue  # deleted meanwhile
        except (DiskFull, TooManyOpenFiles):
            raise  # nothing that is of this partition
        except (CorruptRecord, StorageError) as error:
            found = error
        yield TopicPartition(*key), found


def offline_partitions(engine: Engine) -> dict[TopicPartition, EoslogError]:
    """See `Log.offline_partitions`."""
    return {tp: found for tp, found in _opened(engine) if isinstance(found, EoslogError)}


def stats(engine: Engine) -> dict[str, Any]:
    """See `Log.stats`."""
    partitions, offline = {}, {}
    for tp, log in _opened(engine):
        if isinstance(log, EoslogError):
            offline[str(tp)] = str(log)
            continue
        offsets = offsets_of_log(log)
        partitions[str(tp)] = {
            **offsets._asdict(),
            "lso_lag": offsets.high_watermark - offsets.last_stable,
            "bytes": log.reader.size(),
            "segments": len(log.reader.bases()),
            **engine.cleaning.describe(log),
            "open_transactions": 0 if engine.read_only else len(log.open_transactions()),
        }
    transactions = engine.transactions.describe_transactions()
    return {
        "path": engine.path,
        "durability": engine.durability,
        "topics": len(engine.metadata.topics),
        "groups": len(engine.groups.list_groups()),
        "transactional_ids": len(transactions),
        "open_transactions": sum(t.state in OPEN_STATES for t in transactions),
        "transaction_log_bytes": sum(log.reader.size() for log in engine.transaction_partitions()),
        "cleaning": engine.cleaning.stats(),
        "offline": offline,
        "partitions": partitions,
    }


def lag(engine: Engine, group_id: str) -> dict[TopicPartition, int]:
    """See `Log.lag`."""
    found = {}
    for tp, committed in sorted(engine.groups.describe_group(group_id).offsets.items()):
        with contextlib.suppress(UnknownTopicOrPartition):  # deleted; its offsets are still there
            end = offsets_of_log(engine.partition(tp.topic, tp.partition)).last_stable
            found[tp] = max(end - committed.offset, 0)
    return found


def locks(engine: Engine) -> dict[TopicPartition, AppendLock]:
    """See `Log.locks`."""
    engine.metadata.refresh()
    found = {}
    for info in (*engine.metadata.internal_topics.values(), *engine.metadata.topics.values()):
        for number, partition in info.partitions.items():
            try:
                view = engine.session.control.slot_view(partition.slot)
            except IndexError:  # nobody has used it yet
                continue
            if view["holder_pid"]:
                held = (time.monotonic_ns() - view["holder_since_ns"]) / 1e9
                found[TopicPartition(info.name, number)] = AppendLock(view["holder_pid"], held)
    return found


def clean(engine: Engine, topic: str | None, *, roll: bool) -> dict[TopicPartition, int]:
    """See `Log.clean`."""
    if topic is not None:
        engine.topic(topic)
    internal = [
        (log.topic, log.partition)
        for logs in (engine.transaction_partitions(), engine.group_partitions())
        for log in logs
    ]
    freed = {}
    for name, number in [*internal, *engine.user_partitions()]:
        if topic in (None, name):
            with contextlib.suppress(*([] if topic else [UnknownTopicOrPartition])):  # deleted
                freed[TopicPartition(name, number)] = engine.cleaning.clean(
                    name, number, force=True, roll=roll
                )
    return freed


def check(engine: Engine, *, full: bool) -> CheckReport:
    """See `Log.check`."""
    flushed = log_checker.recovery_points(engine.path)  # before the ends, which never lie below
    found = [*engine.transaction_partitions(), *engine.group_partitions()]
    for key in engine.user_partitions():
        try:
            found.append(engine.partition(*key))
        except CorruptRecord:
            pass  # it is read as its files are
        except StorageError:
            if files.is_dir(os.path.join(engine.path, "{}-{}".format(*key))):
                raise  # else the check says that it is missing
    logs = {log.name: log for log in found}
    # Under a living topic's name the directory of a deleted one may stand yet.
    deleted = {topic.name for topic in engine.metadata.deleted.values()}
    report = log_checker.check(
        engine.path,
        full=full,
        ends={name: log.log_end for name, log in logs.items()},
        versions=lambda name: logs[name].cleaned_version if name in logs else 0,
        flushed=flushed,
        ids={name: log.topic_id for name, log in logs.items() if log.topic not in deleted},
    )
    # Points know names only: those of a deleted topic stay until its namesake is used.
    left = {k: flushed.get(k, 0) for k in engine.user_partitions() if k[0] not in deleted}
    missing = log_checker.missing(engine.path, left)
    return dataclasses.replace(report, problems=[*missing, *report.problems])
