"""The consumers whose offsets go into a producer's transactions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eoslog.errors import EoslogError

if TYPE_CHECKING:
    from eoslog.client.transactions import TransactionManager
    from eoslog.model import OffsetAndMetadata, TopicPartition

__all__ = ["BoundConsumers", "tell_of_abort", "tell_of_commit"]


class BoundConsumers:
    """The part of a producer that knows consumers; they are held weakly."""

    _calls: threading.RLock
    _transactions: TransactionManager | None
    _consumers: weakref.WeakValueDictionary[int, Any]

    def bind(self, consumer: Any) -> None:
        """Let an aborted `with transaction()` rewind this consumer, which is held weakly."""
        self._consumers[id(consumer)] = consumer

    def unbind(self, consumer: Any) -> None:
        """Another producer's transactions carry this consumer's offsets from now on."""
        self._consumers.pop(id(consumer), None)

    def bound_consumers(self) -> list[Any]:
        """The consumers that `bind` was told of and that still live."""
        return _living(self._consumers)

    def note_abort(self) -> None:
        """Tell the consumers of this process that what was read for the transaction is not done."""
        if self._transactions is not None:
            self._transactions.note_abort()

    def fail_transaction(self, error: EoslogError) -> bool:
        """Let the open transaction only be aborted: a bound consumer lost what it has read.

        Returns:
            False where there is none, or its end was asked for: that stands.
        """
        with self._calls:
            manager = self._transactions
            if manager is None or manager.asked:
                return False
            manager.fail(error)
            return manager.error is not None


def tell_of_abort(engine: Any, manager: TransactionManager) -> None:
    """Tell the consumers of this process: what was read for the transaction is to be read again.

    All of them: which ones were read for it is not known before `commit_offsets`.
    """
    for consumer in _living(engine.consumers):
        consumer.note_abort(manager)


def tell_of_commit(
    engine: Any, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Tell the consumers of this process where their group goes on, whoever committed it."""
    for consumer in _living(engine.consumers):
        consumer.note_committed(group_id, offsets)


def _living(consumers: weakref.WeakValueDictionary[int, Any]) -> list[Any]:
    # One step for other threads, which may add to it.
    found = (reference() for reference in consumers.valuerefs())
    return [consumer for consumer in found if consumer is not None]
