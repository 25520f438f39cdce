"""The lock of a running Kafka broker on its log directories.

A broker holds an exclusive lock on `.lock` in each of its log directories while it runs (Java's
FileLock: a POSIX record lock over the file). Readers only query the lock, so that they never block
the start of a broker. A process that repairs or adopts the directory holds the lock itself.

Source: Kafka FileLock, LogManager.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from eoslog.errors import LockTimeout

__all__ = ["hold", "holder", "refuse"]

LOCK_FILE = ".lock"
_FLOCK = struct.Struct("hhqqi4x")  # struct flock on Linux: type, whence, start, len, pid


def holder(directory: str) -> int | None:
    """Return the pid that holds a directory's `.lock`; 0 if unknown, None if it is free."""
    try:
        fd = os.open(os.path.join(directory, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else max(int(pid), 0)


def refuse(path: str) -> None:
    """Raise LockTimeout if a broker is running on a log directory.

    Args:
        path: the log directory, a partition directory in it, or a file of either.
    """
    place = os.path.abspath(path)
    for _ in range(3):
        if os.path.isdir(place):
            pid = holder(place)
            if pid is not None:
                by = f" (process {pid})" if pid else ""
                raise LockTimeout(
                    f"{os.path.join(place, LOCK_FILE)} is held: a broker{by} is running on this "
                    "directory; stop the broker, or read anyway with --read-only-anyway "
                    "(read_only_anyway=True)"
                )
        place = os.path.dirname(place)


@contextmanager
def hold(directory: str) -> Iterator[None]:
    """Hold the broker's lock of a log directory, so that no broker starts on it.

    If the directory cannot be written, or never had a broker, the lock is only queried.

    Raises:
        LockTimeout: if a broker is running on the directory.
    """
    refuse(directory)
    try:
        fd = os.open(os.path.join(directory, LOCK_FILE), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            refuse(directory)
            raise LockTimeout(
                f"{os.path.join(directory, LOCK_FILE)} is held by another process; retry when it "
                "has ended"
            ) from None
        yield
    finally:
        os.close(fd)
