"""Helpers for effects outside the log, which the log cannot make exactly-once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, MutableSet
from typing import TYPE_CHECKING, Any, TypeVar

from eoslog._util.argument_types import explained
from eoslog._util.arguments import shown
from eoslog.errors import CommitOutcomeUnknown, ConfigError, KafkaError

if TYPE_CHECKING:
    from eoslog.client.producer.producer import Producer
    from eoslog.client.producer.transactions.transaction import Transaction

__all__ = ["dedupe", "run_transaction"]

T = TypeVar("T")
_RETRIES = 10


@explained
def dedupe(store: MutableMapping[Any, Any] | MutableSet[Any], key: Hashable) -> bool:
    """Add a key to a store, and return whether it is new.

    A consumer that receives records at least once becomes idempotent with this check. The store and
    the effect must become durable together: keep the store in the same database transaction as
    the effect, or in the same log transaction as the output.

    Args:
        store: a set or a mapping (`dict`, `shelve`, a MutableMapping over a table).
        key: the record's identity: its key, or (topic, partition, offset).

    Returns:
        True the first time, False for every repetition.

    Raises:
        ConfigError: if the store is neither a set nor a mapping, or the key is not hashable.
    """
    if not hasattr(store, "add") and not (hasattr(store, "keys") and hasattr(store, "__setitem__")):
        raise ConfigError(f"dedupe: store: expected a set or a mapping, got {shown(store)}")
    if key in store:
        return False
    if isinstance(store, MutableSet):
        store.add(key)
    else:
        store[key] = True
    return True


def run_transaction(
    producer: Producer, work: Callable[[Transaction], T], *, retries: int = _RETRIES
) -> T:
    """Run `work(tx)` in a transaction, and retry it after some errors.

    An abortable or retriable error aborts the attempt and runs `work` again. So it must not have
    effects outside the transaction.

    Args:
        producer: a transactional producer, after `init_transactions`.
        work: receives the open transaction (`tx.produce`, `tx.commit_offsets`).
        retries: the number of attempts after the first.

    Returns:
        The result of `work`.

    Raises:
        CommitOutcomeUnknown: if the decision may not be durable. The next `init_transactions()` of
            the same id returns the outcome.
        RequestTimedOut: if the commit has not completed in time. Call `commit_transaction()` again.
        Exception: if `work` raises it, or the error is fatal; the transaction is aborted first.
    """
    if not callable(work):
        raise ConfigError(f"run_transaction: work: expected a function, got {shown(work)}")
    for attempt in range(retries + 1):
        try:
            with producer.transaction() as tx:
                done = work(tx)
        except CommitOutcomeUnknown:
            raise
        except KafkaError as error:
            if error.fatal or attempt == retries or not (error.abortable or error.retriable):
                raise
            if producer.transaction_state != "READY":
                raise  # the end of the transaction is not known, so none may begin
        else:
            return done
    raise AssertionError("unreachable")
