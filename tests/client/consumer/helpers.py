"""Consumers on a directory in memory, and what they read."""

from __future__ import annotations

import threading

from eoslog.client.consumer.consumer import Consumer
from eoslog.client.consumer_registry import ConsumerRegistry
from eoslog.client.transaction_link import TransactionLink
from eoslog.model import TopicPartition
from tests.coordinator.fake_host import FakeHost

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def consumer(host, *, assign=(T0,), producer=None, **config) -> Consumer:
    config.setdefault("auto_offset_reset", "earliest")
    made = Consumer._of_engine(host, config, producer)
    if assign:
        made.assign(assign)
    return made


def values(records) -> list[str]:
    return [r.value.decode() for r in records]


def drain(c, n=100) -> list[str]:
    out = []
    while found := c.consume(n, 0):
        out += values(found)
    return out


class FakeTransaction:
    transactional_id = "tx"
    begun_by = 0
    asked = open = fatal = False
    error = None

    def fail(self, error):
        return error


class FakeProducer:
    transactional_id = "tx"

    def __init__(self):
        self.transaction = FakeTransaction()
        self._link = TransactionLink(
            self.transaction, ConsumerRegistry(), threading.RLock(), FakeHost.path
        )
