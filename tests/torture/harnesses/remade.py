"""A topic that is altered, extended, deleted and re-created while it is in use.

Writers, transactions, readers, a group that moves its records to another topic, and the process
that alters the topic are killed and start again. A topic is known by its id. Records that were
acknowledged while the name meant one id are in that topic, once, and in no other topic. A group
starts each of them at its beginning.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError, KafkaError, TopicAlreadyExists, UnknownTopicOrPartition
from eoslog.testing.history.recorder import values
from tests.faults.harness import Child, Life, Running, live, start
from tests.torture.harness import Round, Step
from tests.torture.harnesses.kills import CALLS, NAMED
from tests.torture.workloads.mixed import CLEANED, SMALL

NAME, OUT, GROUP = "remade", TopicPartition("out", 0), "movers"
SECONDS, PATIENCE_S = 5, 300
SETTINGS = ({"segment.bytes": "1024"}, {"segment.bytes": "65536"}, {"index.interval.bytes": "64"},
            {"retention.ms": "86400000"}, {"retention.ms": None}, {"cleanup.policy": "delete"},
            CLEANED, {"cleanup.policy": "compact,delete"}, {"max.message.bytes": "500"},
            {"max.message.bytes": None})  # fmt: skip
"""None of them removes what is committed: records are young, and each is its own key."""
LIMITS: dict[str, Any] = {"linger_ms": 0, "max_block_ms": 3000, "request_timeout_ms": 2000,
                          "delivery_timeout_ms": 5000}  # fmt: skip


def id_of(log: Any) -> str | None:
    """Which topic the name means now."""
    with contextlib.suppress(UnknownTopicOrPartition):
        return str(log._engine.topic(NAME).topic_id.hex())
    return None


def alters(child: Child, path: Path, name: str, seed: int) -> None:
    """Alter, extend, clean, delete and make."""
    rng = random.Random(seed)
    child.armed()
    with eoslog.open(path) as log:
        while True:
            with contextlib.suppress(KafkaError):  # the disk refuses nothing: it would be a finding
                chance = rng.random()
                if id_of(log) is None or chance < 0.1:
                    log.create_topic(NAME, rng.randint(1, 2), SMALL)
                elif chance < 0.5:
                    log.alter_topic(NAME, rng.choice(SETTINGS))
                elif chance < 0.6:
                    log.create_partitions(NAME, len(log.partitions_of(NAME)) + 1)
                elif chance < 0.8:
                    log.clean(roll=rng.random() < 0.5)
                else:
                    log.delete_topic(NAME)
                    if rng.random() < 0.7:
                        log.create_topic(NAME, rng.randint(1, 2), SMALL)
            time.sleep(rng.uniform(0, 0.08))


def writes(child: Child, path: Path, name: str, seed: int) -> None:
    """Send and run transactions.

    The process reports each value before and after, with the topic ids before and after.
    """
    rng, numbers = random.Random(seed), itertools.count()
    child.armed()
    with eoslog.open(path) as log:
        while True:
            try:
                plain = log.producer(**LIMITS)
                bound = log.producer(transactional_id=name.split(".")[0], **LIMITS)
                bound.init_transactions()
                while True:
                    _write(child, log, plain, bound, rng, name, numbers)
                    time.sleep(rng.uniform(0, 0.03))
            except (KafkaError, TimeoutError) as error:
                child.tell("refused", type(error).__name__, str(error))
                for producer in (plain, bound):
                    with contextlib.suppress(EoslogError):
                        producer.close()
                time.sleep(0.01)


def _write(child: Child, log: Any, plain: Any, bound: Any, rng: random.Random, name: str,
           numbers: Iterator[int]) -> None:  # fmt: skip
    before = id_of(log)
    tps = log.partitions_of(NAME)
    sent = [f"{name}:{next(numbers)}:" + "x" * rng.randint(0, 80) for _ in range(3)]
    child.tell("sent", sent)
    if rng.random() < 0.5:
        rows = [(rng.choice(tps), value) for value in sent]
        waits = [plain.send(tp.topic, v, key=v, partition=tp.partition) for tp, v in rows]
        for wait in waits:
            wait.result(30)
        child.tell("acked", sent, before, id_of(log))
        return
    commits = rng.random() < 0.75
    child.tell("ending" if commits else "aborting", sent)
    with contextlib.suppress(ZeroDivisionError), bound.transaction() as tx:
        for value in sent:
            tp = rng.choice(tps)
            tx.send(tp.topic, value, key=value, partition=tp.partition)
        tx.send(OUT.topic, sent[0], partition=0)
        if not commits:
            raise ZeroDivisionError
    if commits:
        child.tell("acked", sent, before, id_of(log))
        child.tell("out", sent[0])


def moves(child: Child, path: Path, name: str, seed: int, until: Path | None = None) -> None:
    """Move new records to the other topic, with occasional failures.

    At times it fails, seeks back to the committed offsets, or leaves. With `until`, it ends
    when it has moved all records that were there when that file appeared.
    """
    rng = random.Random(seed)
    if until is None:
        child.armed()
    with eoslog.open(path) as log:
        while until is None or not _all_moved(log):
            producer = log.producer(transactional_id=name.split(".")[0], **LIMITS)
            try:
                producer.init_transactions()
                consumer = log.consumer(
                    NAME, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
                )
                with producer, consumer:
                    for _ in range(rng.randint(5, 40)):
                        with contextlib.suppress(ZeroDivisionError), producer.transaction() as tx:
                            for record in consumer.consume(rng.randint(1, 20), 0.05):
                                came = f"{name} {record.partition}@{record.offset}"  # to look at
                                tx.send(OUT.topic, b"moved " + record.value, came, partition=0)
                            if until is None and rng.random() < 0.1:
                                raise ZeroDivisionError
                            tx.commit_offsets(consumer)
            except (KafkaError, TimeoutError) as error:
                child.tell("refused", type(error).__name__, str(error))
                with contextlib.suppress(EoslogError):
                    producer.close()


def _all_moved(log: Any) -> bool:
    moved = {value for _, value in values(log, OUT, 0, log.offsets("out", 0).last_stable)}
    return {f"moved {value}" for _, _, value in _scan(log)} <= moved


def _scan(log: Any) -> list[tuple[int, int, str]]:
    found = []
    for tp in log.partitions_of(NAME) if id_of(log) else ():
        ends = log.offsets(NAME, tp.partition)
        assert ends.log_start == 0, f"{tp}: {ends}: nothing of it was to be removed"
        found += [(tp.partition, at, v) for at, v in values(log, tp, 0, ends.last_stable)]
    return found


def reads(child: Child, path: Path, name: str, seed: int) -> None:
    """Scan all of the topic, again and again."""
    child.armed()
    with eoslog.open(path) as log:
        while True:
            before = id_of(log)
            try:
                found = _scan(log)
            except KafkaError as error:
                child.tell("refused", type(error).__name__, str(error))
                found = []
            if before is not None and before == id_of(log):
                child.tell("scan", before, found)
            time.sleep(0.01)


def ends(child: Child, path: Path, names: list[str]) -> None:
    """Settle all transactional ids and report the content."""
    with eoslog.open(path) as log:
        with contextlib.suppress(TopicAlreadyExists):
            log.create_topic(NAME, 1, SMALL)
        for name in names:
            producer = log.producer(transactional_id=name)
            producer.init_transactions()
            producer.close()
    live(moves, path, "last", 1, path).fine()
    with eoslog.open(path) as log:
        child.tell("scan", id_of(log), _scan(log))
        found = values(log, OUT, 0, log.offsets("out", 0).last_stable)
        child.tell("outputs", [value for _, value in found])
        report = log.check(full=True)
        assert report.ok, f"check: {report.problems}"


def founded(child: Child, path: Path) -> None:
    """The directory, with the topic that stays."""
    with eoslog.open(path, {"transaction.state.log.num.partitions": 4,
                            "offsets.topic.num.partitions": 4}) as log:  # fmt: skip
        log.create_topic("out", 1)
        log.create_topic(NAME, 1, SMALL)


@dataclass
class Told:
    """What all lives told, and what is wrong with it."""

    sent: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    outputs: set[str] = field(default_factory=set)
    homes: dict[str, str] = field(default_factory=dict)
    """Values that were acknowledged while the name meant one id."""
    scans: list[tuple[str, list[tuple[int, int, str]]]] = field(default_factory=list)

    def take(self, life: Life) -> None:
        """Add what a life told."""
        for kind, *what in life.told:
            if kind == "sent":
                self.sent.update(what[0])
            elif kind == "aborting":
                self.aborted.update(what[0])
            elif kind == "out":
                self.outputs.add(what[0])
            elif kind == "scan":
                self.scans.append((what[0], [(p, at, value) for p, at, value in what[1]]))
            elif kind == "acked" and what[1] is not None and what[1] == what[2]:
                self.homes.update(dict.fromkeys(what[0], what[1]))

    def wrong(self, outputs: list[str]) -> Iterator[str]:
        """Judge all scans, the last one of which is of the end, and the outputs."""
        contents: dict[tuple[str, int, int], str] = {}
        for topic, rows in self.scans:
            seen = [value for _, _, value in rows]
            if len(seen) != len(set(seen)):
                yield f"{topic} holds twice: {[v for v in seen if seen.count(v) > 1][:3]}"
            for partition, offset, value in rows:
                if contents.setdefault((topic, partition, offset), value) != value:
                    yield f"{topic}-{partition}@{offset} changed: {value}"
                if self.homes.get(value, topic) != topic:
                    yield f"{topic} holds {value} of {self.homes[value]}"
                if value not in self.sent or value in self.aborted:
                    yield f"{topic} holds {value}, which was {'aborted' * (value in self.sent)}"
        last, rows = self.scans[-1]
        there = {value for _, _, value in rows}
        lost = [v for v, topic in self.homes.items() if topic == last and v not in there]
        if lost:
            yield f"{last}: acknowledged and gone: {lost[:5]} of {len(lost)}"
        if len(outputs) != len(set(outputs)):
            yield f"outputs twice: {[v for v in outputs if outputs.count(v) > 1][:5]}"
        for gone in self.outputs.union(f"moved {value}" for value in there) - set(outputs):
            yield f"no output: {gone}"
        for value in (output.removeprefix("moved ") for output in outputs):
            if value not in self.sent or value in self.aborted:
                yield f"output {value} was aborted, or sent by nobody"


class Remade:
    """Two writers, two movers, a reader and an altering process, killed at times."""

    name, goal = "remade", ("lives around remade topics", 5_000)
    roles = (alters, writes, writes, moves, moves, reads)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Run for some seconds, then compare the reports with the content."""
        with Round(seed) as round_:
            rng, told, lives = round_.rng, Told(), itertools.count()
            live(founded, round_.path).fine()

            def begin(role: int) -> Running:
                fault = rng.choice(NAMED) if rng.random() < 0.5 else rng.choice(list(CALLS))
                faults = ((fault, "kill", rng.randint(1, CALLS.get(fault, 5))),)
                return start(
                    self.roles[role], round_.path, f"r{role}.{next(lives)}", round_.seed(),
                    faults=faults if rng.random() < 0.3 else (),
                )  # fmt: skip

            def end(running: Running) -> None:
                told.take(round_.ended(running.end()))
                round_.step.counts["lives around remade topics"] += 1

            running = {role: begin(role) for role in range(len(self.roles))}
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                time.sleep(rng.uniform(0.02, 0.2))
                for role, process in running.items():
                    process._take()
                    if rng.random() < 0.05:
                        process.signal(signal.SIGKILL)
                    if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                        end(process)
                        running[role] = begin(role)
            for process in running.values():
                process.signal(signal.SIGKILL)
                end(process)
            names = [f"r{role}" for role in range(len(self.roles))]
            last = round_.ended(start(ends, round_.path, names).end(PATIENCE_S))
            told.take(last)
            for outputs in last.of("outputs"):
                round_.step.violations += told.wrong(outputs)
            round_.step.counts["scans"] += len(told.scans)
            round_.step.counts["topics of the name"] += len({topic for topic, _ in told.scans})
            round_.step.counts["values"] += len(told.homes)
            return round_.step
