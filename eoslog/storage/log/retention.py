"""Deleting the head of a log: by request, by age, by size.

The log start moves first: durably in the engine's checkpoint, then published under the append lock.
A call that fails there leaves the start as it was, in the checkpoint too. Files go last, under the
partition's cleaner lock. A crash in between leaves segments below the log start, which the next
retention removes. Readers that meet a missing file read the list of segments again.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise

from eoslog.errors import EoslogError, OffsetOutOfRange, PolicyViolation, StorageError
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.derived import ANY_TIME
from eoslog.storage.segment.producer_snapshots import demand_snapshot
from eoslog.storage.segment.segment import (
    DELETED,
    INDEX,
    LOG,
    SEAL,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_path,
)


def delete_records(log: PartitionLog, before: int) -> int:
    """Move the log start up to an offset (-1: the high watermark). Returns the new log start.

    Raises:
        OffsetOutOfRange: if the offset is below -1, or above the high watermark.
        PolicyViolation: if cleanup.policy does not include `delete`.
    """
    log.session.directory.require()
    if not log.settings.deletes:
        raise PolicyViolation(
            f"{log.name}: records cannot be deleted while cleanup.policy is "
            f"{log.settings.cleanup_policy!r}; add 'delete' to it"
        )
    high = log.high_watermark
    if before == -1:
        before = high
    if before < 0 or before > high:
        raise OffsetOutOfRange(
            f"{log.name}: cannot delete records before offset {before}; give an offset from 0 to "
            f"the high watermark {high}, or -1 for the high watermark"
        )
    with log.cleaner_lock.held(log.name, LOCK_TIMEOUT_S):
        log.finish_swap()  # a dead process's: listing segments would wait for its end
        _advance(log, before)
    return log.log_start


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """Delete the oldest segments by `retention.ms` and `retention.bytes`. Returns the freed bytes.

    Keeps everything from the last stable offset on, and so the segments of an open transaction. If
    the topic is only compacted, deletes just the segments below the log start.

    Raises:
        UnknownTopicOrPartition: if the topic was deleted.
    """
    with log.cleaner_lock.held(log.name, LOCK_TIMEOUT_S):
        log.finish_swap()
        return _apply(log, now_ms)


def _apply(log: PartitionLog, now_ms: int) -> int:
    settings, found = log.settings, log.segments.sizes()
    bases = list(found)
    sizes = [_sealed_size(log, base, size) for base, size in found.items()]
    limited = settings.deletes and settings.retention_bytes >= 0
    excess = sum(sizes) - settings.retention_bytes if limited else 0
    freed, start = 0, log.log_start
    for i, base in enumerate(bases):
        active = i + 1 == len(bases)
        end = log.log_end if active else bases[i + 1]
        if end > min(log.stable_end, log.high_watermark) or sizes[i] == 0:
            break
        if end == base:
            break  # only unpublished bytes, which are not records
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


def _sealed_size(log: PartitionLog, base: int, size: int) -> int:
    """Return the size of a segment that counts for `retention.bytes`.

    Bytes that another program has appended to a sealed segment do not count, because they would
    cause the deletion of older segments.
    """
    if log.settings.retention_bytes < 0 or not log.segments.sealed(base):
        return size
    return log.reader.derived.of(base).size(size)


def _expired(log: PartitionLog, start: int, end: int, active: bool, horizon_ms: int) -> bool:
    """Whether a segment's largest timestamp is before the horizon."""
    base = max((b for b in log.segments.bases() if b <= start), default=start)
    largest = -1 if active else log.reader.derived.largest_timestamp(base)
    if largest < 0 or largest == ANY_TIME:
        largest = max((b.max_timestamp for b in log.batches(start, end)), default=-1)
    return 0 <= largest < horizon_ms


def _move_start(log: PartitionLog, log_start: int, *, segments_changed: bool) -> None:
    """Move the log start, or raise and leave the log start unchanged."""
    before = log.log_start
    try:
        log.on_log_start(log, max(log_start, before))
        files.failpoint("log.start.noted")
        log.publish_log_start(log_start, segments_changed=segments_changed)
    except BaseException:
        with contextlib.suppress(EoslogError):
            log.on_log_start(log, before)
        raise


def _advance(log: PartitionLog, log_start: int) -> None:
    bases = log.segments.bases()
    # Records of an open transaction stay until its marker is written.
    limit = min(log_start, log.stable_end)
    # In an "os" directory, flush first: after a power loss the log might end below its start, and
    # new records would have deleted offsets.
    if log_start > log.durable_end:
        log.sync()
    gone = [base for base, following in pairwise(bases) if following <= limit]
    if gone:
        demand_snapshot(log.path, bases[len(gone)], log.context.new_fold)
        files.fsync_dir(log.path)  # the snapshot's name is durable before the batches are deleted
    _move_start(log, log_start, segments_changed=bool(gone))
    files.failpoint("log.start.advanced")
    for base in gone:
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, SEAL, LOG):
            path = file_path(log.path, base, suffix)
            with contextlib.suppress(StorageError):
                if files.exists(path):
                    files.rename(path, path + DELETED)
                    files.remove(path + DELETED)
        log.segments.forget(base)
