"""The processes that have a directory open, and the locks that each of them holds.

Two sources are compared. The process table of the control file has the pid, start time and pid
namespace of each writing process. `/proc/PID/fdinfo` has the open files and locked byte ranges of
the processes that this process may inspect.

A pid alone does not identify a process: the kernel reuses pids, and each pid namespace has its own.
A table entry is a living process only while its byte of `eoslog.process` is locked. Its pid is used
only in the namespace in which it was registered, and only if the start time is the same.

This module takes no locks and changes no files.

Source: proc(5); fcntl(2), F_OFD_GETLK; pid_namespaces(7).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from eoslog import _core
from eoslog.storage.fs import files

SESSION_FILE, PROCESS_FILE, CONTROL_FILE = "eoslog.session", "eoslog.process", "eoslog.control"
LOCK_FILE = "eoslog.lock-"
BOOTSTRAP_AT, SESSION_AT = 0, 1
"""Bytes of the session file: the bootstrap lock, and the lock that each process holds shared."""
LOCK_FILES = 64
CLEANER_AT = 1 << 32
"""Cleaner locks are after the append and flush locks of the same file, one byte per slot."""
_FLOCK = struct.Struct("hhqqi4x")
_LONGEST = 80
_STOPPED = "Tt"  # by a signal, by a debugger
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
"""Mount points of version 2 control groups: alone, and together with version 1."""


class Process(NamedTuple):
    """A living process that has the directory open.

    `pid` is its pid in its own namespace. `visible_pid` is its pid in this process's namespace,
    None if it is not visible there. `stopped` is None if the state cannot be read.
    """

    pid: int
    visible_pid: int | None = None
    command: str | None = None
    since_ms: int | None = None
    stopped: bool | None = None
    other_namespace: bool = False
    number: int = -1
    nonce: int = 0
    read_only: bool = False

    @property
    def text(self) -> str:
        """The process, for messages."""
        if not self.pid:
            return "a process that is not visible to this one"
        if self.other_namespace:
            about = "in another pid namespace"
        else:
            about = _shortened(self.command) if self.command else "command unknown"
        return f"process {self.pid} ({about}{', stopped' if self.stopped else ''})"


def _shortened(command: str) -> str:
    """Return a command line, shortened for a message."""
    text = " ".join(command.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class Opener(NamedTuple):
    """A process according to `/proc`: its locks, as (file, byte), and its open files."""

    pid: int
    locks: frozenset[tuple[str, int]]
    opened: frozenset[str]


def append_byte(slot: int) -> int:
    """Return the byte of a slot's append lock in its lock file; the next byte is the flush lock."""
    return 2 * (slot // LOCK_FILES)


def lock_of(name: str, at: int) -> tuple[str, int] | None:
    """Return (append, flush or cleaner; slot) of a locked byte; None for another kind of lock."""
    if not name.startswith(LOCK_FILE):
        return None
    number = int(name.removeprefix(LOCK_FILE))
    if at >= CLEANER_AT:
        return "cleaner", at - CLEANER_AT
    return ("flush" if at % 2 else "append"), at // 2 * LOCK_FILES + number


def start_and_state(pid: int | str) -> tuple[int, str] | None:
    """Return (start time in clock ticks since boot, state letter) of a process, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name may contain blanks and parentheses: count from the last ")".
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[19]), fields[0].decode()
    except (OSError, IndexError, ValueError):
        return None


def namespace_of(pid: int | str) -> int:
    """Return the inode of a process's pid namespace; 0 if it cannot be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def own_identity() -> tuple[int, int]:
    """Return (start time in clock ticks, inode of the pid namespace) of this process, or 0s."""
    found = start_and_state("self")
    return (0 if found is None else found[0]), namespace_of("self")


def command_of(pid: int) -> str | None:
    """Return the command line of a process; None if it has exited or has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None
    return text or None


def started_ms(pid: int) -> int | None:
    """Return when a process started, in ms since 1970."""
    found = start_and_state(pid)
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/stat") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        if found is not None:
            return boot * 1000 + found[0] * 1000 // os.sysconf("SC_CLK_TCK")
    return None


def locked_by_others(fd: int, at: int) -> bool:
    """Whether another open file has locked a byte; needs no write permission."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)


def is_locked(path: str, name: str, at: int) -> bool:
    """Whether any process has locked a byte of one of the directory's lock files.

    Raises:
        StorageError: if the lock cannot be looked at.
    """
    try:
        fd = files.open_file(os.path.join(path, name), read_only=True)
    except FileNotFoundError:
        return False
    try:
        with files.naming(os.path.join(path, name)):
            return locked_by_others(fd, at)
    finally:
        files.close(fd)


def _seems_locked(path: str, name: str, at: int) -> bool:
    """Like `is_locked`, for messages: False if the lock cannot be looked at."""
    try:
        return is_locked(path, name, at)
    except OSError:  # StorageError is one
        return False


def openers(path: str) -> dict[int, Opener]:
    """Return the processes that have the directory open, of those that this process may inspect."""
    inodes = {}
    for name in (SESSION_FILE, PROCESS_FILE, CONTROL_FILE, *_lock_files()):
        with contextlib.suppress(OSError):
            found = os.stat(os.path.join(path, name))
            inodes[found.st_dev, found.st_ino] = name
    place = os.path.realpath(path) + os.sep
    result = {}
    for pid in map(int, filter(str.isdigit, _names("/proc"))):
        opened: set[str] = set()
        locks: set[tuple[str, int]] = set()
        for fd in _names(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if os.path.basename(target).startswith("eoslog."):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    known = inodes.get((status.st_dev, status.st_ino))
                    if known is not None:
                        opened.add(known)
                        locks.update((known, at) for at in _locked_bytes(pid, fd))
                elif target.startswith(place):
                    opened.add(target.removeprefix(place))
        # Skip programs that only read a file, for example an editor.
        if opened & {SESSION_FILE, PROCESS_FILE}:
            result[pid] = Opener(pid, frozenset(locks), frozenset(opened))
    return result


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _lock_files() -> Iterator[str]:
    return (f"{LOCK_FILE}{number:02d}" for number in range(LOCK_FILES))


def _locked_bytes(pid: int, fd: str) -> Iterator[int]:
    with open(f"/proc/{pid}/fdinfo/{fd}") as file:
        for line in file:
            words = line.split()  # lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:9978007 5 5
            if len(words) >= 9 and words[0] == "lock:" and words[2] == "OFDLCK":
                yield from range(int(words[7]), int(words[8]) + 1 if words[8].isdigit() else 0)


class ProcessTable(Protocol):
    """The process table of an open directory; `session.Session` has one."""

    path: str
    private: bool
    control: _core.ControlFile

    @property
    def max_processes(self) -> int:
        """The number of entries in the table."""


class Processes:
    """The processes of a directory at one point in time; reads `/proc` at its first use."""

    def __init__(self, session: ProcessTable) -> None:
        """Prepare to read the processes that share a session."""
        self._session = session
        self._own_namespace = namespace_of("self")
        self._known: dict[tuple[int, int], Process | None] = {}

    @cached_property
    def openers(self) -> dict[int, Opener]:
        """The processes that have the directory open, by pid."""
        return openers(self._session.path)

    def of_owner(self, owner: tuple[int, int] | None) -> Process | None:
        """Return the process that registered with (number, nonce); None if it has exited."""
        if owner is None or owner[0] < 0:
            return None
        key = (owner[0], owner[1] & 0xFFFFFFFFFFFFFFFF)
        if key not in self._known:
            self._known[key] = self._resolve(*key)
        return self._known[key]

    def _resolve(self, number: int, nonce: int) -> Process | None:
        session = self._session
        if session.private:
            return None
        try:
            found = session.control.process_entry(number)[0]
        except IndexError:
            return None
        if found != nonce or not _seems_locked(session.path, PROCESS_FILE, number):
            return None
        pid, ticks, namespace, registered = session.control.process_identity(number)
        since = registered or None
        other = namespace not in (0, self._own_namespace)
        now = None if other else start_and_state(pid)
        if now is not None and now[0] == ticks:
            stopped = _is_suspended(pid, now[1])
            return Process(pid, pid, command_of(pid), since, stopped, False, number, nonce)
        # Another namespace, or the pid belongs to another process now.
        visible = self._holder(PROCESS_FILE, number)
        if visible is None:
            return Process(pid, None, None, since, None, other or ticks != 0, number, nonce)
        other = other or namespace_of(visible) not in (0, self._own_namespace)
        now = start_and_state(visible)
        state = None if now is None else _is_suspended(visible, now[1])
        if other:
            return Process(pid, visible, None, since, state, True, number, nonce)
        return Process(visible, visible, command_of(visible), since, state, False, number, nonce)

    def _holder(self, name: str, at: int) -> int | None:
        return next((p for p, found in self.openers.items() if (name, at) in found.locks), None)

    def holder(self, slot: int, kind: str, pid: int = 0) -> Process | None:
        """Return the process that holds a lock of a partition; None if it is free.

        Args:
            slot: the partition's slot.
            kind: append, flush or cleaner.
            pid: the pid in the slot, used if `/proc` does not show the holder.
        """
        name = f"{LOCK_FILE}{slot % LOCK_FILES:02d}"
        at = {"append": append_byte(slot), "flush": append_byte(slot) + 1}.get(
            kind, CLEANER_AT + slot
        )
        return self.holder_of(name, at, pid)

    def holder_of(self, name: str, at: int, pid: int = 0) -> Process | None:
        """Return the process that has locked a byte of a lock file; None if it is free."""
        if not _seems_locked(self._session.path, name, at):
            return None
        visible = self._holder(name, at)
        for process in self.all():
            if visible is not None and process.visible_pid == visible:
                return process
            if visible is None and pid and process.pid == pid:
                return process
        return Process(pid if visible is None else visible)

    def writers(self) -> list[Process]:
        """Return every living process of the process table."""
        found = []
        if not self._session.private:
            for number in range(self._session.max_processes):
                nonce = self._session.control.process_entry(number)[0]
                process = self.of_owner((number, nonce)) if nonce else None
                if process is not None:
                    found.append(process)
        return found

    def all(self) -> list[Process]:
        """Return the writers and the visible readers, by pid."""
        found = self.writers()
        known = {process.visible_pid for process in found}
        for pid, opener in self.openers.items():
            if pid not in known:
                now = start_and_state(pid)
                other = namespace_of(pid) not in (0, self._own_namespace)
                found.append(
                    Process(
                        pid, pid, None if other else command_of(pid), started_ms(pid),
                        None if now is None else _is_suspended(pid, now[1]), other,
                        read_only=PROCESS_FILE not in opener.opened,
                    )
                )  # fmt: skip
        return sorted(found, key=lambda process: process.pid)


def holder_text(path: str, name: str, at: int) -> str:
    """Return the process that has locked a byte, for a message; "" if unknown."""
    for pid, opener in openers(path).items():
        if (name, at) in opener.locks:
            return Process(pid, pid, command_of(pid), stopped=is_stopped(pid)).text
    return ""


def lock_text(session: ProcessTable, slot: int, kind: str, pid: int = 0) -> str:
    """Return the process that holds a lock of a partition, for a message; arguments of `holder`."""
    found = Processes(session).holder(slot, kind, pid)
    if found is None:
        return "a process that has just released it"
    return "another thread of this process" if found.pid == os.getpid() else found.text


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, or its control group is frozen."""
    now = start_and_state(pid)
    return now is not None and _is_suspended(pid, now[1])


def _is_suspended(pid: int, state: str) -> bool:
    return state in _STOPPED or frozen_cgroup(pid) is not None


def frozen_cgroup(pid: int, proc: str = "/proc", mounts: Sequence[str] = _CGROUPS) -> str | None:
    """Return the directory of the control group (v2) that keeps a process frozen, or None.

    `cgroup.events` of the process's own group says whether it is frozen. The group that was frozen
    is this group or one of its parents.
    """
    try:
        with open(f"{proc}/{pid}/cgroup") as file:
            name = next(line[3:].strip() for line in file if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    for mount in mounts:
        place = f"{mount}{name}".rstrip("/")
        if not _says(f"{place}/cgroup.events", "frozen 1"):
            continue
        while place != mount and not _says(f"{place}/cgroup.freeze", "1"):
            place = os.path.dirname(place)
        return f"{mount}{name}" if place == mount else place
    return None


def _says(path: str, line: str) -> bool:
    try:
        with open(path) as file:
            return line in file.read().splitlines()
    except OSError:
        return False


def to_continue(pid: int) -> str:
    """Return the command that resumes a stopped process."""
    frozen = frozen_cgroup(pid)
    return f"kill -CONT {pid}" if frozen is None else f"echo 0 > {frozen}/cgroup.freeze"


def openers_text(path: str) -> str:
    """Return the processes that hold the session byte of a directory, for a message."""
    named = []
    for pid, opener in sorted(openers(path).items()):
        if (SESSION_FILE, SESSION_AT) in opener.locks:
            process = Process(pid, pid, command_of(pid), stopped=is_stopped(pid))
            named.append("this process" if pid == os.getpid() else process.text)
    return ", ".join(named) or "a process that is not visible to this one"
