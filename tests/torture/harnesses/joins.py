"""A directory that processes open and close all the time, down to the last one.

Writers and read-only readers each come many times, do little, leave, and stay away for about as
long. Often one process or none has the directory open. The processes are suspended for a moment
before locks that joining and leaving take, and are killed anywhere. Every later process must
find what a writer got acknowledged.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition
from eoslog.errors import LockTimeout, TopicAlreadyExists
from eoslog.storage.directory.session import CLEAN_SHUTDOWN_FILE, WriterCame
from eoslog.storage.fs import files
from eoslog.testing.history import Recorder
from tests.faults.harness import Child, Running, live, start
from tests.torture.harness import Round, Step
from tests.torture.harnesses.stops import may_wait
from tests.torture.workloads.mixed import SMALL, TOPICS

VISITS = 30
AWAY_S = 0.03
CALLS = {"open": 400, "fsync": 150, "fdatasync": 60, "rename": 60, "unlink": 90,
         "pwrite": 200, "close.alone": 4, "log.rolled": 6}  # fmt: skip
"""Calls and failpoints, and about how many of them come in a life of some visits."""
FEW = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
JOINING = 4
"""Locks that are asked for until a session is joined or begun."""


def stays_away(rng: random.Random) -> None:
    """Wait until the next visit.

    A process may be suspended while it joins or leaves. Its parent resumes it.
    """
    time.sleep(rng.uniform(0, AWAY_S))
    if rng.random() < 0.4:
        files.arm_failpoint("lock", "stop", rng.randint(1, JOINING))
    if rng.random() < 0.4:
        files.arm_failpoint("close.left", "stop")


def writes(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """Come, write a little or nothing, leave; again until the end, or until a fault."""
    rng, numbers = random.Random(seed), itertools.count()
    with Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        child.armed()
        for _ in range(VISITS):
            stays_away(rng)
            try:
                with eoslog.open(path) as log:
                    if rng.random() < 0.6:
                        plain = recorder.producer(log, linger_ms=0)
                        tp = TopicPartition("in", 0)
                        plain.send([(tp, f"{name}:{next(numbers)}") for _ in range(3)])
                        plain.acknowledge()
                    if rng.random() < 0.2:
                        producer = recorder.producer(log, name.split(".")[0], linger_ms=0)
                        producer.begin()
                        tps = [TopicPartition("out", p) for p in range(TOPICS["out"])]
                        producer.send([(tp, f"{name}:{next(numbers)}") for tp in tps])
                        producer.abort() if rng.random() < 0.25 else producer.commit()
                    if rng.random() < 0.1:
                        recorder.scan(log, "in")
                    # While this process has the directory open, no other process is the last
                    # one.
                    assert not (path / CLEAN_SHUTDOWN_FILE).exists(), "marked clean under a writer"
                child.tell("visit", "writer")
            except LockTimeout as error:  # a suspended process keeps others waiting; they try again
                child.tell("refused", type(error).__name__, str(error))


def looks(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """Come as a reader, read all records and leave, many times.

    While no process writes, the content is fixed from the moment the reader comes, and counts
    from then on.
    """
    rng = random.Random(seed)
    with Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        child.armed()
        for _ in range(VISITS):
            stays_away(rng)
            came = time.monotonic_ns()
            try:
                with eoslog.open(path, read_only=True) as log:
                    for _ in range(rng.randint(1, 3)):
                        for topic in rng.sample(("in", "in", "out"), 2):
                            recorder.scan(log, topic, since=came)
                child.tell("visit", "reader")
            except (
                WriterCame
            ) as error:  # a writer came after this reader, and the reader gets the error
                child.tell("refused", type(error).__name__, str(error))
            except LockTimeout as error:
                child.tell("refused", type(error).__name__, str(error))
                if not may_wait(str(error)):
                    raise


def founded(child: Child, path: Path) -> None:
    """Create the directory with its topics.

    It has few internal partitions, so that recovery after an unclean end is quick.
    """
    with eoslog.open(path, FEW) as log:
        for topic, partitions in TOPICS.items():
            with contextlib.suppress(TopicAlreadyExists):
                log.create_topic(topic, partitions, SMALL)


class Joins:
    """Two writers and a reader that come and go, are killed, and start again."""

    roles: tuple[Any, ...] = (writes, writes, looks)
    counted = (writes, looks)
    """Those whose visits are counted."""
    wakes = 1.0
    """How probable it is, about each hundredth of a second, that who stands still goes on."""

    name, goal = "joins", ("visits", 20_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def fault(self, rng: random.Random, role: Any) -> tuple[str, str, int]:
        """Where a life ends."""
        fault = rng.choice(list(CALLS))
        action = "kill" if "." in fault else rng.choice(["kill", "kill-after"])
        return fault, action, rng.randint(1, CALLS[fault])

    def step(self, seed: int) -> Step:
        """Some seconds of coming and going, the verdict."""
        with Round(seed) as round_:
            rng = round_.rng
            live(founded, round_.path).fine()
            lives = itertools.count()

            def begin(role: int) -> Running:
                faults = (self.fault(rng, self.roles[role]),)
                return start(
                    self.roles[role], round_.path, round_.history, f"w{role}.{next(lives)}",
                    round_.seed(), faults=faults if rng.random() < 0.7 else (),
                )  # fmt: skip

            def end(role: int, running: Running) -> None:
                told = round_.ended(running.end()).of("visit")
                if self.roles[role] in self.counted:
                    round_.step.counts[self.goal[0]] += len(told)

            running = {role: begin(role) for role in range(len(self.roles))}
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                time.sleep(rng.uniform(0, 0.02))
                for role, process in running.items():
                    if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                        end(role, process)
                        running[role] = begin(role)
                    else:
                        if rng.random() < 0.005:
                            process.signal(signal.SIGKILL)
                        elif rng.random() < self.wakes:
                            process.signal(signal.SIGCONT)
            for role, process in running.items():
                process.signal(signal.SIGKILL)
                end(role, process)
            return round_.verdict()
