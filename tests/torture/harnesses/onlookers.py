"""Read-only logs that were opened without a writer and are kept open.

Writers come, go and are killed in the meantime. A read-only reader has the log as it was at its
opening. If a writer has come, the reader gets IllegalState and opens the log again, at times
while the earlier view is still open. Each record that it reads was in the log, and the records
that were acknowledged before its opening are there.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import eoslog
from eoslog.errors import LockTimeout
from eoslog.storage.directory.session import WriterCame
from eoslog.testing.history import Recorder
from eoslog.testing.history.recorder import text
from tests.faults.harness import Child
from tests.torture.harnesses.crowds import WITHIN_AN_APPEND
from tests.torture.harnesses.joins import AWAY_S, VISITS, Joins, writes
from tests.torture.harnesses.stops import may_wait
from tests.torture.workloads.mixed import TOPICS


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
            late = self.log._engine.outdated
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
                        if not may_wait(str(error)):
                            raise
                    child.tell("visit", "onlooker")


class Onlookers(Joins):
    """One occasional writer, killed or stopped in appends, and two read-only readers."""

    roles, counted = (writes, onlooks, onlooks), (onlooks,)
    wakes = 0.2
    name, goal = "onlookers", ("onlookers", 5_000)

    def fault(self, rng: random.Random, role: Any) -> tuple[str, str, int]:
        """Half of the writers' in mid-append."""
        if role is writes and rng.random() < 0.5:
            return "point", rng.choice(["kill", "stop"]), rng.choice(WITHIN_AN_APPEND)
        return super().fault(rng, role)
