"""Workloads that press on one place: busy groups, open transactions, many topics.

The transactions are left open by their producers.
"""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import time
from pathlib import Path

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError, TopicAlreadyExists, UnknownTopicOrPartition
from eoslog.testing.history import Recorder
from eoslog.testing.history.recorder import values
from tests.faults.harness import Child, live, start
from tests.torture.harness import Round, Step
from tests.torture.harnesses.crowds import Transform, prepare

HUNG_FOR_MS = 1000


class Storm(Transform):
    """Five movers in one group, one of them killed or begun every tenth of a second."""

    name, goal = "storm", ("records transformed", 100_000)
    movers = ("a", "b", "c", "d", "e")
    pause_s = (0.02, 0.3)

    def sizes(self, rng: random.Random) -> tuple[int, int]:
        """Small, as most of the time goes into rebalances."""
        return 1200, 40


def hangs(child: Child, path: Path, history: Path, name: str, inst: str, seed: int) -> None:
    """Open a transaction over some partitions, report it, and end it too late."""
    rng = random.Random(seed)
    with eoslog.open(path) as log, Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        producer = recorder.producer(log, inst, linger_ms=0, transaction_timeout_ms=HUNG_FOR_MS)
        producer.begin()
        tps = [TopicPartition("out", p) for p in rng.sample(range(4), rng.randint(1, 4))]
        producer.send([(tp, f"{name}:{n}") for n, tp in enumerate(tps)])
        producer.producer.flush()
        child.tell("open", len(tps))
        time.sleep(HUNG_FOR_MS / 1000 * rng.uniform(0.5, 4))
        try:
            producer.commit()
            child.tell("committed", 1)
        except EoslogError as error:
            child.tell("refused", type(error).__name__)


def passes(child: Child, path: Path, history: Path, name: str) -> None:
    """Write after each open transaction and read until those records are seen.

    The reader is a plain consumer.
    """
    with eoslog.open(path) as log, Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        plain = recorder.producer(log)
        tps = log.partitions_of("out")
        plain.send([(tp, f"{name}:last{tp.partition}") for tp in tps])
        plain.acknowledge()
        with log.consumer("out", auto_offset_reset="earliest") as consumer:
            reading, left = (
                recorder.consumer(consumer),
                {f"{name}:last{tp.partition}" for tp in tps},
            )
            while left:
                left -= {r.value.decode() for r in reading.consume(100, 0.5)}
        child.tell("passed", 1)


class Hanging:
    """Transactions whose owners die, are suspended or end too late, and a reader.

    The reader passes all of them: those of dead owners immediately, the others at their
    timeout.
    """

    name, goal = "hanging", ("transactions left hanging", 1_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Six owners, one reader, the verdict."""
        with Round(seed) as round_:
            live(prepare, round_.path, {"out": 4}).fine()
            arguments = (round_.path, round_.history)
            owners = [
                start(hangs, *arguments, round_.name(), f"id-{n}", round_.seed()) for n in range(6)
            ]
            for owner in owners:
                if not owner.heard("open", timeout=120):
                    continue
                number = round_.rng.choice([signal.SIGKILL, signal.SIGSTOP, None])
                if number == signal.SIGSTOP:
                    owner.stop()
                elif number is not None:
                    owner.signal(number)
                round_.step.counts["transactions left hanging"] += 1
            reader = start(passes, *arguments, round_.name())
            round_.ended(reader.end())
            for owner in owners:
                owner.signal(signal.SIGCONT)
            for owner in owners:
                round_.ended(owner.end())
            return round_.verdict()


def scatter(child: Child, path: Path, seed: int, topics: int, steps: int) -> None:
    """Create, use and delete topics at random and report what was acknowledged."""
    rng = random.Random(seed)
    child.armed()
    with eoslog.open(path) as log, log.producer() as producer:
        for step in range(steps):
            name = f"t{rng.randrange(topics)}"
            try:
                if rng.random() < 0.1:
                    child.tell("deleting", name)
                    log.delete_topic(name)
                    child.tell("deleted", name)
                else:
                    value = f"{seed}:{step}"
                    child.tell("sent", [name, value])
                    producer.send(name, value.encode()).result(30)
                    child.tell("acked", [name, value])
            except UnknownTopicOrPartition:
                try:
                    log.create_topic(name, 1)
                except TopicAlreadyExists:
                    continue
            except EoslogError as error:
                child.tell("refused", type(error).__name__, str(error))
                return


DESCRIPTORS = 5
"""Of each partition that a process has open, with some to spare."""


def make_topics(child: Child, path: Path, first: int, stop: int) -> None:
    """Create these topics in one call."""
    with eoslog.open(path) as log:
        for number in range(first, stop):
            log.create_topic(f"t{number}", 1)


def contents(child: Child, path: Path, part: int, parts: int) -> None:
    """Report the content of each topic of a part, and that nothing is damaged.

    The part contains every topic of its share that was ever used.
    """
    with eoslog.open(path) as log:
        for name in log.topics()[part::parts]:
            if (path / f"{name}-0").is_dir():
                end = log.offsets(name, 0)
                found = values(log, TopicPartition(name, 0), end.log_start, end.last_stable)
                child.tell("found", [name, [value for _, value in found]])
        if parts == 1:  # a check has every partition open
            report = log.check(full=True)
            assert report.ok, f"check: {report.problems}"


def descriptors(wanted: int) -> int:
    """The descriptor limit of this process, raised to `wanted` where allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        for limit in (max(hard, wanted), hard):  # root may raise the hard limit, too
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, limit), limit))
                break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class ManyTopics:
    """A directory with thousands of topics, whose processes are killed at work.

    Args:
        topics: number of topics.
    """

    name, goal = "many topics", ("lives among many topics", 200)

    def __init__(self, topics: int = 10_000) -> None:
        """All of them in one step of eight."""
        self.topics = topics

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Run processes one after another, then find each acknowledged record once."""
        with Round(seed) as round_:
            topics = self.topics if seed % 8 == 0 else self.topics // 40
            most = (
                descriptors(topics * DESCRIPTORS) // DESCRIPTORS
            )  # that one process can have open
            for first in range(0, topics, most):
                made = start(make_topics, round_.path, first, min(first + most, topics))
                round_.ended(made.end(600))
            round_.step.counts["topics"] += topics
            # A topic: what it must hold, and what it may hold besides; forgotten when it is deleted.
            must: dict[str, list[str]] = {}
            may: dict[str, set[str]] = {}
            for _ in range(6):
                call = round_.rng.choice(
                    ["pwrite", "fsync", "fdatasync", "open", "unlink", "mkdir"]
                )
                fault = (call, "kill", round_.rng.randint(1, 150))
                life = live(scatter, round_.path, round_.seed(), topics, 60, faults=(fault,))
                round_.ended(life)
                round_.step.counts["lives among many topics"] += 1
                for what in life.told:
                    if what[0] == "deleting":
                        must.pop(what[1], None)
                    elif what[0] == "deleted":
                        may.pop(what[1], None)
                    elif what[0] == "sent":
                        may.setdefault(what[1][0], set()).add(what[1][1])
                    elif what[0] == "acked":
                        must.setdefault(what[1][0], []).append(what[1][1])
            parts = -(-topics // most)
            ends = [round_.ended(live(contents, round_.path, n, parts)) for n in range(parts)]
            found = {name: values for end in ends for name, values in end.of("found")}
            for name, kept in must.items() if not any(end.error for end in ends) else ():
                lost = [value for value in kept if value not in found.get(name, [])]
                if lost:
                    round_.step.violations.append(f"{name}: {lost} were acknowledged and are gone")
            for name, seen in found.items():
                if len(seen) != len(set(seen)) or not set(seen) <= may.get(name, set()):
                    round_.step.violations.append(f"{name} holds {seen}, {may.get(name)} were sent")
            return round_.step
