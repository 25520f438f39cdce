"""What the core answers under the lock, as errors that say what the caller may do."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

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
    UnknownTopicOrPartition,
)
from eoslog.storage import files
from eoslog.storage.segments import LOG, file_name

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog

S = _core.STATUS


def refusal(log: PartitionLog, status: int, error: int, wait: float) -> EoslogError:
    """The error of a status that nothing can be done about here.

    Args:
        log: whose append, roll or fold it was.
        status: of `_core.STATUS`, or Kafka's error code where the producer state refused.
        error: errno of a failed call.
        wait: seconds that the lock was waited for.
    """
    name = log.name
    if status == S["LOCKED_OUT"]:
        view = log.session.control.slot_view(log.slot)
        age = (time.monotonic_ns() - view["holder_since_ns"]) / 1e9
        return LockTimeout(
            f"{name}: append lock not free within {wait:g} s; held by process "
            f"{view['holder_pid']} for {age:.1f} s",
        )
    if status == S["GONE"] and not log.core.deleted:
        return IllegalState(f"{name}: the log is closed")
    if status == S["GONE"]:
        return UnknownTopicOrPartition(f"{name}: the topic was deleted")
    if status == S["POISONED"]:
        return LogPoisoned(
            f"{name}: a flush failed; close every handle and open again", path=log.path
        )
    if status == S["VOID_SLOT"]:
        return IllegalState(f"{name}: opened in another session")
    if status == S["UNVERIFIED"]:
        return InvalidTxnState(
            f"{name}: the record is not part of a transaction that its coordinator knows"
        )
    if status == S["CORRUPT"]:
        base = log.core.current_files()[0]
        try:  # by its name: another thread may close the descriptor, and move on, meanwhile
            size = os.path.getsize(os.path.join(log.path, file_name(base, LOG)))
        except OSError:
            size = log.core.segment_position
        if size < log.core.segment_position:
            return CorruptRecord(
                f"{name}: log truncated behind its writers' backs: segment {base} has {size} "
                f"bytes, {log.core.segment_position} were published",
                fatal=True,
            )
        return CorruptRecord(
            f"{name}: segment {base} is damaged at byte {log.core.segment_position}, "
            f"offset {log.core.next_offset}"
        )
    if status == S["IO_FAILED"]:
        return files.storage_error(OSError(error, os.strerror(error)), log.path)
    if status == ErrorCode.INVALID_PRODUCER_EPOCH:
        return InvalidProducerEpoch(f"{name}: a newer epoch of this producer has written here")
    if status == ErrorCode.INVALID_TXN_STATE:
        return InvalidTxnState(f"{name}: the batch does not fit its producer's open transaction")
    return StorageError(f"{name}: unexpected status {status}", path=log.path)


def out_of_order(log: PartitionLog, data: memoryview) -> OutOfOrderSequence:
    """The refusal of a batch whose sequence is not the next, with the two that disagree."""
    batch = _core.iter_batches(data)[0]
    known = log.core.producer(batch.producer_id)
    last = "unknown" if known is None else f"{known[1]} in epoch {known[0]}"
    return OutOfOrderSequence(
        f"{log.name}: producer {batch.producer_id} sent sequence "
        f"{batch.base_sequence} in epoch {batch.producer_epoch}, its last one here is {last}"
    )
