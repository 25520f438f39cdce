"""Compacting one partition, under its cleaner lock.

Compaction runs before retention, which deletes complete segments from the beginning of the log.
"""

from __future__ import annotations

import threading

from eoslog.errors import StorageError
from eoslog.storage.compaction.compactor import MAP_MEMORY, Cleaned, compact, plan
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.replacement import end_of_swap, finish_renames


def clean_partition(
    log: PartitionLog,
    dirty_start: int,
    now_ms: int,
    *,
    bound: int | None = None,
    force: bool = False,
    wait: float = LOCK_TIMEOUT_S,
    memory: int = MAP_MEMORY,
    stop: threading.Event | None = None,
) -> Cleaned | None:
    """Compact a partition if it is due.

    Args:
        log: a partition of a topic with `cleanup.policy=compact`.
        dirty_start: where the last pass ended (`cleaner-offset-checkpoint`).
        now_ms: wall clock time in ms.
        bound: offset from which on a coordinator still needs every record.
        force: compact even if the dirty ratio is low.
        wait: seconds to wait while another process cleans this partition.
        memory: limit of the key map in bytes.
        stop: ends the pass when set; the current group of segments stays unchanged.

    Returns:
        The result of the pass, or None if none was due.

    Raises:
        LockTimeout: if another process is cleaning the partition.
        UnknownTopicOrPartition: if the topic was deleted, also during the pass.
        CorruptRecord, StorageError: if a group of segments could not be cleaned. Each group is
            entirely old or entirely new.
    """
    with log.cleaner_lock.held(log.name, wait):
        log.context.check_not_deleted()
        try:
            settle(log)
            # Read before the flush, so that all markers that decided records below this offset are
            # durable, in an "os" directory too. A power loss may lose a later marker.
            decided = log.stable_end
            log.sync()
            decided = decided if bound is None else min(decided, bound)
            found = plan(log, dirty_start, now_ms, decided)
            if not found.bases or not (found.due or force):
                return None
            return compact(log, found, now_ms, memory=memory, stop=stop)
        except (FileNotFoundError, StorageError):
            log.context.check_not_deleted()  # the files were deleted during the pass
            raise


def settle(log: PartitionLog) -> None:
    """Finish or undo the swap of a pass that died or failed. The caller holds the cleaner lock."""
    swapping = bool(log.core.cleaned_version & 1)
    end = None if swapping else end_of_swap(log.path)
    if end is not None:  # the files are ready, but the swap was not published
        log.mark_swap(True, end)
        swapping = True
    finish_renames(log.path, live=True)
    if swapping:
        log.mark_swap(False, 0)
    log.segments.outdate()
