"""`with producer.transaction() as tx` of a named producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from eoslog.client.producer.delivery import Delivery, OnDelivery
from eoslog.client.producer.timed_records import check_no_time
from eoslog.client.producer.transactions.transaction import Transaction, TransactionalProducer

__all__ = ["NamedTransaction"]


class _Named(TransactionalProducer, Protocol):
    @property
    def produce(self) -> Callable[..., None]: ...
    @property
    def send(self) -> Callable[..., Delivery]: ...
    @property
    def produce_many(self) -> Callable[..., int]: ...


class NamedTransaction(Transaction):
    """One transaction of a `NamedProducer`; its records can have publishing ids."""

    def __init__(self, producer: _Named, mode: str = "inline") -> None:
        """Keep the producer; entering the block begins the transaction."""
        super().__init__(producer, mode)
        self._named = producer

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
        """Buffer one record for sending, as `NamedProducer.produce`."""
        self._named.produce(
            topic, value, key, headers=headers, partition=partition, timestamp=timestamp,
            on_delivery=on_delivery, publishing_id=publishing_id,
        )  # fmt: skip

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
        """Buffer a record, and return its pending delivery, as `NamedProducer.send`."""
        check_no_time(deliver_at)
        return self._named.send(
            topic, value, key, headers=headers, partition=partition, timestamp=timestamp,
            publishing_id=publishing_id,
        )  # fmt: skip

    def produce_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partition: int | None = None,
        publishing_ids: Iterable[int] | None = None,
    ) -> int:
        """Buffer one record for each of `values`, as `NamedProducer.produce_many`."""
        return self._named.produce_many(topic, values, keys, partition, publishing_ids)
