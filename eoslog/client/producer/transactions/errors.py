"""Errors of transactional calls, with the cause and what the caller must do."""

from __future__ import annotations

from typing import Any

from eoslog.client.producer.identity import Identity
from eoslog.errors import (
    EoslogError,
    ErrorCode,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)

__all__ = ["as_abortable", "explain_lost_epoch"]


def explain_lost_epoch(
    transactions: Any,
    transactional_id: str,
    identity: Identity,
    error: EoslogError,
    code: ErrorCode,
) -> EoslogError:
    """Return an error that names the cause of a stale epoch.

    Other errors are returned unchanged.

    Args:
        transactions: the coordinator.
        transactional_id: the producer's transactional id.
        identity: the producer's id and epoch.
        error: the error of a call; only a partition's InvalidProducerEpoch is replaced.
        code: Kafka's code for the call that failed.
    """
    if type(error) is not InvalidProducerEpoch:
        return error
    found: KafkaError | None = None
    try:
        found = transactions.explain(
            transactional_id, identity.producer_id, identity.producer_epoch, code
        )
    except EoslogError:
        pass  # the coordinator's log cannot be read now; the partition's error is still correct
    if found is None:
        if code is not ErrorCode.PRODUCER_FENCED:
            return error
        found = ProducerFenced(
            f"transactional id {transactional_id!r} is fenced: another instance took over from "
            f"producer id {identity.producer_id}, epoch {identity.producer_epoch}: {error}; close "
            "this producer and create a new one"
        )
    found.__cause__ = error
    return found


def as_abortable(transactional_id: str, error: EoslogError) -> EoslogError:
    """Return the error, or a TransactionAbortable if it has no category."""
    if getattr(error, "fatal", False) or getattr(error, "abortable", False):
        return error
    ended = TransactionAbortable(
        f"transactional id {transactional_id!r}: the transaction cannot commit "
        f"({type(error).__name__}: {error}); call abort_transaction()"
    )
    ended.__cause__ = error
    return ended
