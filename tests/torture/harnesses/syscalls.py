"""SIGKILL before system calls, also where there is no failpoint.

strace kills at random calls of many process runs, and at every call of a few runs in turn.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import time
from pathlib import Path

import eoslog
from tests.faults.harness import Child, Life, live, start
from tests.torture.faults import tracer
from tests.torture.harness import Round, Step
from tests.torture.workloads.mixed import mixed

CALLS = {
    "pwrite64": 120, "fdatasync": 40, "fsync": 60, "rename": 12, "unlink": 20, "openat": 250,
    "ftruncate": 20, "fcntl": 150, "mkdir": 12, "close": 250, "pread64": 120, "mmap": 60,
    "futex": 60, "lseek": 20, "newfstatat": 150, "getdents64": 40, "write": 60, "munmap": 30,
}  # fmt: skip
"""System calls and about how many of them a life makes."""
COUNTS = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
_PARTS = 128
_WORKLOADS = 2


class Syscalls:
    """Three traced lives a step."""

    name, goal = "syscall", ("kills", 2_000)

    def missing(self) -> str | None:
        """strace, and the right to trace."""
        return None if shutil.which("strace") else "needs strace"

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Three lives killed at a drawn call, then the verdict."""
        with Round(seed) as round_:
            for _ in range(3):
                call = round_.rng.choice(list(CALLS))
                nth = round_.rng.randint(1, CALLS[call])
                life = traced(round_, f"inject={call}:signal=KILL:when={nth}", call)
                round_.ended(life)
                round_.step.counts["traced lives"] += 1
            return round_.verdict()


def traced(round_: Round, inject: str, trace: str, steps: int = 12) -> Life:
    """A life that strace attaches to before it begins."""
    name = round_.name()
    child = start(_waiting, round_.path, round_.history, name, round_.seed(), steps)
    _until_stopped(child.pid)
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={trace}", "-e", inject,
         "-p", str(child.pid)],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _until_traced(child.pid)
        os.kill(child.pid, signal.SIGCONT)
        return child.end()
    finally:
        tracer.terminate()
        tracer.wait(60)


def _waiting(child: Child, *arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    mixed(child, *arguments)  # type: ignore[arg-type]


def _status(pid: int, field: str) -> str:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(line.split()[1] for line in file if line.startswith(field + ":"))


def _until_stopped(pid: int) -> None:
    while _status(pid, "State") not in "Tt":
        time.sleep(0.001)


def _until_traced(pid: int) -> None:
    deadline = time.monotonic() + 60
    while _status(pid, "TracerPid") == "0":
        if time.monotonic() > deadline:
            raise TimeoutError("strace did not attach")
        time.sleep(0.001)


class Counted:
    """Every call that changes files, names, locks or descriptors, one after another.

    The calls are those of some fixed workloads. A workload is one process run with a fixed
    seed. It takes each step of `mixed` once, in a directory that an earlier run of this seed
    has left. Its calls are numbered in the order in which its threads make them. That order
    differs between runs, and no two runs make exactly as many calls. Each run is checked. The
    number of runs that completed without a kill is reported.
    """

    name, goal = "counted calls", ("kills", 2_500)
    whole = _PARTS * _WORKLOADS

    def missing(self) -> str | None:
        """x86_64, for the numbers of the calls, and the right to trace."""
        if platform.machine() != "x86_64":
            return "needs x86_64"
        return None if tracer.can_trace() else "needs the right to trace"

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """One in 128 of the calls of a workload, a kill and a verdict each."""
        workload = 1 + seed // _PARTS % _WORKLOADS
        step = Step()
        nth, calls = 1 + seed % _PARTS, self._killed(workload, 0, step)
        while nth <= calls:
            self._killed(workload, nth, step)
            nth += _PARTS
        return step

    @staticmethod
    def _killed(workload: int, nth: int, step: Step) -> int:
        """Create a directory, kill a process at its nth call and check the result.

        Returns how many calls the process made.
        """
        with Round(workload) as round_:
            live(_made, round_.path).fine()
            round_.ended(live(mixed, round_.path, round_.history, round_.name(), workload))
            arguments = (mixed, round_.path, round_.history, round_.name(), workload, 0)
            life, calls = tracer.traced(*arguments, kill_at=nth)
            round_.ended(life)
            found = round_.verdict()
        step.counts.update(found.counts)
        step.counts["not come to"] += bool(nth) and not life.killed
        step.violations += [
            f"call {nth} of workload {workload}: {what}" for what in found.violations
        ]
        return calls


def _made(child: Child, path: Path) -> None:
    with eoslog.open(path, COUNTS):
        pass
