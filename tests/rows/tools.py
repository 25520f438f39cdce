"""Short words for what many row tests do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from eoslog import TopicPartition, _core
from eoslog.engine.engine import Engine

NOW = 1_700_000_000_000
SCALE = int(os.environ.get("EOSLOG_ROW_SCALE", "1"))
"""`make quality-rows SCALE=100` runs the tests that count up to the figures of the mission."""


def settled(log: Any, topic: str = "t") -> None:
    """Wait until the background flusher has made the appended records durable."""
    deadline = time.monotonic() + 60
    for description in log.describe_topic(topic).partitions:
        while True:
            offsets = log.offsets(topic, description.partition)
            if offsets.high_watermark == offsets.log_end or time.monotonic() > deadline:
                break
            time.sleep(0.002)


def values(log: Any, topic: str = "t", isolation: str = "read_committed") -> list[bytes]:
    """Every value a reader gets, by partition and offset."""
    settled(log, topic)
    rows: list[tuple[int, int, bytes]] = []
    for batch in log.scan(topic, isolation=isolation):
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
        rows += zip(*columns, strict=True)
    return [value for _, _, value in sorted(rows)]


def transactional(log: Any, transactional_id: str = "tx", **config: Any) -> Any:
    """A producer that is ready to begin."""
    producer = log.producer(transactional_id=transactional_id, linger_ms=0, **config)
    producer.init_transactions()
    return producer


def put(producer: Any, *items: str, topic: str = "t", partition: int = 0) -> None:
    """Produce and wait."""
    for value in items:
        producer.produce(topic, value, partition=partition)
    producer.flush()


def transact(
    producer: Any, *items: str, commit: bool = True, topic: str = "t", partition: int = 0
) -> None:
    """One whole transaction."""
    producer.begin_transaction()
    put(producer, *items, topic=topic, partition=partition)
    producer.commit_transaction() if commit else producer.abort_transaction()


def batches(engine: Engine, topic: str = "t", partition: int = 0) -> list[Any]:
    """Every batch of a partition, control batches too."""
    log = engine.partition(topic, partition)
    return list(log.batches(log.log_start, log.log_end))


def markers(engine: Engine, topic: str = "t", partition: int = 0) -> list[Any]:
    return [batch for batch in batches(engine, topic, partition) if batch.control]


def data(
    items: Iterable[str],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """One batch as a producer would send it."""
    records = [(NOW, None, item.encode(), ()) for item in items]
    return bytes(
        _core.build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def reader(log: Any, group: str | None = None, **config: Any) -> Any:
    """A consumer from the beginning, without auto-commit."""
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", **config}
    if group is not None:
        settings.setdefault("enable_auto_commit", False)
        settings["group_id"] = group
    return log.consumer(**settings)


def assigned(
    log: Any, *partitions: int, topic: str = "t", group: str | None = None, **config: Any
) -> Any:
    """A consumer with partitions of its own choice, at the beginning."""
    consumer = reader(log, group, **config)
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions or (0,)])
    return consumer


def drain(consumer: Any, timeout: float = 0.5) -> list[bytes]:
    """Everything it can read now."""
    found: list[bytes] = []
    while records := consumer.consume(1000, timeout):
        found += [record.value for record in records]
    return found


@contextmanager
def locked_elsewhere(log: Any) -> Iterator[None]:
    """Hold a partition's append lock through an open file, as another process does."""
    fd, at = log.session.append_lock(log.slot)
    other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        assert _core.try_lock(other, at)
        yield
    finally:
        os.close(other)


@contextmanager
def clock(engine: Engine, start: int = NOW) -> Any:
    """The engine's wall clock in the test's hand: `tick(ms)` moves it."""
    now = [start]
    real, engine.clock = engine.clock, lambda: now[0]  # type: ignore[method-assign,assignment]

    def tick(ms: int) -> None:
        now[0] += ms

    try:
        yield tick
    finally:
        engine.clock = real  # type: ignore[method-assign]


def state_of(log: Any, transactional_id: str = "tx") -> str:
    """The coordinator's word for where a transactional id stands."""
    rows = log.transactions(open_only=False)
    return next(str(row.state) for row in rows if row.transactional_id == transactional_id)


def position_after(fn: Callable[[], Any], *errors: type[BaseException]) -> BaseException | None:
    """The error that `fn` ends with, None if it ends well."""
    try:
        fn()
    except errors as error:
        return error
    return None
