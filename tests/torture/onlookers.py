"""Read-only logs that were opened while nobody wrote, and are kept while writers come, go and are killed.

An onlooker has the log as it was when it came, or is told of writers (IllegalState) and opens it anew, now
and then beside the one that it had. Nothing that it reads is a record that was never in the log, and what
was acknowledged before it came is there.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import eoslog
from eoslog.errors import LockTimeout
from eoslog.history import Recorder
from eoslog.history.recorder import text
from eoslog.storage.session import WriterCame
from tests.faults.harness import Child
from tests.torture.crowds import WITHIN_AN_APPEND
from tests.torture.joins import AWAY_S, VISITS, Joins, writes
from tests.torture.mixed import TOPICS
from tests.torture.stops import ALLOWED


class Onlooker:
    """A read-only log, and a consumer of all that it has."""

    def __init__(self, path: Path, recorder: Recorder, stack: contextlib.ExitStack) -> None:
        self.recorder, self.came = recorder, time.monotonic_ns()
        self.log = stack.enter_context(eoslog.open(path, read_only=True))
        self.consumer = stack.enter_context(self.log.consumer(auto_offset_reset="earliest"))
        self.reading = recorder.consumer(self.consumer)
        self.consumer.assign([tp for topic in TOPICS for tp in self.log.partitions_of(topic)])

    def look(self, rng: random.Random) -> None:
        """Once, in one of the ways there are."""
        topic, chance = rng.choice(list(TOPICS)), rng.random()
        if chance < 0.4:
            self.recorder.scan(self.log, topic, since=self.came)
        elif chance < 0.6:
            reads = [
                [f"{r.topic}-{r.partition}", r.offset, text(r.value)] for r in self.log.read(topic)
            ]
            self.recorder.write(
                "poll", consumer=self.recorder.name(), isolation="read_committed", start=self.came,
                reads=reads,
            )  # fmt: skip
        elif chance < 0.7:
            missing = set(TOPICS) - set(self.log.topics())
            assert not missing, f"no topics {missing}"
        else:
            late = self.log.engine.outdated
            read = self.reading.consume(rng.choice([1, 100]), rng.choice([0, 0.03]))
            assert read or not late, "waited at the end of what it had, and was not told of writers"


def onlooks(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """Come, look for a while, come again."""
    rng = random.Random(seed)
    with Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        child.armed()
        for _ in range(VISITS):
            time.sleep(rng.uniform(0, AWAY_S))
            with contextlib.ExitStack() as stack:
                kept: list[Any] = []
                for _ in range(rng.randint(1, 3)):
                    try:
                        kept.append(Onlooker(path, recorder, stack))
                        for _ in range(rng.randint(1, 12)):
                            time.sleep(rng.choice([0, rng.uniform(0, 2 * AWAY_S)]))
                            rng.choice([kept[-1], kept[-1], *kept]).look(rng)
                    except WriterCame as error:
                        child.tell("refused", type(error).__name__, str(error))
                    except LockTimeout as error:
                        child.tell("refused", type(error).__name__, str(error))
                        if not str(error).endswith(ALLOWED):
                            raise
                    child.tell("visit", "onlooker")


class Onlookers(Joins):
    """One who writes now and then, killed or stopped in an append too, and two who look on."""

    roles, counted = (writes, onlooks, onlooks), (onlooks,)
    wakes = 0.2
    name, goal = "onlookers", ("onlookers", 5_000)

    def fault(self, rng: random.Random, role: Any) -> tuple[str, str, int]:
        """Half of the writers' in mid-append."""
        if role is writes and rng.random() < 0.5:
            return "point", rng.choice(["kill", "stop"]), rng.choice(WITHIN_AN_APPEND)
        return super().fault(rng, role)
