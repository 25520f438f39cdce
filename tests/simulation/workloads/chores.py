"""The simulated processes' maintenance: compaction, retention, topics, groups.

The topics are separate from the workload's, because records may be deleted from them. `c` is
compacted, the head of `d` is deleted, `e` is deleted completely and re-created, `f` and `g`
lose what is too much or too old, and `p` gets more partitions. The promises for them are in
`promises.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import eoslog
from eoslog import TopicPartition, errors
from eoslog.client.consumer.consumer import Consumer
from tests.simulation.oracles import looks
from tests.simulation.oracles.promises import RETENTION_BYTES, RETENTION_MS, Record, Seen

SMALL = {"segment.bytes": 1200, "segment.index.bytes": 240, "index.interval.bytes": 100, "flush.ms": 10}  # fmt: skip
TOPICS: dict[str, dict[str, object]] = {
    "c": {**SMALL, "cleanup.policy": "compact", "delete.retention.ms": 0},
    "d": SMALL,
    "e": SMALL,
    "f": {**SMALL, "retention.bytes": RETENTION_BYTES},
    "g": {**SMALL, "retention.ms": RETENTION_MS},
    "p": SMALL,
}
MOST_PARTITIONS = 4
KEYS = ("k0", "k1", "k2")


def looked_at(engine: Any) -> Seen:
    """What read_committed shows of these topics, and where they begin."""
    topics = [topic for topic in TOPICS if topic in engine.metadata.topics and topic != "p"]
    logs = {topic: engine.partition(topic, 0) for topic in topics}
    grown = engine.metadata.topics["p"].partitions if "p" in engine.metadata.topics else {0: None}
    records = {topic: looks.visible(log) for topic, log in logs.items()}
    if "p" in engine.metadata.topics:
        for n in grown:
            records[f"p {n}"] = looks.visible(engine.partition("p", n))
    return Seen(
        records, {topic: logs[topic].log_start for topic in "dfg" if topic in logs}, len(grown)
    )


class Chores:
    """Operations of a `workload.Client`, which gives what is named here."""

    world: Any
    model: Any
    log: eoslog.Log | None
    rng: Random
    path: str
    plain: Any
    member: Consumer | None = None

    _value: Callable[[], str]
    _ensure_plain: Callable[[], Any]

    def make_topics(self) -> None:
        assert self.log is not None
        for topic in ("c", "d"):
            self._make(topic)

    def _make(self, topic: str) -> None:
        assert self.log is not None
        if topic not in self.log.topics():
            with contextlib.suppress(errors.TopicAlreadyExists):
                self.log.create_topic(topic, 1, TOPICS[topic])

    def _put(self, topic: str, key: str | None = None, partition: int = 0) -> None:
        promises = self.model.chores
        what = f"c {key}" if key else f"p {partition}" if topic == "p" else topic
        deletions = promises.deletions
        sent = []
        for _ in range(self.rng.choice((1, 2, 5))):
            value = self._value()
            promises.tried[value] = what
            if topic == "g":
                promises.sent_ms[value] = self.world.now_ms
            sent.append(
                (value, self._ensure_plain().send(topic, value, key=key, partition=partition))
            )
        self.plain.flush()
        self.world.alive()
        for value, delivery in sent:
            offset = delivery.result(0).offset
            if topic != "e" or (deletions == promises.deletions and not promises.deleting):
                promises.acked[value] = offset

    def put_keyed(self) -> None:
        self._put("c", self.rng.choice(KEYS))

    def put_ageing(self) -> None:
        self._put("d")

    def put_mortal(self) -> None:
        assert self.log is not None
        if "e" not in self.log.topics():
            with contextlib.suppress(errors.TopicAlreadyExists, errors.UnknownTopicOrPartition):
                self.log.create_topic("e", 1, TOPICS["e"])  # and described, when it may be gone
        with contextlib.suppress(errors.UnknownTopicOrPartition):
            self._put("e")

    def put_limited(self) -> None:
        topic = self.rng.choice("fg")
        self._make(topic)
        for _ in range(self.rng.choice((1, 3))):
            self._put(topic)

    def clean(self) -> None:
        """Compact one topic, or all topics with the internal ones, and apply retention."""
        assert self.log is not None
        topic = self.rng.choice(("c", "f", "g", None))
        topic = topic if topic in self.log.topics() else None
        if topic == "g":  # old enough, or not yet
            self.world.sleep(self.rng.choice((1, 30, 60, 150)) * 1_000_000_000)
            self.world.alive()
        self.model.cleaned = True
        freed = self.log.clean(topic, roll=self.rng.random() < 0.7)
        freed_of_f = freed.get(TopicPartition("f", 0))
        left = self._bytes_left("f") if freed_of_f else 0
        self.world.alive()
        if freed_of_f and left < RETENTION_BYTES:
            self.model.violated(f"O1 retention left {left} of {RETENTION_BYTES} bytes in f")

    def _bytes_left(self, topic: str) -> int:
        assert self.log is not None
        segments = self.log._engine.partition(topic, 0).segments
        return sum(segments.segment(base).size() for base in segments.bases())

    def grow(self) -> None:
        """Give `p` one more partition, or write to one that it has."""
        assert self.log is not None
        promises = self.model.chores
        self._make("p")
        count = len(self.log._engine.topic("p").partitions)
        if count < MOST_PARTITIONS and self.rng.random() < 0.4:
            promises.partitions_wanted = max(promises.partitions_wanted, count + 1)
            with contextlib.suppress(errors.InvalidPartitions):
                self.log.create_partitions("p", count + 1)
                self.world.alive()
                promises.partitions = max(promises.partitions, count + 1)
        else:
            self._put("p", partition=self.rng.randrange(count))

    def trim(self) -> None:
        """Delete the head of `d`."""
        assert self.log is not None
        promises, log = self.model.chores, self.log._engine.partition("d", 0)
        before = self.rng.randint(log.log_start, log.high_watermark)
        promises.wanted = max(promises.wanted, before)
        self.log.delete_records({TopicPartition("d", 0): before})
        self.world.alive()
        promises.start = max(promises.start, before)

    def shed(self) -> None:
        """Delete `e`; whatever was sent to it is gone then, or nothing is known of it."""
        assert self.log is not None
        promises = self.model.chores
        doomed = {value for value, what in promises.tried.items() if what == "e"}
        promises.deletions += 1
        promises.deleting += 1
        for value in doomed:
            promises.acked.pop(value, None)
        with contextlib.suppress(errors.UnknownTopicOrPartition):
            self.log.delete_topic("e")
            self.world.alive()
            promises.dead |= doomed
        self.world.alive()
        promises.deleting -= 1

    def take_part(self) -> None:
        """Be a member of a group: join, read what is assigned, commit, sometimes leave."""
        if self.member is None:
            self.member = Consumer(
                {"log.dir": self.path, "group.id": "m", "auto.offset.reset": "earliest",
                 "enable.auto.commit": False}
            )  # fmt: skip
            self.member.subscribe(["a", "b"])
        found: dict[tuple[str, int], list[Record]] = {}
        for _ in range(self.rng.choice((1, 3))):
            for record in self.member.consume(20, timeout=0):
                place = (record.topic, record.partition)
                found.setdefault(place, []).append((record.offset, record.value.decode()))
        self.world.alive()
        for place, records in found.items():
            self.model.shown(place, records)
        if found and self.rng.random() < 0.7:
            self.member.commit()
        if self.rng.random() < 0.3:
            self.leave()

    def leave(self) -> None:
        member, self.member = self.member, None
        if member is not None:
            member.close()
