"""confluent-kafka with a real Kafka broker on loopback.

The broker answers before it syncs. It comes from Maven like that of the tests. It runs idle
while others are timed, and its clients exist only within their own runs.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from bench import data
from bench.contest import AbsentError, Contender

_topics = itertools.count()


@contextlib.contextmanager
def started_when_asked() -> Iterator[Callable[[], Any]]:
    """Gives a function that returns the one running broker."""
    running: list[Any] = []
    failed: list[AbsentError] = []
    path = data.place_of_benchmarks()

    def give() -> Any:
        if failed:
            raise failed[0]
        if not running:
            try:
                running.append(_start(path))
            except AbsentError as error:
                failed.append(error)
                raise
        return running[0]

    try:
        yield give
    finally:
        for broker in running:
            broker.remove()
        shutil.rmtree(path, ignore_errors=True)


def _start(path: Any) -> Any:
    if shutil.which("java") is None:
        raise AbsentError("there is no java")
    try:
        import confluent_kafka  # noqa: F401

        from tests.kafka import jars
        from tests.kafka.broker import Broker

        jars.fetch(jars.BEHAVIOUR)
    except ImportError as error:
        raise AbsentError(str(error)) from None
    except jars.Unreachable as error:
        raise AbsentError(f"its jars: {error}") from None
    broker = Broker(path / "broker", jars.BEHAVIOUR)
    try:
        return broker.start()
    except BaseException:
        broker.remove()
        raise


def new_topic(broker: Any, partitions: int = 1) -> str:
    """A topic of its own."""
    from tests.kafka import clients

    name = f"bench-{next(_topics)}"
    clients.create_topics(broker, {name: partitions})
    return name


def producer(broker: Any, **config: Any) -> Any:
    """A producer that queues whatever it is given, `linger.ms` 5."""
    from confluent_kafka import Producer

    return Producer({
        "bootstrap.servers": broker.bootstrap, "linger.ms": 5, "acks": "all",
        "enable.idempotence": True, "queue.buffering.max.messages": 2_000_000,
        "queue.buffering.max.kbytes": 1 << 20,
    } | {key.replace("_", "."): value for key, value in config.items()})  # fmt: skip


def send(client: Any, topic: str, count: int) -> None:
    """Produce the records and wait for all of them."""
    produce = client.produce
    for key, value in zip(data.keys(count), data.values(count), strict=True):
        produce(topic, value, key, 0)
    assert client.flush(120) == 0


def filled_topic(broker: Any, count: int) -> str:
    """A topic with the records."""
    topic = new_topic(broker)
    send(producer(broker), topic, count)
    return topic


@contextlib.contextmanager
def reader(broker: Any, group: str = "bench") -> Iterator[Any]:
    """A consumer that checks CRCs and commits only when called."""
    from confluent_kafka import Consumer

    client = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False,
        "check.crcs": True, "auto.offset.reset": "error",
    })  # fmt: skip
    try:
        client.list_topics(timeout=10)  # connected
        yield client
    finally:
        client.close()


def consumer(
    broker: Any, topic: str, count: int, *, at_once: int = 1000, one_by_one: bool = False
) -> Contender:
    """From `assign` at the beginning to the last record, key, value and offset read."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    def consume(client: Any) -> list[bytes]:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        kept: list[bytes] = []
        while len(kept) < count:
            for message in client.consume(at_once, 10):
                message.key()
                message.offset()
                kept.append(message.value())
        return kept

    def poll(client: Any) -> list[bytes]:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        kept: list[bytes] = []
        while len(kept) < count:
            message = client.poll(10)
            message.key()
            message.offset()
            kept.append(message.value())
        return kept

    def check(_client: Any, kept: list[bytes]) -> None:
        assert data.checksum(kept) == data.expected(count)

    return Contender(
        "confluent-kafka", poll if one_by_one else consume, lambda: reader(broker), check, count
    )


@contextlib.contextmanager
def _producing(broker: Any, config: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    topic = new_topic(broker)
    client = producer(broker, **config)
    if "transactional_id" in config:
        client.init_transactions(30)
    else:
        client.produce(topic, b"first", partition=0)
        client.flush(30)
    yield client, topic
    client.flush(30)


def end_of(broker: Any, topic: str) -> int:
    """The high watermark of partition 0."""
    from confluent_kafka import TopicPartition

    with reader(broker) as client:
        return int(client.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])


def values_of(broker: Any, topic: str, count: int) -> list[bytes]:
    """The first committed values of partition 0."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    found: list[bytes] = []
    with reader(broker) as client:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while len(found) < count:
            messages = client.consume(1000, 10)
            assert messages, f"{len(found)} records, not {count}"
            found.extend(message.value() for message in messages)
    return found


def sender(broker: Any, count: int) -> Contender:
    """`produce` per record and one `flush`.

    An acknowledged record is not yet on the broker's disk.
    """

    def check(state: tuple[Any, str], _result: Any) -> None:
        assert end_of(broker, state[1]) == count + 1

    return Contender(
        "confluent-kafka",
        lambda state: send(*state, count),
        lambda: _producing(broker, {}),
        check,
        count,
    )


def transactions(broker: Any, count: int, per_transaction: int) -> Contender:
    """Transactions of so many records."""

    def run(state: tuple[Any, str]) -> None:
        client, topic = state
        keys, values = data.keys(count), data.values(count)
        for at in range(0, count, per_transaction):
            client.begin_transaction()
            for i in range(at, min(count, at + per_transaction)):
                client.produce(topic, values[i], keys[i], 0)
            client.commit_transaction(60)

    def check(state: tuple[Any, str], _result: Any) -> None:
        markers = -(-count // per_transaction)
        assert end_of(broker, state[1]) == count + markers

    return Contender(
        "confluent-kafka", run,
        lambda: _producing(broker, {"transactional_id": f"bench-{next(_topics)}", "linger_ms": 0}),
        check, count,
    )  # fmt: skip
