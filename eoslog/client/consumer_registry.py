"""The consumers of a directory in this process.

They are notified of the end of transactions. The registry also keeps the offsets of staged
transactions until they are decided, because a consumer can read on before that.

Until `commit_offsets` is called, it is not known which consumers a transaction read. So every
consumer that this process has on the directory is notified of every abort. Each consumer decides
whether the abort applies to it.
"""

from __future__ import annotations

import threading
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
Place: TypeAlias = tuple[str, TopicPartition, bytes | None]
"""A group's id, a partition in which it has an offset, and the id of the topic."""


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

    def take_dropped(self, group_id: str, partition: TopicPartition) -> bool: ...


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
        self._lock = threading.Lock()
        self._staged: dict[str, GroupOffsets] = {}
        self._aborted: dict[Place, tuple[int, str]] = {}
        self.aborts = 0
        """How many staged transactions were found to be aborted."""

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

    @property
    def waiting(self) -> bool:
        """Whether a staged transaction with offsets was not yet found to be decided."""
        return bool(self._staged)

    def settle(self, outcome: Callable[[str], Outcome | None]) -> None:
        """Notify all consumers of staged transactions that were decided.

        Args:
            outcome: returns the decision about a token. If it raises, nothing has changed.
        """
        found = [(token, outcome(token)) for token in list(self._staged)]
        for token, decision in found:
            if decision is Outcome.UNKNOWN:
                continue
            with self._lock:
                sent = self._staged.get(token)
                if sent is None:
                    continue  # another thread has notified them
                if decision is Outcome.COMMIT:
                    for group, offsets in sent:
                        self.committed(group, offsets)
                else:
                    self._note_abort(token, sent)
                del self._staged[token]  # last, because `earlier` takes no lock

    def _note_abort(self, token: str, sent: GroupOffsets) -> None:
        self.aborts += 1
        for group, offsets in sent:
            for place in _places([(group, offsets)]):
                self._aborted[place] = (self.aborts, token)
            for consumer in self._consumers.living():
                consumer.dropped(group)

    def earlier(self, offsets: GroupOffsets, aborts: int) -> tuple[str, Outcome] | None:
        """Find a staged transaction whose records the offsets would skip.

        Call `settle` before.

        Args:
            offsets: what a transaction commits. It continues after the staged transactions, unless
                its topic has another id.
            aborts: `aborts` when that transaction began.

        Returns:
            The token, and ABORT or UNKNOWN; None if there is none. An abort that was found before
            the transaction began counts until a consumer that had read on is rewound, or until it
            is returned once.
        """
        if not self._staged and not self._aborted:
            return None
        places = _places(offsets)
        waiting = [
            token
            for token, sent in list(self._staged.items())
            if not places.isdisjoint(_places(sent))
        ]
        for place in places:
            number, token = self._aborted.get(place, (0, ""))
            if token:
                skips = [consumer.take_dropped(*place[:2]) for consumer in self._consumers.living()]
                if number > aborts or any(skips):
                    return token, Outcome.ABORT
        return (waiting[0], Outcome.UNKNOWN) if waiting else None


def _places(offsets: GroupOffsets) -> set[Place]:
    return {(group, tp, one.topic_id) for group, named in offsets for tp, one in named.items()}


_registries: weakref.WeakKeyDictionary[Any, ConsumerRegistry] = weakref.WeakKeyDictionary()
"""One registry per open directory (`Engine`), which all handles of a process share."""


def registry_of(engine: Engine) -> ConsumerRegistry:
    """The consumers that this process has on an open directory."""
    found = _registries.get(engine)
    return _registries.setdefault(engine, ConsumerRegistry()) if found is None else found
