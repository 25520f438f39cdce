"""Random sequences of requests to a broker and to eoslog get the same answers.

    python -m tests.kafka.differential COUNT SEED [KIND]     with a broker of its own; `make quality-differential`
    python -m tests.kafka.differential --capture             makes tests/data/kafka/answers-<version>.xz

Kinds: `transactions` (`sequence.py`) and `groups` (`group_sequence.py`).
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import eoslog
from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics
from tests.kafka.differential.answers import Recorded, Recording, write_answers
from tests.kafka.differential.group_sequence import GroupSequence
from tests.kafka.differential.group_sides import EoslogGroupSide, KafkaGroupSide
from tests.kafka.differential.group_wire import GroupWire
from tests.kafka.differential.sequence import REQUESTS, Sequence, Unlisted
from tests.kafka.differential.sides import PARTITIONS, EoslogSide, KafkaSide
from tests.kafka.differential.wire import Wire

SEQUENCES_A_TOPIC = 100
"""A topic's partitions remember every producer; a new one now and then keeps them small."""
CAPTURED = 150
"""Sequences of each kind whose answers are kept for the tests without a broker."""


CONFIG = {
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.assignor.offload.enable": "false",
    "group.coordinator.append.linger.ms": 0,
}
"""A new target at each change of a group, before the answer: eoslog's groups know no batching."""


class Kind(NamedTuple):
    """What a sequence draws from, and what it is put to."""

    sequence: type[Sequence]
    wire: type[Wire]
    kafka: Any
    ours: Any


KINDS = {
    "transactions": Kind(Sequence, Wire, KafkaSide, EoslogSide),
    "groups": Kind(GroupSequence, GroupWire, KafkaGroupSide, EoslogGroupSide),
}


def await_coordinators(wire: Wire) -> None:
    """The first ask for a coordinator makes the internal topics."""
    for key, kind in (("any", 1), ("any", 0)):
        while wire.find_coordinator(key, kind):
            time.sleep(0.05)


def compare(
    broker: Broker,
    log: eoslog.Log,
    count: int,
    seed: int,
    kind: str = "transactions",
    *,
    keep_going: bool = False,
    record: list[Recorded] | None = None,
) -> tuple[Counter[str], list[str]]:
    """Run sequences seed, seed+1, ... and return the rows that occurred.

    With `keep_going` it also returns the differences without a row.
    """
    parts = KINDS[kind]
    met: Counter[str] = Counter()
    unlisted: list[str] = []
    with parts.wire(broker.bootstrap) as wire:
        await_coordinators(wire)
        for number in range(seed, seed + count):
            topic = f"{kind}-{seed}-{(number - seed) // SEQUENCES_A_TOPIC}"
            if (number - seed) % SEQUENCES_A_TOPIC == 0:
                create_topics(broker, {topic: PARTITIONS})
                log.create_topic(topic, PARTITIONS)
            kafka, ours = Recording(parts.kafka(wire, topic)), parts.ours(log, topic)
            sequence = parts.sequence(kafka, ours, number)
            try:
                met += sequence.run()
            except Unlisted as error:
                if not keep_going:
                    raise
                sequence.give_up()
                unlisted.append(str(error))
            if record is not None:
                record.append(Recorded(kind, number, kafka.answers))
    return met, unlisted


@contextmanager
def _pair() -> Iterator[tuple[Broker, eoslog.Log]]:
    with tempfile.TemporaryDirectory() as place:
        broker = Broker(Path(place) / "broker", jars.BEHAVIOUR, CONFIG).start()
        try:
            with eoslog.open(Path(place) / "log", durability="os") as log:
                yield broker, log
        finally:
            broker.kill()


def capture() -> None:
    """Write the file of answers."""
    found: list[Recorded] = []
    with _pair() as (broker, log):
        for kind in KINDS:
            compare(broker, log, CAPTURED, 1, kind, record=found)
    path = write_answers(jars.BEHAVIOUR, found)
    print(path, path.stat().st_size)


def main(count: int, seed: int, kind: str = "transactions") -> int:
    """Compare, print what was met; 1 if something has no row."""
    with _pair() as (broker, log):
        met, unlisted = compare(broker, log, count, seed, kind, keep_going=True)
    print(
        f"{count} sequences of {REQUESTS} requests from seed {seed}, {kind}: "
        f"{len(unlisted)} with unlisted differences"
    )
    for row, times in met.most_common():
        print(f"{times:7d}  {row}")
    for text in unlisted[:20]:
        print(text)
    return 1 if unlisted else 0
