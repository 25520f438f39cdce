"""One partition's cleaning: the pass under its lock, and what is remembered of it.

Compaction comes before retention, which takes whole segments off the head of what is left.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from eoslog.errors import StorageError
from eoslog.storage.compaction import MAP_MEMORY, Cleaned, compact, plan
from eoslog.storage.segment_swap import check_not_deleted, end_of_swap, finish_renames

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog

LOCK_TIMEOUT_S = 30.0


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
        log: of a topic with `cleanup.policy=compact`.
        dirty_start: where the last pass ended (`cleaner-offset-checkpoint`).
        now_ms: wall clock.
        bound: an offset from which on a coordinator still needs everything.
        force: whatever the dirty ratio is.
        wait: seconds to wait while another process cleans this partition.
        memory: bytes that the map of keys may take.
        stop: ends the pass; the group in hand stays as it was.

    Returns:
        What was done; None when nothing was due.

    Raises:
        LockTimeout: another process is cleaning it.
        UnknownTopicOrPartition: the topic was deleted, also in the middle of the pass.
        CorruptRecord, StorageError: some groups of segments may be old, others new; each is whole.
    """
    with log.cleaner_lock.held(log.name, wait):
        check_not_deleted(log)
        try:
            settle(log)
            # Read before the flush: whatever decided on what lies below is durable after it, in an
            # "os" directory too. A marker that comes later may be lost with the power.
            decided = log.stable_end
            log.sync()
            decided = decided if bound is None else min(decided, bound)
            found = plan(log, dirty_start, now_ms, decided)
            if not found.bases or not (found.due or force):
                return None
            return compact(log, found, now_ms, memory=memory, stop=stop)
        except (FileNotFoundError, StorageError):
            check_not_deleted(log)  # its files went in the middle of the pass
            raise


def settle(log: PartitionLog) -> None:
    """Under the cleaner lock: finish or undo what one that died, or failed, left."""
    swapping = bool(log.core.cleaned_version & 1)
    end = None if swapping else end_of_swap(log.path)
    if end is not None:  # all is ready, but nobody was told
        log.mark_swap(True, end)
        swapping = True
    finish_renames(log.path, live=True)
    if swapping:
        log.mark_swap(False, 0)
    log.forget_segments()
