"""Events between a producer's transactions and consumers.

A producer owns one `TransactionLink`, a consumer one `ConsumerLink`. There are four events:

    bound      to the producer: its transactions include the offsets of this consumer from now on
    lost       to the producer: the consumer lost partitions, so the transaction must abort
    committed  to all consumers of the directory: a transaction committed offsets of a group
    aborted    to all consumers of the directory: records that were read for it must be read again

Producers and consumers have at most weak references to each other, so neither keeps the other
alive. The `ConsumerRegistry` delivers the events for all consumers.

Source: KIP-98, KIP-447.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from eoslog._core import OneThread
from eoslog.client.consumer_registry import (
    ConsumerRegistry,
    ProducerTransaction,
    WeakItems,
    registry_of,
)
from eoslog.config.keys import ConsumerConfig
from eoslog.errors import ConfigError, EoslogError
from eoslog.model import IsolationLevel, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["ConsumerLink", "TransactionLink"]


class TransactionLink:
    """The producer's side: the consumers that are bound to it. Thread-safe."""

    def __init__(
        self,
        transaction: ProducerTransaction | None,
        consumers: ConsumerRegistry,
        calls: threading.RLock,
        directory: str,
    ) -> None:
        """Start without bound consumers.

        Args:
            transaction: the producer's transaction manager; None without a transactional id.
            consumers: the consumers of the producer's directory.
            calls: the lock that the producer's transactional calls hold.
            directory: the path of the producer's directory.
        """
        self.directory = directory
        self._transaction = transaction
        self._consumers = consumers
        self._calls = calls
        self._bound: WeakItems[ConsumerLink] = WeakItems()
        self._ended = False

    @property
    def transaction(self) -> ProducerTransaction | None:
        """The producer's transactions; None if no more transactions can follow."""
        transaction = self._transaction
        return None if self._ended or transaction is None or transaction.fatal else transaction

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and has not ended."""
        return self._transaction is not None and self._transaction.open

    def end(self) -> None:
        """Mark the producer as closed, or as inherited through fork."""
        self._ended = True

    def bound(self, consumer: ConsumerLink) -> None:
        """Include this consumer's offsets in transactions, and rewind it after an abort."""
        self._bound.add(consumer)

    def unbound(self, consumer: ConsumerLink) -> None:
        """Remove a consumer that is bound to another producer now."""
        self._bound.discard(consumer)

    def consumers(self) -> list[ConsumerLink]:
        """The bound consumers that are not garbage collected."""
        return self._bound.living()

    def aborted(self) -> None:
        """Notify all consumers that the transaction is aborted, or can only be aborted."""
        if self._transaction is not None:
            self._consumers.aborted(self._transaction)

    def lost(self, error: EoslogError) -> bool:
        """Fail the open transaction, because a consumer lost records that it returned.

        Returns:
            False if no transaction is open, or the coordinator was asked to end it.
        """
        with self._calls:
            transaction = self._transaction
            if transaction is None or transaction.asked:
                return False
            transaction.fail(error)
            return transaction.error is not None


class _Reading(Protocol):
    """The part of a consumer's `SubscriptionState` that transactions use."""

    states: dict[TopicPartition, Any]
    unsettled: str | None
    rewinds: int

    @property
    def unfinished(self) -> bool: ...

    def rewind(self) -> None: ...


class ConsumerLink:
    """The consumer's side: decides whether a transaction may commit its positions.

    Only `rewind` and `positions` wait for the thread that uses the consumer.
    """

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        use: OneThread,
        reading: _Reading,
        positions: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]],
        *,
        auto_commits: bool,
    ) -> None:
        """Register for events of a directory's transactions, bound to no producer.

        Args:
            engine: the open directory.
            config: the consumer's configuration.
            use: the consumer's guard against use by two threads.
            reading: the consumer's partitions.
            positions: the method that `positions` calls; its object is held weakly.
            auto_commits: whether the consumer commits automatically, outside of transactions.
        """
        self._directory = engine.path
        self._group_id = config.group_id
        self._isolation_level = config.isolation_level
        self._use = use
        self._reading = reading
        self._auto_commits = auto_commits
        self._positions = weakref.WeakMethod(positions)
        self._producer: TransactionLink | None = None
        # The offsets are stored outside of the log, so no transaction of the log commits them.
        self.stored_elsewhere = False
        # The number of rewinds when a staged transaction was found to be aborted.
        self._dropped_at: int | None = None
        registry_of(engine).add(self)

    # Events from the consumer.

    @property
    def in_transaction(self) -> bool:
        """Whether records that were returned belong to an open transaction."""
        return self._producer is not None and self._producer.open

    @property
    def bound_to_producer(self) -> bool:
        """Whether transactions of a producer include this consumer's offsets."""
        return self._producer is not None

    def lost(self, error: EoslogError) -> bool:
        """Fail the bound producer's open transaction, and return whether there is one."""
        return self._producer is not None and self._producer.lost(error)

    # Calls from a transaction.

    def check_kind(self, producer: TransactionLink) -> None:
        """Check that transactions of a producer may commit this consumer's offsets.

        Raises:
            ConfigError: if the consumer reads another directory, commits automatically, or reads
                uncommitted records.
        """
        self.check_directory(producer)
        if self.stored_elsewhere:
            raise ConfigError(
                "offset_store: the offsets of this consumer are stored in a database, so a "
                "transaction of the log cannot commit them; use log.atomic, or a consumer without "
                "offset_store"
            )
        if self._auto_commits:
            raise ConfigError(
                "enable.auto.commit=True: the consumer would commit outside of the transaction; "
                "set it to False"
            )
        if self._isolation_level == IsolationLevel.READ_UNCOMMITTED:
            raise ConfigError(
                "isolation.level=read_uncommitted: records that the consumer returned may still be "
                "aborted; set it to read_committed"
            )

    def check_directory(self, producer: TransactionLink) -> None:
        """Check that the consumer reads the directory that the producer writes.

        Raises:
            ConfigError: if it reads another one.
        """
        if self._directory != producer.directory:
            raise ConfigError(
                f"the consumer reads {self._directory}, and the producer writes "
                f"{producer.directory}; a transaction covers one directory: to copy records "
                "between two, store the offsets with tx.set_position"
            )

    def bind(self, producer: TransactionLink) -> None:
        """Bind the consumer to this producer, and to no other."""
        before, self._producer = self._producer, producer
        if before is producer:
            return
        if before is not None:
            before.unbound(self)
            transaction = before.transaction
            if transaction is not None and transaction.open and self._reading.unfinished:
                self.must_rewind(
                    "the consumer returned records during a transaction of another producer"
                )
        producer.bound(self)

    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit now, each with the id of its topic."""
        positions = self._positions()
        assert positions is not None  # the caller holds the consumer
        return positions()

    @property
    def unsettled(self) -> str | None:
        """Why no transaction may commit the positions before a rewind; None if one may."""
        return self._reading.unsettled

    def must_rewind(self, reason: str) -> None:
        """Let no transaction commit the positions until `rewind` is called."""
        self._reading.unsettled = self._reading.unsettled or reason

    def rewind(self) -> None:
        """Read again from the committed offsets, as `Consumer.rewind` does."""
        with self._use:
            self._reading.rewind()

    # Events from producers.

    def aborted(self, transaction: ProducerTransaction) -> None:
        """Require a rewind after an abort of a transaction that read this consumer."""
        bound = None if self._producer is None else self._producer.transaction
        # A program may use several producers with one consumer. If the bound producer has no open
        # transaction, the records were read for the aborted one, unless this consumer is used by
        # another thread than that transaction.
        if (
            bound is not None
            and bound.transactional_id != transaction.transactional_id
            and (bound.open or self._use.last_user not in (transaction.begun_by, get_ident()))
        ):
            return
        if self._reading.unfinished:
            self.must_rewind(
                "the consumer returned records that are not committed, and a transaction was "
                "aborted since"
            )

    def committed(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note the offsets that a transaction has committed for a group."""
        if group_id != self._group_id or self.stored_elsewhere:
            return
        for partition, offset in offsets.items():
            state = self._reading.states.get(partition)
            # A topic that was deleted and re-created has another id.
            if state is not None and state.topic_id == offset.topic_id:
                state.committed = offset.offset

    def dropped(self, group_id: str) -> None:
        """Require a rewind after a staged transaction of the group was aborted."""
        if group_id == self._group_id and not self.stored_elsewhere and self._reading.unfinished:
            self._dropped_at = self._reading.rewinds
            self.must_rewind(
                "the consumer returned records that are not committed, and the staged transaction "
                "with their offsets was aborted"
            )

    def take_dropped(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether `dropped` has required a rewind that did not follow; True once.

        A program that sends offsets itself may seek instead.
        """
        if group_id != self._group_id or partition not in self._reading.states:
            return False
        before, self._dropped_at = self._dropped_at, None
        return before == self._reading.rewinds
