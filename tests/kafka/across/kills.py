"""Run the programs under kills, and count what is lost and duplicated.

A program that is killed runs again, as under a supervisor, and completes its work before the next
kill. The clients of `order` send a request again until it is answered.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from confluent_kafka import Producer

import eoslog
from tests.kafka.across.places import PLACES, Kill
from tests.kafka.across.schema import connect, create
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics, librdkafka_rows

AT_ONCE = 4
"""Requests, rows or records between two kills."""


@dataclass(frozen=True, slots=True)
class Count:
    """What the kills of one program leave.

    Attributes:
        kills: the number of processes that died.
        expected: the number of things that must be there once.
        lost: how many are not there.
        duplicated: how many are there too often.
    """

    kills: int
    expected: int
    lost: int
    duplicated: int


class Side(Protocol):
    """A messaging system."""

    module: str

    def create_topic(self, topic: str) -> None:
        """Create a topic with one partition."""

    def arguments(self) -> dict[str, object]:
        """Say what the programs need to find it."""

    def write(self, topic: str, values: Sequence[str]) -> None:
        """Append the values, durably."""

    def values(self, topic: str) -> list[str]:
        """All committed values of a topic."""


class KafkaSide:
    """A real broker."""

    module = "tests.kafka.across.with_kafka"

    def __init__(self, broker: Broker) -> None:
        """Keep the broker, which runs."""
        self._broker = broker

    def create_topic(self, topic: str) -> None:
        create_topics(self._broker, {topic: 1})

    def arguments(self) -> dict[str, object]:
        return {"servers": self._broker.bootstrap}

    def write(self, topic: str, values: Sequence[str]) -> None:
        producer = Producer({"bootstrap.servers": self._broker.bootstrap})
        for value in values:
            producer.produce(topic, value)
        assert not producer.flush(30)

    def values(self, topic: str) -> list[str]:
        rows = librdkafka_rows(self._broker, {topic: 1}, "read_committed")[topic]
        return [(row.value or b"").decode() for row in rows]


class EoslogSide:
    """A directory."""

    module = "tests.kafka.across.with_eoslog"

    def __init__(self, path: Path) -> None:
        """Keep the path."""
        self._path = str(path)

    def create_topic(self, topic: str) -> None:
        with eoslog.open(self._path) as log:
            log.create_topic(topic)

    def arguments(self) -> dict[str, object]:
        return {"log": self._path}

    def write(self, topic: str, values: Sequence[str]) -> None:
        with eoslog.open(self._path) as log, log.producer() as producer:
            for value in values:
                producer.produce(topic, value)

    def values(self, topic: str) -> list[str]:
        with eoslog.open(self._path) as log:
            return [record.value.decode() for record in log.read(topic)]


CONTENDERS: dict[str, dict[str, tuple[str, str]]] = {
    "order": {
        "Kafka, a retry is skipped": ("kafka", "order"),
        "Kafka, a retry is sent again": ("kafka", "order, sent again"),
        "eoslog, log.atomic": ("eoslog", "order"),
    },
    "outbox": {
        "Kafka, send and delete": ("kafka", "outbox"),
        "eoslog, OutboxRelay": ("eoslog", "outbox"),
    },
    "sink": {
        "Kafka, commit after the rows": ("kafka", "sink"),
        "eoslog, log.sink": ("eoslog", "sink"),
    },
}
"""Side and name of the program, by what it does and by whom."""


class Run:
    """One program of one side, under kills.

    Args:
        side: where the messages are.
        kind: a key of `PLACES`.
        program: its name in the side's module.
        folder: for its database; the name is that of its topic.
        seed: of the requests at which it dies.
    """

    def __init__(self, side: Side, kind: str, program: str, folder: Path, seed: int) -> None:
        self._side, self._kind, self._program, self._topic = side, kind, program, folder.name
        self._database = folder / "database.sqlite"
        self._random = random.Random(f"{kind} {seed}")
        self._waiting: list[int] = []
        self._made = 0
        folder.mkdir()
        create(str(self._database))
        side.create_topic(self._topic)

    def under(self, kills: int) -> dict[str, Count]:
        """Die `kills` times at each place, and count after each place.

        Returns:
            The counts, by place.
        """
        found = {}
        before = Counter[str]()
        for place in PLACES[self._kind]:
            first = self._made
            for _ in range(kills):
                self._more()
                # A batch comes to the place once, a request at a time once for each.
                nth = self._random.randint(1, AT_ONCE) if self._kind == "order" else 1
                code = self._start(Kill(place, nth))
                assert code == -signal.SIGKILL, f"{self._program} at {place!r}: {code}"
                assert self._start(Kill()) == 0
            now = self._tally()
            found[place] = Count(
                kills, self._made - first, now["lost"] - before["lost"],
                now["duplicated"] - before["duplicated"],
            )  # fmt: skip
            before = now
        return found

    def _more(self) -> None:
        numbers = range(self._made, self._made + AT_ONCE)
        self._made += AT_ONCE
        if self._kind == "order":
            self._waiting += numbers
        elif self._kind == "outbox":
            connection = connect(str(self._database))
            connection.execute("begin immediate")
            rows = [(self._topic, str(number)) for number in numbers]
            connection.executemany("insert into outbox (topic, value) values (?, ?)", rows)
            connection.execute("commit")
            connection.close()
        else:
            self._side.write(self._topic, [str(number) for number in numbers])

    def _start(self, kill: Kill) -> int:
        given = {
            "database": str(self._database), "topic": self._topic, "kill": kill,
            "numbers": self._waiting, **self._side.arguments(),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", self._side.module, self._program, json.dumps(given)],
            stdout=subprocess.PIPE, text=True, check=False, timeout=120,
        )  # fmt: skip
        answered = set(map(int, done.stdout.split()))
        self._waiting = [number for number in self._waiting if number not in answered]
        return done.returncode

    def _tally(self) -> Counter[str]:
        expected = {str(number) for number in range(self._made)}
        if self._kind == "order":
            assert set(self._rows("select number from orders")) == expected
        if self._kind == "sink":
            found = self._rows("select value from applied")
        else:
            found = self._side.values(self._topic)
        counts = Counter(found)
        assert set(counts) <= expected
        return Counter(lost=len(expected) - len(counts), duplicated=len(found) - len(counts))

    def _rows(self, select: str) -> list[str]:
        connection = connect(str(self._database))
        try:
            return [str(row[0]) for row in connection.execute(select)]
        finally:
            connection.close()


Counts = dict[str, dict[str, dict[str, Count]]]
"""Counts by kind of program, by contender, by place."""


def compare(
    broker: Broker, scratch: Path, kills: int, seed: int, kinds: Iterable[str] = tuple(PLACES),
    progress: Callable[[str], None] = lambda line: None,
) -> Counts:  # fmt: skip
    """Let all contenders of each kind die, `kills` times at each place."""
    sides: dict[str, Side] = {"kafka": KafkaSide(broker), "eoslog": EoslogSide(scratch / "log")}
    found: Counts = {}
    for kind in kinds:
        for contender, (side, program) in CONTENDERS[kind].items():
            folder = scratch / f"{side}-{program.replace(', ', '-').replace(' ', '-')}"
            counts = Run(sides[side], kind, program, folder, seed).under(kills)
            found.setdefault(kind, {})[contender] = counts
            for place, count in counts.items():
                progress(f"{kind}, {contender}, {place}: {count}")
    return found
