"""The consumer of coroutines.

`UndoableConsumer` remembers where each call began to read, so that the records of a cancelled call
are put back and read again.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

from eoslog._util.arguments import as_int, as_mapping, as_names, shown
from eoslog.aio.call_thread import CallThread
from eoslog.aio.client import AsyncClient, refuse_coroutine_function
from eoslog.client.consumer.consumer import Consumer
from eoslog.client.consumer.subscription import Listener, Topics
from eoslog.client.offset_arguments import Offsets, as_list, as_partition
from eoslog.config.keys import ConsumerConfig
from eoslog.descriptions import GroupMetadata
from eoslog.errors import ConfigError, IllegalState
from eoslog.model import TopicPartition

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.storage.log.partition_log import PartitionLog

__all__ = ["AsyncConsumer", "UndoableConsumer", "consumer_of"]

T = TypeVar("T")
Partitions = TopicPartition | Iterable[TopicPartition]

_LONGEST_MS = 10**12
_FORMATS = ("records", "arrow")


class BoundProducer(Protocol):
    """The part of an `AsyncProducer` that a consumer uses."""

    _bound: weakref.WeakSet[AsyncConsumer]

    def _client(self) -> Any: ...


class OpenBatch(Protocol):
    """The transaction of a sink's batch."""

    def roll_back(self) -> None:
        """Roll back, unless it has ended."""
        ...


class UndoableConsumer(Consumer):
    """A consumer whose last call can be undone."""

    _before: list[tuple[Any, tuple[Any, ...]]] | None = None
    _fetched_only = False

    def fetched(self) -> Record | None:
        """Return the next record if it is fetched already; never wait or open a file."""
        self._fetched_only = True
        try:
            record: Record | None = self.poll(0)
        finally:
            self._fetched_only = False
        return record

    def _poll_one(self, timeout: float | None) -> Record | None:
        if self._fetched_only:
            return None
        with self._use:
            records = self._find(self._fetcher.collect, 1, timeout)
            self._current = self._fetcher.current
            return records[0] if records else None

    def begin_read(self) -> None:
        """Note the positions before a read, to which `put_back` returns."""
        states = self._subscription.states.values()
        self._before = [(state, state.place()) for state in states]

    def _find(
        self,
        collect: Callable[[int], T],
        limit: int,
        timeout: float | None,
        wait: Callable[[float], None] | None = None,
    ) -> T | None:
        def noting(limit: int) -> T:
            self.begin_read()  # at each attempt: partitions may be assigned while the read waits
            return collect(limit)

        return super()._find(noting, limit, timeout, wait)

    def bounds(self, partition: TopicPartition) -> tuple[PartitionLog, int]:
        """Return the log of any partition, and its readable end now."""
        log = self._engine.partition(partition.topic, partition.partition)
        return log, self._fetcher.readable_end(log)

    def put_back(self) -> None:
        """Read again what the last call has returned.

        Partitions that were reassigned since are left out.
        """
        before, self._before = self._before, None
        if self.closed:
            return
        with self._use:
            for state, place in before or ():
                now: Any = self._subscription.states.get(state.partition)
                if now is state:
                    state.put_back(*place)


def consumer_of(
    make: Callable[..., UndoableConsumer],
    adopt: Callable[[Any], object],
    topics: tuple[str, ...],
    group_id: str | None,
    options: dict[str, Any],
) -> AsyncConsumer:
    """Create the consumer of `Log.async_consumer`.

    Args:
        make: creates the consumer of threads, of a class and the other arguments.
        adopt: has the log end the thread when it is closed.
        topics: topic names.
        group_id: the consumer group, or None.
        options: the other keys, and `producer`.

    Raises:
        ConfigError: if a key is unknown, a value is invalid, or `producer` is not an AsyncProducer.
    """
    producer = options.pop("producer", None)
    if producer is not None and not hasattr(producer, "_bound"):
        raise ConfigError(f"producer: expected an AsyncProducer of this log, got {shown(producer)}")
    store = {"offset_store": options.pop("offset_store")} if "offset_store" in options else {}
    names = as_names("topics", topics)
    ConsumerConfig.of(None, **options, **({} if group_id is None else {"group_id": group_id}))

    def made() -> UndoableConsumer:
        parts = {} if producer is None else {"producer": producer._client()}
        return make(UndoableConsumer, names, group_id, {**options, **store, **parts})

    return AsyncConsumer(made, adopt, producer=producer)


class AsyncConsumer(AsyncClient[UndoableConsumer]):
    """A consumer for coroutines of asyncio, and of trio with the extra `[async]`.

    Use `Log.async_consumer` to get one::

        async with log.async_consumer("orders", group_id="billing") as consumer:
            async for record in consumer:
                print(record.offset, record.value)

    Names and behaviour are aiokafka's where both have a method. The calls run in one thread of
    this consumer, so that none of them blocks the event loop. The guarantees are those of
    `Consumer`.

    Every call can be cancelled. It has ended when the cancellation is raised: within 50 ms if it
    waits for records. A cancelled read returns no record, and the next read returns the same
    records. Other cancelled calls were complete, or had not begun.

    Use it in one event loop, and read in one task at a time. Other tasks can make other calls
    at the same time: a waiting read lets them pass.
    """

    _name = "consumer"

    def __init__(
        self,
        make: Callable[[], UndoableConsumer],
        adopt: Callable[[CallThread], object],
        producer: BoundProducer | None = None,
    ) -> None:
        """Keep what `start` needs; programs call `Log.async_consumer` instead.

        Args:
            make: creates the consumer of threads; called in the thread.
            adopt: has the log end the thread when it is closed.
            producer: the producer whose transactions commit the offsets, or None.
        """
        super().__init__(make, adopt)
        self._producer = producer
        self._batch: OpenBatch | None = None  # of a sink, which the end of the consumer rolls back

    def _begin(self, client: UndoableConsumer) -> None:
        if self._producer is not None:
            self._producer._bound.add(self)

    def _close(
        self,
        client: UndoableConsumer,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._roll_back()
        client.__exit__(kind, error, trace)

    def _roll_back(self) -> None:
        """Roll back the open batch of a sink; in the thread."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.roll_back()

    def _ready(self, client: UndoableConsumer) -> None:
        client._woken = False  # the interrupt of an earlier read

    async def stop(self) -> None:
        """Leave the group and close the consumer.

        If auto-commit is on, the positions are committed first.

        A waiting read in another task raises IllegalState, and an iteration ends. An `async with`
        block that ends with an exception commits nothing.

        Cancelled: the consumer is closed in any case.

        Raises:
            EoslogError: as `Consumer.close`. The consumer is closed in any case.
        """
        await self._stop(self._close_now)

    def _close_now(self, client: UndoableConsumer) -> None:
        self._roll_back()
        client.close()

    @property
    def closed(self) -> bool:
        """Whether the consumer was stopped, or its log was closed."""
        use = None if self._wrapped is None else self._wrapped._use
        return self._stopping or (use is not None and (use.closed or use.closing))

    # Records.

    async def _read(self, what: str, read: Callable[[], T]) -> T | None:
        reader, thread = self._client(), self._thread

        def begun() -> T | None:
            self._ready(reader)
            reader.begin_read()
            return None if thread.interrupted else read()

        return await thread.call(what, begun, undo=reader.put_back, interrupt=reader.wakeup)

    async def getone(self) -> Record:
        """Wait for the next record and return it.

        Cancelled: no record is lost. The next read returns it.

        Raises:
            IllegalState: if the consumer is stopped during the call, or nothing is subscribed.
            EoslogError: as `Consumer.poll`.
        """
        reader = self._client()
        await self._breathe("getone")
        if not self._thread.waiting:
            record = reader.fetched()
            if record is not None:
                return record
        while True:
            record = await self._read("getone", lambda: reader.poll(None))
            if record is not None:
                return record

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Return the available records of each partition, and wait at most `timeout_ms`.

        Cancelled: no record is lost. The next read returns them.

        Args:
            timeout_ms: the longest wait for the first record.
            max_records: the most records to return; None means `max.poll.records`.

        Returns:
            The records, by partition; an empty dict after the timeout.

        Raises:
            ConfigError: if an argument is out of range.
            IllegalState: if the consumer is stopped during the call, or nothing is subscribed.
            EoslogError: as `Consumer.poll`. Records before the error are returned first.
        """
        reader = self._client()
        if as_int("timeout_ms", timeout_ms, "0 or more") < 0:
            raise ConfigError(f"timeout_ms: expected 0 or more, got {shown(timeout_ms)}")
        found: dict[TopicPartition, list[Record]] = {}
        end = time.monotonic() + min(timeout_ms, _LONGEST_MS) / 1000
        while True:
            records = await self._read(
                "getmany", lambda: reader.consume(max_records, max(end - time.monotonic(), 0))
            )
            if records or (records is not None and time.monotonic() >= end):
                break  # else another call has interrupted this one
        for record in records or ():
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return found

    def __aiter__(self) -> Self:
        """Iterate over the records as they come, until `stop`.

        Raises:
            IllegalState: if the consumer is not started, or stopped already.
        """
        self._demand_open()
        return self

    def _demand_open(self) -> None:
        """Raise if a loop would end without a record, and without a word."""
        self._client()
        if self.closed:
            raise IllegalState("the consumer is closed; create a new one")

    async def __anext__(self) -> Record:
        """Return the next record; the iteration ends when the consumer stops."""
        try:
            return await self.getone()
        except IllegalState:
            if self.closed:
                raise StopAsyncIteration from None
            raise

    def batches(self, size: int = 500, *, batch_format: str = "records") -> AsyncIterator[Any]:
        """Iterate over batches of the records as they come, until `stop`.

        Cancelled: no record is lost. The next read returns them.

        Args:
            size: the most records of a batch.
            batch_format: "records" for lists of records, or "arrow" for the record batches of
                `Consumer.consume_arrow`.

        Returns:
            An asynchronous iterator. A batch has at least one record.

        Raises:
            ConfigError: if an argument is invalid.
            EoslogError: from the iteration, as `Consumer.poll`.
        """
        if as_int("size", size, "1 or more") < 1:
            raise ConfigError(f"size: expected 1 or more, got {shown(size)}")
        if not isinstance(batch_format, str) or batch_format not in _FORMATS:
            raise ConfigError(f"batch_format: expected {_FORMATS}, got {shown(batch_format)}")
        return _Batches(self, size, arrow=batch_format == "arrow")

    # Topics and partitions.

    async def subscribe(
        self,
        topics: Topics,
        on_assign: Listener | None = None,
        on_revoke: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Subscribe to topics, as `Consumer.subscribe`.

        Cancelled: the consumer has subscribed, or the call had not begun.

        Args:
            topics: topic names, or a pattern.
            on_assign: as for `Consumer.subscribe`. The listeners run in the consumer's thread, with
                the `Consumer` of that thread. They must not be coroutine functions.
            on_revoke: likewise.
            on_lost: likewise.

        Raises:
            ConfigError: if a listener is a coroutine function, or `topics` is invalid.
            IllegalState: as `Consumer.subscribe`.
        """
        for name, listener in (
            ("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost),
        ):  # fmt: skip
            refuse_coroutine_function(f"subscribe: {name}", listener)
        await self.call(lambda consumer: consumer.subscribe(topics, on_assign, on_revoke, on_lost))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, as `Consumer.assign`.

        Cancelled: the partitions are assigned, or the call had not begun.

        Args:
            partitions: the partitions.

        Raises:
            EoslogError: as `Consumer.assign`.
        """
        await self.call(lambda consumer: consumer.assign(partitions))

    async def unsubscribe(self) -> None:
        """Unsubscribe from all topics, as `Consumer.unsubscribe`.

        Cancelled: the consumer has left the group, or the call had not begun.
        """
        await self.call(lambda consumer: consumer.unsubscribe())

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions, in order."""
        return self._client().assignment()

    def subscription(self) -> Topics:
        """Return the subscribed topics or pattern; an empty list without a subscription."""
        return self._client().subscription()

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions, in order."""
        return self._client().paused()

    async def pause(self, *partitions: TopicPartition) -> None:
        """Stop returning records of these partitions until `resume`.

        Args:
            partitions: assigned partitions.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        await self.call(lambda consumer: consumer.pause(partitions))

    async def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again.

        Args:
            partitions: assigned partitions.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        await self.call(lambda consumer: consumer.resume(partitions))

    # Offsets.

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit the positions, or the given offsets, for the group.

        Cancelled: the offsets are durable, or the call had not begun.

        Args:
            offsets: as for `Consumer.commit`.

        Raises:
            EoslogError: as `Consumer.commit`.

        Durability:
            The offsets are durable when the call returns.
        """
        await self.call(lambda consumer: consumer.commit(offsets))

    @overload
    async def committed(self, partitions: TopicPartition) -> int | None: ...
    @overload
    async def committed(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]: ...
    async def committed(self, partitions: Partitions, timeout: float | None = None) -> Any:
        """Return the group's committed offsets, as `Consumer.committed`.

        If a transaction has written offsets and is not decided, the call waits for its end.
        Cancelled: nothing has changed. The call may first wait for `timeout`.

        Args:
            partitions: one partition, or several.
            timeout: the longest wait in seconds; None means `default.api.timeout.ms`.

        Raises:
            EoslogError: as `Consumer.committed`.
        """
        return await self.call(lambda consumer: consumer.committed(partitions, timeout))

    @overload
    async def position(self, partitions: TopicPartition) -> int | None: ...
    @overload
    async def position(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]: ...
    async def position(self, partitions: Partitions) -> Any:
        """Return the offsets of the next records to return, as `Consumer.position`.

        Args:
            partitions: one assigned partition, or several.

        Raises:
            EoslogError: as `Consumer.position`.
        """
        return await self.call(lambda consumer: consumer.position(partitions))

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of all assigned partitions that have one."""
        return await self.call(lambda consumer: consumer.positions())

    @overload
    async def current_lag(self, partitions: TopicPartition) -> int | None: ...
    @overload
    async def current_lag(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | None]: ...
    async def current_lag(self, partitions: Partitions | None = None) -> Any:
        """Return the lag of the positions, as `Consumer.current_lag`.

        Args:
            partitions: one assigned partition, or several; None means all.

        Raises:
            EoslogError: as `Consumer.current_lag`.
        """
        return await self.call(lambda consumer: consumer.current_lag(partitions))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the log start of each partition.

        Args:
            partitions: partitions of any topic; they need not be assigned.

        Raises:
            UnknownTopicOrPartition: if a partition does not exist.
        """
        wanted = as_list(partitions)
        return await self.call(lambda c: {tp: c.bounds(tp)[0].log_start for tp in wanted})

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the readable end of each partition, by the isolation level.

        Args:
            partitions: partitions of any topic; they need not be assigned.

        Raises:
            UnknownTopicOrPartition: if a partition does not exist.
        """
        wanted = as_list(partitions)
        return await self.call(lambda c: {tp: c.bounds(tp)[1] for tp in wanted})

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time, for each partition.

        Args:
            timestamps: the time of each partition, in ms since the epoch. The partitions need not
                be assigned.

        Returns:
            The offsets; None for a partition without such a record below its readable end.

        Raises:
            ConfigError: if `timestamps` is not a mapping of partitions to integers.
            UnknownTopicOrPartition: if a partition does not exist.
        """
        wanted = {
            as_partition(tp): as_int(str(tp), time_ms, "ms since 1970 as int")
            for tp, time_ms in as_mapping("timestamps", timestamps).items()
        }

        def found(consumer: UndoableConsumer, tp: TopicPartition) -> int | None:
            log, end = consumer.bounds(tp)
            return log.offset_for_time(wanted[tp], end)

        return await self.call(lambda c: {tp: found(c, tp) for tp in wanted})

    async def group_metadata(self) -> GroupMetadata:
        """Return the group, member and generation that fence a transactional commit.

        Raises:
            KafkaError: INVALID_GROUP_ID, if there is no `group.id`.
        """
        return await self.call(lambda consumer: consumer.group_metadata())

    # Positions.

    async def seek(self, partition: TopicPartition, offset: int | str | None = None) -> None:
        """Move the position of a partition.

        Cancelled: the position is the new one, or the call had not begun.

        Args:
            partition: an assigned partition.
            offset: as for `Consumer.seek`.

        Raises:
            IllegalState: if the partition is not assigned.
            ConfigError: if the offset is invalid.
        """
        await self.call(lambda consumer: consumer.seek(partition, offset))

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Move positions to the log start.

        Args:
            partitions: assigned partitions; none means all.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        some = as_list(partitions) or None
        await self.call(lambda consumer: consumer.seek_to_beginning(some))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Move positions to the readable end, which depends on the isolation level.

        Args:
            partitions: assigned partitions; none means all.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        some = as_list(partitions) or None
        await self.call(lambda consumer: consumer.seek_to_end(some))

    async def seek_to_time(self, partitions: Partitions | None, timestamp_ms: int) -> None:
        """Move positions to a time, as `Consumer.seek_to_time`.

        Args:
            partitions: one or more assigned partitions; None means all.
            timestamp_ms: milliseconds since the epoch.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        await self.call(lambda consumer: consumer.seek_to_time(partitions, timestamp_ms))

    async def rewind(self) -> None:
        """Move positions back to the committed offsets, so that records are read again."""
        await self.call(lambda consumer: consumer.rewind())


class _Batches:
    """The iterator of `AsyncConsumer.batches`."""

    def __init__(self, consumer: AsyncConsumer, size: int, *, arrow: bool) -> None:
        self._consumer = consumer
        self._size = size
        self._arrow = arrow

    def __aiter__(self) -> Self:
        self._consumer._demand_open()
        return self

    async def __anext__(self) -> Any:
        consumer = self._consumer
        try:
            reader = consumer._client()
            read = reader.consume_arrow if self._arrow else reader.consume
            while True:
                found: Any = await consumer._read("batches", lambda: read(self._size, None))
                if found is not None and len(found):
                    return found
        except IllegalState:
            if consumer.closed:
                raise StopAsyncIteration from None
            raise
