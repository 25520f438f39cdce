"""The state that processes share in an open directory: session, locks, control file, process table.

Every writer holds a shared lock on byte 1 of `eoslog.session`. A process that gets this lock
exclusively is the only one. It chooses a new random session number, which makes every slot of the
control file void. So recovery treats reboot, remount, copy and restore in the same way (protocol.md
row 6). The kernel releases the locks of a process when the process ends.

A crash leaves a control file with an old session number. The next session ignores its slots.
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
from eoslog.errors import UNWRITABLE, IllegalState, LockTimeout, StorageError
from eoslog.shown_paths import get_logger
from eoslog.storage.directory import processes
from eoslog.storage.fs import files
from eoslog.storage.fs.opened_directory import OpenedDirectory
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S

logger = get_logger("eoslog.directory")

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
_BOOTSTRAP_AT, _SESSION_AT = processes.BOOTSTRAP_AT, processes.SESSION_AT


def _lock_file(slot: int) -> str:
    """Return the name of the file with a slot's locks."""
    return f"eoslog.lock-{slot % LOCK_FILES:02d}"


def _append_at(slot: int) -> int:
    """Return the byte of a slot's append lock in its lock file; the next byte is the flush lock."""
    return 2 * (slot // LOCK_FILES)


@contextlib.contextmanager
def past_control(path: str) -> Iterator[_core.ControlFile]:
    """Open the control file that the last session left, to read its slots.

    Raises:
        FileNotFoundError: if there is none.
        StorageError: if it cannot be read, or has another format.
    """
    name = os.path.join(path, CONTROL_FILE)
    fd = files.open_file(name, read_only=True)
    try:
        if (fault := _other_format(fd, name)) is not None:
            raise fault
        past = _core.ControlFile(fd, writable=False)
        try:
            past.map_chunks(os.fstat(fd).st_size // CHUNK_SIZE)
            yield past
        finally:
            past.close()
    finally:
        files.close(fd)


def _other_format(fd: int, path: str) -> StorageError | None:
    """Return an error if a control file is damaged or of another version."""
    with files.naming(path):
        head = bytes(_core.os_pread(fd, 12, 0))
    if head[:8] == MAGIC and int.from_bytes(head[8:12], "little") == FORMAT:
        return None
    return StorageError(
        f"control file begins with {head!r}, expected {MAGIC!r} and format {FORMAT}: either "
        "another version of eoslog has the log open, or the file is damaged; close the log in all "
        "processes, then open it again, or use that version",
        path=path,
    )


def durable_end_in(control: _core.ControlFile, slot: int, topic_id: bytes) -> int:
    """Return the durable end in a partition's slot, -1 if no session has left one.

    It was stored after the flush. So a bad batch below it is damage, not a torn write. After a
    power loss the value may be too old, and is only a lower bound.
    """
    try:
        view = control.slot_view(slot)
    except IndexError:  # beyond the end of the file
        return -1
    if view["session"] == 0 or view["topic_id"] != topic_id:
        return -1
    return max(0, int(view["durable_end"]))


@contextlib.contextmanager
def explain_unwritable(remedy: str) -> Iterator[None]:
    """Explain errors of a directory that this process may not write.

    Args:
        remedy: what the caller can do instead of changing permissions; "" for nothing.

    Raises:
        StorageError: if the block raises one, with its errno and path.
    """
    try:
        yield
    except StorageError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise StorageError(
            f"the directory is not writable; check its permissions and its mount{remedy}",
            error.errno, error.path,
        ) from error  # fmt: skip


@contextlib.contextmanager
def bootstrap_lock(path: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the bootstrap lock of a directory.

    Args:
        path: the directory.
        shared: take a shared lock, for a directory that this process cannot write.

    Raises:
        LockTimeout: if another process holds the lock.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    name = os.path.join(path, SESSION_FILE)
    fd = files.open_file(name, create=not shared, read_only=shared)
    _core.guard_across_fork(fd)  # a forked child would keep the lock after this process ends
    try:
        while not _core.try_lock(fd, _BOOTSTRAP_AT, shared=shared):
            if time.monotonic() > deadline:
                holder = processes.holder_text(path, SESSION_FILE, _BOOTSTRAP_AT)
                raise LockTimeout(
                    f"{path}: bootstrap lock not free within {LOCK_TIMEOUT_S:g} s; held by "
                    f"{holder or 'another process'}; retry when that process has opened the log"
                )
            time.sleep(0.001)
        try:
            yield
        finally:
            _core.unlock(fd, _BOOTSTRAP_AT)
    finally:
        _core.release_guard(fd)
        files.close(fd)


class WriterCame(IllegalState):
    """A writer has opened the directory after a reader had opened it without any writer."""


class Session:
    """The membership of this process in an open directory.

    Invariants:
        - the session byte is locked shared from construction to `close`;
        - a forked child closes lock descriptors and does not unlock them (the core's atfork
          handler).

    Args:
        path: the directory, already initialised.
        directory: the opened directory; all file names are below its root. The session closes it.
        read_only: take no locks, except the shared session byte, and the bootstrap lock while
            joining. If there is no writer, the control file is private memory, every partition
            is scanned, and the scan is used only if no writer has come before its end.
    """

    def __init__(
        self, path: str, *, read_only: bool = False, directory: OpenedDirectory | None = None
    ) -> None:
        """Join the current session, or begin a new one."""
        with files.naming(path):
            self.directory = OpenedDirectory(path) if directory is None else directory
        self.path = self.directory.root
        self.read_only = read_only
        self.private = False
        self.unwritable = False
        self.began = False
        self.process_number = -1
        self.process_nonce = 0
        self._past: _core.ControlFile | None = None
        self._past_number = 0
        self._fds: list[int] = []
        self._lock_fds: dict[int, int] = {}
        self._closed = False
        self._closing = threading.RLock()  # held by calls with a descriptor that `close` closes
        self._bootstrapping = threading.local()
        self._generation = _core.fork_generation()
        try:
            self._join_as_reader() if read_only else self._join()
        except BaseException:
            self.close()  # a leftover exclusive lock would block every process, this one too
            raise

    # --- joining --------------------------------------------------------------------------------

    def _join(self) -> None:
        with explain_unwritable(", or open the log with read_only=True"):
            self._session_fd = self._open(SESSION_FILE)
            self.directory.mark(SESSION_FILE, self._session_fd)
            self._process_fd = self._open(PROCESS_FILE)
        with self.bootstrap():
            self._prepare_control()
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not _core.try_lock(self._session_fd, _SESSION_AT, shared=True):
                # Another process is closing the directory as the last one, or repairs it.
                if time.monotonic() > deadline:
                    holder = processes.holder_text(self.path, SESSION_FILE, _SESSION_AT)
                    raise LockTimeout(
                        f"{self.path}: {holder or 'another process'} holds the session exclusively "
                        "(it is closing or repairing the log); retry when it has finished"
                    )
                time.sleep(0.001)
            # Shared first, so that no other process can begin a session from here on.
            if _core.try_lock(self._session_fd, _SESSION_AT):
                self._begin()
                _core.try_lock(self._session_fd, _SESSION_AT, shared=True)
        self._register()

    def _open(self, name: str) -> int:
        path = os.path.join(self.path, name)
        with files.naming(path):  # a link to a file that is missing
            fd = files.open_file(path, create=True)
        _core.guard_across_fork(fd)
        self._fds.append(fd)
        return fd

    @contextlib.contextmanager
    def bootstrap(self) -> Iterator[None]:
        """Hold the bootstrap lock, which guards sessions, control file growth and checkpoint files.

        Re-entrant in a thread.
        """
        if getattr(self._bootstrapping, "held", False):
            yield
            return
        with bootstrap_lock(self.path, shared=self.unwritable):
            self._bootstrapping.held = True
            try:
                yield
            finally:
                self._bootstrapping.held = False

    def _prepare_control(self) -> None:
        path = os.path.join(self.path, CONTROL_FILE)
        fault = self._control_fault(path)
        if fault is not None:
            if not _core.try_lock(self._session_fd, _SESSION_AT):
                raise fault
            if files.status(path) is not None:
                logger.warning(
                    "%s: replacing the control file, which is damaged or of another version; after "
                    "a crash, the loss of flushed records is then not noticed",
                    self.path,
                )
            # Atomically: a power loss may keep the length of a file and lose its bytes.
            header = MAGIC + FORMAT.to_bytes(4, "little") + bytes(12)
            files.write_atomically(path, header.ljust(CHUNK_SIZE, b"\0"))
        fd = self._control_fd = self._open(CONTROL_FILE)
        with files.naming(CONTROL_FILE):
            size = os.fstat(fd).st_size
            self.control = _core.ControlFile(fd)
            self.control.map_chunks(size // CHUNK_SIZE)

    def _control_fault(self, path: str) -> StorageError | None:
        """Return why this version cannot use the control file, or None."""
        found = files.status(path)
        if found is None or found.st_size < CHUNK_SIZE:
            return StorageError(
                "control file is shorter than its header, while other processes have the log "
                "open; close the log in every process, then open it again",
                path=path,
            )
        fd = files.open_file(path, read_only=True)
        try:
            return _other_format(fd, path)
        finally:
            files.close(fd)

    def _begin(self) -> None:
        """Choose a new session number, and record how the last session ended.

        The caller holds the session byte exclusively.
        """
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
                self.control.register_process(
                    number,
                    self.process_nonce,
                    os.getpid(),
                    *processes.own_identity(),
                    time.time_ns() // 1_000_000,
                )
                return
        raise LockTimeout(
            f"{self.path}: {MAX_PROCESSES} processes have the log open, which is the maximum; "
            "close the log in one of them"
        )

    def _join_as_reader(self) -> None:
        live = False
        fd = self._session_of_reader()
        if fd >= 0:
            _core.guard_across_fork(fd)
            self._fds.append(fd)
            self.directory.mark(SESSION_FILE, fd)
            with self.bootstrap():  # excludes other readers, whose check would look like a session
                live = _core.try_lock(fd, _SESSION_AT, shared=True)
                if live and self._alone_as_reader(fd):
                    _core.unlock(fd, _SESSION_AT)
                    live = False
                if not live:  # a later writer chooses another number
                    self._past_number = self._written_number()
        else:
            self._past_number = self._written_number()
        if live:
            control = os.path.join(self.path, CONTROL_FILE)
            self._control_fd = files.open_file(control, read_only=True)
            self._fds.append(self._control_fd)
            if (fault := _other_format(self._control_fd, control)) is not None:
                raise fault
            self.control = _core.ControlFile(self._control_fd, writable=False)
            with files.naming(control):
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

    def _session_of_reader(self) -> int:
        """Open the session file, read-only if it cannot be written; -1 if there is none."""
        path = os.path.join(self.path, SESSION_FILE)
        try:
            return files.open_file(path)
        except FileNotFoundError:
            return -1
        except StorageError:
            self.unwritable = True
        try:
            return files.open_file(path, read_only=True)
        except (FileNotFoundError, StorageError):
            return -1

    def _alone_as_reader(self, fd: int) -> bool:
        if self.unwritable:  # an exclusive lock needs write permission
            return not processes.locked_by_others(fd, _SESSION_AT)
        return _core.try_lock(fd, _SESSION_AT)

    def _written_number(self) -> int:
        """Return the session number in the control file, past or current; 0 without a file."""
        if self._past is not None:
            return int(self._past.session)
        with contextlib.suppress(OSError):  # StorageError is one
            fd = self._open_control_as_reader()
            try:
                if os.fstat(fd).st_size >= CHUNK_SIZE:
                    past = _core.ControlFile(fd, writable=False)
                    past.map_chunks(1)
                    number = int(past.session)
                    if _other_format(fd, CONTROL_FILE) is None:
                        self._past = past
                    else:
                        past.close()  # the next writer replaces the file
                    return number
            finally:
                files.close(fd)
        return 0

    def _open_control_as_reader(self) -> int:
        """Open the control file, for writing if this process may.

        On overlayfs, a file of a lower layer that is opened for reading is never the one that a
        later writer changes.
        """
        path = os.path.join(self.path, CONTROL_FILE)
        try:
            return files.open_file(path)
        except StorageError:
            return files.open_file(path, read_only=True)

    @property
    def outdated(self) -> bool:
        """Whether a writer has opened the directory since this reader opened it without any.

        Such a writer begins a session, with another number, before it writes to a partition.
        """
        return self.private and self._written_number() != self._past_number

    def refuse_outdated(self) -> None:
        """Raise an error if this reader's view is out of date.

        Raises:
            WriterCame: if a writer has opened the directory since (an IllegalState).
            DirectoryReplaced: if the directory was moved, removed or replaced.
        """
        if not self.read_only:  # the background thread compares the directory
            self.directory.refuse()
        else:
            self.directory.require_now_and_then()
        if self.outdated:
            raise WriterCame(
                f"{self.path}: another process has opened the log for writing, so this read-only "
                "view is out of date; open the log again"
            )

    def durable_before(self, slot: int, topic_id: bytes) -> int:
        """Return the offset below which an earlier session has flushed a partition; -1 if unknown.

        See `durable_end_in`.
        """
        if not self.private:
            return durable_end_in(self.control, slot, topic_id)
        with contextlib.suppress(OSError), past_control(self.path) as past:
            return durable_end_in(past, slot, topic_id)
        return -1

    # --- in use ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise an error if the session cannot be used.

        Raises:
            IllegalState: if it was closed, or inherited through a fork.
            DirectoryReplaced: if the directory was moved, removed or replaced.
        """
        self.control.slot_view(0)
        self.directory.refuse()

    def ensure_slot(self, slot: int) -> None:
        """Grow and map the control file so that it contains this slot.

        Raises:
            LockTimeout: if a reader needs a slot that no writer has created yet.
        """
        chunks = _core.ControlFile.chunks_for(slot)
        with files.naming(CONTROL_FILE):
            size = os.fstat(self._control_fd).st_size
        if size < chunks * CHUNK_SIZE:
            if self.private:
                os.ftruncate(self._control_fd, chunks * CHUNK_SIZE)
            elif self.read_only:  # access to mapped memory beyond the file's end raises SIGBUS
                raise LockTimeout(
                    f"{self.path}: the partition in slot {slot} is not recovered yet; retry after "
                    "the writing process has used it"
                )
            else:
                with self.bootstrap(), files.naming(CONTROL_FILE):
                    size = os.fstat(self._control_fd).st_size
                    if size < chunks * CHUNK_SIZE:
                        _core.os_pwrite(self._control_fd, bytes(chunks * CHUNK_SIZE - size), size)
                        _core.os_sync(self._control_fd, data_only=False)
        self.control.map_chunks(chunks)

    def map_all(self) -> None:
        """Map the complete control file, which other processes may have grown."""
        with files.naming(CONTROL_FILE):
            size = os.fstat(self._control_fd).st_size
            self.control.map_chunks(size // CHUNK_SIZE)

    def append_lock(self, slot: int) -> tuple[int, int]:
        """Return (descriptor, byte) of a slot's append lock; the next byte is the flush lock."""
        number = slot % LOCK_FILES
        fd = self._lock_fds.get(number)
        if fd is None:
            fd = -1 if self.read_only else self._open(_lock_file(slot))
            fd = self._lock_fds.setdefault(number, fd)
        return fd, _append_at(slot)

    def refuse_closed(self) -> None:
        """Raise IllegalState if the session was closed, or inherited through a fork."""
        if self._closed or self.inherited:
            raise IllegalState("the log is closed")

    def try_lock(self, fd: int, at: int) -> bool:
        """Take the lock of one byte of a lock file if it is free.

        Raises:
            IllegalState: if the session was closed, or inherited through a fork.
        """
        self.refuse_closed()  # before the mutex, which a forked child must not take
        with self._closing:  # else another file may have the number
            self.refuse_closed()
            return bool(_core.try_lock(fd, at))

    def unlock(self, fd: int, at: int) -> None:
        """Release a lock of `try_lock`, unless `close` has released it."""
        if not self.inherited:
            with self._closing:
                if not self._closed:
                    _core.unlock(fd, at)

    def await_recovery(self, slot: int, *, appends: bool = False) -> None:
        """Wait until no process recovers a deleted topic's partition.

        Recovery changes files by name. One that begins after this call finds the deletion.

        Args:
            slot: the partition's slot, marked as deleted.
            appends: also wait for an append, which repairs and rolls by name.

        Raises:
            LockTimeout: if the process does not end, for example while suspended.
            TooManyOpenFiles: if no descriptor is free to look at the lock.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while appends or self.control.published_ends((slot,))[0] < 0:  # else recovered already
            if not processes.is_locked(self.path, _lock_file(slot), _append_at(slot)):
                return
            if time.monotonic() > deadline:
                holder = processes.lock_text(self, slot, "append")
                raise LockTimeout(
                    f"{self.path}: append lock of a deleted topic's partition not free within "
                    f"{LOCK_TIMEOUT_S:g} s; held by {holder}; retry when that process has continued"
                )
            time.sleep(0.001)

    def consistent_cut(self, slots: Sequence[int]) -> list[dict[str, Any]]:
        """Read slots at one point in time, at which no process appends to any of them.

        Raises:
            LockTimeout: if the append locks were never free at the same time.
        """
        fds: dict[str, int] = {}
        try:
            for name in sorted(set(map(_lock_file, slots))):
                fds[name] = files.open_file(os.path.join(self.path, name), create=True)
                _core.guard_across_fork(fds[name])
            locks = [(slot, fds[_lock_file(slot)], _append_at(slot)) for slot in slots]
            views = _core.read_instant(self.control, locks, LOCK_TIMEOUT_S)
        finally:
            for fd in fds.values():
                _core.release_guard(fd)
                files.close(fd)
        if views is None:
            held = [
                processes.lock_text(self, slot, "append")
                for slot in slots
                if processes.is_locked(self.path, _lock_file(slot), _append_at(slot))
            ]
            raise LockTimeout(
                f"{self.path}: append locks are not free at the same time within "
                f"{LOCK_TIMEOUT_S:g} s; held by {', '.join(dict.fromkeys(held)) or 'no process'}"
            )
        return views

    def process_alive(self, number: int, nonce: int) -> bool:
        """Whether the process with this number and nonce is alive: it holds its process lock."""
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
            files.close(fd)  # closing releases the lock of this check
        return not free

    @property
    def max_processes(self) -> int:
        """The number of entries in the process table."""
        return MAX_PROCESSES

    def try_alone(self) -> bool:
        """Take the session byte exclusively if no other process has the directory open."""
        return _core.try_lock(self._session_fd, _SESSION_AT)

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that opened the directory."""
        return bool(self._generation != _core.fork_generation())

    def close(self) -> None:
        """Release all locks and the mapping. In a forked child the core has closed the locks."""
        if not self.inherited:
            with self._closing:
                self._closed = True
                for fd in self._fds:
                    _core.release_guard(fd)
                    files.close(fd)
        if self._past is not None:
            self._past.close()
        if hasattr(self, "control"):  # missing if joining failed
            self.control.close()
        self._fds.clear()
        self._lock_fds.clear()
        if not self.inherited:
            self.directory.close()
