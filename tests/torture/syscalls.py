"""SIGKILL before the nth call of every system call, by strace: also where no failpoint lies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

from tests.faults.harness import Child, Life, start
from tests.torture.harness import Round, Step
from tests.torture.mixed import mixed

CALLS = {
    "pwrite64": 120, "fdatasync": 40, "fsync": 60, "rename": 12, "unlink": 20, "openat": 250,
    "ftruncate": 20, "fcntl": 150, "mkdir": 12, "close": 250, "pread64": 120, "mmap": 60,
    "futex": 60, "lseek": 20, "newfstatat": 150, "getdents64": 40, "write": 60, "munmap": 30,
}  # fmt: skip
"""System calls and about how many of them a life makes."""


class Syscalls:
    """Three traced lives a step."""

    name, goal = "syscall", ("kills", 2_000)

    def missing(self) -> str | None:
        """strace, and the right to trace."""
        return None if shutil.which("strace") else "needs strace"

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Three lives killed at a drawn call, one of them of a neighbour's, then the verdict."""
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
