"""`with producer.transaction() as tx`: records and offsets, committed together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from eoslog._core import RecordAccumulator, RecordCalls
from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import shown
from eoslog.client.offset_arguments import Offsets
from eoslog.client.producer.delivery import Delivery
from eoslog.client.producer.timed_records import check_no_time
from eoslog.client.transaction_link import ConsumerLink, TransactionLink
from eoslog.coordinator.positions.records import ANY, PositionChange, Unchecked
from eoslog.descriptions import GroupMetadata
from eoslog.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    ConfigError,
    EoslogError,
    IllegalState,
)
from eoslog.shown_paths import get_logger

__all__ = ["Group", "InputConsumer", "Transaction", "TransactionalProducer", "group_metadata_of"]

logger = get_logger("eoslog.client.transaction")


class InputConsumer(Protocol):
    """The part of a `Consumer` that a transaction uses."""

    _link: ConsumerLink

    def assignment(self) -> list[Any]:
        """The partitions that the consumer reads now."""
        ...

    def subscription(self) -> Any:
        """The subscribed topics or pattern."""
        ...

    def group_metadata(self) -> GroupMetadata:
        """The group, member and generation that the coordinator checks."""
        ...


Group: TypeAlias = GroupMetadata | InputConsumer | str
"""The group of offsets. With only an id, the coordinator fences no member."""


class TransactionalProducer(Protocol):
    """The part of a `Producer` (a `RecordAccumulator`) that a transaction uses."""

    _link: TransactionLink

    @property
    def _inherited(self) -> bool:
        """Whether this process got the producer through fork, so that its parent uses it."""
        ...

    @property
    def transactional_id(self) -> str | None:
        """The configured `transactional.id`."""
        ...

    @property
    def transaction_state(self) -> str | None:
        """Kafka's name for the transaction state."""
        ...

    @property
    def produce_arrow(self) -> Callable[..., int]:
        """Buffer the rows of Arrow data."""
        ...

    @property
    def produce_batches(self) -> Callable[..., int]:
        """Append encoded batches."""
        ...

    def begin_transaction(self, mode: str = ...) -> None:
        """Begin a transaction."""
        ...

    def commit_transaction(self) -> None:
        """Commit the transaction."""
        ...

    def abort_transaction(self) -> None:
        """Abort the transaction."""
        ...

    def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: Group) -> None:
        """Commit a group's offsets with the transaction."""
        ...

    def _set_position(self, change: PositionChange) -> None:
        """Set a named position in the transaction."""
        ...


@explained_calls("send")
class Transaction(RecordCalls):
    """One transaction of a producer, as a context manager.

    Use `Producer.transaction` to create one::

        with eoslog.open("shop") as log, log.producer(transactional_id="till-1") as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.produce("orders", value="3 apples", key="ada")

    The end of the block commits. An exception in the block aborts the transaction and propagates.
    `abort` aborts without an exception. An abort also rewinds the consumers that take part to their
    committed offsets, so that they read the same records again. Consumers take part if they are
    bound to the producer, or were passed to `commit_offsets`.

    If the outcome of a commit is unknown, consumers are not rewound, because the commit may have
    succeeded. After RequestTimedOut from a commit, call the producer's `commit_transaction` again.

    If a consumer's positions no longer cover all records that it returned, `commit_offsets` raises
    CommitFailed. The abort that follows rewinds the consumer.
    """

    def __init__(self, producer: TransactionalProducer, mode: str = "inline") -> None:
        """Keep the producer; entering the block begins the transaction.

        Args:
            producer: the producer.
            mode: "inline" or "staged", as for `Producer.begin_transaction`.

        Raises:
            ConfigError: if `producer` is not a Producer.
        """
        if not isinstance(producer, RecordAccumulator):
            raise ConfigError(
                f"producer: expected a Producer, got {shown(producer)}; "
                "begin a transaction with producer.transaction()"
            )
        super().__init__(producer)
        self._producer = producer
        self._mode = mode
        self._consumers: dict[ConsumerLink, InputConsumer | None] = {}
        self._aborted = False
        self._state = "not begun"

    def __repr__(self) -> str:
        return f"<Transaction of {self._producer.transactional_id!r}, {self._state}>"

    def __enter__(self) -> Transaction:
        self._producer.begin_transaction(self._mode)
        self._state = "open"
        self._aborted = False  # an earlier block of this object may have aborted
        self._add_bound()
        return self

    # Records.

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        publishing_id: int | None = None,
        deliver_at: int | None = None,
    ) -> Delivery:
        """Buffer a record like `produce`, and return its pending delivery.

        Args:
            topic: the topic.
            value: the value, bytes or str, or what the value serializer takes; None is a tombstone.
            key: the key, bytes or str, or what the key serializer takes; None means no key.
            headers: pairs of name and bytes, or a mapping; None means no headers.
            partition: the partition; None lets the partitioner choose.
            timestamp: milliseconds since the epoch; None means now.
            publishing_id: None; a producer with a name takes ids (`NamedProducer`).
            deliver_at: None; `Producer.prepare_transaction` sets the time of a whole transaction.

        Returns:
            The delivery; it succeeds when the record is in the log, before the commit.

        Raises:
            IllegalState: if there is a `deliver_at`.
            EoslogError: as `produce`.
        """
        check_no_time(deliver_at)
        delivery = Delivery()  # unlike `Producer.send`: a transaction never has acks=0
        self.produce(
            topic,
            value,
            key,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
            on_delivery=delivery,
            publishing_id=publishing_id,
        )
        return delivery

    def produce_arrow(self, topic: str, data: Any) -> int:
        """Buffer the rows of Arrow data as records, as `Producer.produce_arrow` does.

        Args:
            topic: the topic.
            data: a pyarrow table, record batch or reader, or any object with an Arrow stream.

        Returns:
            The number of records that were buffered.

        Raises:
            EoslogError: as `Producer.produce_arrow`.
        """
        return self._producer.produce_arrow(topic, data)

    def produce_batches(
        self, topic: str, partition: int, batches: Iterable[Any], *, trusted: bool = False
    ) -> int:
        """Append encoded batches, as `Producer.produce_batches` does.

        Args:
            topic: the topic.
            partition: the partition.
            batches: buffers with one or more complete, consecutive v2 batches each.
            trusted: skip the check of the records; set it only for batches that eoslog encoded.

        Returns:
            The number of records in the batches.

        Raises:
            EoslogError: as `Producer.produce_batches`.
        """
        return self._producer.produce_batches(topic, partition, batches, trusted=trusted)

    # Offsets.

    def commit_offsets(self, consumer: InputConsumer) -> None:
        """Add a consumer's positions to the transaction.

        The commit fails if the consumer is no longer a member of its group. From this call on, the
        consumer is bound to the producer, as with `Consumer(config, producer=p)`.

        Args:
            consumer: the consumer whose records this transaction processes.

        Raises:
            ConfigError: if `consumer` is not a Consumer, or reads another directory, or commits
                automatically, or reads with `isolation.level=read_uncommitted`.
            CommitFailed: if the group rebalanced, or the positions do not cover all records that
                the consumer returned since its last commit or rewind. That is so after a partition
                was reassigned, and after an abort that did not rewind the consumer. Abort the
                transaction.
            IllegalState: if the consumer is closed, or is neither subscribed nor assigned.
        """
        link = getattr(consumer, "_link", None)
        if not isinstance(link, ConsumerLink):
            named = repr(consumer) if isinstance(consumer, str) else "group"
            raise ConfigError(
                f"commit_offsets: expected a consumer, got {shown(consumer)}; "
                f"for a group id use send_offsets(offsets, {named})"
            )
        link.check_kind(self._producer._link)
        self._consumers[link] = consumer
        offsets = link.positions()
        if not offsets and not consumer.assignment() and not consumer.subscription():
            raise IllegalState(
                "commit_offsets: the consumer is neither subscribed nor assigned; call "
                "consumer.subscribe() or consumer.assign() first"
            )
        group = consumer.group_metadata()
        self._check_settled(link)
        if offsets:
            self._producer.send_offsets_to_transaction(offsets, group)

    def _check_settled(self, consumer: ConsumerLink) -> None:
        consumer.bind(self._producer._link)
        if consumer.unsettled is not None:
            why = f"abort this transaction: {consumer.unsettled}; they will be read again"
            error = CommitFailed(why, abortable=True)
            self._producer._link.lost(error)
            raise error

    def send_offsets(self, offsets: Offsets, group_metadata: Group) -> None:
        """Commit offsets of a group, as `Producer.send_offsets_to_transaction` does.

        Args:
            offsets: `[TopicPartition(t, p, next_offset)]`, or a mapping of partitions to next
                offsets or `OffsetAndMetadata`.
            group_metadata: `Consumer.group_metadata()`, the consumer itself, or the group's id.

        Raises:
            EoslogError: as `Producer.send_offsets_to_transaction`.
        """
        self._producer.send_offsets_to_transaction(offsets, group_metadata)

    # Positions.

    def set_position(
        self,
        name: str,
        value: int | str | bytes,
        expected: int | str | bytes | Unchecked | None = ANY,
    ) -> None:
        """Store how far an external source was read, together with its records.

        The position takes effect when the transaction commits. `Log.position` returns it. A
        program that reads a position, then reads the source from there, and passes the position as
        `expected`, copies each item of the source once, even if two instances of it run::

            at = log.position("crm")
            with producer.transaction() as tx:
                tx.produce("customers", value="ada")
                tx.set_position("crm", 7, expected=at)

        A transaction that has set a position holds its name: until it has ended, no other
        transaction can set or delete it.

        Args:
            name: any text of 1 to 1,024 bytes as UTF-8, for example the name of a source and of a
                part of it.
            value: the position, at most 1 MiB. It is returned with the same type.
            expected: the position that the value replaces, None if there is none. It must have the
                same type and value. In a transaction that has set the name already, it is that
                value. By default, any position is replaced.

        Raises:
            PositionConflict: if the position is another one, or another open transaction sets it.
                The transaction can only abort.
            ConfigError: if the name or a value has another type or no legal length.
            RecordTooLarge: if a value is larger than 1 MiB.
            IllegalState: if the transaction is staged.
            ProducerFenced: if another producer with this id took over.
            TransactionTimedOut: if the transaction exceeded `transaction.timeout.ms`.

        Durability:
            The position is durable when the commit returns, as the records are.
        """
        self._producer._set_position(PositionChange.of(name, value, expected))

    # The end.

    def abort(self) -> None:
        """Abort the transaction and rewind the consumers that take part.

        The rest of the block runs, but can no longer produce, and the end of the block does
        nothing. If the block begins another transaction by hand, it must also end it. Otherwise
        the end of the block aborts that one and raises IllegalState.

        Raises:
            RequestTimedOut: if the abort has not ended within `max.block.ms`. Call `abort` again,
                and no other method.
            ProducerFenced: if another producer with this id took over and aborted the transaction.
                Close this producer.
        """
        with self._rewinding():
            try:
                self._producer.abort_transaction()
            finally:  # a delivery callback may have raised after the abort
                self._aborted = self._producer.transaction_state == "READY"
                if self._aborted:
                    self._state = "aborted"

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._prepared():
            self._state = "prepared"
        elif error is None:
            if self._aborted and not self._begun_by_hand():
                return
            try:
                if self._aborted:
                    raise IllegalState(
                        "a transaction begun after tx.abort() was still open at the end of the "
                        "`with` block and was aborted; end it explicitly, or use a second "
                        "`with producer.transaction()`"
                    )
                if self._producer.transaction_state == "READY":
                    raise IllegalState(
                        "the transaction was already committed or aborted inside its `with` "
                        "block, which does that on exit; to abort early, call tx.abort()"
                    )
                self._producer.commit_transaction()
            except CommitOutcomeUnknown:
                self._state = "outcome unknown"
                raise
            except BaseException:
                self._undo()
                raise
            self._state = "committed"
        elif not isinstance(error, CommitOutcomeUnknown):
            self._undo()

    def _prepared(self) -> bool:
        """Whether the block has prepared the transaction, so that its token decides it."""
        state = self._producer.transaction_state
        if state == "READY":  # a staged one is detached
            return self._mode == "staged" and not self._aborted
        return state == "PREPARED_TRANSACTION"

    def _begun_by_hand(self) -> bool:
        """Whether the block began another transaction after it aborted this one."""
        transaction = self._producer._link.transaction
        return transaction is not None and transaction.open

    def _undo(self) -> None:
        if self._producer._inherited:
            return  # the transaction and its consumers are those of the parent
        if self._producer.transaction_state == "COMMITTING_TRANSACTION":
            self._state = "outcome unknown"  # the coordinator may have decided: only retry commit
            return
        self._state = "aborted"
        with self._rewinding():
            try:
                # A failed abort must not hide the first error; the state shows what is allowed now.
                with contextlib.suppress(EoslogError):
                    self._producer.abort_transaction()
            except Exception:
                logger.exception(
                    "transactional id %r: a delivery callback failed, aborting the transaction",
                    self._producer.transactional_id,
                )

    def _add_bound(self) -> None:
        for link in self._producer._link.consumers():
            self._consumers.setdefault(link, None)

    @contextlib.contextmanager
    def _rewinding(self) -> Iterator[None]:
        """Rewind the consumers at the end of the block, even if the block raises."""
        self._add_bound()  # consumers that were bound during the transaction
        for consumer in self._consumers:
            # Marked first: another thread may be using the consumer, or an interrupt may come.
            consumer.must_rewind(
                "the consumer was in use when an earlier transaction was aborted, and returned "
                "records that are not committed"
            )
        try:
            yield
        finally:
            for consumer in self._consumers:
                with contextlib.suppress(EoslogError):
                    consumer.rewind()
            # Also if the producer could not abort, because it is fenced or closed.
            self._producer._link.aborted()


def group_metadata_of(group: Any, producer: TransactionLink) -> GroupMetadata:
    """Return the group metadata of a group id, a consumer, or group metadata.

    Raises:
        ConfigError: if `group` is of another type, or a consumer that `Transaction.commit_offsets`
            would reject.
        IllegalState: if there is a generation without a member id.
    """
    if isinstance(group, str) and group:
        return GroupMetadata(group)
    if hasattr(group, "group_metadata"):
        link = getattr(group, "_link", None)
        if isinstance(link, ConsumerLink):
            link.check_kind(producer)
        group = group.group_metadata()
    if not isinstance(group, GroupMetadata):
        raise ConfigError(
            f"group_metadata: expected GroupMetadata, a consumer or a group id, got {shown(group)}"
        )
    if group.generation_id > 0 and not group.member_id:
        raise IllegalState(
            f"group_metadata: generation {group.generation_id} without a member id; pass "
            "consumer.group_metadata()"
        )
    return group
