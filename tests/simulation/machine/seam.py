"""The OS-call table, the clocks and the failpoints, routed through a world.

The entries of the core's table (`os_table.h`) become Python functions: each tells the world that a call comes,
makes it for real on tmpfs, and tells the disk model. Standard modules that eoslog's modules hold (`time`, `random`,
`secrets`, `uuid`, and `threading` where it starts threads) are replaced by ones that ask the world, too (`modules.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import secrets
import sys
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import CFUNCTYPE, c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint32, c_void_p
from types import ModuleType
from typing import Any

# With what it imports, before a world begins: what is imported within one has the real clock.
import eoslog.log  # noqa: F401
from eoslog import _core
from eoslog.client.producer import sender
from eoslog.engine import dropped_clients, registry
from eoslog.engine import scheduler as background
from eoslog.shown_paths import DESCRIPTORS
from eoslog.storage.directory import cleaner_lock
from eoslog.storage.fs import files
from eoslog.storage.fs.opened_directory import OpenedDirectory
from eoslog.storage.segment.segment import Segment
from tests.simulation.machine import modules
from tests.simulation.machine.disk import File
from tests.simulation.machine.world import Process, World

_SIGNATURES: list[tuple[str, tuple[Any, ...]]] = [  # in the order of eoslog_os_table
    ("open", (c_int, c_char_p, c_int, c_int)),
    ("pread", (c_ssize_t, c_int, c_void_p, c_size_t, c_int64)),
    ("pwrite", (c_ssize_t, c_int, c_void_p, c_size_t, c_int64)),
    ("fdatasync", (c_int, c_int)),
    ("fsync", (c_int, c_int)),
    ("ftruncate", (c_int, c_int, c_int64)),
    ("rename", (c_int, c_char_p, c_char_p)),
    ("unlink", (c_int, c_char_p)),
    ("lock", (c_int, c_int, c_int, c_int64)),
    ("point", (None, c_int)),
    ("mkdir", (c_int, c_char_p, c_int)),
    ("rmdir", (c_int, c_char_p)),
    ("writeback", (c_int, c_int, c_int64, c_int64)),
    ("forget", (c_int, c_int)),
    ("map", (c_void_p, c_int, c_int64, c_size_t, c_int)),
    ("clock_ns", (c_int64, c_int)),
    ("wait", (c_int, c_void_p, c_void_p, c_int, c_int64)),
]
_TYPES = {name: CFUNCTYPE(*types, use_errno=True) for name, types in _SIGNATURES}


class _Table(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name, _ in _SIGNATURES]


_table = _Table.from_address(_core.os_table())
_real_entries = {name: getattr(_table, name) for name, _ in _SIGNATURES}
real: dict[str, Any] = {name: _TYPES[name](address) for name, address in _real_entries.items()}
"""The functions that the table had before."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_int64)
STARTS_THREADS = (background, dropped_clients, sender)
"""The modules whose threads do not run: the process does their work in steps."""
_REPLACED = (time, random, secrets, uuid)
WAITS_FOR_EVENTS = (cleaner_lock,)
_NULL = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
_BLOCK = 64 << 10
_ZEROS = bytes(_BLOCK)
_DEAD = "eoslog-of-a-dead-process"
_MAP_FAILED = ctypes.c_void_p(-1).value


def _fail(code: int) -> int:
    ctypes.set_errno(code)
    return -1


def _name(world: World, fd: int) -> str:
    node = world.fds.get(fd)
    return (
        "/".join(node.live.split("/")[-2:])
        if isinstance(node, File) and isinstance(node.live, str)
        else ""
    )


def _on_disk(path: bytes) -> str:
    """The path below the disk's root, for one below a session's descriptor of it."""
    name = path.decode()
    if not name.startswith(DESCRIPTORS):
        return name
    number, _, rest = name.removeprefix(DESCRIPTORS).partition("/")
    try:
        return os.path.join(os.readlink(DESCRIPTORS + number), rest).rstrip("/")
    except OSError:  # of a dead process
        return name


class Calls:
    """The table's functions for one world."""

    def __init__(self, world: World) -> None:
        """Route to this world."""
        self.world = world

    def _fault(self, call: str) -> int:
        faults = self.world.faults
        faults.calls[call] += 1
        if faults.call != call or self.world.current is None:
            return 0
        faults.seen += 1
        if faults.seen == faults.nth or (faults.for_good and faults.seen > faults.nth):
            faults.hit += 1
            if faults.then_crash and faults.hit == 1:
                self.world.crash_at = self.world.steps + faults.then_crash
            return faults.error
        return 0

    def open(self, path: bytes, flags: int, mode: int) -> int:
        world, name = self.world, _on_disk(path)
        if not world.step("open", name[len(world.disk.root) + 1 :]):
            return _fail(errno.EBADF)
        code = self._fault("open")
        if code:
            return _fail(code)
        fd = int(real["open"](path, flags, mode))
        if fd >= 0:
            world.fds[fd] = world.disk.opened(name)
            for process in world.processes:
                process.fds.discard(fd)  # the earlier owner of this number has closed it
            if world.current is not None:
                world.current.fds.add(fd)
        return fd

    def pread(self, fd: int, data: int, size: int, at: int) -> int:
        if not self.world.step("pread", at):
            return _fail(errno.EBADF)
        code = self._fault("pread")
        if code:
            return _fail(code)
        return int(real["pread"](fd, data, size, at))

    def pwrite(self, fd: int, data: int, size: int, at: int) -> int:
        world = self.world
        node = world.fds.get(fd)
        me = world.current
        was_alive = me is not None and not me.dead
        if not world.step("pwrite", (_name(world, fd), at, size)):
            if (
                was_alive
                and me is world.current
                and isinstance(node, File)
                and size > 1
                and world.steps == world.crash_at
            ):
                # death in the middle of the call: a part of it is there (not even power is needed)
                at_fd = os.open(node.live, os.O_RDWR) if isinstance(node.live, str) else -1
                if at_fd >= 0:
                    real["pwrite"](at_fd, data, world.rng.randrange(size), at)
                    os.close(at_fd)
            return _fail(errno.EBADF)
        code = self._fault("pwrite")
        if code:
            if code == errno.ENOSPC and size > 1 and world.rng.random() < 0.5:
                size = world.rng.randrange(1, size)  # a full disk takes what still fits
                world.faults.seen -= 1
                world.faults.nth = world.faults.seen + 1
            else:
                return _fail(code)
        elif world.faults.short and size > 1 and world.rng.random() < world.faults.short:
            size = world.rng.randrange(1, size)
        written = int(real["pwrite"](fd, data, size, at))
        if isinstance(node, File) and written > 0:
            node.rewritten(at, written)
        return written

    def fdatasync(self, fd: int) -> int:
        return self._sync("fdatasync", fd)

    def fsync(self, fd: int) -> int:
        return self._sync("fsync", fd)

    def _sync(self, call: str, fd: int) -> int:
        world = self.world
        if not world.step(call, _name(world, fd)):
            return _fail(errno.EBADF)
        node = world.fds.get(fd)
        code = self._fault("sync")
        if code:
            if isinstance(node, File):
                node.fail_sync()
            return _fail(code)
        if node is not None:
            node.sync()  # type: ignore[attr-defined]
        world.disk.syncs += 1
        return 0

    def ftruncate(self, fd: int, size: int) -> int:
        if not self.world.step("ftruncate", (_name(self.world, fd), size)):
            return _fail(errno.EBADF)
        code = self._fault("ftruncate")
        return _fail(code) if code else int(real["ftruncate"](fd, size))

    def rename(self, source: bytes, target: bytes) -> int:
        disk, old, new = self.world.disk, _on_disk(source), _on_disk(target)
        if not self.world.step("rename", os.path.basename(new)):
            return _fail(errno.EBADF)
        code = self._fault("rename")
        if code:
            return _fail(code)
        if os.path.exists(new):
            disk.leaving(new)
        rc = int(real["rename"](source, target))
        if rc == 0:
            disk.renamed(old, new)
        return rc

    def unlink(self, path: bytes) -> int:
        disk, name = self.world.disk, _on_disk(path)
        if not self.world.step("unlink", os.path.basename(name)):
            return _fail(errno.EBADF)
        code = self._fault("unlink")
        if code:
            return _fail(code)
        if os.path.exists(name):
            disk.leaving(name)
        rc = int(real["unlink"](path))
        if rc == 0:
            disk.removed(name)
        return rc

    def lock(self, fd: int, kind: int, at: int) -> int:
        if not self.world.step("lock", (kind, at)):
            return _fail(errno.EBADF)
        return int(real["lock"](fd, kind, at))

    def point(self, number: int) -> None:
        self.world.step("point", number)

    def mkdir(self, path: bytes, mode: int) -> int:
        if not self.world.step("mkdir", os.path.basename(path.decode())):
            return _fail(errno.EBADF)
        code = self._fault("mkdir")
        if code:
            return _fail(code)
        rc = int(real["mkdir"](path, mode))
        if rc == 0:
            self.world.disk.made_folder(_on_disk(path))
        return rc

    def rmdir(self, path: bytes) -> int:
        if not self.world.step("rmdir", os.path.basename(path.decode())):
            return _fail(errno.EBADF)
        code = self._fault("unlink")
        if code:
            return _fail(code)
        rc = int(real["rmdir"](path))
        if rc == 0:
            self.world.disk.removed(_on_disk(path))
        return rc

    def map(self, fd: int, at: int, size: int, writable: int) -> int | None:
        world = self.world
        if not world.step("map"):
            _fail(errno.EBADF)
            return _MAP_FAILED
        address = real["map"](fd, at, size, writable)
        if world.current is not None and address != _MAP_FAILED:
            for process in world.processes:  # the earlier owner of this memory has unmapped it
                process.maps = [
                    (at, length)
                    for at, length in process.maps
                    if at + length <= address or address + size <= at
                ]
            world.current.maps.append((address, size))
        return address  # type: ignore[no-any-return]

    def writeback(self, fd: int, at: int, size: int) -> int:
        """Promises nothing: the pages of this disk reach it by themselves, or don't."""
        return 0

    def forget(self, fd: int) -> int:
        """Drop the pages that a failed sync kept from the disk, or keep them as if mapped."""
        node = self.world.fds.get(fd)
        if isinstance(node, File) and node.lost:
            if self.world.rng.random() < 0.5:
                return 1
            node.forget()
        return 0

    def clock_ns(self, wall: int) -> int:
        return self.world.clock_ns + (self.world.wall_ns if wall else 0)

    def wait(self, words: int, expected: int, n: int, timeout_ns: int) -> int:
        awaits = None
        if n:
            addresses = (c_void_p * n).from_address(words)
            values = (c_uint32 * n).from_address(expected)
            pairs = [(c_uint32.from_address(addresses[i] or 0), values[i]) for i in range(n)]

            def awaits() -> bool:
                return any(word.value != value for word, value in pairs)

            if awaits():
                return 0
        self.world.sleep(timeout_ns, awaits)
        return 0


def _guarded(world: World, name: str, function: Callable[..., Any]) -> Any:
    """What goes wrong in here must not vanish in a C frame."""

    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except BaseException:
            traceback.print_exc()
            world.kept.append(sys.exc_info()[1])
            return None if name == "point" else -1

    return _TYPES[name](call)


def _mapped(name: str) -> set[int]:
    """Addresses of the mappings of files whose path contains `name`.

    An engine that has ended has unmapped its own.
    """
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return {int(line.split("-", 1)[0], 16) for line in maps if name in line}


def _make_private(address: int, size: int) -> None:
    """Put a private copy in the place of a shared mapping."""
    kept = [(at, ctypes.string_at(address + at, _BLOCK)) for at in range(0, size, _BLOCK)]
    fd = os.memfd_create(_DEAD)
    os.ftruncate(fd, size)
    _libc.mmap(address, size, 3, 0x02 | 0x10, fd, 0)  # private, fixed
    os.close(fd)
    for at, block in kept:
        if block != _ZEROS:
            ctypes.memmove(address + at, block, _BLOCK)


def detach(world: World, process: Process) -> None:
    """Detach a dead process: /dev/null descriptors, private mappings, free locks."""
    for fd in sorted(process.fds):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(world.disk.root):
                os.dup2(_NULL, fd, inheritable=False)
                _core.release_guard(fd)
    mapped = _mapped(world.disk.root) if process.maps else set()
    process.maps = [(address, size) for address, size in process.maps if address in mapped]
    for address, size in process.maps:
        _make_private(address, size)
    for reference in process.segments:
        segment = reference()
        if segment is not None and segment.file is not None:
            segment.file.fd = -1  # its finalizer must not close what has this number by then
    world.kept.extend(process.engines.values())


def bury(process: Process) -> None:
    """Its thread has ended: give back what it still holds."""
    for fd in process.fds:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") == os.devnull and fd != _NULL:
                os.close(fd)
    process.maps.clear()  # the core unmaps each with its last user
    process.fds.clear()


def _modules() -> dict[str, ModuleType]:
    """eoslog's modules that are imported by now, without the core: it asks the table."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.startswith("eoslog.") and name != "eoslog._core"
    }


def _asks(module: ModuleType) -> bool:
    """Whether the module asks the real clock, the real dice, or a real pool."""
    held = list(vars(module).values())
    return any(value is real for value in held for real in (*_REPLACED, ThreadPoolExecutor))


@contextlib.contextmanager
def installed(world: World, only: tuple[str, ...] = ()) -> Iterator[World]:
    """Route eoslog's calls in this process through a world.

    `only` names the entries of the OS table to route; empty means all.
    """
    for module in (*STARTS_THREADS, *WAITS_FOR_EVENTS):
        used = getattr(module, "threading", None)
        assert used is threading, f"{module.__name__} uses no threads of its own"
    calls = Calls(world)
    entries = {
        n: _guarded(world, n, getattr(calls, n))
        for n, _ in _SIGNATURES
        if (n in only if only else world.reads or n != "pread")
    }
    clock, drawn, armed = modules.Clock(world), modules.Secrets(world), files._armed
    pool: Any = modules.Pool
    undo: list[tuple[Any, str, Any]] = []

    def put(module: Any, name: str, value: Any) -> None:
        undo.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    known = _modules()
    for _, module in sorted(known.items()):
        held = vars(module)
        for value, ours in zip(_REPLACED, (clock, world.rng, drawn, drawn), strict=True):
            attribute = value.__name__
            if held.get(attribute) is value:
                put(module, attribute, ours)
        if held.get("ThreadPoolExecutor") is ThreadPoolExecutor:
            put(module, "ThreadPoolExecutor", pool)
    for module in STARTS_THREADS:
        put(module, "threading", modules.Threading())
    for module in WAITS_FOR_EVENTS:
        put(module, "threading", modules.Waits(world))
    put(files, "_armed", modules.Armed(world))
    made = Segment.__init__

    def registered(self: Segment, *args: Any) -> None:
        made(self, *args)
        if world.current is not None:
            world.current.segments.append(weakref.ref(self))

    put(Segment, "__init__", registered)
    opened = OpenedDirectory.__init__

    def kept(self: OpenedDirectory, path: str, fd: int = -1) -> None:
        opened(self, path, fd)
        for process in world.processes:
            process.fds.discard(self.fd)  # the earlier owner of this number has closed it
        if world.current is not None:
            world.current.fds.add(self.fd)

    put(OpenedDirectory, "__init__", kept)
    put(registry, "_open", {})
    put(registry, "_mutex", threading.Lock())

    def switched(process: Process) -> None:
        registry._open = process.engines  # type: ignore[assignment]
        registry._mutex = process.engines_mutex  # type: ignore[assignment]

    world.on_switch = switched
    world.on_end = lambda process: detach(world, process)
    for name, entry in entries.items():
        setattr(_table, name, ctypes.cast(entry, c_void_p).value)
    try:
        yield world
        late = {name for name, module in _modules().items() if name not in known and _asks(module)}
        assert not late, f"imported within the world, with the real clock: {sorted(late)}"
    finally:
        for name, address in _real_entries.items():
            setattr(_table, name, address)
        for module, name, value in reversed(undo):
            setattr(module, name, value)
        assert files._armed is armed
