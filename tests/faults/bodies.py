"""What the children of the fault tests do: produce, consume, transform, look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition
from tests.faults.harness import Child

COUNT = 24
IN = TopicPartition("in", 0)


def prepare(child: Child, path: Path, count: int = 0) -> None:
    """A directory with the topics `in` and `out`, and `count` records in the first."""
    with eoslog.open(path) as log:
        for topic in ("in", "out"):
            log.create_topic(topic)
        with log.producer() as producer:
            for number in range(count):
                producer.produce("in", str(number))


def produce(child: Child, path: Path, acks: Any = "all", first: int = 0, **config: Any) -> None:
    """Send numbers one by one and tell each one that was acknowledged."""
    with eoslog.open(path) as log, log.producer(acks=acks, linger_ms=0, **config) as producer:
        child.armed()
        for number in range(first, COUNT):
            producer.produce("in", str(number))
            if acks != 0:
                producer.flush()
                child.tell("acked", number)


def transact(child: Child, path: Path, transactional_id: str = "tx") -> None:
    """Commit two records in two topics, abort each third time; report each commit."""
    with (
        eoslog.open(path) as log,
        log.producer(transactional_id=transactional_id, linger_ms=0) as producer,
    ):
        child.armed()
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.produce("in", str(number))
            producer.produce("out", str(number))
            if number % 3 == 2:
                producer.abort_transaction()
            else:
                child.tell("committing", number)
                producer.commit_transaction()
                child.tell("committed", number)


def transform(
    child: Child, path: Path, name: str = "worker", count: int = COUNT, step: int = 5
) -> None:
    """Consume, double, produce: exactly once, until `count` outputs are committed."""
    with eoslog.open(path) as log, log.producer(transactional_id=name, linger_ms=0) as producer:
        child.armed()
        producer.init_transactions()
        settings: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
        with log.consumer("in", group_id="g", **settings) as consumer:
            while True:
                records = consumer.consume(step, 0.2)
                if records:
                    with producer.transaction() as tx:
                        for record in records:
                            tx.produce("out", str(2 * int(record.value)))
                        tx.commit_offsets(consumer)
                    child.tell("done", len(records))
                elif sum(batch.num_rows for batch in log.scan("out")) >= count:
                    return


def look(child: Child, path: Path) -> None:
    """Report the visible records, the group's position and open transactions."""
    with eoslog.open(path) as log:
        for isolation in ("read_committed", "read_uncommitted"):
            for topic in ("in", "out"):
                values = [
                    int(v)
                    for b in log.scan(topic, isolation=isolation)
                    for v in b.column("value").to_pylist()
                ]
                child.tell(f"{topic}.{isolation}", values)
        with log.consumer(group_id="g", enable_auto_commit=False) as consumer:
            child.tell("position", consumer.committed([IN])[0].offset)
        child.tell("open", [row.transactional_id for row in log.transactions()])


def settle(child: Child, path: Path, transactional_id: str = "tx") -> None:
    """Call `init_transactions`, as the next instance does, and report its outcome."""
    with eoslog.open(path) as log, log.producer(transactional_id=transactional_id) as producer:
        outcome = producer.init_transactions()
        child.tell("outcome", None if outcome is None else outcome.committed)
        producer.begin_transaction()
        producer.abort_transaction()


def consume(child: Child, path: Path, commit_first: bool) -> None:
    """Read all one by one; commit before or after "processing", which is telling."""
    settings: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with eoslog.open(path) as log, log.consumer("in", group_id="g", **settings) as consumer:
        child.armed()
        while True:
            record = consumer.poll(0.3)
            if record is None:
                if consumer.committed([IN])[0].offset == COUNT:
                    return
                continue
            if commit_first:
                consumer.commit({IN: record.offset + 1})
            child.tell("processed", int(record.value))
            if not commit_first:
                consumer.commit({IN: record.offset + 1})
