"""Small helpers for effects that the log cannot make exactly-once by itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, MutableSet
from typing import TYPE_CHECKING, Any, TypeVar

from eoslog.errors import CommitOutcomeUnknown, KafkaError

if TYPE_CHECKING:
    from eoslog.client.producer import Producer
    from eoslog.client.transaction_scope import Transaction

T = TypeVar("T")
_RETRIES = 10


def dedupe(store: MutableMapping[Any, Any] | MutableSet[Any], key: Hashable) -> bool:
    """Whether a key is seen for the first time; it is noted in the store.

    At-least-once delivery and this make an idempotent consumer, as far as the store is durable
    together with the effect: keep it in the same database transaction, or in the same log
    transaction as the output.

    Args:
        store: a set or a mapping (`dict`, `shelve`, a table behind MutableMapping).
        key: the record's identity: its key, or (topic, partition, offset).

    Returns:
        True the first time, False for every repetition.
    """
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
    """Run `work(tx)` in a transaction: all of it happens once, or none of it.

    An abortable or retriable error aborts and runs the work again, so it must not have effects
    outside the transaction. Fatal errors, and what the work raises, come out after the abort.

    Args:
        producer: transactional and initialised.
        work: gets the open transaction (`tx.produce`, `tx.commit_offsets`).
        retries: how often to run it again.

    Raises:
        CommitOutcomeUnknown: the decision may or may not be on disk; the next
            `init_transactions()` of the same id tells.
        RequestTimedOut: the commit was asked for and is not known to be done: call
            `commit_transaction()` again.
    """
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
                raise  # an end was asked for and is not known to be done: nothing may begin
        else:
            return done
    raise AssertionError("unreachable")
