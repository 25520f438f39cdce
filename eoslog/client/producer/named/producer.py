"""A producer with a name, which drops records with used publishing ids.

All records of a named producer are in transactions of the name (`publishing_ids.py`). If the
program calls `init_transactions`, they are the program's own. Otherwise the producer begins and
commits them (`own_transactions.py`).

Source: RabbitMQ streams (named producers, publishing ids); KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import shown
from eoslog.client.prepared import staged_of
from eoslog.client.producer.delivery import Delivery, OnDelivery
from eoslog.client.producer.named.transaction import NamedTransaction
from eoslog.client.producer.named.transactions import NamedTransactions
from eoslog.errors import ConfigError, EoslogError, IllegalState, SerializationError
from eoslog.model import RecordMetadata, TopicPartition

__all__ = ["NamedProducer"]


@explained_calls("produce", "produce_many", "send", "poll")
class NamedProducer(NamedTransactions):
    """A producer with a name, whose records can have publishing ids.

    `log.producer(name=...)` creates it.

    The ids of a partition rise. A record whose id is not above the last one is not stored again,
    and its delivery succeeds with `duplicate=True`. So a program that does not know which of its
    records were stored sends them again::

        with eoslog.open("shop") as log:
            with log.producer(name="relay") as producer:
                for number, line in enumerate(["3 apples", "2 pears"]):
                    producer.produce("orders", line, key="ada", publishing_id=number)
            print(log.last_publishing_id("relay", "orders", 0))

    Without `init_transactions`, the producer commits automatically: after `linger.ms`, in `flush`
    and in `close`. A delivery then succeeds after the commit. If a record fails, all undelivered
    ones fail, and the producer accepts no more records. Close it, create it again, and continue
    after `Log.last_publishing_id`.

    After `init_transactions`, records and ids belong to the transactions of the program, which take
    effect together. An abort does not advance the ids.

    A producer takes over its name with the first record or with `init_transactions`. An earlier
    producer of the name then raises ProducerFenced.

    Args:
        config: as for `Producer`, with `name` (required) and `strict.ids`.
        options: the same keys in snake_case.

    Raises:
        ConfigError: as `Producer`; or if there is no name, or a `transactional.id` too.
        StorageError: if the directory cannot be opened.

    Durability:
        A delivered record survives power loss, outside of the program's own transactions. In those
        it does when `commit_transaction` returns.
    """

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
        publishing_id: int | None = None,
    ) -> None:
        """Buffer one record for sending, unless its publishing id was used. Thread-safe.

        Args:
            topic: name of an existing topic.
            value: the value, bytes or str, or what the value serializer takes; None is a tombstone.
            key: the key, bytes or str, or what the key serializer takes; None means no key.
            headers: pairs of name and bytes, or a mapping; None means no headers.
            partition: the partition; None chooses it by the key.
            timestamp: milliseconds since the epoch; None means now.
            on_delivery: called with (error or None, RecordMetadata) from `poll`, `flush` or
                `close`.
            publishing_id: an int from 0 to 2^63-1; None stores the record in any case.

        Raises:
            PublishingIdRegression: if the id was used, and the producer has `strict_ids=True`.
            ConfigError: if the id is not such an int, or there is neither a key nor a partition.
            ProducerFenced: if another producer took over the name.
            IllegalState: if a record failed before, or no transaction is open.
            EoslogError: as `Producer.produce`.
        """
        self._check_alive()  # before the lock, which a thread of a forked process may have held
        with self._calls:
            self._enter()
            try:
                key = self._serialized(self._key_serializer, key, "key")
                value = self._serialized(self._value_serializer, value, "value")
                self._put(
                    topic, value, key, headers, partition, timestamp, on_delivery, publishing_id
                )
            finally:
                self._leave()

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
            value: the value.
            key: the key, or None.
            headers: pairs of name and bytes, or a mapping; None means no headers.
            partition: the partition; None chooses it by the key.
            timestamp: milliseconds since the epoch; None means now.
            publishing_id: an int from 0 to 2^63-1; None stores the record in any case.
            deliver_at: the time in ms since the epoch before which the record does not appear, as
                for `Producer.send`. It needs `init_transactions`, and excludes a publishing id.

        Returns:
            The delivery. Its metadata has `duplicate=True` if the id was used.

        Raises:
            EoslogError: as `produce`, and as `Producer.send` with `deliver_at`.
        """
        if deliver_at is not None:
            self._demand_explicit("send: deliver_at")
            if publishing_id is not None:
                raise IllegalState(
                    "publishing_id: a record with deliver_at is a staged transaction, and a later "
                    "record could appear before it; leave the id or the time out"
                )
            record = {"topic": topic, "value": value, "key": key, "headers": headers,
                      "partition": partition, "timestamp": timestamp}  # fmt: skip
            return self._send_at(record, deliver_at)
        delivery = Delivery()
        self.produce(
            topic, value, key, headers=headers, partition=partition, timestamp=timestamp,
            on_delivery=delivery, publishing_id=publishing_id,
        )  # fmt: skip
        return delivery

    def produce_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partition: int | None = None,
        publishing_ids: Iterable[int] | None = None,
    ) -> int:
        """Buffer one record for each of `values`, unless its publishing id was used.

        Args:
            topic: name of an existing topic.
            values: a sequence of values, as for `produce`.
            keys: a sequence of as many keys, or None.
            partition: the partition of all records; None chooses it by the key.
            publishing_ids: a sequence of as many ids, or None.

        Returns:
            The number of buffered records, without duplicates.

        Raises:
            EoslogError: as `produce`. Records before the invalid one stay buffered.
        """
        columns = [_listed("values", values), _listed("keys", keys)]
        columns.append(_listed("publishing_ids", publishing_ids))
        count = len(columns[0] or ())
        for name, column in zip(("keys", "publishing_ids"), columns[1:], strict=True):
            if column is not None and len(column) != count:
                raise ConfigError(f"{len(column)} {name} for {count} values")
        rows = (column if column is not None else [None] * count for column in columns)
        self._check_alive()
        with self._calls:
            self._enter()
            try:
                before = self.produced
                for value, key, number in zip(*rows, strict=True):
                    key = self._serialized(self._key_serializer, key, "key")
                    value = self._serialized(self._value_serializer, value, "value")
                    self._put(topic, value, key, None, partition, None, None, number)
                return int(self.produced - before)
            finally:
                self._leave()

    def produce_arrow(self, topic: str, data: Any) -> int:
        """Buffer the rows of Arrow data, unless their publishing ids were used.

        Args:
            topic: the topic.
            data: as for `Producer.produce_arrow`. The column `publishing_id` has the ids, as
                integers; null stores the row in any case.

        Returns:
            The number of buffered records, without duplicates.

        Raises:
            EoslogError: as `produce`. Rows before the invalid one stay buffered.
        """
        from eoslog.client.arrow.produce import record_rows

        self._check_alive()
        with self._calls:
            self._enter()
            try:
                before = self.produced
                for value, key, timestamp, partition, headers, number in record_rows(data):
                    self._put(topic, value, key, headers, partition, timestamp, None, number)
                return int(self.produced - before)
            finally:
                self._leave()

    def produce_batches(
        self, topic: str, partition: int, batches: Iterable[Any], *, trusted: bool = False
    ) -> int:
        """Append encoded batches, which have no publishing ids.

        It works as `Producer.produce_batches`.

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
        self._check_alive()
        with self._calls:
            self._enter()
            try:
                count = super().produce_batches(topic, partition, batches, trusted=trusted)
            finally:
                self._leave()
        if not self._explicit:
            self.flush()
        return count

    def _put(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None,
        timestamp: int | None, on_delivery: OnDelivery | None, publishing_id: int | None,
    ) -> None:  # fmt: skip
        """Buffer one record, serialized, and note its id."""
        ids = self._ids
        if publishing_id is None:
            self._buffer(topic, value, key, headers, partition, timestamp, on_delivery)
            return
        if self._own_manager.staging is not None:
            raise IllegalState(
                "publishing_id: the transaction is staged, and a later one could be decided before "
                'it; begin it with mode="inline"'
            )
        place = ids.place(topic, key, partition)
        topic_id = ids.admit(place, publishing_id)
        if topic_id is None:
            self._report_duplicate(place, on_delivery)
            return
        before = self.produced
        ids.doubtful = True
        try:
            self._buffer(topic, value, key, headers, place.partition, timestamp, on_delivery)
        except Exception:  # not an interrupt, which leaves the id doubtful
            if self.produced != before:
                ids.advance(place, publishing_id, topic_id)
            ids.doubtful = False
            raise
        ids.advance(place, publishing_id, topic_id)
        ids.doubtful = False

    def _buffer(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None,
        timestamp: int | None, on_delivery: OnDelivery | None,
    ) -> None:  # fmt: skip
        target, before = on_delivery, self.produced
        if on_delivery is not None and not self._explicit:
            if not callable(on_delivery):
                raise ConfigError(f"on_delivery: expected a callable, got {shown(on_delivery)}")
            number = -1 if partition is None else partition
            target = self._own.hold(on_delivery, RecordMetadata(topic, number, -1, -1))
        try:
            super().produce(
                topic, value, key, headers=headers, partition=partition, timestamp=timestamp,
                on_delivery=target,
            )  # fmt: skip
        except Exception:
            if target is not on_delivery and self.produced == before:
                self._own.drop_last()
            raise

    def _report_duplicate(self, place: TopicPartition, on_delivery: OnDelivery | None) -> None:
        if on_delivery is None:
            return
        known = RecordMetadata(place.topic, place.partition, -1, -1, duplicate=True)
        if self._explicit:
            self._sender.acks.callbacks.put(on_delivery, None, known)
        elif self._ids.is_pending(place):
            self._own.hold_duplicate(on_delivery, known)  # the first one is not stored yet
        else:
            self._own.told.put(on_delivery, None, known)

    @staticmethod
    def _serialized(serializer: Any, value: Any, role: str) -> Any:
        if serializer is None:
            return value
        try:
            return serializer(value)
        except EoslogError:
            raise
        except Exception as error:
            raise SerializationError(f"{role}.serializer failed: {shown(error)}") from error

    def transaction(self, mode: str = "inline") -> NamedTransaction:
        """Create a context manager that commits at its end and aborts on an exception.

        Its `produce`, `send`, `produce_many` and `produce_arrow` take publishing ids too.

        Args:
            mode: as for `begin_transaction`.

        Raises:
            IllegalState: if `init_transactions` was not called.
            ConfigError: if `mode` is unknown.
        """
        self._demand_explicit("transaction")
        staged_of("transaction", mode)
        return NamedTransaction(self, mode)


def _listed(name: str, items: Iterable[Any] | None) -> Sequence[Any] | None:
    if items is None or type(items) in (list, tuple):
        return items  # type: ignore[return-value]
    if isinstance(items, str | bytes | bytearray | memoryview) or not isinstance(items, Iterable):
        raise SerializationError(
            f"{name}: expected a sequence of {name}, got {type(items).__name__}"
        )
    return list(items)
