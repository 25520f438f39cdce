"""SIGKILL in named producers that send a file with publishing ids repeatedly.

A life sends some of the file in its own transactions or in the program's, aborts some of these, and
loses acknowledgements. It is killed at a named step, at a write or at a random time, or a second
process takes its name over. In the end, each partition has each id once, in order, and the last ids
are those of the last records.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import eoslog
from tests.faults.harness import CALLS, Child, Life, Running, live, start
from tests.torture.harness import Round, Step, excerpt

STEPS = ("ids.written",)
"""Kills of the other harnesses are at these steps too."""
_TXN = ("txn.init.appended", "txn.added", "txn.flushed", "txn.prepared", "txn.decided", "txn.marked",
        "txn.completed", "txn.init.durable", "producer.ack_lost")  # fmt: skip
LATE_LOCKS = (20, 250)
"""The lock at which a process is killed that does not come to its fault before."""
PARTITIONS, RECORDS, LIVES = 8, 160, 10
NAME = "relay"
FENCED = (
    eoslog.errors.ProducerFenced, eoslog.errors.InvalidTxnState, eoslog.errors.InvalidProducerEpoch,
)  # fmt: skip
"""A commit of the program's own gets Kafka's codes while the name is taken over."""


def prepare(_: Child, path: Path) -> None:
    """The empty target."""
    with eoslog.open(path) as log:
        log.create_topic("t", PARTITIONS, {"segment.bytes": "4096"})


def relay(child: Child, path: Path, seed: int) -> None:
    """Send the file from the first id that may be missing, or from an earlier one."""
    rng = random.Random(seed)
    linger = rng.choice([0, 1, 20])
    with eoslog.open(path) as log:
        producer = log.producer(name=NAME, linger_ms=linger, retry_backoff_ms=1)
        child.armed()
        last = [log.last_publishing_id(NAME, "t", number) for number in range(PARTITIONS)]
        begin = rng.choice([0, min(-1 if number is None else number for number in last) + 1])
        try:
            if rng.random() < 0.5:
                own(producer, begin, rng)
            else:
                program(producer, begin, rng)
            producer.close()
        except FENCED:
            child.tell("fenced", True)
        finally:
            close(producer)


def close(producer: Any) -> None:
    """Close a producer that may have failed."""
    try:
        producer.close()
    except eoslog.EoslogError:
        pass  # `relay` has raised the first error


def put(producer: Any, number: int, value: bytes | None = None) -> None:
    """Send one record of the file."""
    value = b"%d" % number if value is None else value
    producer.produce("t", value, partition=number * 5 % PARTITIONS, publishing_id=number)


def own(producer: Any, begin: int, rng: random.Random) -> None:
    """Let the producer commit."""
    every = rng.randint(1, 30)
    for number in range(begin, RECORDS):
        for _ in range(rng.choice([1, 1, 2])):
            put(producer, number)
        if number % every == 0:
            producer.flush()
    producer.flush()


def program(producer: Any, begin: int, rng: random.Random) -> None:
    """Commit, and abort each fourth transaction."""
    producer.init_transactions()
    size = rng.randint(1, 20)
    for first in range(begin, RECORDS, size):
        numbers = range(first, min(first + size, RECORDS))
        if rng.random() < 0.25:
            producer.begin_transaction()
            for number in numbers:
                put(producer, number, b"aborted")
            if rng.random() < 0.5:
                producer.flush()
            producer.abort_transaction()
        producer.begin_transaction()
        for number in numbers:
            put(producer, number)
        producer.commit_transaction()


def look(child: Child, path: Path) -> None:
    """Report what each partition holds, and its last id."""
    with eoslog.open(path) as log:
        for number in range(PARTITIONS):
            found = [int(record.value) for record in log.read("t", partitions=[number])]
            child.tell("found", [found, log.last_publishing_id(NAME, "t", number)])
        child.tell("problems", [str(problem) for problem in log.check(full=True).problems])


class Ids:
    """Two lives a verdict, at the same time in one step of three."""

    name, goal = "ids", ("kills", 10_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Kill processes singly or in pairs, then let one run to its end."""
        with Round(seed) as round_:
            rng = round_.rng
            live(prepare, round_.path).fine()
            pairs = rng.random() < 0.34
            for group in range(LIVES // 2 if pairs else LIVES):
                running = [self._begin(round_) for _ in range(2 if pairs else 1)]
                for one in running:
                    self._ended(round_, one.end())
                if pairs or group % 2:
                    self._judge(round_, None)
            self._ended(round_, live(relay, round_.path, round_.seed()).fine())
            self._judge(round_, RECORDS)
            return round_.step

    @staticmethod
    def _begin(round_: Round) -> Running:
        rng = round_.rng
        fault: tuple[str, str, int]
        if rng.random() < 0.5:
            fault = (rng.choice(STEPS + _TXN), "kill", 1 + int(rng.expovariate(0.4)))
        else:
            fault = (rng.choice(CALLS), "kill", rng.randint(1, 60))
        late = ("lock", "kill", rng.randint(*LATE_LOCKS))
        return start(relay, round_.path, round_.seed(), faults=(fault, late))

    @staticmethod
    def _ended(round_: Round, life: Life) -> None:
        counts = round_.step.counts
        counts["lives"] += 1
        counts["kills"] += life.killed
        counts["fenced"] += len(life.of("fenced"))
        if not life.killed and life.error is not None:
            round_.step.violations.append(f"a life ended with {excerpt(life.error)}")

    @staticmethod
    def _judge(round_: Round, count: int | None) -> None:
        """Each id at most once and in order; all of the first `count`."""
        seen = live(look, round_.path).fine()
        round_.step.counts["verdicts"] += 1
        round_.step.violations += [f"check: {text}" for text in seen.of("problems")[0]]
        for number, (found, last) in enumerate(seen.of("found")):
            whole = [n for n in range(RECORDS) if n * 5 % PARTITIONS == number]
            if found != whole[: len(found)] or last != (found[-1] if found else None):
                round_.step.violations.append(f"partition {number}: {found}, last id {last}")
            elif count is not None and len(found) < len(whole):
                round_.step.violations.append(f"partition {number} ends after {found[-3:]}")
