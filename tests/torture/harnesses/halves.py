"""Prepared transactions under kills and power losses.

Two or three processes at a time prepare, decide, set aside, sweep and compact in one directory.
Most of them are killed at a named step or at a call. `HalvesPower` ends every process with a power
loss.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.faults.harness import live, start
from tests.torture.faults.disks import LOGFLUSH, NOLOGFLUSH, Disk, lacking
from tests.torture.harness import Round, Step
from tests.torture.oracles.halves import verify
from tests.torture.workloads.halves import founded, halves

NAMED = (
    "prepare.flushed", "prepare.appended", "prepare.durable", "stage.written",
    "stage.payload_durable", "stage.identified", "stage.appended", "stage.durable",
    "resolve.appended", "resolve.durable", "deliver.appended", "deliver.offsets",
    "deliver.nothing", "deliver.decided", "inline.copied", "inline.set_aside", "sweep.asked",
    "txn.init.appended", "txn.init.durable", "txn.added", "txn.flushed", "txn.prepared",
    "txn.durable", "txn.decided", "txn.marked", "txn.completed", "clean.written", "clean.durable",
    "clean.swap.published", "clean.checkpoint", "topic.first_use", "position.checked",
    "position.set", "position.deleted", "ids.written", "takeover.read", "takeover.appended",
    "takeover.durable", "takeover.identified",
)  # fmt: skip
CALLS = {"pwrite": 90, "fdatasync": 70, "lock": 200}
"""Calls of the OS table and about how many of them a life makes."""
LATE_LOCKS = (30, 150)
"""The lock at which a life is killed that does not come to its step before; all take 200."""
KINDS = (("ext4", ""), ("ext4", "noauto_da_alloc"), ("xfs", ""))


def fault(round_: Round) -> tuple[tuple[str, str, int], ...]:
    """Where a life ends; nowhere for some."""
    rng, kind = round_.rng, round_.rng.random()
    if kind < 0.15:
        return ()
    if kind < 0.7:
        step = (rng.choice(NAMED), "kill", min(1 + int(rng.expovariate(0.6)), 8))
        return step, ("lock", "kill", rng.randint(*LATE_LOCKS))  # if the step does not come
    call = rng.choice(list(CALLS))
    return ((call, rng.choice(["kill", "kill-after"]), rng.randint(1, CALLS[call])),)


class Halves:
    """Ten times two or three lives, then the verdict."""

    name, goal = "half", ("kills", 10_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Parallel lives, and what they leave."""
        with Round(seed) as round_:
            live(founded, round_.path).fine()
            for _ in range(10):
                running = [
                    start(
                        halves, round_.path, round_.history, round_.name(), round_.seed(),
                        faults=fault(round_),
                    )
                    for _ in range(round_.rng.choice((2, 2, 3)))
                ]  # fmt: skip
                for one in running:
                    round_.ended(one.end())
            return judged(round_)


class HalvesPower:
    """Five lives on one disk, each ended by a power loss, then the verdict."""

    name, goal = "half power", ("cuts", 200)

    def __init__(self) -> None:
        """No disk before the first step."""
        self._disks: dict[tuple[str, str], Disk] = {}

    def missing(self) -> str | None:
        """Root, loop devices and the tools of both file systems."""
        return lacking("losetup", "mkfs.ext4", "mkfs.xfs")

    def close(self) -> None:
        """Unmount."""
        while self._disks:
            self._disks.popitem()[1].close()

    def step(self, seed: int) -> Step:
        """Lives, power losses, and what they leave."""
        kind = KINDS[seed // 8 % len(KINDS)]
        disk = self._disks.get(kind)
        if disk is None:
            self.close()  # loop devices are few
            disk = self._disks[kind] = Disk(*kind)
        try:
            with Round(seed, disk.mount_point) as round_:
                live(founded, round_.path).fine()
                for _ in range(5):
                    self._lives(round_, disk)
                step = judged(round_, lossy=True)
                shutil.rmtree(round_.path, ignore_errors=True)
        except BaseException:
            self._disks.pop(kind).close()
            raise
        return step

    @staticmethod
    def _lives(round_: Round, disk: Disk) -> None:
        running = [
            start(
                halves, round_.path, round_.history, round_.name(), round_.seed(),
                faults=fault(round_),
            )
            for _ in range(round_.rng.choice((1, 2)))
        ]  # fmt: skip
        for one in running:
            round_.ended(one.end())
        round_.step.counts["ranges written back"] += disk.scatter(round_.rng)
        disk.cut(round_.rng.choice([NOLOGFLUSH, NOLOGFLUSH, LOGFLUSH]))
        round_.step.counts["cuts"] += 1
        disk.remount()


def judged(round_: Round, *, lossy: bool = False) -> Step:
    """The step, with the verdict about its directory."""
    violations, counts = verify(round_.path, Path(round_.history), lossy=lossy)
    round_.step.violations += violations
    round_.step.counts.update(counts)
    round_.step.counts["verdicts"] += 1
    return round_.step
