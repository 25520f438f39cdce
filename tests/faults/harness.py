"""Lives: functions that run in processes of their own and die where a test says.

`live(fn, path, kill=("pwrite", 7))` forks, calls `fn(child, path)` and kills the child before its seventh `pwrite`
after `child.armed()`. What the child told before it died comes back. `every_point` finds out how many such points
a function has and runs it to each of them on a fresh copy of a prepared directory. The test's own process never
opens a log, so nothing is inherited.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eoslog import _core
from eoslog.storage.fs import files

# Imported here, so that forked processes do not import them again. pyarrow is not: it has a thread.
import numpy.ma  # noqa: F401  # isort: skip
import eoslog.client.consumer.consumer
import eoslog.client.producer.producer
import eoslog.client.scan.log_scan
import eoslog.log
import eoslog.opening  # noqa: F401

CALLS = ("pwrite", "fdatasync")
"""The calls that make a difference to what a crash leaves, as the OS-call table names them."""


class Child:
    """The calls of a function in its own process: report to the test, arm faults."""

    def __init__(self, pipe: int, faults: tuple[tuple[str, str, int], ...], counting: bool) -> None:
        self._pipe, self._faults, self._counting = pipe, faults, counting

    def tell(self, *what: Any) -> None:
        """Reaches the test even if the next instruction is the last one."""
        os.write(self._pipe, json.dumps(what).encode() + b"\n")

    def armed(self) -> None:
        """From here on calls are counted and faults happen."""
        for name, action, nth in self._faults:
            files.arm_failpoint(name, action, nth)
        if self._counting:
            for call in CALLS:
                _core.fault_count(call, reset=True)

    def counts(self) -> dict[str, int]:
        return {call: _core.fault_count(call) for call in CALLS}


@dataclass
class Life:
    """How a child ended and what it had told."""

    told: list[list[Any]] = field(default_factory=list)
    status: int = 0

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def error(self) -> str | None:
        """The traceback of a child that raised."""
        return next((what[1] for what in self.told if what[0] == "#error"), None)

    def of(self, kind: str) -> list[Any]:
        """The second part of everything told under one name."""
        return [what[1] for what in self.told if what[0] == kind]

    def fine(self) -> Life:
        """This run, if the child exited without an error."""
        assert self.error is None, self.error
        assert self.status == 0, f"status {self.status}"
        return self


Body = Callable[..., None]


class Running:
    """A child that is still alive."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self._pipe, self._read = pid, pipe, b""
        self.life = Life()
        os.set_blocking(pipe, False)

    def _take(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 1 << 16):
                self._read += chunk
            return True
        return False

    def _parse(self) -> None:
        *lines, self._read = self._read.split(b"\n")
        self.life.told += [json.loads(line) for line in lines]

    def heard(self, kind: str, count: int = 1, timeout: float = 120) -> list[Any]:
        """Wait until the child has told `count` things under one name."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self._take()
            self._parse()
            found = self.life.of(kind)
            if len(found) >= count:
                return found
            assert not ended, f"ended after {self.life.told}"
            assert time.monotonic() < deadline, f"only {self.life.told} in {timeout} s"
            time.sleep(0.005)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP the child while it has no partition's lock."""
        stop(self.pid)

    def end(self, timeout: float = 300) -> Life:
        """Wait for it to end; a child that hangs is killed and fails the test."""
        life = self._end_before(time.monotonic() + timeout)
        if life is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._parse()
            raise AssertionError(f"still running after {timeout} s, told {self.life.told}")
        return life

    def end_or_kill(self, deadline: float) -> Life:
        """Wait for it to end, or kill it at a time of the monotonic clock."""
        return self._end_before(deadline) or self.kill()

    def _end_before(self, deadline: float) -> Life | None:
        while True:
            closed = self._take()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return self.ended(status)
            left = deadline - time.monotonic()
            if left < 0:
                return None
            if closed:  # it is about to end
                time.sleep(0.0005)
            else:  # a child of the child may keep the pipe open
                select.select([self._pipe], [], [], min(left, 0.05))

    def ended(self, status: int) -> Life:
        """The run, after its process was waited for."""
        self._take()
        self._parse()
        os.close(self._pipe)
        self.life.status = status
        return self.life

    def kill(self) -> Life:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.end()


def stop(pid: int) -> None:
    """SIGSTOP a child process while it has no partition's lock."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if not exclusive_locks(pid):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)


def exclusive_locks(pid: int) -> list[str]:
    """Exclusive locks of a process on lock files, as the kernel shows them."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        name = os.path.basename(os.readlink(fd))
        if name.startswith(("eoslog.lock-", "eoslog.session")):
            info = Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text()
            found += [line for line in info.splitlines() if "lock:" in line and " WRITE " in line]
    return found


def start(
    fn: Body, *args: Any, faults: tuple[tuple[str, str, int], ...] = (), counting: bool = False
) -> Running:
    """Fork and run `fn(child, *args)` there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return Running(pid, read)
    code = 1
    try:
        os.close(read)
        child = Child(write, faults, counting)
        try:
            fn(child, *args)
            if counting:
                child.tell("#counts", child.counts())
            code = 0
        except BaseException:
            child.tell("#error", traceback.format_exc())
        if faults and not counting:
            child.tell("#passed", child.counts())
    finally:
        os._exit(code)


def live(
    fn: Body, *args: Any, faults: tuple[tuple[str, str, int], ...] = (), counting: bool = False
) -> Life:
    """Run a life to its end."""
    return start(fn, *args, faults=faults, counting=counting).end()


TRIES = 6
"""Lives that may come to their end before their point, one after another."""


def every_point(
    fn: Body, prepared: Path, most: int = 8, action: str = "kill", calls: tuple[str, ...] = CALLS
) -> Iterator[tuple[str, int, Path, Life]]:
    """Run `fn(child, directory)` once for each write and sync, and kill it there.

    Threads and timeouts decide a few of the calls, so a run may make fewer than the one that was counted
    and end alive. Such a run is yielded too, because what holds after a kill holds after it. Its point is
    then searched among the calls that it did make: at every point at least one run is killed.

    Yields:
        (call, nth, directory as the kill left it, the run), at most about `most` of each call, evenly spread
        (`EOSLOG_FAULT_POINTS` raises it: a large number is every one).
    """
    scratch = prepared.parent / "counted"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(prepared, scratch)
    counts = live(fn, scratch, counting=True).fine().of("#counts")[0]
    most = max(most, int(os.environ.get("EOSLOG_FAULT_POINTS", 0)))
    for call in calls:
        count = counts[call]
        assert count, f"the function makes no {call}: nothing would be tested"
        for point in range(1, count + 1, max(1, count // most)):
            nth = point
            for _ in range(TRIES):
                directory = prepared.parent / f"{call}-{point}"
                shutil.rmtree(directory, ignore_errors=True)  # of a caller that stopped there
                shutil.copytree(prepared, directory)
                life = live(fn, directory, faults=((call, action, nth),))
                yield call, nth, directory, life
                shutil.rmtree(directory)
                if action != "kill" or life.killed:
                    break
                # Its last call of the kind; `fine`: nothing but the kill may end a life early.
                nth = min(nth, life.fine().of("#passed")[0][call])
                assert nth, f"this life made no {call}"
            else:
                raise AssertionError(
                    f"{TRIES} lives came to no {call} {point}, the last to no {nth}"
                )
