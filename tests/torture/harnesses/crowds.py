"""Many concurrent processes, killed at random.

The processes are producers, and workers that consume, transform and produce.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition
from eoslog.errors import KafkaError
from eoslog.storage.fs import files
from eoslog.testing.history import Recorder
from eoslog.testing.history.recorder import values
from tests.faults.harness import Child, Running, live, start
from tests.torture.harness import Round, Step

PARTITIONS = 4
WITHIN_AN_APPEND = range(1, 6)
"""Points of the core from the mark that it is busy to the new log end: `_core/partition/partition_state.pxi`."""


def prepare(child: Child, path: Path, topics: dict[str, int], segment: int = 65536) -> None:
    """The directory with its topics."""
    with eoslog.open(path) as log:
        for topic, partitions in topics.items():
            log.create_topic(topic, partitions, {"segment.bytes": str(segment)})


def feed(child: Child, path: Path, history: Path, name: str, each: int, batch: int) -> None:
    """Write the numbers 0.. into every partition of `in`, after the committed ones."""
    with eoslog.open(path) as log, Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        producer = recorder.producer(log, "feeder")
        tps = [TopicPartition("in", p) for p in range(PARTITIONS)]
        nexts = {tp: sum(1 for _ in _committed(log, tp)) for tp in tps}
        while any(following < each for following in nexts.values()):
            producer.begin()
            rows = []
            for tp in tps:
                upper = min(each, nexts[tp] + batch // PARTITIONS)
                # A value of a lost transaction is sent again by another life, under another name.
                rows += [(tp, f"{name}/{tp.partition}:{n}") for n in range(nexts[tp], upper)]
                nexts[tp] = upper
            producer.send(rows)
            producer.commit()
        producer.close()


def move(child: Child, path: Path, history: Path, name: str, batch: int) -> None:
    """Consume, transform and produce to the same partition of `out`.

    It ends when the process is killed or a call is rejected.
    """
    with eoslog.open(path) as log, Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        producer = recorder.producer(log, f"mover-{name.split('.')[0]}")
        settings: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
        with log.consumer(group_id="g", **settings) as consumer:
            reading = recorder.consumer(consumer)
            # A partition that returns from another member resumes after the records that the
            # member moved.
            consumer.subscribe(["in"], on_assign=lambda *_: reading.moved())
            while True:
                txn = producer.begin()
                records = reading.consume(batch, 0.5, txn)
                if not records:
                    producer.abort()
                    continue
                spans: dict[TopicPartition, tuple[int, int]] = {}
                rows = []
                for r in records:
                    tp = TopicPartition("in", r.partition)
                    spans[tp] = (spans.get(tp, (r.offset, 0))[0], r.offset + 1)
                    rows.append((TopicPartition("out", r.partition), f"{name}!{r.value.decode()}"))
                producer.send(rows)
                try:
                    producer.commit(spans, consumer.group_metadata())
                except (
                    KafkaError
                ) as error:  # the group rebalanced, or this process is a zombie: start again
                    child.tell("refused", type(error).__name__)
                    return


def progress(child: Child, path: Path) -> None:
    """Report how many committed outputs there are."""
    with eoslog.open(path) as log:
        child.tell("count", sum(1 for tp in log.partitions_of("out") for _ in _committed(log, tp)))


def outputs(child: Child, path: Path) -> None:
    """Tell the numbers in each partition of `out`, in order."""
    with eoslog.open(path) as log:
        for tp in log.partitions_of("out"):
            child.tell(
                "numbers", [int(value.rpartition(":")[2]) for _, value in _committed(log, tp)]
            )


def _committed(log: Any, tp: TopicPartition) -> Any:
    return values(log, tp, 0, log.offsets(tp.topic, tp.partition).last_stable)


class Transform:
    """The output equals the input, each record once and in order, despite kills.

    Both sides are killed about once per second. One step in four has transactions of 750
    records, as Kafka's own test. That step has 100,000 records in all.
    """

    name, goal = "transform", ("records transformed", 1_000_000)
    movers: tuple[str, ...] = ("a", "b")
    pause_s = (0.2, 1.5)
    """Between two kills."""

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def sizes(self, rng: random.Random) -> tuple[int, int]:
        """Records in all, and a transaction."""
        return (15_000, 750) if rng.random() < 0.25 else (4000, 200)

    def step(self, seed: int) -> Step:
        """Feed and move until all is there."""
        with Round(seed) as round_:
            total, batch = self.sizes(round_.rng)
            each = total // PARTITIONS
            path, history, rng = round_.path, round_.history, round_.rng
            live(prepare, path, {"in": PARTITIONS, "out": PARTITIONS}).fine()
            lives = itertools.count()

            def begin(role: str) -> Running:
                name = f"{role}.{next(lives)}"
                if role == "feed":
                    return start(feed, path, history, name, each, batch)
                return start(move, path, history, name, batch)

            running = {role: begin(role) for role in ("feed", *self.movers)}
            # If the kills are so frequent that no process makes progress, the kills stop at
            # this time.
            calm = time.monotonic() + 20 + total / 50
            deadline = calm + 200
            while True:
                time.sleep(rng.uniform(*self.pause_s))
                for role, process in list(running.items()):
                    if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                        round_.ended(process.end())
                        running[role] = begin(role)
                if live(progress, path).of("count")[-1:] == [each * PARTITIONS]:
                    break
                if time.monotonic() > deadline:
                    round_.step.violations.append("the outputs did not come to their end")
                    break
                if time.monotonic() < calm:
                    victim = rng.choice(list(running))
                    round_.ended(running[victim].kill())
                    running[victim] = begin(victim)
            for process in running.values():
                round_.ended(process.kill())
            step = round_.verdict()
            for numbers in live(outputs, path).of("numbers"):
                if numbers != list(range(each)):
                    step.violations.append(f"outputs are {numbers[:20]}..., not 0 to {each - 1}")
            step.counts["records transformed"] += each * PARTITIONS
            return step


def pour(
    child: Child, path: Path, history: Path, name: str, inst: str, partitions: int, seed: int
) -> None:
    """Send and run transactions until killed, half of the runs in mid-append.

    A process that is killed in mid-append leaves records that it has not published. Other
    processes encounter them.
    """
    rng, numbers = random.Random(seed), itertools.count()
    stops_in = rng.choice((-1, rng.randrange(10)))
    with eoslog.open(path) as log, Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        plain = recorder.producer(log)
        producer = recorder.producer(log, inst)
        for count in itertools.count():
            if count == stops_in:
                files.arm_failpoint("point", "stop", rng.choice(WITHIN_AN_APPEND))
            tps = [TopicPartition("out", p) for p in rng.sample(range(partitions), 2)]
            rows = [(tp, f"{name}:{next(numbers)}") for tp in tps for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.4:
                plain.send(rows)
                plain.acknowledge()
            else:
                producer.begin()
                producer.send(rows)
                producer.abort() if rng.random() < 0.2 else producer.commit()


class Producers:
    """Many processes on 2 or 16 partitions, some of them killed and restarted.

    There are ten processes, and 64 in one step of six.
    """

    name, goal = "producers", ("kills", 2_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Pour for some seconds."""
        with Round(seed) as round_:
            partitions = round_.rng.choice((2, 16))
            processes, seconds = (64, 12) if round_.rng.random() < 1 / 6 else (10, 4)
            live(prepare, round_.path, {"out": partitions}, 4096 * partitions).fine()
            lives = itertools.count()

            def begin(inst: int) -> Running:
                name = f"p{inst}.{next(lives)}"
                where = (round_.path, round_.history, name, f"id-{inst}")
                return start(pour, *where, partitions, round_.seed())

            running = {inst: begin(inst) for inst in range(processes)}
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(round_.rng.uniform(0.01, 0.1))
                victim = round_.rng.randrange(processes)
                round_.ended(running[victim].kill())
                running[victim] = begin(victim)
            for process in running.values():
                round_.ended(process.kill())
            return round_.verdict()
