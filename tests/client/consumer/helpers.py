"""Consumers on a directory in memory, and what they read."""

from __future__ import annotations

from eoslog.client.consumer import Consumer
from eoslog.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def consumer(host, *, assign=(T0,), producer=None, **config) -> Consumer:
    config.setdefault("auto_offset_reset", "earliest")
    made = Consumer(config, producer, engine=host)
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


class FakeProducer:
    transactional_id = "tx"
    transaction_state = "READY"

    def bind(self, consumer):
        pass
