"""Suspended processes, and clocks that jump."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import eoslog
from eoslog.errors import EoslogError
from tests.faults.harness import Child, live, start
from tests.torture.harness import Round, Step
from tests.torture.workloads.mixed import mixed


class Stops:
    """SIGSTOP at any moment, with or without locks, then SIGCONT or SIGKILL.

    Other processes work in the meantime.
    """

    name, goal = "stop", ("stops", 1_000)

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Stop one process several times while another one runs."""
        with Round(seed) as round_:
            arguments = (mixed, round_.path, round_.history)
            stopped = start(*arguments, round_.name(), round_.seed(), 30)
            others = [start(*arguments, round_.name(), round_.seed(), 20) for _ in range(2)]
            for _ in range(4):
                time.sleep(round_.rng.uniform(0, 0.15))
                stopped.signal(signal.SIGSTOP)
                time.sleep(round_.rng.uniform(0.01, 0.4))
                stopped.signal(signal.SIGCONT)
                round_.step.counts["stops"] += 1
            if round_.rng.random() < 0.3:
                stopped.signal(signal.SIGSTOP)
                stopped.signal(signal.SIGKILL)
            for running in (stopped, *others):
                round_.ended(running.end())
            return round_.verdict()


def reads(child: Child, path: Path) -> None:
    """Read all that is published, as a process that may take no lock."""
    try:
        with eoslog.open(path, read_only=True) as log:
            for topic in log.topics():
                child.tell("read", sum(batch.num_rows for batch in log.scan(topic, binary="copy")))
    except EoslogError as error:
        child.tell("refused", type(error).__name__, str(error))


ALLOWED = (
    "have not recovered it yet",
    "has not finished for 30 s",  # a segment swap
    "bootstrap lock not free within 30 s",
)
"""What a reader that begins may wait for: recovery, a compaction's renames, who joins or leaves."""


def may_wait(text: str) -> bool:
    """Return whether a reader's LockTimeout with this text names one of the allowed waits."""
    return any(allowed in text for allowed in ALLOWED)


class Holders:
    """SIGSTOP of a lock holder in the middle of an append, a write or a flush.

    No process overtakes the holder. A process that needs the lock waits, or gets an error that
    names the holder. Readers need the lock only to open, and for the list of segments while
    segments are swapped. Then the holder resumes, or is killed and the next holder repairs what
    it left.
    """

    name, goal = "holder", ("holders stopped", 200)
    WHERE = (("point", 7), ("pwrite", 110), ("fdatasync", 40), ("ftruncate", 10), ("rename", 12))

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Stop one process at a random place while two others and a reader run."""
        with Round(seed) as round_:
            arguments = (mixed, round_.path, round_.history)
            round_.ended(live(*arguments, round_.name(), round_.seed()))
            for _ in range(2):
                call, most = round_.rng.choice(self.WHERE)
                fault = (call, "stop", round_.rng.randint(1, most))
                holder = start(*arguments, round_.name(), round_.seed(), faults=(fault,))
                stopped = self._until_stopped(holder.pid)
                others = [start(*arguments, round_.name(), round_.seed(), 6) for _ in range(2)]
                reader = start(reads, round_.path)
                # While the holder is suspended: a reader that had to wait for the lock would
                # not finish.
                read = round_.ended(reader.end())
                round_.step.violations += [
                    f"a reader waited: {told}"
                    for told in read.told
                    if told[1] == "LockTimeout" and not may_wait(told[2])
                ]
                if stopped:
                    round_.step.counts["holders stopped"] += 1
                    time.sleep(round_.rng.uniform(0, 0.5))
                    killed = round_.rng.random() < 0.4
                    holder.signal(signal.SIGKILL if killed else signal.SIGCONT)
                for running in (holder, *others):
                    round_.ended(running.end())
            return round_.verdict()

    @staticmethod
    def _until_stopped(pid: int) -> bool:
        """Whether it was stopped; else it has ended without coming to that place."""
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        return found is not None and found.si_code == os.CLD_STOPPED


def at_odd_times(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """Run a process whose wall clock is wrong from the start and jumps both ways."""
    rng, real = random.Random(seed), time.time
    shift = [rng.choice(SHIFTS_S)]

    def now() -> float:
        if rng.random() < 0.05:
            shift[0] = rng.choice(SHIFTS_S)
        return real() + shift[0]

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    mixed(child, path, history, name, seed)


DAY_S = 86_400.0
SHIFTS_S = (DAY_S, -7200.0, -0.002, 0.0, 4.3e9 - 1.79e9, -10 * 365 * DAY_S)
"""A day ahead, two hours behind, a little behind, right, beyond 2106, ten years ago."""


class Clocks:
    """Wall clocks that differ between processes and jump, past 2038 and 2106 too."""

    name, goal = "clock", ("clock lives", 500)

    def missing(self) -> str | None:
        """The clock is the process's own."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Run two concurrent processes and one after them, each at its own time of day."""
        with Round(seed) as round_:
            arguments = (at_odd_times, round_.path, round_.history)
            for running in [start(*arguments, round_.name(), round_.seed()) for _ in range(2)]:
                round_.ended(running.end())
            round_.ended(live(*arguments, round_.name(), round_.seed()))
            round_.step.counts["clock lives"] += 3
            return round_.verdict(forgetful=True)
