"""Producers with timeouts of a few milliseconds while other threads send.

Each transaction has records from several threads. Some threads send large records and flush
them while the transaction ends. Calls come from any of the threads, with timeouts of 0 to some
ms, and are repeated as their documentation says. Two processes share the transactional ids. At
times one of them is suspended, with locks, or is killed. A committed transaction is complete
and there once. A transaction that was given up with its producer is there completely or not at
all.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError, IllegalState, RequestTimedOut
from eoslog.testing.history import Recorder
from tests.faults.harness import Child, Running, live, start
from tests.torture.harness import Round, Step
from tests.torture.harnesses.crowds import prepare
from tests.torture.workloads.mixed import IDS, TOPICS

THREADS, SECONDS, TRIES = 3, 1, 20
TIMEOUTS = (0, 0, 0.0002, 0.001, 0.004)
PLACES = [TopicPartition(topic, p) for topic, count in TOPICS.items() for p in range(count)]
PAD = [("pad", bytes(8000))]
"""Makes a record large, and its value no longer in the history."""


class Hurried:
    """A producer whose calls get a small timeout, from any thread, repeatedly."""

    def __init__(self, producer: Any, rng: random.Random, pool: ThreadPoolExecutor) -> None:
        self._producer, self._rng, self._pool = producer, rng, pool
        self.timeouts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def _again(self, call: Callable[..., object]) -> None:
        for left in reversed(range(TRIES)):
            other = self._rng.random() < 0.5
            try:
                timeout = self._rng.choice(TIMEOUTS)
                self._pool.submit(call, timeout).result() if other else call(timeout)
                return
            except RequestTimedOut:
                self.timeouts += 1
                if not left:
                    raise

    def init_transactions(self, *, keep_prepared: bool = False) -> None:
        """Until it is done."""
        self._again(partial(self._producer.init_transactions, keep_prepared=keep_prepared))

    def commit_transaction(self) -> None:
        """Until it is known, or given up."""
        self._again(self._producer.commit_transaction)

    def abort_transaction(self) -> None:
        """Until it is done, or given up."""
        self._again(self._producer.abort_transaction)

    def close(self) -> None:
        """Close without waiting and report what is left."""
        with contextlib.suppress(EoslogError):
            self._producer.close(self._rng.choice(TIMEOUTS))


class Hasty:
    """What one process does: a thread that leads, and others that send for it."""

    def __init__(self, log: Any, recorder: Recorder, rng: random.Random, pool: Any) -> None:
        self.log, self.recorder, self.rng, self.pool = log, recorder, rng, pool
        self.numbers = itertools.count()

    def producer(self, **options: Any) -> Hurried:
        """Of whom a recorded producer is made: this object is its log."""
        return Hurried(self.log.producer(**options), self.rng, self.pool)

    def recorded(self, name: str | None) -> Any:
        """A recorded producer with settings that are soon met."""
        settings = {
            "linger_ms": self.rng.choice([0, 2, 60_000]),
            "batch_size": self.rng.choice([1000, 16_384, 200_000]),
            "buffer_memory": self.rng.choice([200_000, 32 << 20]),
            "max_block_ms": self.rng.choice([3, 50, 2000]),
        }
        return self.recorder.producer(self, name, **settings)  # type: ignore[arg-type]

    def rows(self, most: int) -> list[tuple[TopicPartition, str]]:
        """Values for some partitions."""
        return [
            (self.rng.choice(PLACES), f"{self.recorder.process}:{next(self.numbers)}")
            for _ in range(self.rng.randint(1, most))
        ]

    def beside(self, producing: Any) -> Future[None]:
        """Have another thread send large records and flush them with short timeouts.

        The future is done when the records are written.
        """
        hand, sent = copy.copy(producing), Future[None]()
        hand.session = self.recorder.name()  # the order is that of each thread
        rows, timeouts = self.rows(24), self.rng.choices(TIMEOUTS, k=4)

        def work() -> None:
            try:
                hand.send(rows, headers=PAD)
                sent.set_result(None)
            except BaseException as error:
                sent.set_exception(error)
            with contextlib.suppress(EoslogError):  # told to its leader, or it is closed by now
                for timeout in timeouts:
                    producing.producer.flush(timeout)

        self.pool.submit(work)
        return sent

    def transact(self, child: Child, producing: Any) -> None:
        """A transaction of several threads; its end finds some of them flushing."""
        producing.begin()
        try:
            others = [self.beside(producing) for _ in range(self.rng.randint(0, THREADS - 1))]
            for sent in others:
                sent.result()
            producing.send(self.rows(4))
        except EoslogError as error:  # a full buffer, a record that was refused
            child.tell("refused", type(error).__name__, str(error))
            producing.abort()
            return
        if self.rng.random() < 0.2:
            producing.abort()
            return
        try:
            producing.commit()
            child.tell("commit", producing.producer.timeouts)
            producing.producer.timeouts = 0
        except RequestTimedOut:
            if self.rng.random() < 0.5:
                with contextlib.suppress(IllegalState):  # its end was asked for: nothing else then
                    producing.abort()
            raise

    def plainly(self, child: Child) -> None:
        """Sends whose flushes, and whose end, come too early for some of them."""
        producing = self.recorded(None)
        try:
            for _ in range(self.rng.randint(1, 4)):
                other = self.beside(producing)
                for row in self.rows(6):
                    producing.send([row])
                if producing.producer.flush(self.rng.choice(TIMEOUTS)) == 0:
                    producing.acknowledge(0)  # a TimeoutError is a finding
                    child.tell("flush", 1)
                other.result()
        finally:
            producing.close()
        producing.acknowledge(0)


def hurries(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """One producer after another, each given up as soon as it is not answered."""
    rng = random.Random(seed)
    sys.setswitchinterval(1e-4)
    with (
        Recorder(str(history / f"{name}.jsonl"), name) as recorder,
        eoslog.open(path) as log,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        hasty = Hasty(log, recorder, rng, pool)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            producing = None
            try:
                if rng.random() < 0.2:
                    hasty.plainly(child)
                    continue
                producing = hasty.recorded(rng.choice(IDS))
                for _ in range(rng.randint(1, 20)):
                    hasty.transact(child, producing)
            except EoslogError as error:
                child.tell("refused", type(error).__name__, str(error))
            finally:
                if producing is not None:
                    producing.close()


class Impatient:
    """Two processes for some seconds, one of which is suspended or killed at times."""

    name, goal = "impatient", ("impatient commits", 20_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Some seconds, the verdict."""
        with Round(seed) as round_:
            rng, lives = round_.rng, itertools.count()
            live(prepare, round_.path, TOPICS, 1 << 20).fine()

            def begin() -> Running:
                name = f"h{next(lives)}"
                return start(hurries, round_.path, round_.history, name, round_.seed())

            def end(process: Running) -> None:
                life = round_.ended(process.end())
                round_.step.counts["impatient commits"] += len(life.of("commit"))
                round_.step.counts["timeouts before them"] += sum(life.of("commit"))
                round_.step.counts["flushes"] += len(life.of("flush"))

            running = [begin(), begin()]
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                time.sleep(rng.uniform(0, 0.1))
                at = rng.randrange(len(running))
                if rng.random() < 0.02:
                    running[at].signal(signal.SIGKILL)
                elif rng.random() < 0.3:
                    running[at].signal(signal.SIGSTOP)
                    time.sleep(rng.uniform(0, 0.02))
                    running[at].signal(signal.SIGCONT)
                if os.waitid(os.P_PID, running[at].pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    end(running[at])
                    running[at] = begin()
            for process in running:
                end(process)
            return round_.verdict()
