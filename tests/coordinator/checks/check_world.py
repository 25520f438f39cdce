"""Checks of processes on a directory in memory, with clocks of the test."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from eoslog.coordinator.checks.check_policy import CheckPolicy
from eoslog.coordinator.checks.checks import Checks, Registration
from eoslog.coordinator.transactions.coordinator import TransactionCoordinator
from eoslog.coordinator.transactions.prepared_records import (
    STAGED,
    PreparedEntry,
    entry_row,
    staged_id,
)
from eoslog.coordinator.transactions.state import PREPARED
from eoslog.descriptions import PreparedTransaction
from eoslog.model import Outcome
from tests.reference.memory_engine import MemoryDirectory, MemoryProcess


class Payloads:
    """Staged transactions without records, so that a delivery only completes.

    Attributes:
        rejected: the error of each delivery, as if a topic rejected the records.
        tries: when deliveries began.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.rejected: Exception | None = None
        self.tries: list[float] = []

    def deliver(self, entry: PreparedEntry, number: int) -> None:
        self.tries.append(self.process.world.now)
        if self.rejected is not None:
            raise self.rejected
        clog = self.process.coordinator.logs.of(staged_id(entry.key))
        clog.append_rows([entry_row(entry.delivered())], clog.refresh(), self.process.clock_ms())

    def check(self, entry: PreparedEntry) -> None:
        pass

    def forget(self, entry: PreparedEntry) -> None:
        pass


class Process(MemoryProcess):
    """A process that has the directory open, with its coordinator and its checks."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world.directory, number)
        world.directory.alive.add((number, number * 1000))
        self.world = world
        self.payloads = Payloads(self)
        self.coordinator = TransactionCoordinator(self, cluster_id="c", staged=self.payloads)
        self.prepared = self.coordinator.prepared
        self.checks = Checks(self, self.prepared, lambda: world.now)
        self.described = 0
        self.identities: dict[str, tuple[int, int]] = {}

    def transaction_partition_at(self, number: int) -> Any:
        return self._internal("__transaction_state", number)

    def transaction_ends(self) -> list[int]:
        return [log.log_end for log in self.transaction_partitions()]

    def describe(self, token: str, entry: PreparedEntry) -> PreparedTransaction:
        self.described += 1
        return PreparedTransaction(token, entry.state.name, entry.mode, 0.0, entry.checks)


class World:
    """One directory, with one process; `process` opens another.

    Transactions have names; `tokens` has the token of each.
    """

    def __init__(self) -> None:
        self.directory = MemoryDirectory("os")
        self.now = 1000.0
        self.tokens: dict[str, str] = {}
        self.numbers = itertools.count(1)
        self.processes: list[Process] = []
        self.first = self.process()

    def process(self) -> Process:
        self.processes.append(Process(self, next(self.numbers)))
        return self.processes[-1]

    def exit(self, process: Process) -> None:
        """The process is killed."""
        self.processes.remove(process)
        process.kill()

    def prepare(
        self, name: str, resolver: str | None = "db", *, deliver_at: float | None = None
    ) -> str:
        """Prepare in the first process; `deliver_at` is in seconds from now."""
        first = self.first
        if name not in first.identities:
            found = first.coordinator.init_producer_id(name)
            first.identities[name] = found.producer_id, found.producer_epoch
        identity = first.identities[name]
        if deliver_at is None:
            made = first.prepared.prepare(name, *identity, {}, resolver=resolver)
        else:
            now = first.clock_ms()
            at = now + int(deliver_at * 1000)
            entry = PreparedEntry(
                identity, STAGED, PREPARED, name, resolver, prepared_at_ms=now, deliver_at_ms=at,
                owner=(first.process_number, first.process_nonce),
            )  # fmt: skip
            made = first.prepared.stage(name, *identity, entry)
        self.tokens[name] = made[0]
        return name

    def register(
        self,
        function: Callable[[PreparedTransaction], Any],
        name: str = "db",
        process: Process | None = None,
        **settings: Any,
    ) -> Registration:
        process = process or self.first
        policy = CheckPolicy.of(**settings)
        return process.checks.register(name, function, policy, process.describe)

    def entry(self, name: str) -> PreparedEntry:
        return self.first.prepared.index.find(self.tokens[name])[1]

    def state(self, name: str) -> str:
        return self.entry(name).state.name

    def checks(self, name: str) -> int:
        return self.entry(name).checks

    def resolve(self, name: str, commit: bool) -> None:
        self.first.prepared.resolve(self.tokens[name], commit)

    def name(self, token: str) -> str:
        return next(name for name, known in self.tokens.items() if known == token)

    def step(self) -> None:
        """Let each process look once, without waiting for calls."""
        for process in self.processes:
            if process.checks.wanted():
                process.checks.look(lambda _, run: run())

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass in steps, without waiting for calls."""
        while seconds > 0:
            passed = min(step, seconds)
            seconds -= passed
            self.now += passed
            self.directory.now_ms += int(passed * 1000)
            self.step()

    def pass_until(self, condition: Callable[[], object]) -> None:
        """Let time pass until a condition holds, while threads run."""
        while not condition():
            self.pass_time(0.25)
            time.sleep(0.001)

    def run(self, seconds: float = 0.0, step: float = 0.25) -> None:
        """Let time pass in steps, and wait for the calls of each step."""
        self.step()
        settle()
        while seconds > 0:
            passed = min(step, seconds)
            seconds -= passed
            self.pass_time(passed)
            settle()


def calls() -> list[threading.Thread]:
    """The running threads that ask resolvers."""
    return [one for one in threading.enumerate() if one.name.startswith("eoslog-check-")]


def settle() -> None:
    """Wait for all calls."""
    for thread in calls():
        thread.join()


class Answers:
    """A resolver that notes the transactions, and repeats its last answer."""

    def __init__(self, world: World, *answers: object) -> None:
        self.world = world
        self.answers = list(answers) or [Outcome.COMMIT]
        self.asked: list[str] = []
        self.times: list[float] = []

    @property
    def gaps(self) -> list[float]:
        """Seconds between the calls."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    def __call__(self, prepared: PreparedTransaction) -> Any:
        self.asked.append(self.world.name(prepared.token))
        self.times.append(self.world.now)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer
