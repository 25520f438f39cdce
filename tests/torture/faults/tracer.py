"""A process traced by ptrace, with one numbering for the calls of all threads.

strace counts each thread's calls, and each kind of call, separately. Here the nth call is the
nth of the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable
from typing import Any

from tests.faults.harness import Child, Life, start

CALLS = {
    "write": 1, "pwrite64": 18, "pwritev": 296, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75,
    "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86,
    "unlink": 87, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265,
    "sync_file_range": 277, "fallocate": 285, "renameat2": 316, "copy_file_range": 326,
}  # fmt: skip
"""What changes files, names or locks, by its number on x86_64; of openat, what may make a file.

A death before any other call leaves what one before the next of these leaves: descriptors go with the process.
"""

_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_SYSGOOD, _CLONE, _EXITKILL = 1, 8, 1 << 20
_WALL = 0x40000000
_NUMBERS = frozenset(CALLS.values())
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Info(ctypes.Structure):
    """The begin of `struct ptrace_syscall_info`."""

    _fields_ = (("op", ctypes.c_uint8), ("pad", ctypes.c_uint8 * 3), ("arch", ctypes.c_uint32),
                ("ip", ctypes.c_uint64), ("sp", ctypes.c_uint64), ("number", ctypes.c_uint64),
                ("arguments", ctypes.c_uint64 * 6))  # fmt: skip

    def counts(self) -> bool:
        """Whether one of `CALLS` begins."""
        changes = self.number != CALLS["openat"] or self.arguments[2] & os.O_CREAT
        return bool(self.op == 1 and self.number in _NUMBERS and changes)


def _ptrace(request: int, tid: int, size: int = 0, data: Any = None) -> None:
    if _libc.ptrace(request, tid, size, data) < 0 and ctypes.get_errno() != errno.ESRCH:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")


def can_trace() -> bool:
    """Whether a child lets itself be traced here."""
    pid = os.fork()
    if not pid:
        os._exit(int(_libc.ptrace(_TRACEME, 0, None, None) != 0))
    return os.waitpid(pid, 0)[1] == 0


def traced(body: Callable[..., None], *args: object, kill_at: int = 0) -> tuple[Life, int]:
    """Run a process, killed before its `kill_at`th call of `CALLS` (0: never).

    Returns the process and the number of calls that it made.
    """
    count, info = 0, _Info()
    running = start(_stopped, body, *args)
    _, status = os.waitpid(running.pid, 0)
    assert os.WIFSTOPPED(status), f"status {status} before it began"
    _ptrace(_SETOPTIONS, running.pid, 0, _SYSGOOD | _CLONE | _EXITKILL)
    known = {running.pid}
    _ptrace(_SYSCALL, running.pid)
    while True:
        tid, status = os.waitpid(-1, _WALL)
        if not os.WIFSTOPPED(status):
            if tid == running.pid:
                return running.ended(status), count
            continue
        number = os.WSTOPSIG(status)
        if number == signal.SIGTRAP | 0x80:
            _ptrace(_GET_SYSCALL_INFO, tid, ctypes.sizeof(info), ctypes.byref(info))
            if info.counts():
                count += 1
                if count == kill_at:
                    os.kill(running.pid, signal.SIGKILL)
        # A thread's first stop, and the word that there is one, are the tracer's own.
        own = number & 0x7F == signal.SIGTRAP or tid not in known
        known.add(tid)
        _ptrace(_SYSCALL, tid, 0, 0 if own else number)


def _stopped(child: Child, body: Callable[..., None], *args: object) -> None:
    _ptrace(_TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    body(child, *args)
