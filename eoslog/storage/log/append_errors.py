"""Exceptions for the statuses of the core's append, roll and fold."""

from __future__ import annotations

import os
import time

from eoslog import _core
from eoslog.errors import (
    CorruptRecord,
    EoslogError,
    ErrorCode,
    IllegalState,
    InvalidProducerEpoch,
    InvalidTxnState,
    LockTimeout,
    LogPoisoned,
    OutOfOrderSequence,
    StorageError,
)
from eoslog.storage.directory.processes import Processes
from eoslog.storage.fs import files
from eoslog.storage.log.append_status import AppendStatus
from eoslog.storage.log.context import LogContext
from eoslog.storage.segment.segment import LOG, file_path

_OF_ITS_FILES = (AppendStatus.GONE, AppendStatus.IO_FAILED, AppendStatus.POISONED)
"""Statuses that a lost directory explains better."""


def append_error(context: LogContext, status: int, error: int, wait: float) -> EoslogError:
    """Return the exception for a status that the log cannot resolve.

    Args:
        context: the partition's.
        status: an `AppendStatus`, or Kafka's error code if the producer state rejects the batch.
        error: errno of a failed call.
        wait: timeout of the lock in seconds.
    """
    name = context.name
    if status == AppendStatus.LOCKED_OUT:
        view = context.session.control.slot_view(context.slot)
        age = (time.monotonic_ns() - view["holder_since_ns"]) / 1e9
        holder = Processes(context.session).holder(context.slot, "append", view["holder_pid"])
        text = f"process {view['holder_pid']}" if holder is None else holder.text
        return LockTimeout(
            f"{name}: append lock not free within {wait:g} s; held by {text} for {age:.1f} s; "
            "retry, or end that process if it is suspended"
        )
    lost = context.session.directory.lost
    if (
        status in (AppendStatus.GONE, AppendStatus.IO_FAILED, AppendStatus.POISONED)
        and lost is not None
    ):
        return lost.again()
    if status == AppendStatus.GONE and not context.core.deleted:
        return IllegalState(f"{name}: the log is closed; open it again")
    if status == AppendStatus.GONE:
        return context.topic_deleted()
    if status == AppendStatus.POISONED:
        return LogPoisoned(
            f"{name}: a flush failed, so the partition rejects writes; close the log in every "
            "process, then open it again",
            path=context.path,
        )
    if status == AppendStatus.VOID_SLOT:
        return IllegalState(f"{name}: this log was opened in an earlier session; open it again")
    if status == AppendStatus.UNVERIFIED:
        return InvalidTxnState(
            f"{name}: the batch does not belong to a transaction that its coordinator knows; abort "
            "the transaction"
        )
    if status == AppendStatus.CORRUPT:
        base = context.core.current_files()[0]
        try:  # by name: another thread may close the descriptor at any time
            size = files.size(file_path(context.path, base, LOG))
        except OSError:
            size = context.core.segment_position
        if size < context.core.segment_position:
            return CorruptRecord(
                f"{name}: segment {base} has {size} bytes, but {context.core.segment_position} "
                "were written; another program truncated it",
                fatal=True,
            )
        return CorruptRecord(
            f"{name}: segment {base} is damaged at byte {context.core.segment_position}, "
            f"offset {context.core.next_offset}; close the log in every process, then run "
            "`eoslog repair`"
        )
    if status == AppendStatus.IO_FAILED:
        return files.storage_error(OSError(error, os.strerror(error)), context.path)
    if status == ErrorCode.INVALID_PRODUCER_EPOCH:
        return InvalidProducerEpoch(
            f"{name}: a newer epoch of this producer has written to the partition; close this "
            "producer and create a new one"
        )
    if status == ErrorCode.INVALID_TXN_STATE:
        return InvalidTxnState(
            f"{name}: the batch does not belong to its producer's open transaction; abort the "
            "transaction"
        )
    return StorageError(f"{name}: unexpected status {status}", path=context.path)


def out_of_order(context: LogContext, data: memoryview) -> OutOfOrderSequence:
    """Return the exception for a batch whose sequence does not follow the last stored one."""
    batch = _core.iter_batches(data)[0]
    known = context.core.producer(batch.producer_id)
    last = "unknown" if known is None else f"{known[1]} in epoch {known[0]}"
    return OutOfOrderSequence(
        f"{context.name}: producer {batch.producer_id} sent sequence "
        f"{batch.base_sequence} in epoch {batch.producer_epoch}, but its last stored sequence is "
        f"{last}; close this producer and create a new one"
    )
