"""An open directory as processes share it: session number, lock files, control file, process table.

Every writer holds byte 1 of `eoslog.session` shared. Who gets it exclusively is alone: it draws a
new random session number, which voids every slot of the control file, so reboot, remount, copy and
restore are one case (protocol.md row 6). The kernel frees a dead process's locks, never before.

What a crash leaves: a control file of an old session; the next session ignores it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from eoslog import _core
from eoslog.errors import IllegalState, LockTimeout, StorageError
from eoslog.storage import files

CONTROL_FILE = "eoslog.control"
SESSION_FILE = "eoslog.session"
PROCESS_FILE = "eoslog.process"
POISON_FILE = "eoslog.poison"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LOCK_FILES = 64

MAGIC = b"EOSLOGC1"
FORMAT = 1
CHUNK_SIZE = 1 << 20
MAX_PROCESSES = 1024
_BOOTSTRAP_AT, _SESSION_AT = 0, 1
_LOCK_TIMEOUT_S = 30.0


def _lock_file(slot: int) -> str:
    """The file that a slot's locks lie in."""
    return f"eoslog.lock-{slot % LOCK_FILES:02d}"


def _append_at(slot: int) -> int:
    """The byte of a slot's append lock in its lock file; the next one is the flush lock."""
    return 2 * (slot // LOCK_FILES)


@contextlib.contextmanager
def bootstrap_lock(path: str) -> Iterator[None]:
    """Hold the bootstrap lock of a directory.

    Raises:
        LockTimeout: another process holds it.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    fd = files.open_file(os.path.join(path, SESSION_FILE), create=True)
    _core.guard_across_fork(fd)  # a child would keep the lock when this process is gone
    try:
        while not _core.try_lock(fd, _BOOTSTRAP_AT):
            if time.monotonic() > deadline:
                raise LockTimeout(f"{path}: bootstrap lock not free within {_LOCK_TIMEOUT_S:g} s")
            time.sleep(0.001)
        try:
            yield
        finally:
            _core.unlock(fd, _BOOTSTRAP_AT)
    finally:
        _core.release_guard(fd)
        files.close(fd)


class WriterCame(IllegalState):
    """A directory that nobody wrote when a reader opened it is written by now, or was meanwhile."""


class Session:
    """This process's part in an open directory.

    Invariants:
        - the session byte is held shared from construction to `close`;
        - lock descriptors are closed, not unlocked, in a forked child (the core's atfork handler).

    Args:
        path: the directory, already initialised.
        read_only: hold no lock but the shared session byte, and the bootstrap lock for the moment
            of joining; where no writer is alive the control file is private memory and every
            partition is scanned anew, and counts if no writer has come until it is.
    """

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        """Join the session, or begin one."""
        self.path = path
        self.read_only = read_only
        self.private = False
        self.began = False
        self.process_number = -1
        self.process_nonce = 0
        self._past: _core.ControlFile | None = None
        self._past_number = 0
        self._fds: list[int] = []
        self._lock_fds: dict[int, int] = {}
        self._bootstrapping = threading.local()
        self._generation = _core.fork_generation()
        try:
            self._join_as_reader() if read_only else self._join()
        except BaseException:
            self.close()  # or its exclusive lock would keep everybody out, this process too
            raise

    # --- joining --------------------------------------------------------------------------------

    def _join(self) -> None:
        self._session_fd = self._open(SESSION_FILE)
        self._process_fd = self._open(PROCESS_FILE)
        with self.bootstrap():
            self._prepare_control()
            deadline = time.monotonic() + _LOCK_TIMEOUT_S
            while not _core.try_lock(self._session_fd, _SESSION_AT, shared=True):
                # The last one that had it open is closing it, or somebody repairs it.
                if time.monotonic() > deadline:
                    raise LockTimeout(f"{self.path}: another process holds the session exclusively")
                time.sleep(0.001)
            # Shared first: whoever else has it from here on was in the session all the time.
            if _core.try_lock(self._session_fd, _SESSION_AT):
                self._begin()
                _core.try_lock(self._session_fd, _SESSION_AT, shared=True)
        self._register()

    def _open(self, name: str) -> int:
        fd = files.open_file(os.path.join(self.path, name), create=True)
        _core.guard_across_fork(fd)
        self._fds.append(fd)
        return fd

    @contextlib.contextmanager
    def bootstrap(self) -> Iterator[None]:
        """Hold the bootstrap lock: session change, growth of the control file, checkpoint files.

        A thread that holds it may ask for it again.
        """
        if getattr(self._bootstrapping, "held", False):
            yield
            return
        with bootstrap_lock(self.path):
            self._bootstrapping.held = True
            try:
                yield
            finally:
                self._bootstrapping.held = False

    def _prepare_control(self) -> None:
        path = os.path.join(self.path, CONTROL_FILE)
        found = files.status(path)
        if found is None or found.st_size < CHUNK_SIZE:
            if not _core.try_lock(self._session_fd, _SESSION_AT):
                raise StorageError("shorter than its header while others have it open", path=path)
            # Under its name at once: a power cut may keep a file's length and lose its bytes.
            header = MAGIC + FORMAT.to_bytes(4, "little") + bytes(12)
            files.write_atomically(path, header.ljust(CHUNK_SIZE, b"\0"))
        fd = self._control_fd = self._open(CONTROL_FILE)
        with files.naming(CONTROL_FILE):
            size = os.fstat(fd).st_size
            magic = bytes(_core.os_pread(fd, 12, 0))
        if magic[:8] != MAGIC or int.from_bytes(magic[8:12], "little") != FORMAT:
            raise StorageError(
                f"control file begins with {magic!r}, expected {MAGIC!r} format {FORMAT}",
                path=path,
            )
        with files.naming(CONTROL_FILE):
            self.control = _core.ControlFile(fd)
            self.control.map_chunks(size // CHUNK_SIZE)

    def _begin(self) -> None:
        """Alone: draw a new session number and note how the last session ended."""
        marker = os.path.join(self.path, CLEAN_SHUTDOWN_FILE)
        clean = files.exists(marker)
        files.remove(marker)
        if clean:
            files.fsync_dir(self.path)
        self.control.clean = clean
        self.control.session = secrets.randbits(63) | 1
        with files.naming(CONTROL_FILE):
            _core.os_sync(self._control_fd)
        self.began = True

    def _register(self) -> None:
        self.process_nonce = secrets.randbits(63) | 1
        for number in range(MAX_PROCESSES):
            if _core.try_lock(self._process_fd, number):
                self.process_number = number
                self.control.register_process(number, self.process_nonce, os.getpid())
                return
        raise LockTimeout(f"{self.path}: {MAX_PROCESSES} processes have the directory open")

    def _join_as_reader(self) -> None:
        live = False
        try:
            fd = files.open_file(os.path.join(self.path, SESSION_FILE))
        except (FileNotFoundError, StorageError):
            fd = -1
        if fd >= 0:
            _core.guard_across_fork(fd)
            self._fds.append(fd)
            with self.bootstrap():  # who joins is alone here: nobody's look is taken for a session
                live = _core.try_lock(fd, _SESSION_AT, shared=True)
                if live and _core.try_lock(fd, _SESSION_AT):
                    _core.unlock(fd, _SESSION_AT)
                    live = False
                if not live:  # who writes from here on draws another
                    self._past_number = self._written_number()
        else:
            self._past_number = self._written_number()
        if live:
            control = os.path.join(self.path, CONTROL_FILE)
            self._control_fd = files.open_file(control, read_only=True)
            self._fds.append(self._control_fd)
            self.control = _core.ControlFile(self._control_fd, writable=False)
            self.control.map_chunks(os.fstat(self._control_fd).st_size // CHUNK_SIZE)
            return
        self.private = True
        memory = os.memfd_create("eoslog.control")
        os.ftruncate(memory, CHUNK_SIZE)
        self._fds.append(memory)
        self._control_fd = memory
        self.control = _core.ControlFile(memory)
        self.control.map_chunks(1)
        self.control.session = secrets.randbits(63) | 1

    def _written_number(self) -> int:
        """The session number in the control file, a past one's too; 0 where there is none."""
        if self._past is None:
            with contextlib.suppress(OSError):  # StorageError is one
                fd = files.open_file(os.path.join(self.path, CONTROL_FILE), read_only=True)
                try:
                    if os.fstat(fd).st_size >= CHUNK_SIZE:
                        past = _core.ControlFile(fd, writable=False)
                        past.map_chunks(1)
                        self._past = past
                finally:
                    files.close(fd)
        return 0 if self._past is None else int(self._past.session)

    @property
    def outdated(self) -> bool:
        """Whether a writer has come since a reader began where there was none.

        Each such one begins a session, before it writes to a partition.
        """
        return self.private and self._written_number() != self._past_number

    def refuse_outdated(self) -> None:
        """Raise WriterCame (IllegalState) where the files are not what this reader began with."""
        if self.outdated:
            raise WriterCame(
                f"{self.path}: a writer has opened the directory since this read_only log was "
                "opened while nobody wrote; open it again to see what it writes"
            )

    def durable_before(self, slot: int, topic_id: bytes) -> int:
        """What an earlier session is known to have flushed of a partition: an offset, or -1.

        Evidence, no pointer to trust: the slot's durable end was stored after the flush, so what
        lies below was durable, and a bad batch there is damage. After a power cut it may be old.
        """
        view = None
        if not self.private:
            view = self.control.slot_view(slot)
        else:
            with contextlib.suppress(OSError, IndexError):
                fd = files.open_file(os.path.join(self.path, CONTROL_FILE), read_only=True)
                try:
                    past = _core.ControlFile(fd, writable=False)
                    past.map_chunks(os.fstat(fd).st_size // CHUNK_SIZE)
                    view = past.slot_view(slot)
                    past.close()
                finally:
                    files.close(fd)
        if view is None or view["session"] == 0 or view["topic_id"] != topic_id:
            return -1
        return max(0, int(view["durable_end"]))

    # --- in use ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise IllegalState where the handle came through a fork."""
        self.control.slot_view(0)

    def ensure_slot(self, slot: int) -> None:
        """Grow and map the control file so that it holds this slot.

        Raises:
            LockTimeout: a reader may not grow it, and its writers have not.
        """
        chunks = _core.ControlFile.chunks_for(slot)
        with files.naming(CONTROL_FILE):
            size = os.fstat(self._control_fd).st_size
        if size < chunks * CHUNK_SIZE:
            if self.private:
                os.ftruncate(self._control_fd, chunks * CHUNK_SIZE)
            elif self.read_only:  # memory behind a file's end kills who touches it (SIGBUS)
                raise LockTimeout(f"{self.path}: nobody has written to slot {slot} yet")
            else:
                with self.bootstrap(), files.naming(CONTROL_FILE):
                    size = os.fstat(self._control_fd).st_size
                    if size < chunks * CHUNK_SIZE:
                        _core.os_pwrite(self._control_fd, bytes(chunks * CHUNK_SIZE - size), size)
                        _core.os_sync(self._control_fd, data_only=False)
        self.control.map_chunks(chunks)

    def map_all(self) -> None:
        """Map all of the control file: others may have grown it since this process mapped it."""
        with files.naming(CONTROL_FILE):
            size = os.fstat(self._control_fd).st_size
            self.control.map_chunks(size // CHUNK_SIZE)

    def append_lock(self, slot: int) -> tuple[int, int]:
        """(descriptor, byte) of a slot's append lock; the byte after it is the flush lock."""
        number = slot % LOCK_FILES
        fd = self._lock_fds.get(number)
        if fd is None:
            fd = -1 if self.read_only else self._open(_lock_file(slot))
            fd = self._lock_fds.setdefault(number, fd)
        return fd, _append_at(slot)

    def instant(self, slots: Sequence[int]) -> list[dict[str, Any]]:
        """What these slots said at one instant, at which nobody appended to any of them.

        Raises:
            LockTimeout: some of the locks were held all the time.
        """
        fds: dict[str, int] = {}
        try:
            for name in sorted(set(map(_lock_file, slots))):
                fds[name] = files.open_file(os.path.join(self.path, name), create=True)
                _core.guard_across_fork(fds[name])
            locks = [(slot, fds[_lock_file(slot)], _append_at(slot)) for slot in slots]
            views = _core.read_instant(self.control, locks, _LOCK_TIMEOUT_S)
        finally:
            for fd in fds.values():
                _core.release_guard(fd)
                files.close(fd)
        if views is None:
            raise LockTimeout(f"{self.path}: its append locks not free in {_LOCK_TIMEOUT_S:g} s")
        return views

    def process_alive(self, number: int, nonce: int) -> bool:
        """Whether that very process still holds its lock."""
        if not 0 <= number < MAX_PROCESSES:
            return False
        if self.control.process_entry(number)[0] != nonce:
            return False
        if number == self.process_number:
            return nonce == self.process_nonce
        if self.read_only:
            return not self.private
        fd = files.open_file(os.path.join(self.path, PROCESS_FILE))
        _core.guard_across_fork(fd)
        try:
            free = _core.try_lock(fd, number, shared=True)
        finally:
            _core.release_guard(fd)
            files.close(fd)  # closing frees what was taken just to look
        return not free

    def try_alone(self) -> bool:
        """Take the session byte exclusively if no other process has the directory open."""
        return _core.try_lock(self._session_fd, _SESSION_AT)

    def close(self) -> None:
        """Let go of every lock and the mapping. In a forked child the core did the first part."""
        if self._generation == _core.fork_generation():
            for fd in self._fds:
                _core.release_guard(fd)
                files.close(fd)
        if self._past is not None:
            self._past.close()
        if hasattr(self, "control"):  # it may not have got that far
            self.control.close()
        self._fds.clear()
        self._lock_fds.clear()
