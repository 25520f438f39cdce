"""The statuses that the core returns from calls under a partition's append lock."""

from __future__ import annotations

from enum import IntEnum

from eoslog import _core

_CORE = _core.STATUS

__all__ = ["AppendStatus"]


class AppendStatus(IntEnum):
    """The core's statuses, described in `_core/partition/partition_state.pxi`.

    Any other positive number is Kafka's error code: the producer state rejects the batch.
    """

    APPENDED = _CORE["APPENDED"]
    CHANGED = _CORE["CHANGED"]
    ROLL = _CORE["ROLL"]
    NEXT_SEGMENT = _CORE["NEXT_SEGMENT"]
    FOLD_AGAIN = _CORE["FOLD_AGAIN"]
    NEED_TXNINDEX = _CORE["NEED_TXNINDEX"]
    REPEATED = _CORE["REPEATED"]
    LOCKED_OUT = _CORE["LOCKED_OUT"]
    VOID_SLOT = _CORE["VOID_SLOT"]
    GONE = _CORE["GONE"]
    POISONED = _CORE["POISONED"]
    REOPEN = _CORE["REOPEN"]
    UNVERIFIED = _CORE["UNVERIFIED"]
    NEED_INDEXES = _CORE["NEED_INDEXES"]
    STALE = _CORE["STALE"]
    IO_FAILED = _CORE["IO_FAILED"]
    RELOAD = _CORE["RELOAD"]
    CORRUPT = _CORE["CORRUPT"]
