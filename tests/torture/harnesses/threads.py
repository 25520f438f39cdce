"""Several threads of one process share its log while single calls fail.

A record that was rejected for one thread must not be published, checked or flushed by another
thread as if it had been written. A thread whose call failed for good creates new clients and
continues, as a user would.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError, LogPoisoned, TopicAlreadyExists
from eoslog.storage.fs import files
from eoslog.testing.history import Recorder
from tests.faults.harness import Child, live
from tests.torture.harness import Round, Step
from tests.torture.harnesses.full import Refusals
from tests.torture.workloads.mixed import CLEANED, COMPACTED, SMALL, TOPICS, Life

THREADS, SECONDS = 4, 1.5
NEXT = {"pwrite": 12, "pread": 12}
"""Of the next calls, about how many until one is refused; of the others, of two."""
POISONING = ("fdatasync", "fsync")
"""Whose failure ends what a partition takes, and so the life: rare."""


class Thread(Life):
    """The steps of the mixed workload that share partitions, by one of the threads."""

    STEPS: ClassVar[Any] = (
        (Life.send, 16), (Life.transact, 8), (Life.transform, 3), (Life.look, 1), (Life.care, 2),
    )  # fmt: skip

    def _producer(self, name: str) -> Any:
        return super()._producer(f"{name}{self.recorder.process.rpartition('.')[2]}")

    def send(self) -> None:
        """Plain sends into one partition, by one producer for a while."""
        if self.plain is None:
            self.plain = self.recorder.producer(self.log, linger_ms=0)
        place = TopicPartition(self.rng.choice(["in", "in", "out"]), 0)
        rows = [(place, self.value()) for _ in range(self.rng.randint(1, 3))]
        self.put(self.plain, rows)
        self.plain.acknowledge()

    def flush(self) -> None:
        """Make durable what any thread wrote."""
        self.log._engine.partition("in", 0).flush()


def takes_steps(log: Any, recorder: Recorder, seed: int, place: Path, until: float) -> int:
    """How many errors a thread met, each of which ended the clients that it had."""
    rng, errors = random.Random(seed), 0
    thread = Thread(log, recorder, rng, place)
    while time.monotonic() < until:
        try:
            thread.flush() if rng.random() < 0.1 else thread.step()
        except LogPoisoned:
            break
        except (EoslogError, TimeoutError):
            errors += 1
            count = thread.count
            _close(thread)
            thread = Thread(log, recorder, rng, place)
            thread.count = count  # no value is sent twice
    _close(thread)
    return errors


def _close(thread: Thread) -> None:
    try:
        thread.close()
    except (EoslogError, TimeoutError):
        pass


def shares(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """Run concurrent threads, one of which has calls that fail."""
    rng = random.Random(seed)
    failed: list[BaseException] = []
    sys.setswitchinterval(1e-5)  # a thread that met an error is soon overtaken
    try:
        with eoslog.open(path) as log:
            for topic, partitions in TOPICS.items():
                try:
                    config = SMALL | (CLEANED if topic in COMPACTED else {})
                    log.create_topic(topic, partitions, config)
                except TopicAlreadyExists:
                    pass
            until = time.monotonic() + SECONDS

            def work(number: int, its_seed: int) -> None:
                own = f"{name}.t{number}"
                try:
                    with Recorder(str(history / f"{own}.jsonl"), own) as recorder:
                        errors = takes_steps(log, recorder, its_seed, history.parent, until)
                    child.tell("errors", errors)
                except BaseException as error:
                    failed.append(error)

            threads = [
                threading.Thread(target=work, args=(number, rng.randrange(1 << 30)))
                for number in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            while time.monotonic() < until:
                time.sleep(rng.uniform(0, 0.06))
                others = [c for c in Refusals.ERRORS if c not in POISONING or rng.random() < 0.02]
                for call in {"pwrite", *rng.sample(others, rng.randint(0, 2))}:
                    error = rng.choice(Refusals.ERRORS[call])
                    files.arm_failpoint(call, error, rng.randint(1, NEXT.get(call, 2)))
                    child.tell("armed", call)
            for thread in threads:
                thread.join()
            files.disarm_failpoints()
    except EoslogError as error:
        child.tell("refused", type(error).__name__, str(error))
    if failed:
        raise failed[0]


class Threads:
    """Three process runs of four threads per step."""

    name, goal = "threads", ("refused calls", 5_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Run processes one after another, then check the result."""
        with Round(seed) as round_:
            for _ in range(3):
                life = live(shares, round_.path, round_.history, round_.name(), round_.seed())
                round_.ended(life)
                round_.step.counts["refused calls"] += len(life.of("armed"))
                round_.step.counts["errors met"] += sum(life.of("errors"))
            return round_.verdict(crowded=True)
