"""One random sequence of requests to two sides, whose answers must be the same.

A sequence is built by `random.Random(seed)` of its own number and of what the sides answered. A
difference has a row in `differences.py` and `docs/reference/kafka-compatibility.md`. Otherwise
it is an error that names the seed and shows the sequence.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.kafka.differential.differences import row_for
from tests.kafka.differential.sides import NO_ONE, PARTITIONS, Answer, Side

REQUESTS = 30
Identity = tuple[int, int]


class Unlisted(AssertionError):
    """A difference without a row."""


@dataclass
class Step:
    """One request, and what both answered."""

    request: str
    arguments: tuple[Any, ...]
    kafka: Answer
    ours: Answer

    def __str__(self) -> str:
        same = "" if self.kafka == self.ours else f"   eoslog {self.ours}"
        return f"{self.request}{self.arguments} -> {self.kafka}{same}"


@dataclass
class Identities:
    """What a name was given so far: pairs of (Kafka's identity, eoslog's)."""

    given: list[tuple[Identity, Identity]] = field(default_factory=lambda: [(NO_ONE, NO_ONE)])

    def pick(self, draw: random.Random) -> tuple[Identity, Identity]:
        """Mostly the last one, at times an older one or one that was never given."""
        theirs, ours = self.given[-1] if draw.random() < 0.85 else draw.choice(self.given)
        if theirs != NO_ONE and draw.random() < 0.04:
            return (theirs[0], theirs[1] + 1), (ours[0], ours[1] + 1)
        return theirs, ours


class Sequence:
    """One sequence on both sides."""

    prefix = "d"
    """Of its transactional ids and its group: no two kinds share one."""

    def __init__(self, kafka: Side, ours: Side, seed: int) -> None:
        self.kafka, self.ours, self.seed = kafka, ours, seed
        self.draw = random.Random(seed)
        self.names = [f"{self.prefix}{seed}-a", f"{self.prefix}{seed}-b"]
        self.group = f"{self.prefix}{seed}"
        self.who: dict[str | None, Identities] = {
            name: Identities() for name in (*self.names, None)
        }
        self.next: dict[tuple[Identity, int], int] = {}
        self.steps: list[Step] = []
        self.rows: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """Put all requests; the rows of the differences met.

        Raises:
            Unlisted: a difference that has no row.
        """
        self.kafka.begin()
        self.ours.begin()
        for name in self.who:
            self._init(name)
        alive = True
        while alive and len(self.steps) < REQUESTS:
            alive = self._one()
        self._end_open()
        if alive:
            self._look()
        self._leave_all()
        return self.rows

    def give_up(self) -> None:
        """Clean up after an error, so that nothing blocks the next sequence."""
        self._end_open()
        self._leave_all()

    def _end_open(self) -> None:
        for name in self.names:
            for side in (self.kafka, self.ours):
                side.init(name, NO_ONE)

    def _leave_all(self) -> None:
        """There is no group to leave."""

    def _note(self, request: str, arguments: tuple[Any, ...], kafka: Answer, ours: Answer) -> bool:
        """Whether to continue: both agree, or the difference changes no state."""
        step = Step(request, arguments, kafka, ours)
        self.steps.append(step)
        if kafka == ours:
            return True
        row = row_for(step, self.steps)
        if row is None:
            lines = "\n".join(f"  {step}" for step in self.steps)
            raise Unlisted(f"seed {self.seed}: an unlisted difference, the last of\n{lines}")
        self.rows[row.id] += 1
        return row.goes_on

    def _requests(self) -> dict[Callable[[], bool], int]:
        """What is drawn from, with its weight."""
        return {
            self._produce: 10, self._end: 4, self._commit_offset: 2, self._init_again: 2, self._add_partition: 1,
            self._add_offsets: 1, self._offset: 1, self._transaction: 2, self._partition: 3,
        }  # fmt: skip

    def _one(self) -> bool:
        requests = self._requests()
        (request,) = self.draw.choices(list(requests), list(requests.values()))
        return request()

    def _name(self) -> str:
        return self.draw.choice(self.names)

    def _init(self, name: str | None, who: tuple[Identity, Identity] = (NO_ONE, NO_ONE)) -> bool:
        kafka, theirs = self.kafka.init(name, who[0])
        ours, mine = self.ours.init(name, who[1])
        if theirs != NO_ONE and mine != NO_ONE:
            self.who[name].given.append((theirs, mine))
        if not self._note("init", (name, who[0]), kafka, ours):
            return False
        if name is None or kafka[0] == 0:
            return True
        # What a refused init did all the same.
        return self._note(
            "transaction", (name,), self.kafka.transaction(name), self.ours.transaction(name)
        )

    def _init_again(self) -> bool:
        name = self._name()
        again = self.draw.random() < 0.5
        return self._init(name, self.who[name].pick(self.draw) if again else (NO_ONE, NO_ONE))

    def _produce(self) -> bool:
        name = None if self.draw.random() < 0.2 else self._name()
        theirs, mine = self.who[name].pick(self.draw)
        if theirs == NO_ONE:
            return True  # no client sends a batch before it has an identity
        partition = self.draw.randrange(PARTITIONS)
        at = self.next.get((theirs, partition), 0)
        kind = self.draw.random()
        sequence = (
            at if kind < 0.75 else max(0, at - self.draw.randrange(1, 4)) if kind < 0.9 else at + 2
        )
        values = [b"%d-%d" % (len(self.steps), n) for n in range(self.draw.randrange(1, 4))]
        kafka = self.kafka.produce(name, theirs, partition, sequence, values)
        ours = self.ours.produce(name, mine, partition, sequence, values)
        if kafka[0] == 0 and sequence >= at:
            self.next[theirs, partition] = sequence + len(values)
        return self._note("produce", (name, theirs, partition, sequence, len(values)), kafka, ours)

    def _end(self) -> bool:
        name = self._name()
        theirs, mine = self.who[name].pick(self.draw)
        commit = self.draw.random() < 0.6
        kafka, given = self.kafka.end(name, theirs, commit)
        ours, taken = self.ours.end(name, mine, commit)
        if given != NO_ONE and taken != NO_ONE:
            self.who[name].given.append((given, taken))
        return self._note("end", (name, theirs, commit), kafka, ours)

    def _add_partition(self) -> bool:
        name, partition = self._name(), self.draw.randrange(PARTITIONS)
        theirs, mine = self.who[name].pick(self.draw)
        return self._note(
            "add_partition", (name, theirs, partition),
            self.kafka.add_partition(name, theirs, partition), self.ours.add_partition(name, mine, partition),
        )  # fmt: skip

    def _add_offsets(self) -> bool:
        name = self._name()
        theirs, mine = self.who[name].pick(self.draw)
        return self._note(
            "add_offsets", (name, theirs),
            self.kafka.add_offsets(name, theirs, self.group), self.ours.add_offsets(name, mine, self.group),
        )  # fmt: skip

    def _commit_offset(self) -> bool:
        name, offset = self._name(), self.draw.randrange(100)
        theirs, mine = self.who[name].pick(self.draw)
        return self._note(
            "commit_offset", (name, theirs, offset),
            self.kafka.commit_offset(name, theirs, self.group, offset),
            self.ours.commit_offset(name, mine, self.group, offset),
        )  # fmt: skip

    def _offset(self) -> bool:
        return self._note("offset", (), self.kafka.offset(self.group), self.ours.offset(self.group))

    def _transaction(self) -> bool:
        name = self._name()
        return self._note(
            "transaction", (name,), self.kafka.transaction(name), self.ours.transaction(name)
        )

    def _partition(self) -> bool:
        number = self.draw.randrange(PARTITIONS)
        request = self.draw.choice(("producers", "ends", "committed"))
        return self._note(
            request,
            (number,),
            getattr(self.kafka, request)(number),
            getattr(self.ours, request)(number),
        )

    def _look(self) -> None:
        """At the end, everything that can be seen."""
        self._offset()
        for number in range(PARTITIONS):
            for request in ("producers", "ends", "committed"):
                self._note(
                    request,
                    (number,),
                    getattr(self.kafka, request)(number),
                    getattr(self.ours, request)(number),
                )
