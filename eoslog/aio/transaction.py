"""`async with producer.transaction() as tx`: records and offsets together.

The end of the block runs in the thread of the consumer that takes part, because an abort rewinds
it. That thread makes the consumer's calls, so that no other call of it runs at the same time.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from eoslog._util.arguments import shown
from eoslog.aio.call_thread import CallThread
from eoslog.aio.consumer import AsyncConsumer
from eoslog.client.offset_arguments import Offsets
from eoslog.client.producer.delivery import Delivery
from eoslog.client.producer.transactions.transaction import Transaction
from eoslog.coordinator.positions.records import ANY, Unchecked
from eoslog.errors import ConfigError, EoslogError, IllegalState
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.descriptions import GroupMetadata

__all__ = ["AsyncTransaction"]

logger = get_logger("eoslog.aio")


class ClientOfTransaction(Protocol):
    """The part of an `AsyncProducer` that a transaction uses."""

    _bound: weakref.WeakSet[AsyncConsumer]
    _thread: CallThread

    @property
    def call(self) -> Callable[..., Awaitable[Any]]:
        """Call a function in the thread of the producer."""
        ...

    @property
    def send_offsets_to_transaction(self) -> Callable[..., Awaitable[None]]:
        """Commit offsets of a group in the transaction."""
        ...

    def _client(self) -> Any: ...

    async def _buffer(
        self,
        send: Callable[..., Delivery],
        topic: str,
        value: Any,
        key: Any,
        options: dict[str, Any],
    ) -> Delivery: ...


class AsyncTransaction:
    """One transaction of an async producer.

    Use `AsyncProducer.transaction` to create one::

        async with producer.transaction() as tx:
            for record in batch:
                await tx.send("bills", record.value)
            await tx.commit_offsets(consumer)

    The end of the block commits. An exception in the block, or a cancellation, aborts the
    transaction, and the consumers that take part read the same records again.

    If the end of the block is cancelled, the commit runs to its end first. `state` then says
    whether the transaction is committed.
    """

    def __init__(self, producer: ClientOfTransaction, transaction: Transaction) -> None:
        """Keep the parts; programs call `AsyncProducer.transaction` instead."""
        self._producer = producer
        self._transaction = transaction
        self._consumers: list[AsyncConsumer] = []

    def __repr__(self) -> str:
        return repr(self._transaction)

    @property
    def state(self) -> str:
        """The state.

        It is "not begun", "open", "committed", "aborted", "prepared" or "outcome unknown".
        """
        return self._transaction._state

    async def __aenter__(self) -> Self:
        client, transaction = self._producer._client(), self._transaction

        def undo() -> None:
            transaction._state = "aborted"
            client.abort_transaction()

        await self._producer._thread.call("begin_transaction", transaction.__enter__, undo=undo)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = _End(self._transaction, kind, error, trace)
        try:
            await self._thread().call("the end of a transaction", end, certain=True)
        except BaseException as raised:
            if end.error is not None and raised is not end.error:  # a cancellation
                logger.warning("a transaction ended while its task was cancelled: %s", end.error)
                raise raised from end.error
            raise

    def _thread(self) -> CallThread:
        """The thread that may rewind the consumers."""
        taking_part = {*self._consumers, *self._producer._bound}
        if len(taking_part) == 1:
            (consumer,) = taking_part
            if not consumer.closed and not consumer._thread.waiting:
                return consumer._thread
        return self._producer._thread

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
    ) -> Delivery:
        """Buffer a record, and return its pending delivery.

        Args:
            topic: the topic.
            value: the value, as for `Producer.send`.
            key: the key, as for `Producer.send`.
            headers: pairs of name and bytes, or a mapping; None means no headers.
            partition: the partition; None lets the partitioner choose.
            timestamp: milliseconds since the epoch; None means now.
            publishing_id: the id of a record of a producer with a name; None otherwise.

        Returns:
            The delivery; it succeeds when the record is in the log, before the commit.

        Raises:
            EoslogError: as `Transaction.send`.
        """
        options = {"headers": headers, "partition": partition, "timestamp": timestamp,
                   "publishing_id": publishing_id, "deliver_at": None}  # fmt: skip
        return await self._producer._buffer(self._transaction.send, topic, value, key, options)

    # Offsets and positions.

    async def commit_offsets(self, consumer: AsyncConsumer) -> None:
        """Add a consumer's positions to the transaction.

        Cancelled: the positions belong to the transaction, or the call had not begun. Abort.

        Args:
            consumer: the consumer whose records this transaction processes.

        Raises:
            ConfigError: if `consumer` is not an AsyncConsumer, or commits automatically, or reads
                with `isolation.level=read_uncommitted`.
            IllegalState: if another task is in a call of the consumer.
            EoslogError: as `Transaction.commit_offsets`.
        """
        if not isinstance(consumer, AsyncConsumer):
            raise ConfigError(
                f"commit_offsets: expected an AsyncConsumer, got {shown(consumer)}; for a group id "
                "use send_offsets(offsets, group)"
            )
        reader = consumer._client()
        if consumer._thread.waiting:
            raise IllegalState(
                "commit_offsets: another task is in a call of the consumer, so its positions can "
                "change; read and commit in one task"
            )
        if consumer not in self._consumers:
            self._consumers.append(consumer)
        transaction = self._transaction
        await consumer._thread.call("commit_offsets", lambda: transaction.commit_offsets(reader))

    async def send_offsets(
        self, offsets: Offsets, group: GroupMetadata | AsyncConsumer | str
    ) -> None:
        """Commit offsets of a group, as `AsyncProducer.send_offsets_to_transaction` does.

        Args:
            offsets: as for `Producer.send_offsets_to_transaction`.
            group: `AsyncConsumer.group_metadata()`, or the consumer itself, or the group's id.

        Raises:
            EoslogError: as `Producer.send_offsets_to_transaction`.
        """
        await self._producer.send_offsets_to_transaction(offsets, group)

    async def set_position(
        self,
        name: str,
        value: int | str | bytes,
        expected: int | str | bytes | Unchecked | None = ANY,
    ) -> None:
        """Store a named position, as `Transaction.set_position`.

        Args:
            name: the name of the position.
            value: the position.
            expected: the position that the value replaces.

        Raises:
            EoslogError: as `Transaction.set_position`.
        """
        transaction = self._transaction
        await self._producer.call(lambda _: transaction.set_position(name, value, expected))

    async def abort(self) -> None:
        """Abort the transaction and rewind the consumers that take part.

        The rest of the block runs, but can no longer send. Cancelled: the transaction is aborted
        in any case.

        Raises:
            EoslogError: as `Transaction.abort`.
        """
        self._producer._client()
        await self._thread().call("abort", self._transaction.abort, certain=True)


class _End:
    """The end of the block, as the thread calls it."""

    def __init__(self, transaction: Transaction, *raised: Any) -> None:
        self._transaction = transaction
        self._raised = raised
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._transaction.__exit__(*self._raised)
        except EoslogError as error:
            self.error = error
            raise
