"""No process outlives the run that started it, whichever way that ends.

A torture process adopts the orphans of its descendants, so that all it ever started, by whatever way
(forks, tools, their daemons), can be found below it and ended by its id.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on a descendant whose parent dies becomes a child of this process."""
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int, number: int = signal.SIGTERM) -> None:
    """Have this process sent a signal when its parent dies.

    If the parent has died already, the signal comes immediately.
    """
    _libc.prctl(_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


class Interruption:
    """SIGTERM, SIGINT and SIGHUP of this process and its forks, as SystemExit.

    An exception from a signal handler may get lost, in a destructor or in what `os.fork` calls.
    Therefore it is also kept: loops check `code`, and a second signal raises again. Once the
    clean-up has begun, a second signal does not raise, because it would interrupt the clean-up.
    """

    def __init__(self) -> None:
        """From now on."""
        self.code, self.clearing = 0, False
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._interrupted)

    def _interrupted(self, number: int, _: object) -> None:
        self.code = 128 + number
        if not self.clearing:
            sys.exit(self.code)


def reap(pids: list[int], patience_s: float, *, insist: bool) -> None:
    """Wait for children; with `insist` ask them to end every second, then kill them."""
    deadline, asked = time.monotonic() + patience_s, 0.0
    while pids and time.monotonic() < deadline:
        if insist and time.monotonic() - asked > 1:
            asked = time.monotonic()
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.01)
        pids = [pid for pid in pids if not os.waitpid(pid, os.WNOHANG)[0]]


def descendants(pid: int) -> list[int]:
    """Every process below one, children before their own children."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def end_descendants(patience_s: float = 10) -> list[str]:
    """Kill and reap everything below this process; what it was."""
    ended = []
    deadline = time.monotonic() + patience_s
    while (below := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in below:
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    ended.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80])
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    return ended
