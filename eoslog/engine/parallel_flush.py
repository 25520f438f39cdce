"""Flushing several partitions: the disk syncs their files at the same time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from eoslog import _core
from eoslog.errors import EoslogError
from eoslog.storage.log.flusher import Steps
from eoslog.storage.log.partition_log import PartitionLog

__all__ = ["flush_in_parallel"]


def flush_in_parallel(targets: Sequence[tuple[PartitionLog, int]]) -> None:
    """Flush each log up to its offset.

    Leads the flushes whose locks are free, and syncs their files together. Then waits for those
    that other threads lead.

    Raises:
        EoslogError: the first error, when all flushes have ended.
    """
    due = [(log, end) for log, end in targets if log.strict and log.durable_end < end]
    failed = _lead_together(due) if len(due) > 1 else {}
    for log, end in due:
        if log not in failed:
            try:
                log.flush(end)
            except EoslogError as error:
                failed[log] = error
    for first in failed.values():
        raise first


def _lead_together(due: Sequence[tuple[PartitionLog, int]]) -> dict[PartitionLog, EoslogError]:
    """Lead the flushes that can be led now; return the errors."""
    failed: dict[PartitionLog, EoslogError] = {}
    with contextlib.ExitStack() as held:
        flushes = {
            log: held.enter_context(contextlib.closing(log.flusher.lead(end))) for log, end in due
        }
        results = dict.fromkeys(flushes, 0)  # of the last syncs
        while results:
            syncs = {}
            for log, error in results.items():
                try:
                    syncs[log] = _next_step(flushes[log], error)
                except StopIteration:
                    pass
                except EoslogError as failure:
                    failed[log] = failure
            errors = _core.sync_together([(log.core, fd) for log, fd in syncs.items()])
            results = dict(zip(syncs, errors, strict=True))
    return failed


def _next_step(flush: Steps[None], error: int) -> int:
    """Continue with the last sync's errno; return the next descriptor to sync."""
    return flush.throw(OSError(error, os.strerror(error))) if error else next(flush)
