"""A directory of eoslog for Kafka with everything that a partition can hold.

`build` writes it and yields while a transaction is still open. What eoslog's own reader returns
for each topic is compared with what Kafka's readers return.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import eoslog
from eoslog.model import TopicPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000
TOPICS = {
    **{f"codec-{codec}": {} for codec in CODECS},
    "plain": {},
    "partitioned": {},
    "nulls": {},
    "headers": {},
    "segments": {"segment.bytes": 4096, "index.interval.bytes": 256},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "committed": {},
    "aborted": {},
    "open": {},
    "interleaved": {"segment.bytes": 4096, "index.interval.bytes": 256},
    "compacted": {"cleanup.policy": "compact", "segment.bytes": 4096, "min.cleanable.dirty.ratio": 0.01},
    "trimmed": {"segment.bytes": 4096},
    "empty": {},
}  # fmt: skip
PARTITIONS = {"partitioned": 3}


class Row(NamedTuple):
    """One record as every reader must give it."""

    partition: int
    offset: int
    timestamp_type: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _value(draw: random.Random, most: int = 300) -> bytes:
    return bytes(draw.choices(b"abcdefgh\x00\x01\xfe\xff", k=draw.randrange(most)))


def _plain_topics(log: eoslog.Log, draw: random.Random) -> None:
    for codec in CODECS:
        with log.producer(compression_type=codec, linger_ms=1000) as producer:
            for i in range(300):
                producer.produce(
                    f"codec-{codec}", _value(draw), b"k%d" % (i % 7), timestamp=START_MS + i
                )
                if i % 100 == 99:
                    producer.flush()
    with log.producer() as producer:
        for i in range(100):
            producer.produce("plain", b"v%d" % i, timestamp=START_MS - i)
            producer.produce("partitioned", _value(draw), b"key-%d" % i, timestamp=START_MS + i)
            producer.produce("append-time", b"%d" % i, timestamp=5)
        for i in range(60):
            producer.produce("nulls", [None, b"", b"x"][i % 3], [None, b"", b"y"][i // 3 % 3])
            headers = [(f"h{n}", [None, b"", _value(draw, 20)][n % 3]) for n in range(i % 5)]
            producer.produce(
                "headers",
                b"v",
                b"k",
                headers=[*headers, ("same", b"1"), ("same", b"2"), ("ä", b"3")],
            )
        for i in range(400):
            producer.produce(
                "segments", _value(draw), b"%d" % i, timestamp=START_MS + (i * 7919) % 4001
            )
            producer.produce("trimmed", _value(draw), b"%d" % i)
            if i % 5 == 0:
                producer.flush()
        for i in range(600):
            producer.produce(
                "compacted", None if i % 11 == 0 else _value(draw, 60), b"key-%d" % (i % 13)
            )
            if i % 20 == 0:
                producer.flush()
    log.delete_records({TopicPartition("trimmed", 0): 250})
    log.clean()


def _transactions(log: eoslog.Log, draw: random.Random) -> None:
    for topic, commits in (("committed", (True,)), ("aborted", (False,)), ("open", (True, False))):
        with log.producer(transactional_id=f"t-{topic}") as producer:
            producer.init_transactions()
            for i in range(10):
                producer.begin_transaction()
                for n in range(draw.randrange(1, 6)):
                    producer.produce(topic, _value(draw), b"%d-%d" % (i, n))
                offsets = {TopicPartition("plain", 0): i}
                producer.send_offsets_to_transaction(offsets, f"group-{topic}")
                producer.end_transaction(commits[i % len(commits)])
    producers = [log.producer(transactional_id=f"i-{n}", linger_ms=0) for n in range(4)]
    plain = log.producer(linger_ms=0)
    open_: set[int] = set()
    for producer in producers:
        producer.init_transactions()
    for i in range(400):
        n = draw.randrange(len(producers))
        if n not in open_:
            producers[n].begin_transaction()
            open_.add(n)
        for _ in range(draw.randrange(3)):
            producers[n].produce("interleaved", _value(draw, 120), b"i-%d" % n)
        producers[n].flush()
        if draw.random() < 0.3:
            producers[n].end_transaction(draw.random() < 0.6)
            open_.discard(n)
        if draw.random() < 0.2:
            plain.produce("interleaved", b"plain %d" % i)
            plain.flush()
    for producer in (*producers, plain):
        producer.close()


@contextmanager
def build(path: Path, seed: int = 1) -> Iterator[eoslog.Log]:
    """Write the directory; topic `open` has an open transaction during the context."""
    draw = random.Random(seed)
    with eoslog.open(path) as log:
        for name, config in TOPICS.items():
            log.create_topic(name, PARTITIONS.get(name, 1), config)
        _plain_topics(log, draw)
        _transactions(log, draw)
        with log.producer(transactional_id="never-ended") as last, log.producer() as behind:
            last.init_transactions()
            last.begin_transaction()
            for i in range(5):
                last.produce("open", b"undecided %d" % i)
            last.flush()
            behind.produce("open", b"behind it")
            behind.flush()
            yield log


def rows_of_scan(scan: eoslog.Scan) -> list[Row]:
    """The rows of a scan, sorted by partition and offset."""
    rows = (
        Row(
            row["partition"], row["offset"], row["timestamp_type"], round(row["timestamp"].timestamp() * 1000),
            row["key"], row["value"], tuple((h["key"], h["value"]) for h in row["headers"] or ()),
        )
        for row in scan.to_table().to_pylist()
    )  # fmt: skip
    return sorted(rows, key=lambda row: row[:2])


def rows_of(log: eoslog.Log, topic: str, isolation: str) -> list[Row]:
    """Everything that eoslog's reader gives of a topic."""
    return rows_of_scan(log.scan(topic, isolation=isolation, binary="copy"))
