"""The programs as people write them on a broker, with confluent-kafka.

    python -m tests.kafka.across.with_kafka PROGRAM ARGUMENTS

The producer is idempotent and waits for all replicas, the database syncs each commit, and the
consumer commits its position after the rows. So each step alone is safe.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.kafka.across.places import Fate, Kill
from tests.kafka.across.schema import connect


def _producer(servers: str) -> Producer:
    return Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0})


def _send(producer: Producer, topic: str, values: Sequence[str]) -> None:
    failed: list[object] = []

    def on_delivery(error: object, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for value in values:
        producer.produce(topic, value, on_delivery=on_delivery)
    if producer.flush(30) or failed:
        raise RuntimeError(f"not delivered: {failed}")


def order(database: sqlite3.Connection, at: dict[str, Any], fate: Fate, sends_again: bool) -> None:
    """Insert a row for each number, then send its message; a client may retry."""
    producer = _producer(at["servers"])
    for number in at["numbers"]:
        database.execute("begin immediate")
        made = database.execute("insert or ignore into orders values (?)", (number,)).rowcount
        fate.reached("row inserted")
        database.execute("commit")
        fate.reached("row committed")
        if made or sends_again:
            _send(producer, at["topic"], [str(number)])
        fate.reached("message sent")
        print(number, flush=True)


def outbox(database: sqlite3.Connection, at: dict[str, Any], fate: Fate) -> None:
    """Send the rows of the outbox by id, and then delete them."""
    producer = _producer(at["servers"])
    while rows := database.execute("select id, value from outbox order by id limit 100").fetchall():
        fate.reached("rows read")
        _send(producer, at["topic"], [value for _, value in rows])
        fate.reached("messages sent")
        database.execute("begin immediate")
        database.executemany("delete from outbox where id = ?", [(row[0],) for row in rows])
        database.execute("commit")
        fate.reached("rows deleted")


def sink(database: sqlite3.Connection, at: dict[str, Any], fate: Fate) -> None:
    """Insert a row for each record, commit, and then commit the position."""
    consumer = Consumer(
        {
            "bootstrap.servers": at["servers"], "group.id": at["topic"], "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "isolation.level": "read_committed",
            "session.timeout.ms": 1000, "heartbeat.interval.ms": 200,
        }
    )  # fmt: skip
    consumer.subscribe([at["topic"]])
    partition = TopicPartition(at["topic"], 0)
    while True:
        messages = consumer.consume(100, timeout=0.2)
        if messages:
            database.execute("begin immediate")
            rows = [(message.value().decode(),) for message in messages]
            database.executemany("insert into applied values (?)", rows)
            fate.reached("rows inserted")
            database.execute("commit")
            fate.reached("rows committed")
            consumer.commit(asynchronous=False)
            fate.reached("position committed")
        elif consumer.assignment():
            (done,) = consumer.committed([partition], timeout=30)
            if done.offset >= consumer.get_watermark_offsets(partition, timeout=30)[1]:
                break
    consumer.close()


PROGRAMS: dict[str, Callable[[sqlite3.Connection, dict[str, Any], Fate], None]] = {
    "order": partial(order, sends_again=False),
    "order, sent again": partial(order, sends_again=True),
    "outbox": outbox,
    "sink": sink,
}


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    PROGRAMS[sys.argv[1]](connect(given["database"]), given, Fate(Kill(*given["kill"])))
