"""File access: every file operation of eoslog's Python code goes through this module.

Faults are injected into system calls (`arm_fault`) or at named points (`failpoint`), so that tests
run the production code. `EOSLOG_FAILPOINTS` arms faults in processes that a test starts, for
example `EOSLOG_FAILPOINTS=txn.prepared=kill,pwrite:12=ENOSPC`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import stat
from collections.abc import Callable, Iterator

from eoslog import _core
from eoslog.errors import ConfigError, DiskFull, EoslogError, StorageError, TooManyOpenFiles
from eoslog.shown_paths import get_logger
from eoslog.storage.fs import opened_directory

logger = get_logger("eoslog.storage.files")

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_COPY_STEP = 4 << 20
_NO_WAIT = os.O_NONBLOCK
"""Nothing is opened that blocks: a named pipe in place of a file waits for its other end."""
_BLOCK = 4096
"""Bytes to which direct reads are aligned; no device has larger logical blocks."""
_CALL_ACTIONS = {"kill": 0, "kill-after": -1, "short": -2, "stop": -3}
_POINT_ACTIONS = ("kill", "stop", "interrupt", "trip")

_KINDS = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EMFILE: TooManyOpenFiles,
    errno.ENFILE: TooManyOpenFiles,
}
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_armed: dict[str, list[str]] = {}
_passed: dict[str, None] = {}
"""The points without a fault that were passed while another point was armed, in order."""
_VARIABLE = "EOSLOG_FAILPOINTS"


def storage_error(error: OSError, path: str) -> StorageError:
    """Return the typed error of a failed call, with its file.

    Returns DirectoryReplaced if the file is missing because its session's directory is.
    """
    if error.errno in _MISSING and (lost := opened_directory.replaced(path)) is not None:
        return lost
    opened_directory.named(error)
    kind = _KINDS.get(error.errno or 0, StorageError)
    text = "" if error.errno else str(error)
    if error.errno == errno.EPERM and _is_sticky(os.path.dirname(path)):
        text = (
            "the sticky bit of the directory keeps users from replacing the files of others; "
            "remove it (chmod -t), or use the log as one user"
        )
    return kind(text, error.errno or 0, path)


def _is_sticky(path: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(os.stat(path).st_mode & stat.S_ISVTX)
    return False


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
    """Open a file, close-on-exec. With `append`, each write goes to the end of the file.

    Raises:
        FileNotFoundError: if there is no such file.
        DirectoryReplaced: if the complete directory of an open session is missing.
        StorageError: if the call fails for another reason.
    """
    flags = os.O_RDONLY if read_only else os.O_RDWR | (os.O_CREAT if create else 0)
    flags |= _NO_WAIT | (os.O_APPEND if append else 0)
    try:
        return _core.os_open(path, flags, FILE_MODE)
    except FileNotFoundError as error:
        raise missing(error, path) from None
    except OSError as error:
        raise storage_error(error, path) from error


def open_or_none(path: str) -> int:
    """Open an existing file; -1 if there is none.

    Raises:
        StorageError: if the file cannot be opened.
    """
    try:
        return _core.os_open(path, os.O_RDWR | _NO_WAIT, FILE_MODE)
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise storage_error(error, path) from error


def missing(error: FileNotFoundError, path: str) -> OSError:
    """Return the error for a missing file, or DirectoryReplaced if the directory is missing."""
    return opened_directory.replaced(path) or opened_directory.named(error)


def close(fd: int) -> None:
    """Close a descriptor; -1 does nothing."""
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.close(fd)


def close_written(fd: int, path: str) -> None:
    """Close a descriptor, and raise write errors that a system reports only now (NFS)."""
    with naming(path):
        os.close(fd)


def read_file(path: str) -> bytes:
    """Return the content of a file.

    Raises:
        FileNotFoundError: if there is no such file.
        StorageError: if it cannot be read.
    """
    fd = open_file(path, read_only=True)
    try:
        return bytes(_core.os_pread(fd, os.fstat(fd).st_size, 0))
    except EoslogError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error
    finally:
        os.close(fd)


def write_file(path: str, data: bytes, *, durable: bool = False) -> None:
    """Write a file's content in place: for files that recovery rebuilds."""
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


def forget_cached(fd: int) -> bool:
    """Drop a file from the page cache, so that reads come from the disk.

    Pages that a process maps stay.

    After a failed writeback, the page cache has bytes, marked clean, that the disk does not have.
    The process that got the error may have died. Writing the bytes again does not help on every
    file system (ext4 leaves the extents unwritten).

    Returns:
        Whether every read comes from the disk now. If not, the disk may lack what is read: use
        `read_past_cache`, or make a copy (`replace_by_copy`), which is durable.

    Source: protocol.md row 7; `tests/torture/harnesses/full.py`.
    """
    with contextlib.suppress(OSError):  # a later read finds the bytes that could not be written
        _core.os_sync(fd)
    try:
        return _core.os_forget(fd)
    except OSError as error:
        path = f"/proc/self/fd/{fd}"
        with contextlib.suppress(OSError):
            path = os.readlink(path)
        logger.warning("%s: cached pages not dropped, not relying on the cache: %s", path, error)
        return False


def read_past_cache(fd: int, size: int, position: int) -> bytes:
    """Read bytes of a file from the disk, also if the page cache has them.

    On a file system without direct reads (`O_DIRECT`, open(2)), they may come from the cache.
    """
    begin, end = position // _BLOCK * _BLOCK, -(-(position + size) // _BLOCK) * _BLOCK
    path = f"/proc/self/fd/{fd}"
    with naming(path), mmap.mmap(-1, end - begin) as memory:  # aligned, as direct reads need it
        try:
            direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno in _KINDS:
                raise
            return bytes(_core.os_pread(fd, size, position))
        try:
            done = 0
            with memoryview(memory) as buffer:
                while more := os.preadv(direct, [buffer[done:]], begin + done):
                    done += more // _BLOCK * _BLOCK
                    if more % _BLOCK:  # the end of the file
                        break
        finally:
            os.close(direct)
        return memory[position - begin : position - begin + size]


def own(path: str) -> None:
    """Replace a hard-linked file by a copy, before its bytes are changed.

    Durability: the copy is durable under the name when this returns.
    """
    found = status(path)
    if found is None or found.st_nlink <= 1:
        return
    replace_by_copy(path)


def replace_by_copy(path: str, size: int | None = None) -> None:
    """Replace a file by a copy of its first `size` bytes, or of all.

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
        StorageError: if the source is shorter than `size`; the target is incomplete then.

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
                        raise StorageError(f"{source} ends at byte {position}, expected {end}")
                    _core.os_pwrite(fd, data, position)
                    position += len(data)
                    if progress is not None:
                        progress(len(data))
                _core.os_sync(fd, data_only=False)
        finally:
            os.close(fd)
    finally:
        os.close(from_fd)


def sync(path: str) -> None:
    """Make the contents of a file durable that other code has written."""
    with naming(path):
        fd = _core.os_open(path, os.O_RDONLY | _NO_WAIT)
        try:
            _core.os_sync(fd, data_only=False)
        finally:
            os.close(fd)


@contextlib.contextmanager
def opened_dir(path: str) -> Iterator[str]:
    """Yield a name that leads to a directory even if it is renamed or removed.

    Without a usable `/proc`, that is its path.
    """
    with naming(path):
        fd = _core.os_open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        name = f"/proc/self/fd/{fd}"
        yield name if os.path.isdir(name) else path
    finally:
        os.close(fd)


def fsync_dir(path: str) -> None:
    """Make the names in a directory durable."""
    with naming(path):
        fd = _core.os_open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _core.os_sync(fd, data_only=False)
        finally:
            os.close(fd)


def make_dir(path: str, *, durable: bool = True, mode: int | None = None) -> None:
    """Create a directory if it does not exist, and make its name durable.

    The name of an existing directory is made durable too, because the process that created it may
    have died before.

    Args:
        path: the directory.
        durable: whether the name must survive a power loss.
        mode: permissions; None uses those of a shared parent directory (`share`), or
            DIRECTORY_MODE.

    Raises:
        StorageError: if it cannot be created, or not with these permissions (`share`).
    """
    parent = os.path.dirname(path) or "."
    if mode is None and (inherited := shared_mode(parent)) != DIRECTORY_MODE:
        mode = inherited
    with naming(path), contextlib.suppress(FileExistsError):
        _core.os_mkdir(path, DIRECTORY_MODE)
        if mode is not None:
            try:
                share(path, mode)
            except StorageError:  # the next user would create private files in it
                os.rmdir(path)
                raise
    if durable:
        fsync_dir(parent)


def share(path: str, mode: int) -> None:
    """Set a directory's permissions. With permissions for others than the owner, it is shared.

    Files and directories created in a shared directory get its group and mode (files without x),
    whatever the umask. `os_table.c` recognises a shared directory by its setgid bit.

    Raises:
        StorageError: if the process does not own the directory, or is not in its group.
    """
    wanted = mode | (stat.S_ISGID if mode & 0o077 else 0)
    with naming(path):
        if stat.S_IMODE(os.stat(path).st_mode) == wanted:
            return
        os.chmod(path, wanted)
        found = os.stat(path)
    if stat.S_IMODE(found.st_mode) != wanted:
        raise StorageError(
            f"{path}: mode {mode:o} needs the setgid bit, but this process is not in the "
            f"directory's group {found.st_gid}; change the group (chgrp) to one of the process"
        )


def shared_mode(path: str) -> int:
    """Return the mode of a shared directory, which new files in it get, or DIRECTORY_MODE."""
    with naming(path):
        mode = stat.S_IMODE(os.stat(path).st_mode)
    return mode & 0o777 if mode & stat.S_ISGID and mode & 0o077 else DIRECTORY_MODE


def rename(source: str, target: str) -> None:
    """Rename a file within a directory. Durable after `fsync_dir` of the directory."""
    with naming(target):
        _core.os_rename(source, target)


def remove(path: str) -> None:
    """Remove a file, if it exists."""
    try:
        _core.os_unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise storage_error(error, path) from error


def remove_tree(path: str) -> None:
    """Remove a directory that no metadata refers to, ignoring errors.

    If it is a symbolic link, the link and the content of its directory are removed. The directory
    itself stays.
    """
    for folder, _, names_there in os.walk(path, topdown=False):
        for name in sorted(names_there):
            with contextlib.suppress(OSError):
                _core.os_unlink(os.path.join(folder, name))
        remove = _core.os_unlink if os.path.islink(folder) else _core.os_rmdir
        with contextlib.suppress(OSError):
            remove(folder)


def names(path: str) -> list[str]:
    """Return the names in a directory, sorted."""
    with naming(path):
        return sorted(os.listdir(path))


def _stat(path: str) -> os.stat_result:
    fd, name = opened_directory.below(path)
    if fd is not None:
        with contextlib.suppress(OSError):
            return os.stat(name, dir_fd=fd)
    return os.stat(path)  # raises an error that has the path


def status(path: str) -> os.stat_result | None:
    """Return the status of a file, or None if there is none.

    Raises:
        StorageError: if the disk fails (`os.path.exists` would return False).
    """
    try:
        return _stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error(error, path) from error


def size(path: str) -> int:
    """Return the size of a file in bytes.

    Raises:
        FileNotFoundError: if there is no such file.
        StorageError: if its size cannot be found out.
    """
    try:
        return _stat(path).st_size
    except FileNotFoundError as error:
        raise missing(error, path) from None
    except OSError as error:
        raise storage_error(error, path) from error


def exists(path: str) -> bool:
    """Whether there is a file or directory with that name."""
    return status(path) is not None


def is_dir(path: str) -> bool:
    """Whether there is a directory with that name."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


# --- faults ---------------------------------------------------------------------------------


def arm_failpoint(name: str, action: str, nth: int = 1) -> None:
    """Arm an action at the nth next pass of a named point or OS call.

    Args:
        name: a failpoint, or an OS call (`pwrite`, `fdatasync`, ...), or `point` (nth is its id).
        action: `kill`, `stop`, `interrupt` (as Ctrl-C) and `trip` (these two not for calls),
            `kill-after`, `short` (for calls only), or an errno name such as `EIO`. `ACTION@FILE`
            acts at every pass at which FILE exists, and renames it to FILE.PID.
        nth: 1 is the next pass.
    """
    if name in _core.FAULT_CALLS:
        code = _CALL_ACTIONS.get(action)
        _core.arm_fault(name, nth, getattr(errno, action) if code is None else code)
    else:
        _armed[name] = [""] * (nth - 1) + [action]


def disarm_failpoints() -> None:
    """Disarm every fault."""
    _armed.clear()
    _passed.clear()
    _core.disarm_faults()


def failpoint(name: str) -> bool:
    """Mark a named step between two durable ones. Does nothing unless a test has armed it.

    Args:
        name: the name of the point.

    Returns:
        True if the armed action is `trip`, so that the caller must cause the fault itself.
    """
    if not _armed:
        return False
    if name not in _armed:
        _passed[name] = None
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
    """Whether a test has created this file, and this process is the first to take it."""
    try:
        os.rename(path, f"{path}.{os.getpid()}")
    except FileNotFoundError:
        return False
    return True


def passed_failpoints() -> list[str]:
    """Return the points that this process passed while another one was armed."""
    return list(_passed)


def failpoints_armed() -> bool:
    """Whether failpoints are armed in this process, or by its environment."""
    return bool(_armed or os.environ.get(_VARIABLE))


def _arm_from_environment() -> None:
    """Arm the faults that the environment variable names.

    Raises:
        ConfigError: if an item does not have the accepted form.
    """
    items = os.environ.get(_VARIABLE, "")
    if items:
        logger.warning("%s=%s: failpoints armed, failing at these points", _VARIABLE, items)
    for item in filter(None, items.split(",")):
        where, _, action = item.partition("=")
        name, colon, nth = where.partition(":")
        action = action or "kill"
        if not name or not _is_action(name, action) or (colon and not _is_count(nth)):
            actions = ", ".join(_CALL_ACTIONS if name in _core.FAULT_CALLS else _POINT_ACTIONS)
            raise ConfigError(
                f"{_VARIABLE}={items}: item {item!r} must have the form NAME[:NTH][=ACTION], with "
                f"NTH an integer of at least 1, and ACTION one of {actions} or an errno name such "
                "as EIO; correct the variable or unset it"
            )
        arm_failpoint(name, action, int(nth or 1))


def _is_action(name: str, action: str) -> bool:
    if name in _core.FAULT_CALLS:
        return action in _CALL_ACTIONS or action in errno.errorcode.values()
    action = action.partition("@")[0]
    return action in _POINT_ACTIONS or action in errno.errorcode.values()


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


_arm_from_environment()
