"""The disk fails at each call of one workload: with EIO, ENOSPC or a short write.

The failure happens once, or from then on. One process runs a fixed series of operations: first
without a fault, to count its calls, then once for every call of every kind, with that call
failing. If the process has not died by the end, the disk works again. Then every partition must
accept records, unless a failed flush has poisoned it, and accept them after the directory was
closed and opened. Then the process dies or ends, with or without a power loss, and everything
that was promised must be there.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from eoslog.errors import EoslogError, LogPoisoned
from tests.simulation.machine.world import Faults, World
from tests.simulation.simulation import Plan, Report, Run
from tests.simulation.workloads.workload import TOPICS, Client

KINDS = {
    "EIO": ("pwrite", "sync", "open", "rename", "unlink", "ftruncate", "mkdir", "pread"),
    "ENOSPC": ("pwrite", "open", "mkdir", "rename"),
}
"""Calls by what they may fail with; a full disk refuses what needs room."""
OPERATIONS = 14


@dataclass(frozen=True)
class Point:
    """One fault: the nth call of a kind."""

    error: str
    call: str
    nth: int
    for_good: bool

    def __str__(self) -> str:
        return f"{self.error} at {self.call} {self.nth}{' and after' if self.for_good else ''}"


class Sufferer(Client):
    """A client whose disk fails, and heals when it has done its work.

    `calls` says how many calls of each kind it made until then.
    """

    calls: dict[str, int]

    def __call__(self) -> None:
        """What it can do is little if the directory does not open."""
        with contextlib.suppress(EoslogError, FileNotFoundError):
            super().__call__()
        self.world.alive()
        self.calls = dict(self.world.faults.calls)
        self.world.faults.call = ""
        for may_be_poisoned in (True, False):
            if not may_be_poisoned or self.log is None:
                self.close()
                self.reopen()
            for topic, partitions in TOPICS.items():
                for partition in range(partitions):
                    self._takes((topic, partition), may_be_poisoned)

    def _takes(self, place: tuple[str, int], may_be_poisoned: bool) -> None:
        with contextlib.suppress(EoslogError), self._producer() as producer:
            value = self._value()
            self.model.sent(f"{self.name} healed {self.count}", place, value)
            delivery = producer.send(place[0], value, partition=place[1])
            producer.flush()
            self.world.alive()
            try:
                self.model.acknowledged(place, delivery.result(0).offset, value)
            except LogPoisoned:
                if not may_be_poisoned:
                    self.model.violated(f"O7 {place}: poisoned after it was opened again")
            except EoslogError as error:
                self.model.violated(f"O7 {place}: the disk has healed, yet {error!r}")


class FaultRun(Run):
    """A life with one fault, then what a crash leaves of it."""

    def __init__(self, seed: int, point: Point | None) -> None:
        super().__init__(seed, Plan(faults=False, images=0, lives=1))
        self.point = point
        self.calls: dict[str, int] = {}

    def execute(self) -> Report:
        report = super().execute()
        report.violations = [f"{what} [{self.point}]" for what in report.violations]
        return report

    def _life(self, number: int, image: dict[str, bytes | None]) -> dict[str, bytes | None]:
        image = self._fresh()
        faults = Faults(switch=0, writeback=0.05)
        if self.point is not None:
            faults.call, faults.nth, faults.for_good = (
                self.point.call,
                self.point.nth,
                self.point.for_good,
            )
            faults.error = getattr(errno, self.point.error)
            faults.then_crash = Random(f"{self.seed} {self.point}").choice((0, 0, 1, 2, 5, 20))
        disk = self._disk(image)
        world = World(self.rng, disk, faults)
        world.reads = True
        client = Sufferer(world, self.model, disk.root, "f", OPERATIONS)
        client.reopens = False
        client.options = {"delivery.timeout.ms": 2000, "request.timeout.ms": 1000}
        self._run(world, [("f", client)])
        if self.point is None:
            self.calls = client.calls
        self.report.counts["faults"] += faults.hit > 0
        return self._after_crash(disk, depth=0)


def points(seed: int) -> Iterator[Point]:
    """Every fault of the workload of a seed."""
    run = FaultRun(seed, None)
    run.execute()
    for error, calls in KINDS.items():
        for call in calls:
            for nth in range(1, run.calls.get(call, 0) + 1):
                yield Point(error, call, nth, False)
                yield Point(error, call, nth, True)


def sweep(
    seconds: float,
    seed: int,
    *,
    every: int = 1,
    part: int = 0,
    runs: int | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Run one in `every` faults of the workloads from `seed` on, for `seconds`.

    The parts 0 to every - 1 are disjoint, and together all faults. At most `runs` workloads.
    """
    total = Report()
    end = time.monotonic() + seconds
    while time.monotonic() < end and (runs is None or total.counts["workloads"] < runs):
        total.counts["workloads"] += 1
        for i, point in enumerate(points(seed)):
            if (i - part) % every:
                continue
            if time.monotonic() >= end:
                break
            one = FaultRun(seed, point).execute()
            total.add(one)
            total.counts["fault points"] += 1
            for what in one.violations if say is not None else ():
                say(f"VIOLATION {what}")
            if say is not None:
                say(f"{total.counts['fault points']} fault points, {total.line()}")
        else:
            total.counts["whole parts"] += 1
        seed += 1
    return total
