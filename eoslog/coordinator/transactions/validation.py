"""Checks of transactional requests, before a decision.

Pure functions of the request and the id's newest record.

Source: Kafka `TransactionCoordinator`: handleInitProducerId, handleEndTransaction; KIP-890.
"""

from __future__ import annotations

from functools import lru_cache

from eoslog._util.arguments import shown
from eoslog.coordinator.transactions.lost_producers import CAUSES, Describe, lost, nothing_known
from eoslog.coordinator.transactions.prepared_records import STAGED_PREFIX
from eoslog.coordinator.transactions.state import (
    END_TXN_ANSWERS,
    MAX_EPOCH,
    NO_ID,
    Answer,
    Cause,
    TransactionMetadata,
    TransactionState,
)
from eoslog.descriptions import TransactionOutcome
from eoslog.error_codes import ErrorCode
from eoslog.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
)

_MAX_ID_BYTES = 32767
_RESERVED = "__recovery-"
DECIDE, _DONE, _WAIT, _INVALID = Answer.DECIDE, Answer.DONE, Answer.WAIT, Answer.INVALID


def check_id(transactional_id: str | None) -> None:
    """Check that a transactional id is valid.

    Raises:
        KafkaError: INVALID_REQUEST, if it is not a string, empty, too long, not UTF-8 or reserved.
    """
    if transactional_id is not None and not isinstance(transactional_id, str):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"transactional id: expected a string, got {shown(transactional_id)}",
        )
    _check_text_of_id(transactional_id)


@lru_cache(maxsize=4096)  # errors are not cached
def _check_text_of_id(transactional_id: str | None) -> None:
    if not transactional_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "transactional id: it is empty; set transactional.id to a name",
        )
    try:
        size = len(transactional_id.encode())
    except UnicodeEncodeError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"transactional id {transactional_id!r}: UTF-8 cannot encode it; choose another name",
        ) from None
    if size > _MAX_ID_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"transactional id: it has {size} bytes, at most {_MAX_ID_BYTES} are allowed; choose a "
            "shorter name",
        )
    if transactional_id.startswith(_RESERVED):
        raise _reserved(transactional_id, _RESERVED)


def check_new_id(transactional_id: str) -> None:
    """Check that a program may use a transactional id.

    Raises:
        KafkaError: INVALID_REQUEST, as `check_id`, or if eoslog delivers staged transactions by it.
    """
    check_id(transactional_id)
    if transactional_id.startswith(STAGED_PREFIX):
        raise _reserved(transactional_id, STAGED_PREFIX)


def _reserved(transactional_id: str, prefix: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"transactional id {transactional_id!r}: ids that start with {prefix!r} are reserved; "
        "choose another name",
    )


def check_timeout(timeout_ms: int, most_ms: int) -> None:
    """Check that transaction.timeout.ms is in range.

    Raises:
        InvalidTransactionTimeout: if it is not.
    """
    if not 0 < timeout_ms <= most_ms:
        raise InvalidTransactionTimeout(
            f"transaction.timeout.ms: expected 1 to {most_ms}, got {timeout_ms}; lower it, or open "
            "the log with a larger transaction.max.timeout.ms"
        )


def _check_producer_id(
    name: str,
    current: TransactionMetadata | None,
    producer_id: int,
    epoch: int,
    describe: Describe = nothing_known,
) -> TransactionMetadata:
    if current is None:
        raise InvalidProducerIdMapping(
            f"transactional id {name!r} does not exist: it expired "
            "(transactional.id.expiration.ms) or was never initialised; call init_transactions() "
            "on a new producer"
        )
    if current.state.preparing and (producer_id, epoch) == (current.next_producer_id, 0) != (
        NO_ID,
        0,
    ):
        # The request has the new producer id, which is valid once the rotation is complete.
        raise ConcurrentTransactions(
            f"transactional id {name!r}: the rotation to producer id {producer_id} is not "
            "complete; retry"
        )
    if producer_id != current.producer_id and not current.is_retry_of(producer_id, epoch):
        error = lost(name, current, producer_id, epoch, describe=describe)
        raise InvalidProducerIdMapping(str(error))
    return current


def check_expected(
    current: TransactionMetadata,
    producer_id: int,
    epoch: int,
    describe: Describe = nothing_known,
) -> None:
    """Check that the caller's identity, if any, is the current or previous one."""
    if producer_id == NO_ID:
        return
    ours = producer_id == current.producer_id or current.is_retry_of(producer_id, epoch)
    known = {current.producer_epoch}
    if current.state is not TransactionState.ONGOING:
        known.add(current.last_producer_epoch)  # the caller may not have got the last answer
    if not ours or epoch not in known:
        raise lost(current.transactional_id, current, producer_id, epoch, describe=describe)


def check_identity(
    name: str,
    current: TransactionMetadata | None,
    producer_id: int,
    epoch: int,
    describe: Describe = nothing_known,
) -> TransactionMetadata:
    """Check that the request has the id's producer id and current epoch.

    Args:
        name: the transactional id.
        current: the id's newest record.
        producer_id: the producer id in the request.
        epoch: the epoch in the request.
        describe: names the process that holds the id now, for messages.

    Raises:
        InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions: as in Kafka's
            `TransactionCoordinator.handleAddPartitionsToTransaction`.
        TransactionTimedOut: if a timeout has fenced the producer.
    """
    current = _check_producer_id(name, current, producer_id, epoch, describe)
    if (producer_id, epoch) != (current.producer_id, current.producer_epoch) or epoch >= MAX_EPOCH:
        raise lost(name, current, producer_id, epoch, describe=describe)
    return current


def end_txn_answer(
    name: str,
    current: TransactionMetadata | None,
    producer_id: int,
    epoch: int,
    commit: bool,
    describe: Describe = nothing_known,
) -> Answer:
    """Return the answer to EndTxn: DECIDE, DONE or WAIT; other answers are raised.

    Raises:
        InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, ConcurrentTransactions: by the
            table `END_TXN_ANSWERS`.
        TransactionTimedOut: if the cause is a timeout.
    """
    current = _check_producer_id(name, current, producer_id, epoch, describe)
    retried = current.is_retry_of(producer_id, epoch)
    note = ", so the commit has not taken effect" if commit else ""
    if not retried and (producer_id, epoch) != (current.producer_id, current.producer_epoch):
        raise lost(name, current, producer_id, epoch, describe=describe, note=note)
    answer = END_TXN_ANSWERS.get((current.state, commit, retried), _INVALID)
    unusable = answer in (DECIDE, _DONE) and current.producer_epoch >= MAX_EPOCH
    if answer in (DECIDE, _DONE, _WAIT) and not unusable:
        return answer
    if answer is not _INVALID:
        raise lost(name, current, producer_id, epoch, describe=describe, note=note)
    decided = current.decided
    if commit and retried and decided is not None and decided.cause is not Cause.REQUEST:
        code = ErrorCode.INVALID_TXN_STATE
        raise lost(name, current, producer_id, epoch, code=code, describe=describe, note=note)
    raise InvalidTxnState(
        f"transactional id {name!r}: the {'commit' if commit else 'abort'} of epoch {epoch} has "
        f"not taken effect, because the state is {current.state.wire_name} of epoch "
        f"{current.producer_epoch}: the transaction has ended already, or nothing was added to it; "
        "close this producer and create a new one"
    )


def outcome_of(before: TransactionMetadata | None) -> TransactionOutcome | None:
    """The outcome of the id's last transaction for a new producer, or None."""
    if before is None or before.decided is None or before.state is TransactionState.ONGOING:
        return None
    decided = before.decided
    return TransactionOutcome(
        before.transactional_id,
        decided.producer_id,
        decided.data_epoch,
        decided.commit,
        "" if decided.commit else CAUSES.get(decided.cause, ""),
    )
