"""The consumers of a directory in this process.

They are notified of the end of transactions.

Until `commit_offsets` is called, it is not known which consumers a transaction read. So every
consumer that this process has on the directory is notified of every abort. Each consumer decides
whether the abort applies to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from eoslog.errors import EoslogError
from eoslog.model import OffsetAndMetadata, Outcome, TopicPartition

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["ConsumerRegistry", "ProducerTransaction", "WeakItems", "registry_of"]

T = TypeVar("T")
GroupOffsets: TypeAlias = Sequence[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]]
"""Pairs of a group's id and its offsets."""


class ProducerTransaction(Protocol):
    """The part of a producer's `TransactionManager` that consumers use."""

    transactional_id: str
    begun_by: int
    asked: bool
    error: EoslogError | None

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and has not ended."""
        ...

    @property
    def fatal(self) -> bool:
        """Whether no transaction can follow."""
        ...

    def fail(self, error: EoslogError) -> EoslogError:
        """Enter ABORTABLE_ERROR or FATAL_ERROR, depending on the error."""
        ...


class _Hears(Protocol):
    """A consumer's side of transactions (`ConsumerLink`)."""

    def aborted(self, transaction: ProducerTransaction) -> None: ...

    def committed(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None: ...

    def dropped(self, group_id: str) -> None: ...


class WeakItems(Generic[T]):
    """Objects that are held weakly, by identity. Thread-safe."""

    def __init__(self) -> None:
        """Start empty."""
        self._items: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, item: T) -> None:
        """Hold the item until it is garbage collected."""
        self._items[id(item)] = item

    def discard(self, item: T) -> None:
        """Remove the item, if it is held."""
        self._items.pop(id(item), None)

    def living(self) -> list[T]:
        """The items that are not garbage collected."""
        # `valuerefs` is atomic: other threads may add items at the same time.
        found = (reference() for reference in self._items.valuerefs())
        return [item for item in found if item is not None]


class ConsumerRegistry:
    """The consumers that this process has on one directory, held weakly. Thread-safe."""

    def __init__(self) -> None:
        """Start without consumers."""
        self._consumers: WeakItems[_Hears] = WeakItems()
        self._staged: dict[str, GroupOffsets] = {}

    def add(self, consumer: _Hears) -> None:
        """Notify this consumer of the end of transactions from now on."""
        self._consumers.add(consumer)

    def aborted(self, transaction: ProducerTransaction) -> None:
        """Notify all consumers of an aborted transaction, so that its readers rewind."""
        for consumer in self._consumers.living():
            consumer.aborted(transaction)

    def committed(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Notify all consumers of the offsets that a transaction committed for a group."""
        for consumer in self._consumers.living():
            consumer.committed(group_id, offsets)

    def staged(self, token: str, offsets: GroupOffsets) -> None:
        """Keep the offsets of a staged transaction until it is decided."""
        self._staged[token] = offsets

    def settle(
        self, offsets: GroupOffsets, outcome: Callable[[str], Outcome | None]
    ) -> tuple[str, Outcome | None] | None:
        """Notify all consumers of staged transactions that were decided.

        Args:
            offsets: what the next transaction commits. It continues after these transactions.
            outcome: returns the decision about a token.

        Returns:
            The token and outcome of one that has the same partitions and was not committed; None
            if there is none.
        """
        if not self._staged:
            return None
        places = {(group, tp) for group, named in offsets for tp in named}
        found = None
        for token, sent in list(self._staged.items()):
            decision = outcome(token)
            if decision is not Outcome.UNKNOWN:
                self._staged.pop(token, None)
            for group, named in sent:
                if decision is Outcome.COMMIT:
                    self.committed(group, named)
                elif decision is not Outcome.UNKNOWN:
                    for consumer in self._consumers.living():
                        consumer.dropped(group)
                if decision is not Outcome.COMMIT and places & {(group, tp) for tp in named}:
                    found = token, decision
        return found


_registries: weakref.WeakKeyDictionary[Any, ConsumerRegistry] = weakref.WeakKeyDictionary()
"""One registry per open directory (`Engine`), which all handles of a process share."""


def registry_of(engine: Engine) -> ConsumerRegistry:
    """The consumers that this process has on an open directory."""
    found = _registries.get(engine)
    return _registries.setdefault(engine, ConsumerRegistry()) if found is None else found
