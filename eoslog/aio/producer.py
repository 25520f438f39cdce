"""The producer of coroutines.

A record is buffered in the event loop's thread if that cannot wait: the producer is at rest, it
knows the topic, and the buffer has room. Otherwise the producer's thread buffers it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

from eoslog._util.arguments import as_seconds
from eoslog.aio.call_thread import CallThread
from eoslog.aio.client import AsyncClient
from eoslog.aio.consumer import AsyncConsumer
from eoslog.aio.transaction import AsyncTransaction
from eoslog.client.offset_arguments import Offsets
from eoslog.client.producer.delivery import Delivery
from eoslog.client.producer.named.producer import NamedProducer
from eoslog.client.producer.producer import Producer
from eoslog.client.producer.transactions.transaction import Group
from eoslog.config.keys import ProducerConfig
from eoslog.descriptions import TransactionOutcome
from eoslog.errors import PreparedTransactionPending
from eoslog.model import RecordMetadata

if TYPE_CHECKING:
    from eoslog.descriptions import GroupMetadata

__all__ = ["AsyncProducer", "PromptProducer", "check_settings", "producer_of"]


class _MustWait(Exception):
    """Buffering this record can wait, so that the producer's thread must do it."""


class _Withdrawn(Exception):
    """The coroutine was cancelled while its record waited for room."""


class PromptProducer(Producer):
    """A producer that can refuse to wait."""

    _refusing = 0
    _must_end: Callable[[], bool] | None = None

    def send_now(
        self, send: Callable[..., Delivery], *arguments: Any, **options: Any
    ) -> Delivery | None:
        """Buffer a record without waiting; return None if that is not possible."""
        config = self._config
        if self._used + config.max_request_size > config.buffer_memory:
            return None
        self._refusing = get_ident()
        try:
            return send(*arguments, **options)
        except _MustWait:
            return None
        finally:
            self._refusing = 0

    def _describe_topic(self, topic: str) -> tuple[int, int]:
        self._refuse_to_wait()
        return super()._describe_topic(topic)

    def _wait_for_space(self, size: int) -> None:
        self._refuse_to_wait()
        self._sender.make_room(size, self._check_waiting)

    def _refuse_to_wait(self) -> None:
        if self._refusing == get_ident():
            raise _MustWait

    def _check_waiting(self) -> None:
        self._check_gate()
        if self._must_end is not None and self._must_end():
            raise _Withdrawn


def check_settings(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check settings without opening anything.

    Raises:
        ConfigError: if `producer_of` would reject them.
    """
    ProducerConfig.of(config, **options)


def producer_of(config: Mapping[str, Any], options: Mapping[str, Any]) -> Producer:
    """Create the producer of threads; one with a name always waits in its thread."""
    if {**config, **options}.get("name") is not None:
        return NamedProducer(config, **options)
    return PromptProducer(config, **options)


class AsyncProducer(AsyncClient[Producer]):
    """A producer for coroutines of asyncio, and of trio with the extra `[async]`.

    Use `Log.async_producer` to get one::

        async with log.async_producer(transactional_id="till-1") as producer:
            async with producer.transaction() as tx:
                await tx.send("orders", "3 apples", key="ada")

    Names and behaviour are aiokafka's where both have a method. Calls that can wait run in one
    thread of this producer, so that none of them blocks the event loop. The guarantees are those
    of `Producer`. `start` calls `init_transactions` if there is a `transactional_id`. It does not
    for a producer with a `name`, which commits automatically. If this id has left a transaction
    prepared, `start` keeps it, and a begin raises PreparedTransactionPending until it is decided.

    Every call can be cancelled, and has ended when the cancellation is raised. It was complete, or
    had not begun.

    Use it in one event loop. Several tasks may send at the same time. One transaction is open at a
    time, and all records that are sent until its end belong to it.
    """

    _name = "producer"

    def __init__(self, make: Callable[[], Producer], adopt: Callable[[CallThread], object]) -> None:
        """Keep what `start` needs; programs call `Log.async_producer` instead.

        Args:
            make: creates the producer of threads; called in the thread.
            adopt: has the log end the thread when it is closed.
        """
        super().__init__(make, adopt)
        self._bound: weakref.WeakSet[AsyncConsumer] = weakref.WeakSet()
        self._outcome: TransactionOutcome | None = None

    def _begin(self, client: Producer) -> None:
        if isinstance(client, PromptProducer) and client.transactional_id is not None:
            try:
                self._outcome = client.init_transactions()
            except PreparedTransactionPending:
                # `log.atomic` asks the database, a resolver decides, or the next begin raises.
                client.init_transactions(keep_prepared=True)

    def _close(
        self,
        client: Producer,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        client.__exit__(kind, error, trace)

    async def stop(self, timeout: float | None = None) -> None:
        """Send buffered records, abort an open transaction, and close the producer.

        Cancelled: the producer is closed in any case.

        Args:
            timeout: the longest wait for buffered records, in seconds; the rest then fail. None
                waits until every record is delivered or has failed.

        Raises:
            ConfigError: if `timeout` is not a number of seconds. The producer is not closed.
            EoslogError: as `Producer.close`. The producer is closed.
        """
        if timeout is not None:
            as_seconds("timeout", timeout)
        await self._stop(lambda client: client.close(timeout))

    @property
    def closed(self) -> bool:
        """Whether the producer was stopped, or its log was closed."""
        return self._stopping or (self._wrapped is not None and self._thread.finished)

    @property
    def previous_outcome(self) -> TransactionOutcome | None:
        """What `init_transactions` has returned in `start`.

        It is the outcome of the last transaction of this id before this producer; None if there is
        none.
        """
        return self._outcome

    @property
    def transactional_id(self) -> str | None:
        """The configured `transactional.id`, or None."""
        return self._client().transactional_id

    @property
    def transaction_state(self) -> str | None:
        """Kafka's name for the transaction state; None without a `transactional.id`."""
        return self._client().transaction_state

    # Records.

    async def send(
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
        """Buffer a record, and return its pending delivery, which can be awaited.

        The call waits only if the buffer has no room, or for the first record of a topic.

        Cancelled: the record is buffered, or it is not. A transaction that is then aborted leaves
        no doubt.

        Args:
            topic: the topic.
            value: the value, as for `Producer.send`.
            key: the key, as for `Producer.send`.
            headers: pairs of name and bytes, or a mapping; None means no headers.
            partition: the partition; None lets the partitioner choose.
            timestamp: milliseconds since the epoch; None means now.
            publishing_id: the id of a record of a producer with a name; None otherwise.
            deliver_at: the time in ms since the epoch before which the record does not appear;
                None means now. The call then waits until the record is durable.

        Returns:
            The delivery. With `acks=0` it succeeds immediately, with offset -1.

        Raises:
            EoslogError: as `Producer.send`.
        """
        options = {"headers": headers, "partition": partition, "timestamp": timestamp,
                   "publishing_id": publishing_id, "deliver_at": deliver_at}  # fmt: skip
        return await self._buffer(self._client().send, topic, value, key, options)

    async def _buffer(
        self,
        send: Callable[..., Delivery],
        topic: str,
        value: Any,
        key: Any,
        options: dict[str, Any],
    ) -> Delivery:
        client, thread = self._client(), self._thread
        await self._breathe("send")
        writer = client if isinstance(client, PromptProducer) else None
        if writer is not None and not thread.waiting and options["deliver_at"] is None:
            now = writer.send_now(send, topic, value, key, **options)
            if now is not None:
                return now

        def buffered() -> Delivery:
            if writer is not None:
                writer._must_end = lambda: thread.interrupted
            return send(topic, value, key, **options)

        return await thread.call("send", buffered)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        publishing_id: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and wait for its delivery.

        Cancelled: the record is delivered or not, and never twice.

        Args:
            topic: the topic.
            value: the value, as for `Producer.send`.
            key: the key, as for `Producer.send`.
            headers: pairs of name and bytes, or a mapping; None means no headers.
            partition: the partition; None lets the partitioner choose.
            timestamp: milliseconds since the epoch; None means now.
            publishing_id: the id of a record of a producer with a name; None otherwise.

        Returns:
            Topic, partition, offset and timestamp of the record.

        Raises:
            EoslogError: as `Producer.send`, or if the record was not delivered.

        Durability:
            Outside a transaction, the record is as durable as `acks` says when the call returns.
        """
        return await (
            await self.send(
                topic, value, key, headers=headers, partition=partition, timestamp=timestamp,
                publishing_id=publishing_id,
            )
        )  # fmt: skip

    async def flush(self, timeout: float | None = None) -> int:
        """Send all buffered records, and wait for their delivery.

        Cancelled: the flush is complete, or had not begun.

        Args:
            timeout: the longest wait in seconds; None waits until every record is delivered or
                has failed.

        Returns:
            The number of records that are still buffered.

        Raises:
            EoslogError: as `Producer.flush`.

        Durability:
            Outside a transaction, the delivered records are as durable as `acks` says.
        """
        return await self.call(lambda producer: producer.flush(timeout))

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic, in order.

        Args:
            topic: the topic.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
        """
        return await self.call(lambda producer: producer.partitions_for(topic))

    # Transactions.

    def transaction(self, mode: str = "inline") -> AsyncTransaction:
        """Create an `async with` block that commits at its end.

        An exception in the block aborts the transaction.

        Args:
            mode: "inline" or "staged", as for `Producer.begin_transaction`.

        Raises:
            IllegalState: if the producer is not started, or there is no `transactional.id`.
            ConfigError: if `mode` is unknown.
        """
        return AsyncTransaction(self, self._client().transaction(mode))

    async def begin_transaction(self, mode: str = "inline") -> None:
        """Begin a transaction; nothing is written yet.

        Cancelled: no transaction is open.

        Args:
            mode: "inline" or "staged", as for `Producer.begin_transaction`.

        Raises:
            EoslogError: as `Producer.begin_transaction`.
        """
        client = self._client()
        await self._thread.call(
            "begin_transaction",
            lambda: client.begin_transaction(mode),
            undo=client.abort_transaction,
        )

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Send what is buffered and commit the transaction.

        Cancelled: `transaction_state` is READY if the transaction was committed, and
        IN_TRANSACTION if the commit had not begun.

        Args:
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            EoslogError: as `Producer.commit_transaction`.

        Durability:
            The transaction survives power loss once the call returns.
        """
        await self.call(lambda producer: producer.commit_transaction(timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction.

        Cancelled: the transaction is aborted in any case.

        Args:
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            EoslogError: as `Producer.abort_transaction`.
        """
        client = self._client()
        await self._thread.call(
            "abort_transaction", lambda: client.abort_transaction(timeout), certain=True
        )

    async def send_offsets_to_transaction(
        self,
        offsets: Offsets,
        group: GroupMetadata | AsyncConsumer | str,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction.

        Cancelled: the offsets belong to the transaction, or the call had not begun. Abort.

        Args:
            offsets: as for `Producer.send_offsets_to_transaction`.
            group: `AsyncConsumer.group_metadata()`, or the consumer itself, or the group's id. With
                only an id, members of the group are not fenced.
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            EoslogError: as `Producer.send_offsets_to_transaction`.
        """
        member = await group_of(group, self._client())
        await self.call(lambda p: p.send_offsets_to_transaction(offsets, member, timeout))


async def group_of(group: GroupMetadata | AsyncConsumer | str, producer: Producer) -> Group:
    """Return the group as the producer of threads accepts it.

    Raises:
        ConfigError: if the group is an `AsyncConsumer` that a transaction would reject.
    """
    if not isinstance(group, AsyncConsumer):
        return group
    group._client()._link.check_kind(producer._link)
    return await group.group_metadata()
