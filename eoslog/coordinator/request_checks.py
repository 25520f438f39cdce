"""What a transactional request is checked against before anything is decided.

Pure functions of the request and of what the id's newest record states.

Source: Kafka `TransactionCoordinator`: handleInitProducerId, handleEndTransaction; KIP-890.
"""

from __future__ import annotations

from functools import lru_cache

from eoslog.coordinator.transaction_state import (
    END_TXN_ANSWERS,
    MAX_EPOCH,
    NO_ID,
    Answer,
    TransactionMetadata,
    TransactionState,
)
from eoslog.error_codes import ErrorCode
from eoslog.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
)
from eoslog.model import TransactionOutcome

_MAX_ID_BYTES = 32767
_RESERVED = "__recovery-"
DECIDE, _DONE, _WAIT, _INVALID = Answer.DECIDE, Answer.DONE, Answer.WAIT, Answer.INVALID


@lru_cache(maxsize=4096)  # what is refused is not kept
def check_id(transactional_id: str | None) -> None:
    """The id can be the key of a record.

    Raises:
        KafkaError: INVALID_REQUEST: empty, too long, not UTF-8, or reserved.
    """
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    try:
        size = len(transactional_id.encode())
    except UnicodeEncodeError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"the transactional id {transactional_id!r} is not UTF-8"
        ) from None
    if size > _MAX_ID_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the transactional id has {size} bytes, {_MAX_ID_BYTES} are allowed",
        )
    if transactional_id.startswith(_RESERVED):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"transactional ids that start with {_RESERVED!r} are reserved",
        )


def check_timeout(timeout_ms: int, most_ms: int) -> None:
    """transaction.timeout.ms is in range."""
    if not 0 < timeout_ms <= most_ms:
        raise InvalidTransactionTimeout(
            f"transaction.timeout.ms is {timeout_ms}, allowed is 1 to {most_ms}"
        )


def _check_producer_id(
    name: str, current: TransactionMetadata | None, producer_id: int, epoch: int
) -> TransactionMetadata:
    if current is None:
        raise InvalidProducerIdMapping(f"no transactional id {name!r}: it expired or never was")
    if current.state.preparing and (producer_id, epoch) == (current.next_producer_id, 0) != (
        NO_ID,
        0,
    ):
        # It holds the id that takes over once the rotation is complete.
        raise ConcurrentTransactions(
            f"{name}: the rotation to producer id {producer_id} is not complete"
        )
    if producer_id != current.producer_id and not current.is_retry_of(producer_id, epoch):
        raise InvalidProducerIdMapping(
            f"{name}: producer id {producer_id} asks, the id has {current.producer_id}"
        )
    return current


def check_identity(
    name: str, current: TransactionMetadata | None, producer_id: int, epoch: int
) -> TransactionMetadata:
    """The request bears the id's producer id and current epoch.

    Raises:
        InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions: as in Kafka
            `TransactionCoordinator.handleAddPartitionsToTransaction`.
    """
    current = _check_producer_id(name, current, producer_id, epoch)
    if (producer_id, epoch) != (current.producer_id, current.producer_epoch) or epoch >= MAX_EPOCH:
        raise ProducerFenced(
            f"{name}: epoch {epoch} asks, the current one is {current.producer_epoch}"
        )
    return current


def end_txn_answer(
    name: str, current: TransactionMetadata | None, producer_id: int, epoch: int, commit: bool
) -> Answer:
    """DECIDE, DONE or WAIT; every other answer of the table is raised.

    Raises:
        InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, ConcurrentTransactions.
    """
    current = _check_producer_id(name, current, producer_id, epoch)
    retried = current.is_retry_of(producer_id, epoch)
    if not retried and (producer_id, epoch) != (current.producer_id, current.producer_epoch):
        raise ProducerFenced(
            f"{name}: epoch {epoch} asks, the current one is {current.producer_epoch}"
        )
    answer = END_TXN_ANSWERS.get((current.state, commit, retried), _INVALID)
    unusable = answer in (DECIDE, _DONE) and current.producer_epoch >= MAX_EPOCH
    if answer in (DECIDE, _DONE, _WAIT) and not unusable:
        return answer
    what = (
        f"{name}: {'commit' if commit else 'abort'} of epoch {epoch} in {current.state.wire_name} "
        f"of epoch {current.producer_epoch}"
    )
    if answer is _INVALID:
        raise InvalidTxnState(what)
    raise ProducerFenced(f"{what}: it has not taken effect")


def outcome_of(before: TransactionMetadata | None) -> TransactionOutcome | None:
    """What a new instance is told about the id's last transaction, if its end is on record."""
    if before is None or before.decided is None or before.state is TransactionState.ONGOING:
        return None
    decided = before.decided
    return TransactionOutcome(
        before.transactional_id, decided.producer_id, decided.data_epoch, decided.commit
    )
