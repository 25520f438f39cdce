"""Deleting the head of a log: by request, by age, by size.

The log start moves first, under the lock and durably (the engine's checkpoint); files go after it,
under the partition's cleaner lock. A crash in between leaves segments below the log start, which
the next retention removes. Readers that meet a missing file read the list of segments again.
"""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise
from typing import TYPE_CHECKING

from eoslog.errors import OffsetOutOfRange, PolicyViolation, StorageError
from eoslog.storage import files
from eoslog.storage.producer_snapshots import demand_snapshot
from eoslog.storage.segment_swap import finish_swap
from eoslog.storage.segments import DELETED, INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, file_name

LOCK_TIMEOUT_S = 30.0

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog


def delete_records(log: PartitionLog, before: int) -> int:
    """Move the log start up to an offset (-1: the high watermark); the new log start.

    Raises:
        OffsetOutOfRange: negative, or above the high watermark.
        PolicyViolation: the topic is only compacted.
    """
    if not log.settings.deletes:
        raise PolicyViolation(
            f"{log.name}: cleanup.policy is {log.settings.cleanup_policy!r}: no records are deleted"
        )
    high = log.high_watermark
    if before == -1:
        before = high
    if before < 0 or before > high:
        raise OffsetOutOfRange(
            f"{log.name}: cannot delete before {before}, the high watermark is {high}"
        )
    with log.cleaner_lock.held(log.name, LOCK_TIMEOUT_S):
        finish_swap(log)  # of a dead process: to list segments would wait for it
        _advance(log, before)
    return log.log_start


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """Drop the oldest segments by `retention.ms` and `retention.bytes`; bytes freed.

    An open transaction pins its first segment: nothing at or past the last stable offset goes.
    A topic that is only compacted loses what lies below its log start, and nothing else.

    Raises:
        UnknownTopicOrPartition: the topic was deleted.
    """
    with log.cleaner_lock.held(log.name, LOCK_TIMEOUT_S):
        finish_swap(log)
        return _apply(log, now_ms)


def _apply(log: PartitionLog, now_ms: int) -> int:
    settings, found = log.settings, log.reader.sizes()
    bases, sizes = list(found), list(found.values())
    limited = settings.deletes and settings.retention_bytes >= 0
    excess = sum(sizes) - settings.retention_bytes if limited else 0
    freed, start = 0, log.log_start
    for i, base in enumerate(bases):
        active = i + 1 == len(bases)
        end = log.log_end if active else bases[i + 1]
        if end > log.last_stable_offset or sizes[i] == 0:
            break
        if end == base:
            break  # bytes that were never published are nobody's records
        expired = (
            settings.deletes
            and settings.retention_ms >= 0
            and _expired(log, max(base, start), end, active, now_ms - settings.retention_ms)
        )
        below_start = end <= log.log_start
        if not (expired or below_start or (excess >= sizes[i] and not active)):
            break
        if active:
            log.roll()
        freed += sizes[i]
        excess -= sizes[i]
        start = end
    if freed:
        _advance(log, max(start, log.log_start))
    return freed


def _expired(log: PartitionLog, start: int, end: int, active: bool, horizon_ms: int) -> bool:
    """Whether a segment's largest timestamp lies before the horizon."""
    base = max((b for b in log.reader.bases() if b <= start), default=start)
    largest = -1 if active else log.segment(base).time_bounds(0)[0]
    if largest < 0:
        largest = max((b.max_timestamp for b in log.batches(start, end)), default=-1)
    return 0 <= largest < horizon_ms


def _advance(log: PartitionLog, log_start: int) -> None:
    bases = log.reader.bases()
    # Data of an open transaction goes with its marker's decision, not before.
    limit = min(log_start, log.stable_end)
    if log_start > log.durable_end:  # "os": else a power cut may leave a log that ends below it,
        log.sync()  # and what is appended there then was deleted before
    gone = [base for base, following in pairwise(bases) if following <= limit]
    if gone:
        demand_snapshot(log, bases[len(gone)])
        files.fsync_dir(log.path)  # the snapshot has its name before what it stands for goes
    log.publish_log_start(log_start, segments_changed=bool(gone))
    files.failpoint("log.start.advanced")
    log.on_log_start(log)
    for base in gone:
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, LOG):
            path = os.path.join(log.path, file_name(base, suffix))
            with contextlib.suppress(StorageError):
                if files.exists(path):
                    files.rename(path, path + DELETED)
                    files.remove(path + DELETED)
        log.reader.forget(base)
