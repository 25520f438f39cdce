"""What real clients do to a real broker, and what its readers give of that.

Everything a partition can hold: all codecs, headers, nulls, transactions that commit, abort, are
fenced or stay open, several segments, a cleaned log, the broker's timestamps.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.kafka.broker import Broker
from tests.kafka.clients import ISOLATIONS, create_topics, librdkafka_rows
from tests.kafka.differential.wire import Wire
from tests.kafka.directories.world import CODECS, START_MS, Row
from tests.reference import codec

TOPICS: dict[str, dict[str, object]] = {
    **{f"codec-{codec}": {} for codec in CODECS},
    "nulls": {},
    "segments": {"segment.ms": 1000, "index.interval.bytes": 256},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "recoded": {"compression.type": "gzip"},
    "transactions": {"segment.ms": 150, "index.interval.bytes": 256},
    "fenced": {},
    "timed-out": {},
    "open": {},
    "compacted": {
        "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.ms": 200,
        "min.compaction.lag.ms": 0, "max.compaction.lag.ms": 500, "delete.retention.ms": 100,
    },
    "compacted-transactions": {
        "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.ms": 200,
        "min.compaction.lag.ms": 0, "max.compaction.lag.ms": 500, "delete.retention.ms": 60_000,
    },
}  # fmt: skip


class Seen(NamedTuple):
    """What a broker's readers gave of a partition (number 0 of its topic)."""

    rows: dict[str, list[Row]]
    log_start: int
    last_stable: int
    high_watermark: int
    aborted: list[tuple[int, int]]


class Workload:
    """Runs it; the open transaction ends with `close`, or with the broker."""

    def __init__(self, broker: Broker, seed: int = 1) -> None:
        """Draw from a seed."""
        self.broker, self.draw = broker, random.Random(seed)
        self._kept: list[Producer] = []

    def producer(self, name: str | None = None, **config: Any) -> Producer:
        """A producer of librdkafka."""
        options = {key.replace("_", "."): value for key, value in config.items()}
        if name is not None:
            options["transactional.id"] = name
        made = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "linger.ms": 20, "log_level": 2, **options}
        )
        self._kept.append(made)
        if name is not None:
            made.init_transactions(30)
        return made

    def value(self, most: int = 200) -> bytes:
        """Random bytes that compress."""
        return bytes(self.draw.choices(b"abcdefgh\x00\x01\xfe\xff", k=self.draw.randrange(most)))

    def run(self) -> None:
        """All of it."""
        create_topics(self.broker, dict.fromkeys(TOPICS, 1), TOPICS)
        self._plain()
        self._transactions()
        self._fenced()
        self._compacted()
        self._open()

    def _plain(self) -> None:
        for compression in CODECS:
            producer = self.producer(compression_type=compression)
            for i in range(60):
                headers = [(f"h{n}", [None, b"", self.value(9)][n % 3]) for n in range(i % 4)]
                producer.produce(
                    f"codec-{compression}",
                    self.value(),
                    b"k%d" % (i % 7),
                    timestamp=START_MS + i,
                    headers=headers,
                )
                if i % 20 == 19:
                    producer.flush()
        producer = self.producer()
        for i in range(27):
            producer.produce("nulls", [None, b"", b"x"][i % 3], [None, b"", b"y"][i // 3 % 3])
            producer.produce("append-time", b"%d" % i, timestamp=START_MS)
            producer.produce("recoded", self.value(), timestamp=START_MS - i)
        for i in range(60):
            producer.produce("segments", self.value(), b"%d" % i, timestamp=START_MS + 100 * i)
            producer.flush()

    def _transactions(self) -> None:
        producers = [self.producer(f"t-{n}", compression_type=CODECS[n]) for n in range(4)]
        plain = self.producer()
        reader = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "positions"})
        running: set[int] = set()
        for i in range(100):
            n = self.draw.randrange(len(producers))
            if n not in running:
                producers[n].begin_transaction()
                running.add(n)
            for _ in range(self.draw.randrange(1, 4)):
                producers[n].produce("transactions", self.value(90), b"t-%d" % n)
            producers[n].flush()
            if self.draw.random() < 0.2:
                position = [TopicPartition("nulls", 0, i % 20)]
                producers[n].send_offsets_to_transaction(
                    position, reader.consumer_group_metadata(), 30
                )
            if self.draw.random() < 0.4:
                end = (
                    producers[n].commit_transaction
                    if self.draw.random() < 0.6
                    else producers[n].abort_transaction
                )
                end(30)
                running.discard(n)
            if self.draw.random() < 0.2:
                plain.produce("transactions", b"plain %d" % i)
                plain.flush()
        for n in running:
            producers[n].abort_transaction(30)
        reader.close()

    def _fenced(self) -> None:
        for i in range(3):
            zombie = self.producer("zombie")
            zombie.begin_transaction()
            zombie.produce("fenced", b"lost %d" % i)
            zombie.flush()
            heir = self.producer("zombie")
            zombie.produce("fenced", b"too late %d" % i)
            with suppress(KafkaException):
                zombie.commit_transaction(30)
                raise AssertionError("a fenced producer committed")
            heir.begin_transaction()
            heir.produce("fenced", b"kept %d" % i)
            heir.commit_transaction(30)
        slow = self.producer("slow", transaction_timeout_ms=1000)
        slow.begin_transaction()
        slow.produce("timed-out", b"slow")
        slow.flush()
        with Wire(self.broker.bootstrap) as wire:
            while wire.describe_transaction("slow").state == "Ongoing":
                time.sleep(0.1)
        plain = self.producer()
        plain.produce("timed-out", b"behind")
        plain.flush()

    def _compacted(self) -> None:
        plain, changing = self.producer(), self.producer("compacting")
        for i in range(40):
            for _ in range(5):
                value = None if self.draw.random() < 0.1 else self.value(50)
                plain.produce("compacted", value, b"key-%d" % self.draw.randrange(12))
            plain.flush()
            changing.begin_transaction()
            for _ in range(3):
                changing.produce(
                    "compacted-transactions", self.value(50), b"key-%d" % self.draw.randrange(12)
                )
            (changing.commit_transaction if i % 3 else changing.abort_transaction)(30)
            time.sleep(0.03)
        for topic in ("compacted", "compacted-transactions"):
            self._await_cleaned(topic)

    def _await_cleaned(self, topic: str) -> None:
        """Wait until the cleaner has done all but the last segment and left holes."""
        producer = self.producer()
        deadline = time.monotonic() + 60
        while True:
            producer.produce(topic, b"x", b"key-0")  # rolls the active segment
            producer.flush()
            time.sleep(0.5)
            path = self.broker.logs / "cleaner-offset-checkpoint"
            lines = path.read_text().splitlines() if path.exists() else []
            cleaned = {line.split()[0]: int(line.split()[2]) for line in lines[2:]}
            if cleaned.get(topic, 0) > 100:
                return
            assert time.monotonic() < deadline, f"the cleaner does not clean {topic}: {cleaned}"

    def _open(self) -> None:
        first, last, plain = self.producer("first"), self.producer("never-ended"), self.producer()
        for i in range(4):
            first.begin_transaction()
            first.produce("open", b"ended %d" % i)
            (first.commit_transaction if i % 2 else first.abort_transaction)(30)
        last.begin_transaction()
        last.produce("open", b"undecided")
        last.flush()
        plain.produce("open", b"behind")
        plain.flush()

    def seen(self) -> dict[str, Seen]:
        """What the broker gives now."""
        counts = dict.fromkeys(TOPICS, 1)
        rows = {
            isolation: librdkafka_rows(self.broker, counts, isolation) for isolation in ISOLATIONS
        }
        found = {}
        with Wire(self.broker.bootstrap) as wire:
            for topic in TOPICS:
                got, aborted, offset = wire.fetch(topic, 0, 0, True), set(), 0
                while offset < got.last_stable:  # an answer ends with its segment
                    piece = wire.fetch(topic, 0, offset, True)
                    aborted.update(piece.aborted)
                    offset = (
                        list(codec.iter_batches(piece.records, records=False))[-1].last_offset + 1
                    )
                found[topic] = Seen(
                    {isolation: rows[isolation][topic] for isolation in ISOLATIONS},
                    got.log_start, got.last_stable, got.high_watermark, sorted(aborted),
                )  # fmt: skip
        return found
