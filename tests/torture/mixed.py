"""One life of the mixed workload, recorded: sends, transactions, a group, rolls, retention, topics.

A life goes on with whatever directory the one before it left. What it does is drawn from its seed.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError, TopicAlreadyExists, UnknownTopicOrPartition
from eoslog.history import Recorder
from tests.faults.harness import Child

TOPICS = {"in": 1, "out": 2}
GROUP = "g"
SMALL = {"segment.bytes": "2048", "index.interval.bytes": "256", "flush.ms": "10"}
IDS = ("one", "two")


class Life:
    """The clients of one process and the steps they may take."""

    def __init__(self, log: Any, recorder: Recorder, rng: random.Random) -> None:
        self.log, self.recorder, self.rng = log, recorder, rng
        self.count = 0
        self.plain = self.reader = None
        self.transactional: dict[str, Any] = {}

    def value(self) -> str:
        """A value that nobody else sends, of 20 to 200 bytes."""
        self.count += 1
        return f"{self.recorder.process}:{self.count}:" + "x" * self.rng.randint(0, 180)

    def put(self, producer: Any, rows: list[tuple[TopicPartition, str]]) -> None:
        """Send values, with the time of this process's own wall clock."""
        producer.send(rows, timestamp=max(0, int(time.time() * 1000)))

    def send(self) -> None:
        """Plain sends into the input, each acknowledged."""
        if self.plain is None:
            acks = self.rng.choice(["all", "all", "1"])
            self.plain = self.recorder.producer(self.log, acks=acks, linger_ms=0)
        count = self.rng.randint(1, 6)
        self.put(self.plain, [(TopicPartition("in", 0), self.value()) for _ in range(count)])
        self.plain.acknowledge()

    def _producer(self, name: str) -> Any:
        if name not in self.transactional:
            self.transactional[name] = self.recorder.producer(self.log, name, linger_ms=0)
        return self.transactional[name]

    def transact(self) -> None:
        """A transaction over both outputs, one in four aborted."""
        producer = self._producer(self.rng.choice(IDS))
        producer.begin()
        for partition in self.rng.sample(range(TOPICS["out"]), self.rng.randint(1, TOPICS["out"])):
            rows = [
                (TopicPartition("out", partition), self.value())
                for _ in range(self.rng.randint(1, 3))
            ]
            self.put(producer, rows)
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

    def care(self) -> None:
        """Retention and cleaning, which find little to do, and a check."""
        self.log.clean()

    STEPS = ((send, 5), (transact, 6), (transform, 3), (topics, 1), (look, 1), (care, 1))

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


def mixed(child: Child, path: Path, history: Path, name: str, seed: int, steps: int = 12) -> None:
    """Open, take some steps, close; tells every error that stopped it, by name."""
    with Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        child.armed()
        try:
            with eoslog.open(path) as log:
                for topic, partitions in TOPICS.items():
                    with contextlib.suppress(TopicAlreadyExists):
                        log.create_topic(topic, partitions, SMALL)
                life = Life(log, recorder, random.Random(seed))
                for _ in range(steps):
                    life.step()
                    child.tell("step", 1)
                life.close()
        except EoslogError as error:  # a typed refusal is an answer; anything else is a finding
            child.tell("refused", type(error).__name__, str(error))
        except TimeoutError as error:
            child.tell("refused", "TimeoutError", str(error))
