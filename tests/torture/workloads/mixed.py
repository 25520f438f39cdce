"""One recorded process run of the mixed workload.

The workload has sends, transactions, a group, rolls, cleaning and topics. A run continues with
the directory that the one before it left. Its steps are chosen at random from its seed. Some
runs map segments of a size that others read by pread, and read few bytes per call.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition, _core
from eoslog.connector.publish import publish
from eoslog.connector.staging import AttemptWriter, discard
from eoslog.errors import EoslogError, TopicAlreadyExists, UnknownTopicOrPartition
from eoslog.storage.segment import segment as segments
from eoslog.testing.history import Recorder
from tests.faults.harness import Child

TOPICS = {"in": 1, "out": 2, "kept": 1}
COMPACTED = ("kept",)
"""Every value is its own key: what compaction removes is aborted, or a marker."""
GROUP = "g"
SMALL = {"segment.bytes": "2048", "index.interval.bytes": "256", "flush.ms": "10"}
CLEANED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
           "delete.retention.ms": "0", "file.delete.delay.ms": "0"}  # fmt: skip
IDS = ("one", "two")
OUTPUTS = (TopicPartition("out", 0), TopicPartition("out", 1), TopicPartition("kept", 0))
DELETABLE = (TopicPartition("in", 0), *OUTPUTS[:2])
"""Not those of compacted topics: their records may not be deleted."""
PATIENCE_MS = 120_000


class Life:
    """The clients of one process and the steps they may take."""

    def __init__(
        self, log: Any, recorder: Recorder, rng: random.Random, place: Path,
        patience_ms: int = PATIENCE_MS,
    ) -> None:  # fmt: skip
        self.log, self.recorder, self.rng, self.place = log, recorder, rng, place
        self.sending = {
            "linger_ms": 0, "delivery_timeout_ms": patience_ms, "max_block_ms": patience_ms // 2
        }  # fmt: skip
        self.count = self.jobs = 0
        self.plain = self.reader = None
        self.transactional: dict[str, Any] = {}

    def value(self) -> str:
        """A unique value of 20 to 200 bytes."""
        self.count += 1
        return f"{self.recorder.process}:{self.count}:" + "x" * self.rng.randint(0, 180)

    def put(self, producer: Any, rows: list[tuple[TopicPartition, str]]) -> None:
        """Send values, with the time of this process's own wall clock."""
        producer.send(rows, keyed=True, timestamp=self.now())

    @staticmethod
    def now() -> int:
        """Milliseconds; a clock that jumps may stand before the epoch."""
        return max(0, int(time.time() * 1000))

    def send(self) -> None:
        """Plain sends, each acknowledged."""
        if self.plain is None:
            acks = self.rng.choice(["all", "all", "1"])
            self.plain = self.recorder.producer(self.log, acks=acks, **self.sending)
        topic = self.rng.choice(["in", "in", "kept"])
        count = self.rng.randint(1, 6)
        self.put(self.plain, [(TopicPartition(topic, 0), self.value()) for _ in range(count)])
        self.plain.acknowledge()

    def _producer(self, name: str) -> Any:
        if name not in self.transactional:
            self.transactional[name] = self.recorder.producer(self.log, name, **self.sending)
        return self.transactional[name]

    def transact(self) -> None:
        """A transaction over some of the outputs, one in four aborted."""
        producer = self._producer(self.rng.choice(IDS))
        producer.begin()
        for place in self.rng.sample(OUTPUTS, self.rng.randint(1, len(OUTPUTS))):
            self.put(producer, [(place, self.value()) for _ in range(self.rng.randint(1, 3))])
        producer.abort() if self.rng.random() < 0.25 else producer.commit()

    def transform(self) -> None:
        """Consume, transform, produce."""
        producer = self._producer(self.recorder.process.split(".")[0] + "-mover")
        if self.reader is None:
            settings: dict[str, Any] = {
                "enable_auto_commit": False,
                "auto_offset_reset": "earliest",
            }
            consumer = self.log.consumer(group_id=GROUP, **settings)
            self.reader = reader = self.recorder.consumer(consumer)
            consumer.subscribe(["in"], on_assign=lambda *_: reader.moved())
        txn = producer.begin()
        records = self.reader.consume(4, 0.02, txn)
        if not records:
            producer.abort()
            return
        self.put(
            producer,
            [
                (TopicPartition("out", r.offset % 2), f"f({r.offset}):{self.value()}")
                for r in records
            ],
        )
        span = {TopicPartition("in", 0): (records[0].offset, records[-1].offset + 1)}
        producer.commit(span, self.reader.consumer.group_metadata())

    def publish(self) -> None:
        """Publish two staged attempts as Spark's sinks do, in files or inline.

        The files become segments or not.
        """
        producer = self._producer(self.rng.choice(IDS))
        rows: list[tuple[TopicPartition, str]] = []
        attempts = []
        self.jobs += 1
        for order in range(2):
            job = f"{self.recorder.process}-{self.jobs}"
            limit, segment = self.rng.choice([(0, 1), (0, 1 << 20), (1 << 20, 1 << 20)])
            writer = AttemptWriter(
                str(self.log.path), job, f"a{order}", order, limit, segment_bytes=segment
            )
            for place in self.rng.sample(OUTPUTS, 2):
                value = self.value()
                rows.append((place, value))
                text = value.encode()
                batch = _core.build_batch([(self.now(), text, text, ())])
                writer.add(place.topic, place.partition, batch, 1)
            attempts.append(writer.finish())
        producer.whole(rows, lambda: publish(producer.producer, str(self.log.path), attempts))
        discard(str(self.log.path), attempts)

    def topics(self) -> None:
        """A topic comes and goes."""
        name = self.rng.choice(["fleeting", "passing"])
        with contextlib.suppress(TopicAlreadyExists, UnknownTopicOrPartition):
            if name in self.log.topics():
                self.log.delete_topic(name)
            else:
                self.log.create_topic(name, 2)

    def look(self) -> None:
        """Everything a reader can ask for."""
        self.recorder.bounds(self.log, TOPICS)
        self.recorder.snapshot(self.log, list(TOPICS))
        self.recorder.scan(self.log, "out")

    def back_up(self) -> None:
        """Copy the directory in use and read the copy, on a disk without faults."""
        with tempfile.TemporaryDirectory(dir=self.place) as place:
            self.recorder.backup(self.log, os.path.join(place, "copy"), list(TOPICS))

    def care(self) -> None:
        """Compaction of one topic, of what coordinators know, and retention."""
        self.log.clean()

    def forget(self) -> None:
        """Delete the first records of a partition, up to half of the committed ones."""
        self.recorder.delete(self.log, self.rng.choice(DELETABLE), self.rng.uniform(0, 0.5))

    STEPS = ((send, 10), (transact, 12), (transform, 6), (publish, 3), (topics, 2), (look, 2),
             (care, 3), (back_up, 1), (forget, 1))  # fmt: skip

    def step(self) -> None:
        """One step, drawn."""
        steps, weights = zip(*self.STEPS, strict=True)
        self.rng.choices(steps, weights)[0](self)

    def close(self) -> None:
        """Close the clients."""
        for producer in (self.plain, *self.transactional.values()):
            if producer is not None:
                producer.close()
        if self.reader is not None:
            self.reader.consumer.close()


def read_otherwise(rng: random.Random) -> None:
    """Let this process map small segments or read few bytes per call."""
    if rng.random() < 0.5:
        segments.REMAP_SIZE = rng.choice([1024, 2048])
    if rng.random() < 0.3:
        segments.LEAST_READ_SIZE = segments.TAIL_READ_SIZE = 512


def mixed(
    child: Child, path: Path, history: Path, name: str, seed: int, steps: int = 12,
    patience_ms: int = PATIENCE_MS, life: type[Life] = Life,
) -> None:  # fmt: skip
    """Open, take some steps, or each one once (0), and close.

    The process reports every error that stopped a step, by name. Its producers try each batch again
    for `patience_ms`, and each request half as long.
    """
    rng = random.Random(seed)
    read_otherwise(rng)
    with Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        child.armed()
        try:
            with eoslog.open(path) as log:
                for topic, partitions in TOPICS.items():
                    config = SMALL | (CLEANED if topic in COMPACTED else {})
                    with contextlib.suppress(TopicAlreadyExists):
                        log.create_topic(topic, partitions, config)
                one = life(log, recorder, rng, history.parent, patience_ms)
                for step in [Life.step] * steps or [step for step, _ in life.STEPS]:
                    step(one)
                    child.tell("step", 1)
                one.close()
        except EoslogError as error:  # a typed refusal is an answer; anything else is a finding
            child.tell("refused", type(error).__name__, str(error))
        except TimeoutError as error:
            child.tell("refused", "TimeoutError", str(error))


def watch(child: Child, path: Path, history: Path, name: str, seed: int, until: Path) -> None:
    """Open once and read what other processes leave, until a file appears.

    Every topic is consumed to its end, over rolls, compaction and recovery by other processes.
    No fault is armed in this process, so that an error is a finding.
    """
    rng = random.Random(seed)
    read_otherwise(rng)
    with Recorder(str(history / f"{name}.jsonl"), name) as recorder, eoslog.open(path) as log:
        present = list(TOPICS)
        while not set(present) <= set(log.topics()) and not until.exists():
            child.tell("step", 1)  # no life has come to making them yet
            time.sleep(0.01)
        if until.exists():
            return
        with log.consumer(auto_offset_reset="earliest") as consumer:
            reader = recorder.consumer(consumer)
            consumer.assign([tp for topic in present for tp in log.partitions_of(topic)])
            while not until.exists():
                reader.consume(rng.choice([1, 7, 500]), 0.01)
                chance = rng.random()
                if chance < 0.1:
                    recorder.snapshot(log, present)
                elif chance < 0.2:
                    recorder.scan(log, rng.choice(present))
                elif chance < 0.25:
                    log.clean()
                child.tell("step", 1)
