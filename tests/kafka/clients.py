"""Kafka's clients, as readers of everything that a broker gives."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.broker import Broker, java
from tests.kafka.directories.world import Row
from tests.waiting import until

ISOLATIONS = ("read_committed", "read_uncommitted")


def create_topics(
    broker: Broker, topics: dict[str, int], config: dict[str, dict[str, object]] | None = None
) -> None:
    """Create topics with these partition counts and wait until they accept writes."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = [
        NewTopic(
            name,
            count,
            1,
            config={key: str(value) for key, value in (config or {}).get(name, {}).items()},
        )
        for name, count in topics.items()
    ]
    for future in admin.create_topics(wanted).values():
        future.result()

    def are_there() -> bool:
        found = admin.list_topics(timeout=60).topics
        return all(
            name in found and len(found[name].partitions) == count for name, count in topics.items()
        )

    until(are_there)


def row_of(message: Message) -> Row:
    """A librdkafka message in the form of the comparison."""
    kind, timestamp = message.timestamp()
    return Row(
        message.partition(), message.offset(), int(kind != TIMESTAMP_CREATE_TIME), timestamp,
        message.key(), message.value(), tuple(message.headers() or ()),
    )  # fmt: skip


def librdkafka_rows(broker: Broker, topics: dict[str, int], isolation: str) -> dict[str, list[Row]]:
    """Everything that librdkafka returns from topics; rows in order.

    The topics come with their partition counts.
    """
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": isolation,
         "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error"}
    )  # fmt: skip
    left = {(topic, partition) for topic, count in topics.items() for partition in range(count)}
    rows: dict[str, list[Row]] = {topic: [] for topic in topics}
    try:
        consumer.assign([TopicPartition(*tp, OFFSET_BEGINNING) for tp in left])
        deadline = time.monotonic() + 120
        while left:
            assert time.monotonic() < deadline, f"{isolation}: no end of {left}"
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    rows[message.topic()].append(row_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic(), message.partition()))
                else:
                    raise AssertionError(f"{isolation}: {error}")
    finally:
        consumer.close()
    return {topic: sorted(found, key=lambda row: row[:2]) for topic, found in rows.items()}


def java_lines(broker: Broker, topics: Iterable[str], isolation: str, count: int) -> list[str]:
    """The sorted lines of Kafka's console consumer, one per record; see `java_line`.

    The consumer ends after 15 s without a record. If it has fewer than `count` then, it begins
    again with more time.
    """
    for timeout_ms in ("15000", "120000"):
        lines = _java_lines(broker, topics, isolation, timeout_ms)
        if len(lines) >= count:
            break
    return lines


def _java_lines(
    broker: Broker, topics: Iterable[str], isolation: str, timeout_ms: str
) -> list[str]:
    shown = ("timestamp", "partition", "offset", "headers", "key", "value")
    options = [f"print.{what}=true" for what in shown] + [
        f"{what}.deserializer=org.apache.kafka.common.serialization.BytesDeserializer"
        for what in ("key", "value", "headers")
    ]
    command = java(
        broker.version, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", broker.bootstrap,
        "--include", "|".join(map(re.escape, topics)), "--from-beginning", "--isolation-level", isolation,
        "--timeout-ms", timeout_ms, *(word for option in (*options, "null.literal=<null>") for word in ("--property", option)),
        heap="-Xmx256m",
    )  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, stdin=subprocess.DEVNULL
    )
    assert "TimeoutException" in done.stdout + done.stderr or done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if "\t" in line)


def _printed(data: bytes | None) -> str:
    """As Kafka's `Bytes.toString` shows bytes."""
    if data is None:
        return "<null>"
    return "".join(chr(b) if 32 <= b <= 126 and b != ord("\\") else f"\\x{b:02X}" for b in data)


def java_line(row: Row) -> str:
    """A row as Kafka's console consumer prints it with the options above."""
    return "\t".join(
        (
            f"{('CreateTime', 'LogAppendTime')[row.timestamp_type]}:{row.timestamp}",
            f"Partition:{row.partition}",
            f"Offset:{row.offset}",
            ",".join(f"{name}:{_printed(value)}" for name, value in row.headers) or "NO_HEADERS",
            _printed(row.key),
            _printed(row.value),
        )
    )
