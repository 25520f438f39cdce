"""The error that says why a producer has lost its transaction or its id.

The id's newest record has the answer: the decision about the last transaction has a cause (tag
10003), and the record names the process that holds the id now (tag 10001). If the decision names
the producer's id and epoch, it is about this producer. Otherwise another producer has initialised
the id since.

Codes are Kafka's. After a timeout, the class is `TransactionTimedOut`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from eoslog.coordinator.transactions.state import Cause, TransactionMetadata, TransactionState
from eoslog.error_codes import ErrorCode
from eoslog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionTimedOut,
)

Describe = Callable[[TransactionMetadata], str]
"""Names the process that holds a transactional id; empty if it is not known."""

CAUSES = {
    Cause.FENCED: "fenced by a newer instance of its transactional id",
    Cause.TIMED_OUT: "it was open for longer than transaction.timeout.ms",
    Cause.OWNER_DEAD: "the process of its producer had exited",
    Cause.OPERATOR: "aborted by an operator",
    Cause.RECOVERY: "aborted by recovery after a crash",
}
"""The reasons of aborts that the producer did not request."""

_TO_GO_ON = "abort the transaction, then begin the next one"
_TO_REPLACE = "close this producer and create a new one"


def nothing_known(_: TransactionMetadata) -> str:
    """Name no process."""
    return ""


def lost(
    name: str, current: TransactionMetadata, producer_id: int, epoch: int, *,
    code: ErrorCode = ErrorCode.PRODUCER_FENCED, describe: Describe = nothing_known,
    note: str = "",
) -> KafkaError:  # fmt: skip
    """Return the error for a producer whose epoch is not the current one.

    Args:
        name: the transactional id.
        current: the id's newest record.
        producer_id: the id of the calling producer.
        epoch: the epoch of the calling producer.
        code: Kafka's code for this request. It decides what the producer must do: abort after
            INVALID_PRODUCER_EPOCH, close after any other code.
        describe: names the process that holds the id now.
        note: more text, for example that a commit has not taken effect.
    """
    decided = current.decided
    ours = decided is not None and (decided.producer_id, decided.data_epoch) == (producer_id, epoch)
    cause = decided.cause if ours and decided is not None and not decided.commit else None
    epochs = f"this producer has epoch {epoch}, the current epoch is {current.producer_epoch}"
    if current.producer_id != producer_id:
        epochs = (
            f"this producer has producer id {producer_id} epoch {epoch}, the current ones are "
            f"{current.producer_id} and {current.producer_epoch}"
        )
    taken_over = current.state is TransactionState.EMPTY or not ours
    by = _taken_over(current, describe) if taken_over else ""
    may_go_on = code is ErrorCode.INVALID_PRODUCER_EPOCH and not taken_over
    remedy = _TO_GO_ON if may_go_on else _TO_REPLACE
    if cause is Cause.TIMED_OUT:
        later = f"; since then {by}" if by else ""
        text = (
            f"transactional id {name!r}: its transaction timed out and was aborted"
            f"{_open_for(current)}, transaction.timeout.ms is {current.timeout_ms}; "
            f"{epochs}{note}{later}; {remedy}, or raise transaction.timeout.ms"
        )
        return TransactionTimedOut(text, code=code)
    if cause is Cause.OPERATOR:
        why = "its transaction was aborted by an operator (`eoslog txn abort` or the same call)"
    elif cause in (Cause.OWNER_DEAD, Cause.RECOVERY):
        why = f"its transaction was aborted because {_DEAD[cause]}"
    else:
        why = by or "another instance is taking it over"
        by = ""
    later = f"; since then {by}" if by else ""
    text = f"transactional id {name!r} is fenced: {why}{later}; {epochs}{note}; {remedy}"
    if code is ErrorCode.INVALID_TXN_STATE:
        return InvalidTxnState(text)
    if code is ErrorCode.INVALID_PRODUCER_EPOCH:
        return InvalidProducerEpoch(text)
    return ProducerFenced(text)


_DEAD = {
    Cause.OWNER_DEAD: "its process had exited: its lock in eoslog.process was free",
    Cause.RECOVERY: "recovery after a crash found its data without a decision",
}


def _taken_over(current: TransactionMetadata, describe: Describe) -> str:
    who = describe(current)
    since = current.start_timestamp if current.start_timestamp >= 0 else -1
    when = since if since >= 0 else current.last_update_timestamp
    at = f" at {_time(when)}" if when >= 0 else ""
    return f"another instance took over{at}{f': {who}' if who else ''}"


def _open_for(current: TransactionMetadata) -> str:
    """The time that the transaction was open, if the record has it."""
    if current.start_timestamp < 0 or current.last_update_timestamp < current.start_timestamp:
        return ""
    ms = current.last_update_timestamp - current.start_timestamp
    return f" after it was open for {ms} ms"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")
