"""The only Python face of the core's OS-call table: every file access of eoslog goes through here.

Faults are injected below (`arm_fault`, by system call) or beside (`failpoint`, by name), so the
production path is the tested one. Names armed through `EOSLOG_FAILPOINTS`, as in
`EOSLOG_FAILPOINTS=txn.prepared=kill,pwrite:12=ENOSPC`, reach processes that a test starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator

from eoslog import _core
from eoslog.errors import DiskFull, EoslogError, StorageError, TooManyOpenFiles

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_COPY_STEP = 4 << 20
_KILL_BEFORE, _KILL_AFTER, _SHORT, _STOP = 0, -1, -2, -3

_KINDS = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EMFILE: TooManyOpenFiles,
    errno.ENFILE: TooManyOpenFiles,
}
_armed: dict[str, list[str]] = {}


def storage_error(error: OSError, path: str) -> StorageError:
    """The typed error of a failed call, with its file."""
    kind = _KINDS.get(error.errno or 0, StorageError)
    return kind("" if error.errno else str(error), error.errno or 0, path)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Turn an OSError inside into a StorageError that names the file; typed ones go through."""
    try:
        yield
    except EoslogError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error


def open_file(
    path: str, *, create: bool = False, read_only: bool = False, append: bool = False
) -> int:
    """A descriptor, close-on-exec. Raises FileNotFoundError as it is, all else as StorageError.

    With `append`, the kernel puts each write behind the file's end, whatever position it names.
    """
    flags = os.O_RDONLY if read_only else os.O_RDWR | (os.O_CREAT if create else 0)
    flags |= os.O_APPEND if append else 0
    try:
        return _core.os_open(path, flags, FILE_MODE)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error


def close(fd: int) -> None:
    """Close a descriptor; -1 is none."""
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.close(fd)


def close_written(fd: int, path: str) -> None:
    """Close a descriptor; an error of what was written through it may be told only now (NFS)."""
    with naming(path):
        os.close(fd)


def read_file(path: str) -> bytes:
    """The whole file. Raises FileNotFoundError, or StorageError."""
    fd = open_file(path, read_only=True)
    try:
        with naming(path):
            return bytes(_core.os_pread(fd, os.fstat(fd).st_size, 0))
    finally:
        os.close(fd)


def write_file(path: str, data: bytes, *, durable: bool = False) -> None:
    """Make or replace a file's content in place: for files that recovery rebuilds."""
    fd = open_file(path, create=True)
    try:
        with naming(path):
            _core.os_truncate(fd, 0)
            _core.os_pwrite(fd, data, 0)
            if durable:
                _core.os_sync(fd)
    finally:
        os.close(fd)


def write_atomically(path: str, data: bytes) -> None:
    """Replace a file so that a crash leaves the old or the new content.

    Durability: durable on return (file and directory are synced).
    """
    temporary = f"{path}.tmp"
    fd = open_file(temporary, create=True)
    try:
        with naming(temporary):
            _core.os_truncate(fd, 0)
            _core.os_pwrite(fd, data, 0)
            _core.os_sync(fd, data_only=False)
    finally:
        os.close(fd)
    with naming(path):
        _core.os_rename(temporary, path)
    fsync_dir(os.path.dirname(path))


def forget_cached(fd: int) -> None:
    """Let the next reads of a file come from the disk, as far as nobody maps it.

    After a failed writeback the cache shows bytes that the disk lacks, as clean. Who knew of it may
    have died; writing them again does not help everywhere (ext4 leaves the extents unwritten).

    Source: protocol.md row 7; `tests/torture/full.py`.
    """
    with contextlib.suppress(OSError):  # what it could not write is not there: that is the point
        _core.os_sync(fd)
    with contextlib.suppress(OSError):  # a simulated descriptor
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def own(path: str) -> None:
    """Give a file that is hard-linked elsewhere bytes of its own, before they are changed.

    Durability: the copy is durable under the name when this returns.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if status.st_nlink <= 1:
        return
    replace_by_copy(path)


def replace_by_copy(path: str, size: int | None = None) -> None:
    """Put a copy of a file's first `size` bytes, or of all, in its place.

    Durability: durable under the name on return; a crash leaves the old file or the new one.
    """
    temporary = f"{path}.tmp"
    copy_file(path, temporary, size)
    with naming(path):
        _core.os_rename(temporary, path)
    fsync_dir(os.path.dirname(path))


def copy_file(
    source: str,
    target: str,
    size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Copy a file's first `size` bytes, or all; `progress` gets the bytes of each step.

    Raises:
        StorageError: the source is shorter than that; what was copied of it is no copy.

    Durability: the bytes are durable on return.
    """
    from_fd = open_file(source, read_only=True)
    try:
        fd = open_file(target, create=True)
        try:
            with naming(target):
                _core.os_truncate(fd, 0)
                position, end = 0, os.fstat(from_fd).st_size if size is None else size
                while position < end:
                    data = _core.os_pread(from_fd, min(_COPY_STEP, end - position), position)
                    if not data:
                        raise StorageError(f"{source} ends at byte {position}, not at {end}")
                    _core.os_pwrite(fd, data, position)
                    position += len(data)
                    if progress is not None:
                        progress(len(data))
                _core.os_sync(fd, data_only=False)
        finally:
            os.close(fd)
    finally:
        os.close(from_fd)


def fsync_dir(path: str) -> None:
    """Make the names in a directory durable."""
    with naming(path):
        fd = _core.os_open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _core.os_sync(fd, data_only=False)
        finally:
            os.close(fd)


def make_dir(path: str, *, durable: bool = True) -> None:
    """Make a directory (0700) if it is not there, durably unless told otherwise.

    Also where it is there: whoever made it may have died before it was durable.
    """
    with naming(path), contextlib.suppress(FileExistsError):
        _core.os_mkdir(path, DIRECTORY_MODE)
    if durable:
        fsync_dir(os.path.dirname(path) or ".")


def rename(source: str, target: str) -> None:
    """Rename within a directory; durable after its `fsync_dir`."""
    with naming(target):
        _core.os_rename(source, target)


def remove(path: str) -> None:
    """Unlink a file if it is there."""
    try:
        _core.os_unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise storage_error(error, path) from error


def remove_tree(path: str) -> None:
    """Remove a directory that no metadata names any more, as far as that works."""
    for folder, _, names_there in os.walk(path, topdown=False):
        for name in sorted(names_there):
            with contextlib.suppress(OSError):
                _core.os_unlink(os.path.join(folder, name))
        with contextlib.suppress(OSError):
            _core.os_rmdir(folder)


def names(path: str) -> list[str]:
    """What lies in a directory, sorted."""
    with naming(path):
        return sorted(os.listdir(path))


def status(path: str) -> os.stat_result | None:
    """What the system says of a file; None if there is none.

    Unlike `os.path.exists`, a disk that fails is no missing file: StorageError.
    """
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error(error, path) from error


def exists(path: str) -> bool:
    """Whether there is a file or directory of that name."""
    return status(path) is not None


def is_dir(path: str) -> bool:
    """Whether there is a directory of that name."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


# --- faults ---------------------------------------------------------------------------------


def arm_failpoint(name: str, action: str, nth: int = 1) -> None:
    """Let the nth coming pass of a named point (or OS call) act.

    Args:
        name: a failpoint, or an OS call (`pwrite`, `fdatasync`, ...), or `point` (nth is its id).
        action: `kill`, `stop`, `interrupt` (as Ctrl-C) and `trip` (these two not for calls),
            `kill-after`, `short` (for calls only), or an errno name such as `EIO`. `ACTION@FILE`
            acts at any pass of a failpoint for which FILE has been made, and takes it away:
            FILE.PID is left of it.
        nth: 1 is the next pass.
    """
    if name in _core.FAULT_CALLS:
        codes = {"kill": _KILL_BEFORE, "kill-after": _KILL_AFTER, "short": _SHORT, "stop": _STOP}
        code = codes.get(action)
        _core.arm_fault(name, nth, getattr(errno, action) if code is None else code)
    else:
        _armed[name] = [""] * (nth - 1) + [action]


def disarm_failpoints() -> None:
    """Forget every armed fault."""
    _armed.clear()
    _core.disarm_faults()


def failpoint(name: str) -> bool:
    """A named step between two durable ones. Does nothing unless a test armed it.

    Returns:
        True where the armed action is `trip` and the caller is to act out the fault itself.
    """
    if not _armed or name not in _armed:
        return False
    queue = _armed[name]
    action, _, claim = queue[0].partition("@")
    if claim:
        if not _claimed(claim):
            return False
    else:
        queue.pop(0)
        if not queue:
            del _armed[name]
    if not action:
        return False
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        return False
    if action == "interrupt":
        raise KeyboardInterrupt
    if action == "trip":
        return True
    code = getattr(errno, action)
    raise storage_error(OSError(code, os.strerror(code)), name)


def _claimed(path: str) -> bool:
    """Whether a test laid this file out, and no other process has taken it."""
    try:
        os.rename(path, f"{path}.{os.getpid()}")
    except FileNotFoundError:
        return False
    return True


def _arm_from_environment() -> None:
    for item in filter(None, os.environ.get("EOSLOG_FAILPOINTS", "").split(",")):
        where, _, action = item.partition("=")
        name, _, nth = where.partition(":")
        arm_failpoint(name, action or "kill", int(nth or 1))


_arm_from_environment()
